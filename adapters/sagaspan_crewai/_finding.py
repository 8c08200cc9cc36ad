"""What a crew, an agent or a flow has before it starts: its tools, its models, and where it gets others as it goes.

Wrapping does not depend on all of it: whatever an agent calls within a guarded kickoff is guarded. It is for what must
be known before: which names of policies fit, what code of a flow may call by itself, and ``guard.coverage``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Final

from sagaspan import Coverage
from sagaspan.adapters import PolicyBook
from sagaspan_crewai import _compat
from sagaspan_crewai._toolbox import aliases_of

_log: Final = logging.getLogger("sagaspan")
_MADE_LATER: Final = "If a tool of that name is made later, give the nearest tool an entry of its own as well"
_MODELS: Final = ("llm", "manager_llm", "planning_llm", "chat_llm")
_GETS: Final = {
    "mcps": "gets tools of MCP servers when it starts: guarded, by names that are not known yet",
    "apps": "gets tools of apps when it starts: guarded, by names that are not known yet",
}
_MOST_FUNCTIONS: Final = 3
"""How deep functions of a flow that call functions are read."""


@dataclass(slots=True)
class Found:
    """What was found: tools, models, what gets tools later (``open``), and what nobody sees into (``opaque``)."""

    tools: list[Any] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)
    open: dict[str, None] = field(default_factory=dict)
    opaque: dict[str, None] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)

    def coverage(self) -> Coverage:
        """As users see it."""
        return Coverage(
            tools=tuple(sorted({_compat.canonical(tool.name) for tool in self.tools})),
            models=tuple(sorted({str(getattr(model, "model", type(model).__name__)) for model in self.models})),
            opaque=(*self.open, *self.opaque),
        )

    def read(self, target: Any, depth: int = 0) -> None:
        """Find what ``target`` has."""
        if target is None or id(target) in self._seen or depth > _MOST_FUNCTIONS:
            return
        self._seen[id(target)] = target  # kept, so that no other object has its id meanwhile
        kinds = (
            (_compat.BaseTool, self.tools.append),
            (_compat.BaseLLM, self.models.append),
            (_compat.MEMORIES, self._read_memory),
            (_compat.Crew, self._read_crew),
            (_compat.Agent, self._read_agent),
            (_compat.BaseAgent, self._read_other),
            (_compat.Flow, self._read_flow),
            (list | tuple, lambda several: self._read_all(several, depth)),
            (FunctionType, lambda function: self._read_all(_held_by(function), depth + 1)),
        )
        reads = next((read for kind, read in kinds if isinstance(target, kind)), None)
        if reads is not None:
            reads(target)

    def _read_all(self, several: Iterable[Any], depth: int) -> None:
        for each in several:
            self.read(each, depth)

    def _read_crew(self, crew: Any) -> None:
        self._read_models(crew)
        for agent in (*crew.agents, crew.manager_agent):
            self.read(agent)
        for task in crew.tasks:
            self.read(task.tools)
            self.read(task.agent)

    def _read_agent(self, agent: Any) -> None:
        self._read_models(agent)
        self.read(agent.tools)
        for name, what in _GETS.items():
            if getattr(agent, name, None):
                self.open[f"the agent {agent.role!r} {what}"] = None

    def _read_other(self, agent: Any) -> None:
        self.opaque[f"the agent {agent.role!r}: a {type(agent).__name__}, which works in a framework of its own"] = None

    def _read_models(self, owner: Any) -> None:
        for name in _MODELS:
            self.read(getattr(owner, name, None))
        self.read(vars(owner).get("function_calling_llm"))  # to ask for it would warn: it is deprecated
        self.read(getattr(getattr(owner, "planning_config", None), "llm", None))
        self.read(getattr(owner, "memory", None))

    def _read_memory(self, memory: Any) -> None:
        self.read(_compat.model_of_memory(memory))

    def _read_flow(self, flow: Any) -> None:
        self.open[
            f"the flow {type(flow).__name__!r} makes what it likes as it goes: guarded once an agent calls it"
        ] = None
        for each in vars(flow).values():
            self.read(each)
        for base in type(flow).__mro__:
            if not _is_of_crewai(base):
                for member in vars(base).values():
                    self.read(_compat.model_of_feedback(member))
                    self.read(inspect.unwrap(member) if callable(member) else member)


def found_in(target: Any) -> Found:
    """What ``target`` has."""
    found = Found()
    found.read(target)
    return found


def refuse_unknown(book: PolicyBook, found: Found, where: str) -> None:
    """Raise ``ConfigurationError`` for a policy of a tool that ``where`` does not have, as far as that is known.

    Where tools are made later, only a name that is nearly one of its tools' is refused; others are named in the log.
    """
    names = [alias for tool in found.tools for alias in aliases_of(tool)]
    if not found.open:
        book.check_names(names, where=where)
        return
    for name in book.check_misspelt(names, where=where, remedy=_MADE_LATER):
        _log.warning(
            "%s names the tool %r, which %s does not have yet: it is for one made later", book.source, name, where
        )


def _is_of_crewai(what: Any) -> bool:
    return str(what.__module__).partition(".")[0] == "crewai"


def _held_by(function: FunctionType) -> Iterator[Any]:
    """The objects that the code of ``function`` names: globals, and what it closes over; none for code of CrewAI's."""
    if _is_of_crewai(function):
        return
    for name in {name for code in _codes(function.__code__) for name in code.co_names}:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
