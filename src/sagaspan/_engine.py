"""The machinery behind a guard: its store, its tools, its onion, and the making of a call."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import secrets
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from opentelemetry.trace import Span, TracerProvider, get_current_span

from sagaspan import _fork as fork
from sagaspan import _live as live
from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._backends import SYNC, Backend, run_sync
from sagaspan._call import Call, Result
from sagaspan._clock import new_id, now_us
from sagaspan._compensation import Compensation, compensation_of, name_of, same_callable, same_handler
from sagaspan._context import approver_here, check_may_start, current_call, current_run, remark
from sagaspan._defaults import Defaults
from sagaspan._middleware import Middleware, compose, users_layers
from sagaspan._notifier import Notifier
from sagaspan._policy_file import PolicyFile
from sagaspan._policy_watch import PolicyWatch
from sagaspan._probe import Probe
from sagaspan._question import Asking, Question, asked
from sagaspan._signals import Signals
from sagaspan._spans import error_message, tracer_of
from sagaspan._told import remember_call
from sagaspan._tool import Tool, check_handlers, expectation, redefined
from sagaspan.approvers import Approver, Inbox
from sagaspan.budget import Budget
from sagaspan.exceptions import (
    ApprovalPending,
    ConfigurationError,
    PolicyDenied,
    SagaspanError,
    StoreError,
    StoreUnavailable,
)
from sagaspan.keys import (
    BUSINESS_SCOPE,
    CallKey,
    KeySource,
    canonical,
    fingerprint,
    idempotency_key,
    run_scope,
    sent_scope,
)
from sagaspan.ledger import transitions
from sagaspan.ledger.approvals import subject_of
from sagaspan.ledger.desk import Desk
from sagaspan.ledger.encryption import hides, is_locked
from sagaspan.ledger.fail_open import FailOpen, Outage, may_run_unrecorded, unrecorded
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.ledger import Ledger
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.records import (
    SESSION,
    ApprovalRecord,
    AuditRow,
    CallRecord,
    CallState,
    Phase,
    RunRecord,
    RunState,
    UsageTotals,
    call_info,
)
from sagaspan.ledger.stale_policies import take_back, tell
from sagaspan.ledger.store import NoteChange, RunChange, Store
from sagaspan.ledger.transitions import RunEvent
from sagaspan.loops import ALLOWED
from sagaspan.middleware.approval import ApprovalMiddleware, EditsMiddleware, UnaskedMiddleware
from sagaspan.middleware.budget import BudgetMiddleware
from sagaspan.middleware.loop import LoopMiddleware
from sagaspan.middleware.replay import ReplayMiddleware
from sagaspan.middleware.rules import RulesMiddleware
from sagaspan.middleware.saga import SagaMiddleware
from sagaspan.middleware.telemetry import TelemetryMiddleware
from sagaspan.notify import Notify
from sagaspan.redaction import Redaction, leaves
from sagaspan.rules import Ruling
from sagaspan.scopes import BudgetBook

if TYPE_CHECKING:
    from sagaspan._run import Run

_log = logging.getLogger("sagaspan")
REMEMBERED: Final = 10_000
"""How many of the latest calls keep hold of the functions they were made with."""

T = TypeVar("T")
Equal = tuple[tuple[str, str, str | None], int]
"""Which of the equal calls of a run one is."""
Invoke = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a framework's call comes from, for its span and record; ``asked`` notes which call of its run it was.

    ``branch``: which of those that run side by side, where equal calls of several are no loop.
    """

    tool_call_id: str | None = None
    agent: str | None = None
    asked: list[Equal] | None = None
    branch: str | None = None


_NOWHERE: Final = Origin()
_NOTHING_HELD: Final = contextlib.nullcontext()


