"""The machinery behind a guard: its store, its tools, its onion, and the sending of calls through it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry.trace import Span, TracerProvider, get_current_span

from sagaspan import _live as live
from sagaspan import codecs
from sagaspan._backends import SYNC, Backend, run_sync
from sagaspan._call import Call, Result
from sagaspan._context import approver_here, current_call, current_run, remark
from sagaspan._defaults import Defaults
from sagaspan._known_tools import KnownTools
from sagaspan._making import NOWHERE, Invoke, Origin, make_call
from sagaspan._middleware import Middleware, users_layers
from sagaspan._notifier import Notifier
from sagaspan._onion import folded
from sagaspan._outside import Outside
from sagaspan._policy_file import PolicyFile
from sagaspan._policy_in_force import PolicyInForce, check_adoptable
from sagaspan._question import Question, asked
from sagaspan._session import Session
from sagaspan._signals import Signals
from sagaspan._spans import error_message, tracer_of
from sagaspan._spelling import Spelling
from sagaspan._told import remember_call
from sagaspan._tool import Tool, redefined
from sagaspan.approvers import Approver
from sagaspan.budget import Budget
from sagaspan.exceptions import ApprovalPending, ConfigurationError, PolicyDenied, SagaspanError, StoreError
from sagaspan.keys import CallKey, KeySource
from sagaspan.ledger.budgets import agent_of
from sagaspan.ledger.fail_open import Outage, may_run_unrecorded
from sagaspan.ledger.judgement import Judge
from sagaspan.ledger.leases import Lease
from sagaspan.ledger.ledger import Ledger
from sagaspan.ledger.limits import Limits
from sagaspan.ledger.records import CallRecord, CallState, Phase, RunRecord, call_info
from sagaspan.ledger.store import Store
from sagaspan.ledger.tool_names import record_names
from sagaspan.loops import ALLOWED
from sagaspan.notify import Notify
from sagaspan.scopes import BudgetBook

if TYPE_CHECKING:
    from sagaspan._run import Run

_log = logging.getLogger("sagaspan")
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
        self.in_force = PolicyInForce(policy)
        self._fail_open = fail_open
        self.observes = observe
        self.codec = codec
        self.approver = approver
        self._hooks = tuple(hooks)
        self.approver_is_overridden = False
        self.namespace = namespace
        self.tracer = tracer_of(tracer_provider)
        self.known = KnownTools(namespace, self.in_force)
        self.outside = Outside(require_run=require_run)
        self._budgets = budgets or BudgetBook(None)
        self.budget = budget
        self.loop = loop
        self.at_first_end: Callable[[], None] | None = None
        self.before_first_call: Callable[[], None] | None = None
        self._unsaid: set[str] = set()
        self.middleware = users_layers(middleware)
        self.innermost: tuple[Middleware, ...] = ()
        self.signals = Signals()
        self._work_on(store)

    def _work_on(self, store: Store) -> None:
        self.store = store
        self._names_on_record: set[tuple[str, ...]] = set()
        if self.codec is not None:
            store.seal.encrypt(self.namespace, self.codec)
        self.known.work_on(store.seal)
        self.outage = Outage() if self._fail_open else None
        self.judge = Judge(store)
        self.lease = Lease(store)
        self.limits = Limits(store, self.namespace, self._budgets, of_every_run=self.budget)
        self.limits.observes = self.observes
        self.spelling = Spelling(store.seal, self.namespace, self.codec, self.outage)
        self.session = Session(store, self.namespace, self.lease, self.outage)
        self.ledger = Ledger(
            store, judge=self.judge, lease=self.lease, find_probe=self.known.find_probe, limits=self.limits,
            is_about=self.spelling.is_about, tracer=self.tracer,
        )  # fmt: skip
        self.lease.forked.append(self._begin_again)
        hooks, fresh = self._hooks, self.lease.fresh
        self.notifier = Notifier(store, self.namespace, hooks, unannounced=fresh) if hooks else None
        if self.notifier is not None:
            self.lease.began = self.notifier.begin
            self.limits.marks_soft = True
        self._fold()

    def _fold(self) -> None:
        self._onion, self._asking, self._sending, self._sending_again = folded(self)

    @property
    def policy(self) -> PolicyFile | None:
        """The policy file as it is in force."""
        return self.in_force.file

    def counts_in_loops(self, tool: str) -> bool:
        """Whether calls of ``tool`` that bring the same again are steps of a loop."""
        return self.known.counts_in_loops(tool, self.loop)

    @property
    def span_here(self) -> Span:
        """The current span: the parent of what is undone outside of its run's block."""
        return get_current_span()

    def adopt(self, file: PolicyFile, defaults: Defaults, budgets: BudgetBook) -> None:
        """Go by another content of the policy file from the next call on.

        Raises ``ConfigurationError`` if it does not fit a tool that is known here, and changes nothing then.
        """
        tools = {tool: redefined(tool, file.tools) for tool in list(self.known.defined)}
        for before, tool in tools.items():
            check_adoptable(self.known.tools, before, tool, file)
        for before, tool in tools.items():
            if tool is not before:
                self.known.learn(tool)
            if self.known.tools.get(tool.name) in (before, self.in_force.redefined(before)):
                self.known.tools[tool.name] = tool
        if defaults.fail_open != self._fail_open:
            self._fail_open, self.outage = defaults.fail_open, Outage() if defaults.fail_open else None
            self.spelling.outage = self.session.outage = self.outage
        self.budget, self.loop, self._budgets = defaults.budget, defaults.loop, budgets
        self.limits.declare(budgets, defaults.budget)
        self.observes = self.limits.observes = defaults.mode == "observe"
        self.in_force.take(file, tools)
        self._fold()

    async def resolve_in_doubt(self, call: CallRecord, backend: Backend) -> CallRecord:
        """Ask what can find out about a recorded call; returns it as it is then, decided or still in doubt.

        One whose owner is dead or expired is in doubt from here on; one that runs or is settled is left as it is.
        """
        return await self.ledger.resolve(call, self.known.find_probe(call), backend)

    def digest(self, data: Any) -> str:
        """The fingerprint of plain JSON data; under a codec one that nobody can guess who lacks it."""
        return self.spelling.digest(data)

    # -- calls -----------------------------------------------------------------------------------------------

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        context: Mapping[str, Any],
        invoke: Invoke,
        backend: Backend,
        origin: Origin = NOWHERE,
    ) -> Any:
        """Send one call through the onion; returns what the caller of the tool gets, or raises it."""
        if self.in_force.watch is not None:
            tool = await self.in_force.as_now(tool, backend)
        await self._prepare(tool, backend)
        if self.codec is not None:
            await self.spelling.prove_codec(backend)
        run = self.run_in_force(backend, tool)
        if run is None:
            if tool.policy.defer:
                raise PolicyDenied(
                    f"tool {tool.name!r} is deferred until its run completes, and was called outside a run, where "
                    "nothing completes; use with guard.run(...)"
                )
            call = make_call(self, tool, arguments, context, invoke, backend, origin, None)
            with live.held(call.secrets) if call.secrets else _NOTHING_HELD:
                return self._deliver(tool, None, await self._onion(call))
        in_flight = run.in_flight.one()
        with in_flight:
            try:
                run.in_flight.check_open(f"tool {tool.name!r} did not run")
                call = make_call(self, tool, arguments, context, invoke, backend, origin, run)
                run.keep_secret(call.secrets)
                return self._deliver(tool, run, await self._call_in(run, call))
            except ApprovalPending as pending:
                run.waits_for(pending.approval_id)
                raise
            finally:
                run.in_flight.forget(in_flight)

    async def _prepare(self, tool: Tool, backend: Backend) -> None:
        """Do what is done once, before the first call of any tool or of this one; raises ``ConfigurationError``."""
        if self.before_first_call is not None:
            self.before_first_call()
        if self.known.unresolved:
            self.known.resolve_names(tool)
        if len(tool.known_as) > 1 and tool.known_as not in self._names_on_record:
            try:
                await backend.io(record_names, self.store, self.namespace, tool.known_as, tool.title)
            except StoreError as error:  # the claim decides what a store that is down means for this call
                _log.debug("the names of tool %r are not on record: %s", tool.name, error)
            else:
                self._names_on_record.add(tool.known_as)

    async def _call_in(self, run: Run, call: Call) -> Result:
        """Send a call of a run through the onion, and keep the run's books of it."""
        try:
            result = await self._onion(call)
        except SagaspanError as error:
            run.refused(call, error)
            raise
        run.asked_for(result.record.id, answered=not result.executed)
        if call.asked is not None:
            call.asked.is_answered = result.state in (CallState.DONE, CallState.SCHEDULED)
        if call.tool.redaction is not None:
            run.keep_secret(call.tool.redaction.secrets_of(result.value))
        policy = call.tool.policy
        if result.state is CallState.FAILED:
            run.did_not_happen(call)
        elif policy.compensate is not None or policy.defer:
            self.known.remember(call.tool, result)
        if policy.defer:
            run.waits_to_send()
        return result

    def may_ask(self, tool: Tool) -> bool:
        """Whether a framework is to ask about calls of ``tool``: not where a test says who is asked."""
        asks = bool(tool.gates) or self.in_force.file is not None
        return asks and not self.approver_is_overridden and not self.observes

    async def question(
        self, tool: Tool, arguments: Mapping[str, Any], *, backend: Backend, origin: Origin = NOWHERE
    ) -> Question | None:
        """What somebody is asked about such a call, made here next; None if nobody is, or it would be refused."""
        tool = await self.in_force.as_now(tool, backend)
        if not self.may_ask(tool):
            return None
        await self._prepare(tool, backend)
        run = self.run_in_force(backend, tool)
        call = make_call(self, tool, arguments, {}, tool.invoke, backend, origin, run)
        if run is not None:
            run.was_not_asked(call)  # the call itself has this number
        token = approver_here.set(None)
        try:
            return await asked(self._asking(call))
        finally:
            approver_here.reset(token)

    async def send(self, tool: Tool, record: CallRecord, run: RunRecord, backend: Backend) -> Result:
        """Send the deferred call ``record`` for ``run``, from its record alone; raises as ``Ledger.send``.

        One that was claimed before is judged again: by the policy in force, its budgets, and who must approve.
        """
        if self.known.unresolved:
            self.known.resolve_names(tool)
        again = record.scheduled_seq is not None
        if again and self.in_force.watch is not None:
            tool = await self.in_force.as_now(tool, backend)
        is_nested = record.run_id != run.id
        inner = await backend.io(self.store.get_run, record.namespace, record.run_id) if is_nested else None
        own = run if inner is None else inner
        here = current_run.get()
        given = () if here is None or here.engine is not self else here.purse
        purse = await backend.io(self.limits.purse_of, own, given) if again else ()
        send = self._sending_again if again else self._sending
        return await send(
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
                run=own,
                purse=purse,
                resumed=again,
                backend=backend,
                tool_call_id=record.tool_call_id,
                agent=agent_of(record),
                scheduled=record,
                sent_by=run,
                policy=self.in_force.version if again else None,
            )
        )

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
        self.outside.check(tool, observes=self.observes)
        return None

    def warn_unsaid(self, model: str, call_id: str, problem: str | None, *, estimated: bool) -> None:
        """Log that the usage of a call of ``model`` is not known; once for each model, which mostly never tells it."""
        level = logging.DEBUG if model in self._unsaid else logging.WARNING
        self._unsaid.add(model)
        _log.log(
            level,
            "No usage recorded for call %s (model %r)%s. It is booked %s. Later calls of this model are not named "
            "here; see: sagaspan usage --by model",
            call_id, model, f": {problem}" if problem else "",
            "as its text looks" if estimated else "with all it had reserved",
        )  # fmt: skip

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

    # -- its store, and what is put around it ----------------------------------------------------------------

    @contextlib.contextmanager
    def on_another_store(self, store: Store) -> Iterator[None]:
        """Work on ``store`` within the block, and close it; raises ``ConfigurationError`` while a run is open."""
        if self.outside.open_runs:
            raise ConfigurationError("another store cannot be put under a guard while a run of it is open")
        mine = (
            self.store, self.outage, self.judge, self.lease, self.limits, self.spelling, self.session, self.ledger,
            self.notifier,
        )  # fmt: skip
        self._work_on(store)
        try:
            yield
        finally:
            try:
                self.close()
            finally:
                (
                    self.store, self.outage, self.judge, self.lease, self.limits, self.spelling, self.session,
                    self.ledger, self.notifier,
                ) = mine  # fmt: skip
                self.known.work_on(self.store.seal)
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
        self.innermost = (*self.innermost, layer)
        self._fold()
        try:
            yield
        finally:
            self.innermost = tuple(other for other in self.innermost if other is not layer)
            self._fold()

    def first_end(self) -> None:
        """The first run is over, or the guard: what was declared for nothing is known by now."""
        told, self.at_first_end = self.at_first_end, None
        if told is not None:
            told()

    def settle(self) -> None:
        """Save what could not be recorded when it ended; raises ``StoreError`` if it still cannot."""
        self.ledger.settle_leftovers()

    def _begin_again(self) -> None:
        """A forked child is inside no run, and has a session of its own."""
        self.outside.open_runs = 0
        self.session.forget()

    def close(self) -> None:
        """End the session run and give the store back."""
        self.first_end()
        self.settle()
        self.session.end()
        if self.notifier is not None:
            self.notifier.finish()
        self.lease.release()
        self.store.close()


def call_sync(engine: Engine, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``tool`` as its function is called, for a synchronous caller."""
    arguments, context = tool.bind(args, kwargs)
    return run_sync(engine.call(tool, arguments, context=context, invoke=tool.invoke, backend=SYNC))
