"""The tools that a guard knows: by name, and what undoes, probes and sends their calls, also recorded ones.

A call is undone and sent with the very functions it was made with, while this process has them; after that by name.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeVar

from sagaspan._call import Result
from sagaspan._compensation import Compensation, compensation_of, same_handler
from sagaspan._names import misspelt
from sagaspan._policy_in_force import PolicyInForce
from sagaspan._probe import Probe
from sagaspan._tool import Reads, Tool, check_handlers, expectation
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.encryption import hides, is_locked
from sagaspan.ledger.records import CallRecord, CallState, Phase
from sagaspan.ledger.seal import Seal
from sagaspan.redaction import Redaction

_log = logging.getLogger("sagaspan")
REMEMBERED: Final = 10_000
"""How many of the latest calls keep hold of the functions they were made with."""

T = TypeVar("T")


class KnownTools:
    """What was declared under one guard."""

    def __init__(self, namespace: str, in_force: PolicyInForce) -> None:
        self._namespace = namespace
        self._in_force = in_force
        self.tools: dict[str, Tool] = {}
        self.defined: weakref.WeakSet[Tool] = weakref.WeakSet()
        self.unresolved: set[Tool] = set()
        self._wrapped: weakref.WeakKeyDictionary[Tool, object] = weakref.WeakKeyDictionary()
        # None: two of that name undo different things, so only the run that made a call knows which is meant.
        self._compensations: dict[tuple[str, str], Compensation | None] = {}
        self._made_with: dict[str, Compensation] = {}
        self._probes: dict[str, Probe] = {}
        self._deferred: dict[tuple[str, bool], Tool | None] = {}
        self._scheduled_with: dict[str, Tool] = {}
        self._redacting: dict[str, Redaction] = {}
        self._seal: Seal

    def work_on(self, seal: Seal) -> None:
        """Let ``seal`` take out what is redacted of these tools, and of those that come."""
        self._seal = seal
        for name, redaction in self._redacting.items():
            seal.redact(self._namespace, name, redaction)

    def register(self, tool: Tool) -> None:
        """Know ``tool`` by name; raises ``ConfigurationError`` if another function has it already."""
        known = self.tools.get(tool.name)
        if known is not None and not _same_function(known.function, tool.function):
            raise ConfigurationError(
                f"the tool name {tool.name!r} is taken by {_described(known.function)}; give "
                f"{_described(tool.function)} "
                f"another: guard.tool('NAME', ...)"
            )
        self._in_force.check(tool)
        self.tools[tool.name] = tool
        self.prepare(tool)

    def prepare(self, tool: Tool) -> None:
        """Remember what undoes and what probes calls of ``tool``, and what sends them if they are deferred.

        A compensation named by a string is looked up before the next body runs. Raises ``ConfigurationError``.
        """
        self._in_force.check(tool)
        self.defined.add(tool)
        self.learn(tool)

    def learn(self, tool: Tool) -> None:
        """As ``prepare``, for a tool that was checked."""
        if tool.redaction is not None:
            self._seal.redact(self._namespace, tool.name, tool.redaction)
            self._redacting[tool.name] = tool.redaction.beside(self._redacting.get(tool.name))
        if tool.policy.defer:
            known = self._deferred.get((tool.name, tool.is_async), tool)
            same = known is not None and known.is_same(tool)
            self._deferred[tool.name, tool.is_async] = tool if same else None
        if tool.probe is not None:
            self._probes[tool.name] = tool.probe
        if tool.compensation is not None:
            self._know(tool.name, tool.compensation)
        elif tool.policy.compensate is not None:
            self.unresolved.add(tool)

    def reads_of(self, name: str) -> Reads | None:
        """The schema by which the tool of this name reads its arguments; None if it has none, or two are called so."""
        found = {tool.reads for tool in list(self.defined) if tool.name == name}
        return found.pop() if len(found) == 1 else None

    def parameters_of(self, tools: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...] | None]:
        """What the tools of these names take; None for one that is not there any more."""
        return {**dict.fromkeys(tools), **{tool.known_as: tool.parameters for tool in list(self.defined)}}

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Forget what was declared within if it fails: half a wrapped agent must not get in the way of another.

        Raises ``ConfigurationError`` for a compensation whose name is nearly that of a tool.
        """
        before = dict(self.tools), set(self.unresolved), dict(self._compensations), dict(self._deferred)
        defined = set(self.defined)
        try:
            yield
            wrap = object()
            self._wrapped.update(dict.fromkeys(set(self.defined) - defined, wrap))
            for tool in self.unresolved - before[1]:
                self._refuse_misspelt(tool)
        except BaseException:
            self.tools, self.unresolved, self._compensations, self._deferred = before
            raise

    def _know(self, tool: str, compensation: Compensation) -> None:
        """Know a compensation by name; of two that are bound to different things neither is known any more."""
        known = self._compensations.get((tool, compensation.name), compensation)
        same = known is not None and all(map(same_handler, (known, known.expect), (compensation, compensation.expect)))
        self._compensations[tool, compensation.name] = compensation if same else None

    def compensation_for(self, tool: Tool) -> Compensation | None:
        """The compensation of ``tool``."""
        if tool.compensation is not None or tool.policy.compensate is None:
            return tool.compensation
        return self._compensations[tool.name, str(tool.policy.compensate)]

    def find_compensation(self, call: CallRecord) -> Compensation | None:
        """The compensation registered for a recorded call, or None."""
        for tool in [tool for tool in self.unresolved if tool.name == call.tool]:
            try:
                self._resolve(tool)
            except ConfigurationError as error:
                _log.warning("%s", error)
        found = self._made_with.get(call.id) or self._compensations.get((call.tool, call.compensate or ""))
        # What was to be asked before it is undone is not left out, because somebody took that away since.
        if found is None or (call.expect is not None and found.expect is None):
            return None
        # Nor is it undone with ciphertext: it waits for a process that has the codec.
        hidden = hides(call, found) or (found.expect is not None and hides(call, found.expect))
        return None if hidden else found

    def find_deferred(self, call: CallRecord) -> Tool | None:
        """The tool that sends a recorded call, or None; also if what was recorded of it cannot be read here."""
        if is_locked(call.arguments):
            return None
        same_name = (self._deferred.get((call.tool, is_async)) for is_async in (False, True))
        return self._scheduled_with.get(call.id) or next((tool for tool in same_name if tool is not None), None)

    def remember(self, tool: Tool, result: Result) -> None:
        """A call is undone and sent with the very functions it was made with, whatever has their names since."""
        if tool.policy.compensate is not None and (compensation := self.compensation_for(tool)) is not None:
            _keep(self._made_with, result.record.id, compensation)
        if result.state is CallState.SCHEDULED:
            _keep(self._scheduled_with, result.record.id, tool)

    def find_probe(self, call: CallRecord) -> Probe | None:
        """The probe registered for a recorded call, or None; also if it asks for what cannot be read here."""
        found = self._probes.get(call.tool) if call.phase is Phase.FORWARD else None
        return None if found is None or hides(call, found, about=()) else found

    def resolve_names(self, called: Tool) -> None:
        """Look up the compensations named by strings of ``called`` and of what was wrapped with it.

        Raises ``ConfigurationError``, before any of their bodies has run.
        """
        wrap = self._wrapped.get(called, called)
        for tool in [tool for tool in self.unresolved if tool is called or self._wrapped.get(tool) is wrap]:
            self._resolve(tool)

    def _resolve(self, tool: Tool) -> None:
        name, where = str(tool.policy.compensate), f"tool {tool.name!r}"
        undo = self._find(name)
        if undo is None:
            raise self._no_compensation(tool, self._names())
        compensation = compensation_of(
            undo.function, tool.parameters, where=where, name=name, empty_safe=tool.policy.empty_safe,
            expect=expectation(tool.policy), timeout=undo.policy.timeout,
        )  # fmt: skip
        if tool.redaction is not None:
            check_handlers(tool.redaction, compensation, None, where)
        self._know(tool.name, compensation)
        self.unresolved.discard(tool)

    def _find(self, name: str) -> Tool | None:
        found = (tool for tool in self.tools.values() if name in tool.known_as)
        return self.tools.get(name) or next(found, None)

    def _names(self) -> set[str]:
        return {name for tool in list(self.defined) for name in tool.known_as}

    def _refuse_misspelt(self, tool: Tool) -> None:
        """Refuse a compensation that no tool has and one nearly has; another name may be declared after the wrap."""
        name = str(tool.policy.compensate)
        if self._find(name) is None and (near := misspelt(name, self._names() - {*tool.known_as})):
            raise self._no_compensation(tool, near)

    def _no_compensation(self, tool: Tool, names: Iterable[str]) -> ConfigurationError:
        name = str(tool.policy.compensate)
        near = difflib.get_close_matches(name, sorted({*names} - {*tool.known_as}), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "register it with @guard.tool"
        return ConfigurationError(f"tool {tool.name!r}: there is no tool {name!r} to compensate it; {hint}")

    def counts_in_loops(self, tool: str, otherwise: int | Literal[False]) -> bool:
        """Whether calls of ``tool`` that bring the same again are steps of a loop."""
        policies = (known.policy for known in self.defined if known.name == tool)
        said = next((policy.loop for policy in policies if policy.loop is not None), otherwise)
        return said is not False


def _keep(memory: dict[str, T], call_id: str, thing: T) -> None:
    """Remember ``thing`` for the latest calls."""
    memory[call_id] = thing
    while len(memory) > REMEMBERED:
        memory.pop(next(iter(memory)), None)


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions are the same definition (a module may be imported or a factory called twice)."""
    return one is other or _described(one) == _described(other)


def _described(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}"