class Engine:
    """Makes calls of tools and sends them through the onion."""

    def __init__(
        self,
        store: Store,
        *,
        namespace: str,
        middleware: Sequence[Middleware],
        tracer_provider: TracerProvider | None,
        require_run: bool,
        fail_open: bool = False,
        observe: bool = False,
        budgets: BudgetBook | None = None,
        budget: tuple[Budget, ...] = (),
        loop: int | Literal[False] = ALLOWED,
        codec: codecs.Codec | None = None,
        approver: Approver | None = None,
        hooks: Sequence[Notify] = (),
        policy: PolicyFile | None = None,
    ) -> None:
        self.policy = policy
        self._before: PolicyFile | None = None
        self.watch: PolicyWatch | None = None
        self._redefined: weakref.WeakKeyDictionary[Tool, Tool] = weakref.WeakKeyDictionary()
        self._fail_open = fail_open
        self._observe = observe
        self.codec = codec
        self.approver = approver
        self._hooks = tuple(hooks)
        self.approver_is_overridden = False
        self.namespace = namespace
        self.tracer = tracer_of(tracer_provider)
        self.tools: dict[str, Tool] = {}
        self.defined: weakref.WeakSet[Tool] = weakref.WeakSet()
        self.open_runs = 0
        self._require_run = require_run
        self._budgets = budgets or BudgetBook(None)
        self.budget = budget
        self.loop = loop
        self.made_run: Callable[[], Run | None] = lambda: None
        self.at_first_end: Callable[[], None] | None = None
        self._unresolved: set[Tool] = set()
        # None: two of that name undo different things, so only the run that made a call knows which is meant.
        self._compensations: dict[tuple[str, str], Compensation | None] = {}
        self._made_with: dict[str, Compensation] = {}
        self._probes: dict[str, Probe] = {}
        self._deferred: dict[tuple[str, bool], Tool | None] = {}
        self._scheduled_with: dict[str, Tool] = {}
        self._lock = fork.new_lock()
        self._warned: set[str] = set()
        self._unsaid: set[str] = set()
        self._redacting: dict[str, Redaction] = {}
        self._middleware = users_layers(middleware)
        self._innermost: tuple[Middleware, ...] = ()
        self.signals = Signals()
        self._work_on(store)

    def _work_on(self, store: Store) -> None:
        self.store = store
        self.outage = Outage() if self._fail_open else None
        self.judge = Judge(store)
        self.lease = Lease(store)
        self.limits = Limits(store, self.namespace, self._budgets, of_every_run=self.budget)
        self.limits.observes = self._observe
        self._ledger = Ledger(
            store, judge=self.judge, lease=self.lease, find_probe=self.find_probe, limits=self.limits,
            is_about=self._is_about, tracer=self.tracer,
        )  # fmt: skip
        self.lease.forked.append(self._begin_again)
        hooks, fresh = self._hooks, self.lease.fresh
        self.notifier = Notifier(store, self.namespace, hooks, unannounced=fresh) if hooks else None
        if self.notifier is not None:
            self.lease.began = self.notifier.begin
            self.limits.marks_soft = True
        self._session: RunRecord | None = None
        if self.codec is not None:
            store.seal.encrypt(self.namespace, self.codec)
        for name, redaction in self._redacting.items():
            store.seal.redact(self.namespace, name, redaction)
        self._fold()

    def _fold(self) -> None:
        endpoint = self._ledger if self.outage is None else FailOpen(self._ledger, self.outage, self.limits)
        layers: list[Middleware] = [
            TelemetryMiddleware(self.tracer),
            *self._middleware,
            EditsMiddleware(),
            *self._by_rules(endpoint.serve),
            LoopMiddleware(endpoint.serve, self._keep_of_loop, self.loop, observes=self._observe),
            ReplayMiddleware(endpoint.serve),
            BudgetMiddleware(),
            UnaskedMiddleware()
            if self._observe
            else ApprovalMiddleware(
                Desk(self.store, self.digest, self.approver), endpoint.serve, self._plain_of, self.limits.look
            ),
            SagaMiddleware(self.compensation_for, self.lock_names),
            *self._innermost,
        ]
        self._onion = compose(layers, endpoint)
        desk = Desk(self.store, self.digest, Inbox())
        asking = Asking(self.store, desk, self.digest, endpoint.serve, self._plain_of)
        self._asking = compose([EditsMiddleware(), *self._by_rules(endpoint.serve)], asking)
        # What a deferred call asks of the layers it was asked when it was scheduled.
        self._sending = compose([TelemetryMiddleware(self.tracer), *self._innermost], self._ledger.send)

    def _by_rules(self, serve: Callable[[Call], Awaitable[Result | None]]) -> list[Middleware]:
        """The layer of the policy file's rules, if there is such a file."""
        return (
            []
            if self.policy is None
            else [
                RulesMiddleware(
                    self._file_of, self._is_stale, serve, self._spent_so_far, self._note_denial, observes=self._observe
                )
            ]
        )

    def _is_stale(self) -> bool:
        return self.watch is not None and self.watch.problem is not None

    def _note_denial(self, call: Call, ruling: Ruling) -> None:
        """A call that a rule refuses has no record; the audit trail of its run says so. The refusal stands anyway."""
        says = "" if ruling.rule is None else ruling.rule.says
        row = AuditRow(
            at_us=now_us(), namespace=self.namespace, run_id=call.run.id, call_id=None, event="policy.deny",
            from_state=None, to_state=CallState.REFUSED, actor=owner.this_process(), digest=call.policy,
            detail=f"{call.tool.name} {call.key.fingerprint} policy {call.policy}: {says}",
        )  # fmt: skip
        try:
            self.store.commit([NoteChange(row)], synced=False)
        except StoreError as error:
            _log.warning("that a rule refused tool %r is not on record: %s", call.tool.name, error)

    def _keep_of_loop(self, call: Call, again: CallRecord | None) -> None:
        """Put on record that a call was answered ``again``, or (None) refused; the answer or refusal stands anyway."""
        signals, run = call.signals, call.run
        if signals is self.signals or not run.on_record:  # a session is of this process alone
            signals.refusals += again is None
            return
        with signals.lock:
            try:
                while not signals.keep(self.store, run, None if again is None else (now_us(), again.id)):
                    pass
            except StoreError as error:
                signals.refusals += again is None
                _log.warning("what run %r repeats is not on record: %s", run.id, error)

    def counts_in_loops(self, tool: str) -> bool:
        """Whether calls of ``tool`` that bring the same again are steps of a loop."""
        policies = (known.policy for known in self.defined if known.name == tool)
        said = next((policy.loop for policy in policies if policy.loop is not None), self.loop)
        return said is not False

    def note_policy(self, file: PolicyFile, problem: str | None) -> None:
        """That an older content of the policy file is in force is for people to see who are not in this process."""
        try:
            if problem is None:
                take_back(self.store, self.namespace, file.path)
            else:
                tell(self.store, self.namespace, file.path, file.version, problem)
        except StoreError as error:
            _log.warning("that the policy file %s is not in force is not on record: %s", file.path, error)

    def _spent_so_far(self, call: Call) -> UsageTotals:
        return next(iter(self.store.usage_of(self.namespace, {"run": call.run.id})), UsageTotals())

    @property
    def span_here(self) -> Span:
        """The current span: the parent of what is undone outside of its run's block."""
        return get_current_span()

    # -- tools -----------------------------------------------------------------------------------------------

    def register(self, tool: Tool) -> None:
        """Know ``tool`` by name; raises ``ConfigurationError`` if another function has it already."""
        known = self.tools.get(tool.name)
        if known is not None and not _same_function(known.function, tool.function):
            raise ConfigurationError(
                f"the tool name {tool.name!r} is taken by {_described(known.function)}; give "
                f"{_described(tool.function)} "
                f"another: guard.tool('NAME', ...)"
            )
        self._check_rules(tool)
        self.tools[tool.name] = tool
        self.prepare(tool)

    def prepare(self, tool: Tool) -> None:
        """Remember what undoes and what probes calls of ``tool``, and what sends them if they are deferred.

        A compensation named by a string is looked up before the next body runs. Raises ``ConfigurationError``.
        """
        self._check_rules(tool)
        self.defined.add(tool)
        self._learn(tool)

    def _learn(self, tool: Tool) -> None:
        if tool.redaction is not None:
            self.store.seal.redact(self.namespace, tool.name, tool.redaction)
            self._redacting[tool.name] = tool.redaction.beside(self._redacting.get(tool.name))
        if tool.policy.defer:
            known = self._deferred.get((tool.name, tool.is_async), tool)
            same = known is not None and same_callable(known.function, tool.function)
            self._deferred[tool.name, tool.is_async] = tool if same else None
        if tool.probe is not None:
            self._probes[tool.name] = tool.probe
        if tool.compensation is not None:
            self._know(tool.name, tool.compensation)
        elif tool.policy.compensate is not None:
            self._unresolved.add(tool)

    def _check_rules(self, tool: Tool) -> None:
        if self.policy is not None:
            self.policy.rules.check(tool.name, tool.parameters, tool.policy.approval)

    def parameters_of(self, names: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
        """What the tools of these names take; None for one that is not there any more."""
        return {**dict.fromkeys(names), **{tool.name: tool.parameters for tool in list(self.defined)}}

    def look_at_file(self) -> None:
        """Go by what the policy file says now, if it is time to look."""
        if self.watch is not None and self.watch.is_due:
            self.watch.look()

    async def _as_now(self, tool: Tool, backend: Backend) -> Tool:
        """``tool`` as the policy file has it now."""
        if self.watch is not None and self.watch.is_due:
            await backend.io(self.watch.look)
        return self._redefined.get(tool, tool)

    def adopt(self, file: PolicyFile, defaults: Defaults, budgets: BudgetBook) -> None:
        """Go by another content of the policy file from the next call on.

        Raises ``ConfigurationError`` if it does not fit a tool that is known here, and changes nothing then.
        """
        tools = {tool: redefined(tool, file.tools) for tool in list(self.defined)}
        for before, tool in tools.items():
            self._check_adoptable(before, tool, file)
        for before, tool in tools.items():
            if tool is not before:
                self._learn(tool)
            if self.tools.get(tool.name) in (before, self._redefined.get(before)):
                self.tools[tool.name] = tool
        if defaults.fail_open != self._fail_open:
            self._fail_open, self.outage = defaults.fail_open, Outage() if defaults.fail_open else None
        self.budget, self.loop, self._budgets = defaults.budget, defaults.loop, budgets
        self.limits.declare(budgets, defaults.budget)
        self._observe = self.limits.observes = defaults.mode == "observe"
        self._redefined = weakref.WeakKeyDictionary(
            {before: tool for before, tool in tools.items() if tool is not before}
        )
        self._before, self.policy = self.policy, file
        self._fold()

    def _check_adoptable(self, before: Tool, tool: Tool, file: PolicyFile) -> None:
        file.rules.check(tool.name, tool.parameters, tool.policy.approval)
        undo = tool.policy.compensate
        if isinstance(undo, str) and undo != before.policy.compensate and undo not in self.tools:
            raise ConfigurationError(f"{file.path}: tool {tool.name!r}: there is no tool {undo!r} to compensate it")
        if tool.policy.defer != before.policy.defer:
            raise ConfigurationError(
                f"{file.path}: tool {tool.name!r}: defer= is not changed while agents run; start this process again"
            )

    def _file_of(self, version: str | None) -> PolicyFile | None:
        """The policy file of this version, for a call that began while another was put in force; else the newest."""
        before = self._before
        return before if before is not None and before.version == version else self.policy

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Forget what was declared within if it fails: half a wrapped agent must not get in the way of another."""
        before = dict(self.tools), set(self._unresolved), dict(self._compensations), dict(self._deferred)
        try:
            yield
        except BaseException:
            self.tools, self._unresolved, self._compensations, self._deferred = before
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
        if self._unresolved:
            try:
                self._resolve_names()
            except ConfigurationError as error:  # of another tool: what can be undone still is
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

    def _remember(self, tool: Tool, result: Result) -> None:
        """A call is undone and sent with the very functions it was made with, whatever has their names since."""
        if tool.policy.compensate is not None and (compensation := self.compensation_for(tool)) is not None:
            _keep(self._made_with, result.record.id, compensation)
        if result.state is CallState.SCHEDULED:
            _keep(self._scheduled_with, result.record.id, tool)

    def find_probe(self, call: CallRecord) -> Probe | None:
        """The probe registered for a recorded call, or None; also if it asks for what cannot be read here."""
        found = self._probes.get(call.tool) if call.phase is Phase.FORWARD else None
        return None if found is None or hides(call, found, about=()) else found

    async def resolve_in_doubt(self, call: CallRecord, backend: Backend) -> CallRecord:
        """Ask what can find out about a recorded call; returns it as it is then, decided or still in doubt.

        One whose owner is dead or expired is in doubt from here on; one that runs or is settled is left as it is.
        """
        return await self._ledger.resolve(call, self.find_probe(call), backend)

    def _resolve_names(self) -> None:
        """Look up every compensation named by a string; raises ``ConfigurationError``, before any body has run."""
        for tool in list(self._unresolved):
            name = str(tool.policy.compensate)
            undo = self.tools.get(name)
            if undo is None:
                near = difflib.get_close_matches(name, list(self.tools), n=3)
                hint = f"did you mean {', '.join(near)}?" if near else "register it with @guard.tool"
                raise ConfigurationError(f"tool {tool.name!r}: there is no tool {name!r} to compensate it; {hint}")
            where = f"tool {tool.name!r}"
            compensation = compensation_of(
                undo.function, tool.parameters, where=where, name=name, empty_safe=tool.policy.empty_safe,
                expect=expectation(tool.policy), timeout=undo.policy.timeout,
            )  # fmt: skip
            if tool.redaction is not None:
                check_handlers(tool.redaction, compensation, None, where)
            self._know(tool.name, compensation)
            self._unresolved.discard(tool)

    # -- calls -----------------------------------------------------------------------------------------------

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        context: Mapping[str, Any],
        invoke: Invoke,
        backend: Backend,
        origin: Origin = _NOWHERE,
    ) -> Any:
        """Send one call through the onion; returns what the caller of the tool gets, or raises it."""
        if self.watch is not None:
            tool = await self._as_now(tool, backend)
        if self._unresolved:
            self._resolve_names()
        if self.codec is not None:
            await self.prove_codec(backend)
        run = self.run_in_force(backend, tool)
        if run is None:
            if tool.policy.defer:
                raise PolicyDenied(
                    f"tool {tool.name!r} is deferred until its run completes, and was called outside a run, where "
                    "nothing completes; use with guard.run(...)"
                )
            call = self._make(tool, arguments, context, invoke, backend, origin, None)
            with live.held(call.secrets) if call.secrets else _NOTHING_HELD:
                return self._deliver(tool, None, await self._onion(call))
        run.in_flight.begins(f"tool {tool.name!r} did not run")
        try:
            call = self._make(tool, arguments, context, invoke, backend, origin, run)
            run.keep_secret(call.secrets)
            return self._deliver(tool, run, await self._call_in(run, call))
        except ApprovalPending as pending:
            run.waits_for(pending.approval_id)
            raise
        finally:
            run.in_flight.ended()

    async def _call_in(self, run: Run, call: Call) -> Result:
        """Send a call of a run through the onion, and keep the run's books of it."""
        try:
            result = await self._onion(call)
        except SagaspanError as error:
            run.refused(call, error)
            raise
        run.asked_for(result.record.id, answered=not result.executed)
        if call.tool.redaction is not None:
            run.keep_secret(call.tool.redaction.secrets_of(result.value))
        policy = call.tool.policy
        if result.state is CallState.FAILED:
            run.did_not_happen(call)
        elif policy.compensate is not None or policy.defer:
            self._remember(call.tool, result)
        if policy.defer:
            run.waits_to_send()
        return result

    def may_ask(self, tool: Tool) -> bool:
        """Whether a framework is to ask about calls of ``tool``: not where a test says who is asked."""
        asks = bool(tool.gates) or self.policy is not None
        return asks and not self.approver_is_overridden and not self._observe

    async def question(
        self, tool: Tool, arguments: Mapping[str, Any], *, backend: Backend, origin: Origin = _NOWHERE
    ) -> Question | None:
        """What somebody is asked about such a call, made here next; None if nobody is, or it would be refused."""
        tool = await self._as_now(tool, backend)
        if not self.may_ask(tool):
            return None
        run = self.run_in_force(backend, tool)
        call = self._make(tool, arguments, {}, tool.invoke, backend, origin, run)
        if run is not None:
            run.did_not_happen(call)  # the call itself has this number
        token = approver_here.set(None)
        try:
            return await asked(self._asking(call))
        finally:
            approver_here.reset(token)

    async def send(self, tool: Tool, record: CallRecord, run: RunRecord, backend: Backend) -> Result:
        """Send the deferred call ``record`` for ``run``, from its record alone; raises as ``Ledger.send``."""
        return await self._sending(
            Call(
                id=record.id,
                tool=tool,
                arguments=codecs.decode(record.arguments),
                invoke=tool.send or tool.invoke,
                encoded=record.arguments,
                key=CallKey(
                    source=KeySource(record.key_source),
                    scope=record.scope,
                    value=record.key,
                    fingerprint=record.fingerprint,
                ),
                generation=record.generation,
                idempotency_key=record.idempotency_key,
                run=run,
                backend=backend,
                tool_call_id=record.tool_call_id,
                scheduled=record,
            )
        )

    # -- the codec -------------------------------------------------------------------------------------------

    async def prove_codec(self, backend: Backend) -> None:
        """See once that the codec is that of the ledger; raises ``ConfigurationError`` or ``StoreUnavailable``."""
        encryption = self.store.seal.encryption[self.namespace]
        if encryption.is_proved or (self.outage is not None and self.outage.goes_on):
            return
        try:
            await backend.io(encryption.prove)
        except StoreUnavailable as error:
            if self.outage is None:
                raise
            self.outage.began(error)

    def digest(self, data: Any) -> str:
        """The fingerprint of plain JSON data; under a codec one that nobody can guess who lacks it."""
        return fingerprint(data) if self.codec is None else self.store.seal.encryption[self.namespace].digest(data)

    def run_in_force(self, backend: Backend, tool: Tool) -> Run | None:
        """The run that a call made here belongs to; None is the session. Raises ``RunError``, ``PolicyDenied``."""
        parent = current_call.get()
        if parent is not None and parent.phase is Phase.COMPENSATION:
            return None  # a step of undoing is no step of any run: nothing would ever have to undo it
        run = current_run.get()
        if run is not None and run.engine is self:
            run.check_open(tool, backend)
            if self.outage is not None and not may_run_unrecorded(tool):
                run.check_on_record(tool)
            return run
        if self._require_run and not self._observe:
            raise PolicyDenied(
                f"tool {tool.name!r} was called outside a run, and this guard has require_run=True; use with "
                "guard.run(...)"
            )
        if not tool.policy.declared_write or tool.name in self._warned:
            return None
        if (made := self.made_run()) is not None and not made.was_entered:
            self._warned.add(tool.name)
            _log.warning(
                "tool %r was called outside a run while the run %r was made but not entered, so this call is not "
                "rolled back with it; write `with guard.run(...):`",
                tool.name,
                made.id,
            )
        elif self.open_runs:
            self._warned.add(tool.name)
            _log.warning(
                "tool %r was called outside a run while a run is open: a plain thread does not inherit it, so "
                "this call is "
                "not rolled back with it. Hand the context over: contextvars.copy_context().run(...)",
                tool.name,
            )
        return None

    def _make(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        context: Mapping[str, Any],
        invoke: Invoke,
        backend: Backend,
        origin: Origin,
        run: Run | None,
    ) -> Call:
        record = self._session_of(tool) if run is None else run.record
        secrets: tuple[str, ...] = ()
        try:
            plain = _plain(tool, arguments) if tool.redaction is None else None
        except codecs.SecretFound:
            plain = None
        if plain is None:
            plain, secrets = self._redacted(tool, arguments)
        encoded = codecs.dump(plain)
        if tool.policy.defer:
            _check_comes_back(tool, arguments, encoded)
        parent = current_call.get()
        if parent is not None and parent.run.namespace != self.namespace:
            parent = None
        sent_with = None if parent is None else parent.sent_with if parent.scheduled is None else parent.id
        told = arguments if tool.receiver is None else {**arguments, tool.receiver: context.get(tool.receiver)}
        key, occurrence = self._key(tool, told, plain, record, run, sent_with)
        if origin.asked is not None and key.source is KeySource.CONTENT:
            origin.asked.append(((tool.name, key.fingerprint, sent_with), occurrence))
        resumed = run is not None and run.goes_on_from_before
        return Call(
            id=new_id(now_us()),
            tool=tool,
            arguments=arguments,
            context=context,
            invoke=invoke,
            encoded=encoded,
            key=key,
            generation=0,
            idempotency_key=idempotency_key(self.namespace, key.scope, tool.name, key.value, 0),
            run=record,
            under=_under(run, parent),
            purse=((f"run:{record.id}", self.budget),) if run is None else run.purse,
            signals=self.signals if run is None else run.signals,
            resumed=resumed,
            replaying=run is not None and run.replaying,
            occurrence=occurrence,
            backend=backend,
            tool_call_id=origin.tool_call_id,
            agent=origin.agent,
            branch=origin.branch,
            ancestors=() if parent is None else (*parent.ancestors, parent.id),
            sent_with=sent_with,
            secrets=secrets,
            policy=None if self.policy is None else self.policy.version,
            former=self._former(tool, told, plain, key, resumed=resumed) if self._changes_keys(tool) else (),
        )

    def warn_unsaid(self, model: str, call_id: str, *, estimated: bool) -> None:
        """Say that nobody told what a call of ``model`` used; once for each model, which mostly never tells it."""
        level = logging.DEBUG if model in self._unsaid else logging.WARNING
        self._unsaid.add(model)
        _log.log(
            level,
            "nobody said what the call %s of %r used; it is booked %s. Later ones of this model are not named here; "
            "see: sagaspan usage --by model",
            call_id, model, "as its text looks" if estimated else "with all it had reserved",
        )  # fmt: skip

    def make_model_call(self, tool: Tool, model: str, arguments: Mapping[str, Any], backend: Backend) -> Call:
        """A call of a model, which is never answered from the ledger; raises what ``run_in_force`` does."""
        self.look_at_file()
        run = self.run_in_force(backend, tool)
        over = run.record if run is not None and run.replaying else None
        if over is not None:  # what answers a completed run once more is no step of it
            run = None
        record = self._session_of(tool) if run is None else run.record
        if over is not None:  # but it is asked, and paid, for the same people
            record = replace(
                record, user=over.user, tenant=over.tenant, agent=over.agent, conversation=over.conversation
            )
        scope, value, id_ = run_scope(record.id, record.generation), new_id(now_us()), new_id(now_us())
        parent = current_call.get()
        return Call(
            id=id_,
            tool=tool,
            arguments=arguments,
            invoke=tool.invoke,
            encoded=codecs.dump(arguments),
            key=CallKey(source=KeySource.UNIQUE, scope=scope, value=value, fingerprint=fingerprint([tool.name, value])),
            generation=0,
            idempotency_key=idempotency_key(self.namespace, scope, tool.name, value, 0),
            run=record,
            purse=((f"run:{record.id}", self.budget),) if run is None else run.purse,
            backend=backend,
            model=model,
            policy=None if self.policy is None else self.policy.version,
            ancestors=() if parent is None else (*parent.ancestors, parent.id),
        )

    @property
    def ledger(self) -> Ledger:
        """Where calls are claimed and settled."""
        return self._ledger

    def _changes_keys(self, tool: Tool) -> bool:
        """Whether equal calls had another key before this guard said so."""
        return tool.redaction is not None or self.codec is not None

    def _former(
        self, tool: Tool, told: Mapping[str, Any], plain: Mapping[str, Any], key: CallKey, *, resumed: bool
    ) -> tuple[CallKey, ...]:
        """The keys that this call had while nothing of it was redacted or encrypted; ``told`` is as for ``_key``.

        What was done under one of them is not done again.
        """
        if key.source is KeySource.UNIQUE or not (resumed or key.source is KeySource.BUSINESS):
            return ()
        arguments = {name: value for name, value in told.items() if name != tool.receiver}
        spelt = [plain] if tool.redaction is None else [plain, _plain(tool, arguments, codecs.blank)]
        digests = [digest([tool.name, one]) for one in spelt for digest in (self.digest, fingerprint)]
        former = dict.fromkeys(digest for digest in digests if digest != key.fingerprint)
        if key.source is KeySource.BUSINESS:
            keys = [replace(key, fingerprint=digest) for digest in former]
            if tool.reads_redacted("key"):  # which is a hash now, and was none
                value = _business_key(tool, told)
                keys += [replace(one, value=value) for one in (key, *keys)]
            return tuple(keys)
        number = key.value.removeprefix(key.fingerprint)
        return tuple(replace(key, fingerprint=digest, value=digest + number) for digest in former)

    def _redacted(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The arguments as JSON data without what is redacted, and the texts of that."""
        found: list[str] = []
        try:
            keyed = self._keyed_hide(tool)
        except StoreUnavailable as error:
            if self.outage is None or not may_run_unrecorded(tool):
                raise
            self.outage.began(error)
            keyed = codecs.blank

        def hide(data: Any, place: str) -> dict[str, str]:
            if tool.policy.defer:
                raise ConfigurationError(
                    f"tool {tool.name!r} is deferred and was not scheduled: {place!r} is a secret, which is never "
                    "recorded, so it could not be sent from its record"
                )
            found.extend(leaves(data))
            return keyed(data, place)

        plain = _plain(tool, arguments, hide)
        if tool.redaction is not None:
            plain = tool.redaction.arguments(plain, hide)
        return plain, tuple(found)

    def _plain_of(self, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON data, as they are recorded."""
        if tool.redaction is None:
            with contextlib.suppress(codecs.SecretFound):
                return _plain(tool, arguments)
        return self._redacted(tool, arguments)[0]

    def _is_about(self, call: Call, approval: ApprovalRecord) -> bool:
        """Whether ``approval`` is of the arguments that the body of ``call`` gets, as they are now."""
        plain = self._plain_of(call.tool, call.arguments)
        subject = subject_of(namespace=approval.namespace, scope=approval.scope, tool=call.tool.name, arguments=plain)
        return self.digest(subject) == approval.digest and codecs.dump(plain) == call.encoded

    def _keyed_hide(self, tool: Tool) -> codecs.Hide:
        seal = self.store.seal
        if tool.redaction is not None:
            seal.note(self.namespace, tool.name)
        seal.key(self.namespace)
        return seal.hide(self.namespace, tool.name)

    def lock_names(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the locks that a call takes; those made of an argument with redacted fields as hashes."""
        names = tool.locks_of(arguments)
        if not tool.reads_redacted("lock"):
            return names
        return tuple(self.store.seal.hashed(self.namespace, "lock", name) for name in names)

    def _key(
        self,
        tool: Tool,
        told: Mapping[str, Any],
        plain: Mapping[str, Any],
        record: RunRecord,
        run: Run | None,
        sent_with: str | None,
    ) -> tuple[CallKey, int]:
        """The key of a call and its number among its equals; ``told``: the arguments, and of a method its object."""
        identity = [tool.name, plain]
        digest = fingerprint(identity) if self.codec is None else self._digest(tool, identity)
        if tool.policy.key is not None:
            value = _business_key(tool, told)
            if tool.reads_redacted("key"):
                value = self.store.seal.hashed(self.namespace, "key", value)
            return CallKey(source=KeySource.BUSINESS, scope=BUSINESS_SCOPE, value=value, fingerprint=digest), 0
        if run is None:
            scope = run_scope(record.id, 0)
            return CallKey(source=KeySource.UNIQUE, scope=scope, value=new_id(now_us()), fingerprint=digest), 0
        occurrence = run.occurrence(tool.name, digest, sent_with)
        if tool.policy.repeat_rule != "new":
            run.check_same(tool, digest, told)
        number = occurrence if tool.policy.repeat_rule == "new" else 0
        scope = run_scope(record.id, record.generation) if sent_with is None else sent_scope(sent_with)
        value = digest if number == 0 else f"{digest}.{number}"
        return CallKey(source=KeySource.CONTENT, scope=scope, value=value, fingerprint=digest), occurrence

    def _digest(self, tool: Tool, data: Any) -> str:
        """As ``digest``, under a codec; that of a read that goes on without a store is one that nobody can guess."""
        down = self.outage is not None and self.outage.goes_on and may_run_unrecorded(tool)
        if down and not self.store.seal.encryption[self.namespace].is_proved:
            return fingerprint([secrets.token_hex(32), data])
        return self.digest(data)

    def _deliver(self, tool: Tool, run: Run | None, result: Result) -> Any:
        error = result.error
        if error is None:
            if result.remarks:
                remark(result.remarks)
            return result.value
        if run is not None:
            run.saw(result)
        if isinstance(error, Exception) and not isinstance(error, (ApprovalPending, *tool.suspends)):
            if tool.policy.critical is False:
                return {
                    "status": str(result.state),
                    "error": f"{type(error).__name__}: {error_message(error) or ''}",
                    "call": result.record.id,
                }
            if tool.policy.critical and run is not None:
                run.doom(error)
        remember_call(error, call_info(result.record))
        raise error

    # -- the session -----------------------------------------------------------------------------------------

    def _session_of(self, tool: Tool) -> RunRecord:
        """The session's run; with ``fail_open`` and the store down, one that is not on record, for a read."""
        if self.outage is None or not may_run_unrecorded(tool):
            return self._session_run()
        if not self.outage.goes_on:
            try:
                return self._session_run()
            except StoreUnavailable as error:
                self.outage.began(error)
        return unrecorded(self._new_session())

    def _session_run(self) -> RunRecord:
        if self._session is not None and owner.is_self(self._session.owner):
            return self._session
        with self._lock:
            if self._session is None or not owner.is_self(self._session.owner):
                record = self._new_session()
                opened, audit = transitions.open_run(record)
                token = owner.run_token(self.store.url, record.namespace, record.id)
                owner.hold(token)
                try:
                    self.lease.cover()
                    self.store.commit([RunChange(opened, audit)], synced=False)
                except BaseException:
                    owner.drop(token)
                    raise
                self._session = opened
        return self._session

    def _new_session(self) -> RunRecord:
        check_may_start("a call of a tool")
        now = now_us()
        return RunRecord(
            namespace=self.namespace, id=f"{SESSION}-{new_id(now)}", name=SESSION, state=RunState.RUNNING,
            input_fingerprint=SESSION, owner=owner.this_process(), created_us=now, started_us=now,
        )  # fmt: skip

    @contextlib.contextmanager
    def on_another_store(self, store: Store) -> Iterator[None]:
        """Work on ``store`` within the block, and close it; raises ``ConfigurationError`` while a run is open."""
        if self.open_runs:
            raise ConfigurationError("another store cannot be put under a guard while a run of it is open")
        mine = self.store, self.outage, self.judge, self.lease, self.limits, self._ledger, self._session
        self._work_on(store)
        try:
            yield
        finally:
            try:
                self.close()
            finally:
                self.store, self.outage, self.judge, self.lease, self.limits, self._ledger, self._session = mine
                self._fold()

    @contextlib.contextmanager
    def with_approver(self, approver: Approver | None) -> Iterator[None]:
        """Ask ``approver`` within the block."""
        mine = self.approver, self.approver_is_overridden
        self.approver, self.approver_is_overridden = approver, True
        self._fold()
        try:
            yield
        finally:
            self.approver, self.approver_is_overridden = mine
            self._fold()

    @contextlib.contextmanager
    def with_innermost(self, layer: Middleware) -> Iterator[None]:
        """``layer`` right around the ledger within the block: it sees only calls that are not served from there."""
        self._innermost = (*self._innermost, layer)
        self._fold()
        try:
            yield
        finally:
            self._innermost = tuple(other for other in self._innermost if other is not layer)
            self._fold()

    def first_end(self) -> None:
        """The first run is over, or the guard: what was declared for nothing is known by now."""
        told, self.at_first_end = self.at_first_end, None
        if told is not None:
            told()

    def settle(self) -> None:
        """Save what could not be recorded when it ended; raises ``StoreError`` if it still cannot."""
        self._ledger.settle_leftovers()

    def _begin_again(self) -> None:
        """A forked child is inside no run, and has a session of its own."""
        self.open_runs = 0
        self._session = None

    def close(self) -> None:
        """End the session run and give the store back."""
        self.first_end()
        self.settle()
        with self._lock:
            session, self._session = self._session, None
        if session is not None and owner.is_self(session.owner):
            after, audit = transitions.move_run(session, RunEvent.COMPLETE, now_us())
            try:
                self.store.commit([RunChange(after, audit, session.version)], synced=False)
            except StoreUnavailable as error:
                if self.outage is None:
                    raise
                _log.warning("the end of the session is not recorded (fail_open=True): %s", error)
            owner.drop(owner.run_token(self.store.url, session.namespace, session.id))
        if self.notifier is not None:
            self.notifier.finish()
        self.lease.release()
        self.store.close()


def call_sync(engine: Engine, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``tool`` as its function is called, for a synchronous caller."""
    arguments, context = tool.bind(args, kwargs)
    return run_sync(engine.call(tool, arguments, context=context, invoke=tool.invoke, backend=SYNC))


def _under(run: Run | None, parent: Call | None) -> str | None:
    """The run whose locks a call works under that ``parent`` makes in ``run``."""
    if run is not None:
        return run.id
    return None if parent is None else parent.under


def _plain(tool: Tool, arguments: Mapping[str, Any], hide: codecs.Hide | None = None) -> dict[str, Any]:
    """The arguments as JSON data, those without encoding by their kind if a business key stands for them.

    Raises ``SecretFound`` for a pydantic secret if nobody says how to ``hide`` it.
    """
    plain = {}
    for name, value in arguments.items():
        try:
            plain[name] = codecs.to_json(value, name, hide)
        except codecs.SecretFound:
            raise
        except codecs.Unencodable as problem:
            if tool.policy.defer:
                raise ConfigurationError(
                    f"tool {tool.name!r} is deferred and was not scheduled: its argument {problem}, so it could not be "
                    "sent from its record. Pass plain data"
                ) from problem
            if tool.policy.key is None:
                raise ConfigurationError(
                    f"tool {tool.name!r} did not run: its argument {problem}. Pass plain data, or declare key= to "
                    "say what makes a call the same"
                ) from problem
            plain[name] = codecs.unrecorded(problem)
    return plain


def _check_comes_back(tool: Tool, arguments: Mapping[str, Any], encoded: str) -> None:
    """Refuse arguments that the body would get as something else when it is sent from its record."""
    recorded = codecs.decode(encoded)
    for name, value in arguments.items():
        where = codecs.differs(value, recorded[name], name)
        if where is not None:
            raise ConfigurationError(
                f"tool {tool.name!r} is deferred and was not scheduled: its argument {where} is a "
                f"{type(value).__qualname__}, which its record gives back as something else. Pass plain data"
            )


def _keep(memory: dict[str, T], call_id: str, thing: T) -> None:
    """Remember ``thing`` for the latest calls."""
    memory[call_id] = thing
    while len(memory) > REMEMBERED:
        memory.pop(next(iter(memory)), None)


def _business_key(tool: Tool, told: Mapping[str, Any]) -> str:
    if tool.key_expression is not None:
        try:
            value = tool.key_expression.evaluate(told)
        except Exception as error:
            raise ConfigurationError(
                f"tool {tool.name!r} did not run: its key {tool.key_expression.source!r} failed: {error}"
            ) from error
    else:
        function: Any = tool.policy.key
        try:
            value = function(**{name: told[name] for name in inspect.signature(function).parameters})
        except Exception as error:
            raise ConfigurationError(
                f"tool {tool.name!r} did not run: its key function {name_of(function)!r} raised "
                f"{type(error).__name__}: {error}"
            ) from error
    if value is None or value == "":
        raise ConfigurationError(f"tool {tool.name!r} did not run: its key came out empty; it must name the operation")
    try:
        plain = codecs.to_json(value, "its key")
    except codecs.Unencodable as problem:
        raise ConfigurationError(f"tool {tool.name!r} did not run: {problem}; let it be a string") from problem
    return plain if isinstance(plain, str) else canonical(plain).decode()


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions are the same definition (a module may be imported or a factory called twice)."""
    return one is other or _described(one) == _described(other)


def _described(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}"
