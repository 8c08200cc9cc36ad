"""``Guard``: what users hold. It declares tools, wraps agents and opens runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar, overload

from opentelemetry.trace import INVALID_SPAN, Span, Tracer, TracerProvider

from sagaspan import codecs
from sagaspan._accounts import Accounts
from sagaspan._adapters import find_adapter
from sagaspan._approvals import Approvals
from sagaspan._audit import Audit
from sagaspan._backends import ASYNCIO, SYNC, Backend, run_sync
from sagaspan._call import Call
from sagaspan._checks import MAX_NAMESPACE, check_choice, check_codec, check_flag, check_name, described
from sagaspan._compensation import name_of
from sagaspan._context import current_call, current_run
from sagaspan._coverage import Coverage
from sagaspan._defaults import MODES, Mode, defaults_of
from sagaspan._engine import Engine
from sagaspan._freezes import Frozen, freeze, frozen, unfreeze
from sagaspan._guarded import check_function, guarded_function, order
from sagaspan._llm import LlmCall
from sagaspan._llm_function import metered
from sagaspan._loops import check_loop
from sagaspan._making import Equal, Origin
from sagaspan._middleware import Middleware
from sagaspan._names import model_name
from sagaspan._noted import note_policy
from sagaspan._opening import OnInterrupt, Orphans, made_run
from sagaspan._policy_file import PolicyFile
from sagaspan._policy_watch import PolicyWatch, stamp_of
from sagaspan._prune import Pruned, Pruner, cutoff_us
from sagaspan._question import Question
from sagaspan._recovery import Recoverer, Recovery
from sagaspan._run import Run
from sagaspan._tool import Tool, tool_of
from sagaspan._undo import compensate
from sagaspan._undone import Undone
from sagaspan._usage import Spending, spending_of, usage_by
from sagaspan._views import Calls, Runs
from sagaspan.approvers import ApprovalRequest, Approver, approver_of
from sagaspan.budget import Budgets, budgets_of
from sagaspan.exceptions import ConfigurationError, LoopDetected
from sagaspan.ledger import watching
from sagaspan.ledger.records import CallInfo, RunInfo, run_info
from sagaspan.ledger.store import Store
from sagaspan.llm.demand import Demand
from sagaspan.llm.prices import Rows, load_prices
from sagaspan.notify import Notifies, hooks_of
from sagaspan.policy import Policies, Policy, PolicyBook
from sagaspan.scopes import KINDS, BudgetBook, combined
from sagaspan.status.gauges import count_open_ledgers
from sagaspan.stores import Durability, Migrate, connect, default_store

watching.count_with(count_open_ledgers)
_log = logging.getLogger("sagaspan")
_LATE: Final = "If a tool of that name is declared later, declare it before the first call of any tool"
P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """A safety net: one store, its policies, and everything that is called under them.

    Args:
        store: ``"sqlite:///path"``; None is ``SAGASPAN_STORE``, else ``ledger.db`` in the nearest ``.sagaspan``. Or a
            ``Store`` of ``sagaspan.testing``.
        policies: name or glob of a tool to its ``Policy``, or the path of a TOML file with ``[tools.NAME]`` tables and
            ``[[rules]]``.
        budget: of each run, such as ``"2 USD"`` or ``["100k tokens", "10 min"]``; None: ``SAGASPAN_BUDGET``, else
            ``budget`` in the policy file's ``[guard]``, else none.
        budgets: of scopes and globs of them, such as ``{"user:*": "20 USD/day"}``: each user has their own.
        prices: of models, over those that come along: ``{"my-model": {"input": 2.5, "output": 10}}`` in US dollars
            per million tokens, or the path of a TOML file with ``[prices]``.
        approver: who is asked about calls with ``approve=``: a function of the ``ApprovalRequest``, sync or async, that
            gives ``Approve()``, ``Deny("reason")``, ``Edit({...})``, True or False (anything else refuses); an
            ``Approver``; ``"console"``, ``"inbox"``, ``"auto-approve"`` or ``"auto-deny"``. None: the console if
            somebody is there, else the inbox, which says so in the log. A LangGraph agent with a checkpointer asks
            its caller instead, through ``interrupt()``.
        notify: who is told of what needs a person: a ``Notify(url=, secret=)``, or a list of them, beside those of the
            file's ``[[notify]]``.
        middleware: layers of your own, outermost first, between telemetry and the guard's own.
        namespace: keeps several applications apart in one store.
        on_interrupt: what an interruption does to a run: ``"hold"`` or ``"compensate"``; None: by who chose its id.
        codec: encrypts the content of what is recorded: an object with ``encode(bytes) -> bytes`` and its reverse,
            ``decode`` (``sagaspan.codecs.Codec``).
        fail_open: while the store is down, tools with ``effect="read"`` run unrecorded, if no budget holds for them;
            everything else fails closed. None: ``SAGASPAN_FAIL_OPEN``, else ``[guard]`` in the file, else False.
        mode: ``"observe"`` refuses nothing that policies, budgets, rates, loops and approvals would refuse: it is noted
            on the record and the span of the call. None: ``SAGASPAN_MODE``, else ``[guard]`` in the file, else
            ``"enforce"``.
        require_run: refuse calls outside a run.
        migrate: ``"auto"``, or ``"check"`` to refuse an older ledger.
        tracer_provider: where spans go; None is the global provider.
        durability: ``"normal"`` syncs claims, ``"full"`` every commit.

    Nothing is opened before the first call. Raises ``ConfigurationError`` for anything declared wrongly.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        policies: Policies | str | Path | None = None,
        budget: Budgets | None = None,
        budgets: Mapping[str, Budgets] | None = None,
        prices: Rows | str | Path | None = None,
        middleware: Sequence[Middleware] = (),
        namespace: str = "default",
        on_interrupt: OnInterrupt | None = None,
        codec: codecs.Codec | None = None,
        approver: Approver | Callable[[ApprovalRequest], Any] | str | None = None,
        notify: Notifies | None = None,
        fail_open: bool | None = None,
        mode: Mode | None = None,
        require_run: bool = False,
        migrate: Migrate = "auto",
        tracer_provider: TracerProvider | None = None,
        durability: Durability = "normal",
    ) -> None:
        check_choice("on_interrupt", on_interrupt, (None, "hold", "compensate"))
        check_choice("migrate", migrate, ("auto", "check"))
        check_choice("durability", durability, ("normal", "full"))
        check_flag("require_run", require_run)
        check_choice("mode", mode, (None, *MODES))
        if fail_open is not None:
            check_flag("fail_open", fail_open)
        check_name("namespace", namespace, most=MAX_NAMESPACE)
        check_codec(codec)
        if tracer_provider is not None and not hasattr(tracer_provider, "get_tracer"):
            raise ConfigurationError(f"tracer_provider takes a TracerProvider, not {described(tracer_provider)}")
        self._book = PolicyBook(_in_code(policies), source="policies")
        stamp = stamp_of(Path(policies)) if isinstance(policies, str | Path) else None  # before it is read
        file = PolicyFile.read(Path(policies)) if isinstance(policies, str | Path) else None
        self._file = PolicyBook(None, source="policies") if file is None else file.tools
        self._named: dict[str, tuple[str, ...]] = {}
        self._on_interrupt = on_interrupt
        tables: Mapping[str, Any] = {} if file is None else file.tables
        self.prices = load_prices(tables.get("prices") if prices is None else prices)
        defaults = defaults_of(tables, str(policies), budget=budget, fail_open=fail_open, mode=mode)
        self.mode: Mode = defaults.mode
        self.fail_open = defaults.fail_open
        self._connect = functools.partial(connect, migrate=migrate, durability=durability)
        self._engine = Engine(
            self._opened(store),
            namespace=namespace,
            middleware=middleware,
            tracer_provider=tracer_provider,
            require_run=require_run,
            budget=defaults.budget,
            loop=defaults.loop,
            budgets=BudgetBook(combined(tables.get("budgets"), budgets)),
            fail_open=defaults.fail_open,
            observe=defaults.mode == "observe",
            codec=codec,
            approver=approver_of(approver),
            hooks=hooks_of(notify, tables.get("notify", []), str(policies)),
            policy=file,
        )
        self._engine.at_first_end = self._warn_of_unused
        self._engine.before_first_call = self._refuse_misspelt
        self._given = prices, budget, budgets, fail_open, mode
        if file is not None:
            self._engine.in_force.watch = PolicyWatch(file, stamp, self._put_in_force, self._note_policy)

    def _put_in_force(self, file: PolicyFile) -> None:
        """Go by another content of the policy file from the next call on, or raise ``ConfigurationError``."""
        now = self._engine.policy
        if now is not None and file.tables.get("notify", []) != now.tables.get("notify", []):
            raise ConfigurationError(
                f"{file.path}: [[notify]] is not changed while agents run; start this process again"
            )
        prices, budget, budgets, fail_open, mode = self._given
        new_prices = load_prices(file.tables.get("prices") if prices is None else prices)
        defaults = defaults_of(file.tables, str(file.path), budget=budget, fail_open=fail_open, mode=mode)
        book = BudgetBook(combined(file.tables.get("budgets"), budgets))
        self._engine.adopt(file, defaults, book)
        self._file, self.prices, self.fail_open = file.tools, new_prices, defaults.fail_open
        self.mode = defaults.mode

    def _note_policy(self, file: PolicyFile, problem: str | None) -> None:
        note_policy(self._store, self.namespace, file, problem)

    def _opened(self, store: Any) -> Store:
        if store is None or isinstance(store, str | Path):
            return self._connect(default_store() if store is None else store)
        if not hasattr(store, "find_call"):
            raise ConfigurationError(
                f"store takes a URL such as 'sqlite:///ledger.db', not {described(store)}; leave it out for the default"
            )
        opened: Store = store
        return opened

    @property
    def _store(self) -> Store:
        return self._engine.store

    @property
    def policy_problem(self) -> str | None:
        """What is wrong with the policy file since it was changed, so that an older content of it is in force."""
        watch = self._engine.in_force.watch
        return None if watch is None else watch.problem

    @property
    def namespace(self) -> str:
        """What keeps this application apart from others in one store."""
        return self._engine.namespace

    # -- tools -------------------------------------------------------------------------------------------------

    @overload
    def tool(self, function: Callable[P, T], /) -> Callable[P, T]: ...
    @overload
    def tool(self, name: str | None = None, /, **fields: Any) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
    def tool(self, function: Any = None, /, **fields: Any) -> Any:
        """Declare a function as a tool: ``@guard.tool``, ``@guard.tool(...)`` or ``guard.tool("name", ...)``.

        ``fields`` are those of ``Policy``. The signature is kept; sync stays sync, async stays async. Raises
        ``ConfigurationError``.
        """
        if callable(function):
            return self._guarded(function, None, fields)
        if function is not None and not isinstance(function, str):
            raise ConfigurationError(
                f"guard.tool takes a function or a name, not {described(function)}{order(function)}"
            )
        return lambda decorated: self._guarded(decorated, function, fields)

    def _guarded(self, function: Callable[..., Any], name: str | None, fields: dict[str, Any]) -> Callable[..., Any]:
        check_function(function, name)
        name = name_of(function) if name is None else name
        try:
            declared = Policy(**fields)
        except ConfigurationError as error:
            raise ConfigurationError(f"tool {name!r}: {error}") from error
        tool = self._tool(function, name, declared)
        self._engine.known.register(tool)
        return guarded_function(self._engine, tool)

    def _tool(self, function: Callable[..., Any], name: str, declared: Policy, *wrapped: PolicyBook) -> Tool:
        """The function ``function`` as a tool, which models see by a name that they take."""
        alias = model_name(name)
        return tool_of(
            function, name=name, aliases=(alias,), policy=self.policy_for(name, declared, *wrapped, aliases=(alias,))
        )

    def policy_for(self, name: str, declared: Policy, *wrapped: PolicyBook, aliases: Sequence[str] = ()) -> Policy:
        """Return the policy in force for a tool: file over wrap over guard over what the tool itself declares.

        Entries may use the tool's ``name`` or one of its ``aliases``. Of several ``wrapped`` the last is strongest.
        """
        names = self._named[name] = tuple(dict.fromkeys((name, *aliases)))
        found = (
            ("decorator", declared), ("guard", self._book.for_tool(*names)),
            *(("wrap", book.for_tool(*names)) for book in wrapped), ("file", self._file.for_tool(*names)),
        )  # fmt: skip
        return Policy.combined(tuple((source, policy) for source, policy in found if policy.model_fields_set))

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools declared so far."""
        return sorted(self._named)

    @property
    def _all_names(self) -> set[str]:
        return {name for names in self._named.values() for name in names}

    def unused_policies(self) -> list[str]:
        """A sentence for every name or glob of this guard's policies that fits no tool declared so far, and for every
        argument that a rule looks for and none of its tools has.
        """
        file, names = self._engine.policy, self._all_names
        rules = None if file is None else file.rules
        by_rules = () if rules is None else rules.unfit(names)
        never = () if rules is None else rules.never_held(self._engine.known.parameters_of(self._named.values()))
        found = (*self._file.unfit(names), *by_rules, *never, *self._book.unfit(names))
        return [sentence for _, sentence in found]

    def _refuse_misspelt(self) -> None:
        """Refuse an entry of this guard's own policies that is a slip; raises ``ConfigurationError``.

        An entry that fits no tool and resembles none is for a tool that is declared later: a warning names it.
        """
        self._book.check_misspelt(self._all_names, where="this guard", remedy=_LATE)
        self._engine.before_first_call = None

    def _warn_of_unused(self) -> None:
        for sentence in self.unused_policies():
            _log.warning("%s", sentence)

    # -- agents ------------------------------------------------------------------------------------------------

    def wrap(
        self,
        target: T,
        policies: Policies | None = None,
        *,
        name: str | None = None,
        run_id: str | None = None,
        budget: Budgets | None = None,
        on_interrupt: OnInterrupt | None = None,
    ) -> T:
        """``target`` guarded, of the same type as before; the original is left as it is.

        Args:
            target: an agent, graph or tool of a framework whose adapter is installed, a function, or a list of tools.
            policies: for its tools by name or glob, over those of the guard.
            name: what its runs are called.
            run_id: the id of the run it opens if none is in force; None makes one for each invocation.
            budget: of each run it opens, as for ``run``; with one it opens a run of its own within a run in force too.
            on_interrupt: as for ``Guard``.

        Raises ``ConfigurationError`` for an object no adapter knows, or a policy for a tool it does not have.
        """
        check_name("name", name, optional=True)
        check_choice("on_interrupt", on_interrupt, (None, "hold", "compensate"))
        book = PolicyBook(policies, source="wrap(policies)")
        own = budgets_of(budget, where="wrap(budget)")
        adapter = find_adapter(target)
        with self._engine.known.all_or_nothing():
            wrapped: T = adapter.wrap(
                self, target, book, name=name, run_id=run_id, budget=own or None, on_interrupt=on_interrupt
            )
        return wrapped

    def coverage(self, target: object) -> Coverage:
        """What of an agent is guarded, or would be if it were wrapped, and what nobody can see into.

        Raises ``ConfigurationError`` for an object of which no adapter can say that.
        """
        adapter = find_adapter(target)
        if not hasattr(adapter, "coverage"):
            raise ConfigurationError(f"nobody can say what of {described(target)} is guarded: wrap it, or its tools")
        found: Coverage = adapter.coverage(target)
        return found

    @property
    def tracer(self) -> Tracer:
        """What makes this guard's spans (for adapters)."""
        return self._engine.tracer

    def define(self, function: Callable[..., Any], *, name: str, policy: Policy, **details: Any) -> Tool:
        """A tool of an agent that an adapter wraps (``details``: those of ``sagaspan.adapters.tool_of``)."""
        tool = tool_of(function, name=name, policy=policy, **details)
        self._engine.known.prepare(tool)
        return tool

    def call_tool(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        invoke: Callable[[Mapping[str, Any]], Any],
        *,
        tool_call_id: str | None = None,
        agent: str | None = None,
        asked: list[Equal] | None = None,
        branch: str | None = None,
        is_same: bool = False,
        span: Span = INVALID_SPAN,
    ) -> Any:
        """Call a defined tool from an adapter: ``invoke`` runs its body with ``arguments``.

        ``asked`` is a list to note in which call it was, for ``Run.asks_again``. Equal calls of several that run side
        by side, each in a ``branch`` of its own, are no loop. ``is_same``: where the code of ``execution_here`` is run
        again, it is the same call whatever became of it, not a new one where nobody knows. ``span`` is the one that
        another instrumentation opened for this very call, where that is not the current one: it is adopted.
        """
        origin = Origin(tool_call_id=tool_call_id, agent=agent, asked=asked, branch=branch, is_same=is_same, span=span)
        return run_sync(self._engine.call(tool, arguments, context={}, invoke=invoke, backend=SYNC, origin=origin))

    async def acall_tool(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        invoke: Callable[[Mapping[str, Any]], Any],
        *,
        tool_call_id: str | None = None,
        agent: str | None = None,
        asked: list[Equal] | None = None,
        branch: str | None = None,
        is_same: bool = False,
        span: Span = INVALID_SPAN,
    ) -> Any:
        """As ``call_tool`` in a running loop; ``invoke`` gives an awaitable if ``tool.is_async``."""
        origin = Origin(tool_call_id=tool_call_id, agent=agent, asked=asked, branch=branch, is_same=is_same, span=span)
        return await self._engine.call(tool, arguments, context={}, invoke=invoke, backend=ASYNCIO, origin=origin)

    def may_ask(self, tool: Tool) -> bool:
        """Whether somebody may be asked about calls of ``tool`` elsewhere than in the call itself (for adapters)."""
        return self._engine.may_ask(tool)

    def question(self, tool: Tool, arguments: Mapping[str, Any]) -> Question | None:
        """What somebody is asked about a call of ``tool`` that is made here next; None if nobody is (for adapters).

        What waits is left in the ledger as a request. Raises ``RunError`` or ``StoreError``.
        """
        return run_sync(self._engine.question(tool, arguments, backend=SYNC))

    async def aquestion(self, tool: Tool, arguments: Mapping[str, Any]) -> Question | None:
        """As ``question``, in a running loop."""
        return await self._engine.question(tool, arguments, backend=ASYNCIO)

    # -- runs --------------------------------------------------------------------------------------------------

    def run(
        self,
        name: str = "run",
        id: str | None = None,  # noqa: A002 - the contract's word
        *,
        input: Any = None,  # noqa: A002 - the contract's word
        user: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        conversation: str | None = None,
        budget: Budgets | None = None,
        tags: Mapping[str, Any] | None = None,
        on_interrupt: OnInterrupt | None = None,
        on_budget: OnInterrupt = "compensate",
        orphans: Orphans | None = None,
        wait: float = 0,
        reopen: bool = False,
        nested: bool = True,
    ) -> Run:
        """A run to enter with ``with`` or ``async with``: its steps are undone together.

        The same ``id`` resumes: what is done is answered from the ledger. Writes done before and not asked for again
        are ``run.orphans``: the log warns of them at the end, and ``orphans="compensate"`` undoes them there (None: as
        the outer run says, else ``"warn"``). ``wait`` is seconds to wait for another
        worker inside the run; ``reopen`` starts a run over that was rolled back. Entering raises ``RunInProgress``,
        ``RunConflict``, ``RunClosed`` or ``StoreError``.
        """
        made = made_run(
            self._engine, name, id, input=input, user=user, tenant=tenant, agent=agent, conversation=conversation,
            budget=budget, tags=tags, on_interrupt=on_interrupt, by_default=self._on_interrupt, on_budget=on_budget,
            orphans=orphans, wait=wait, reopen=reopen, nested=nested,
        )  # fmt: skip
        self._engine.outside.made = weakref.ref(made)
        return made

    def compensate(
        self, run: Run | RunInfo | str, *, call: CallInfo | str | None = None, dry_run: bool = False
    ) -> Undone:
        """Undo a run, also a completed one, or one ``call`` of it; what is undone already is left alone.

        ``dry_run`` says what would be undone, in that order, and what is in doubt (``unresolved``). Raises ``RunError``
        if there is no such run or call, ``RunInProgress``, ``OutcomeUnknown`` if a write of it is in doubt (a dry run
        does not), ``CompensationFailed``.
        """
        return run_sync(self._compensate(run, call, dry_run, SYNC))

    async def acompensate(
        self, run: Run | RunInfo | str, *, call: CallInfo | str | None = None, dry_run: bool = False
    ) -> Undone:
        """As ``compensate``, for asynchronous callers; a cancellation waits until it is over."""
        finished = await ASYNCIO.to_the_end(self._compensate(run, call, dry_run, ASYNCIO))
        if finished.interrupted is not None:
            raise finished.interrupted
        return finished.value

    async def _compensate(
        self, run: Run | RunInfo | str, call: CallInfo | str | None, dry_run: bool, backend: Backend
    ) -> Undone:
        run_id = run.id if isinstance(run, Run | RunInfo) else run
        call_id = call.id if isinstance(call, CallInfo) else call
        check_name("run", run_id)
        check_name("call", call_id, optional=True)
        check_flag("dry_run", dry_run)
        inside = (current := self.current_run()) is not None and current.id == run_id
        return await compensate(self._engine, run_id, call_id, dry_run=dry_run, inside=inside, backend=backend)

    def recover(
        self, *, older_than: float | timedelta | None = None, limit: int | None = None, dry_run: bool = False
    ) -> Recovery:
        """Go on after processes that died: hold or undo their runs, finish their rollbacks, mark their calls in doubt.

        Any number of processes may do so at once; each run is taken by one. It also tries failed compensations again,
        and undoes runs that were held for a doubt that is over. Of an owner of another machine, whose lease looks
        over, it waits once (40 s for a lease of 30 s) to be sure.

        Args:
            older_than: only what gave no sign of life for so long (seconds, or a ``timedelta``).
            limit: at most so many runs.
            dry_run: only say what would be done.

        Raises ``ConfigurationError`` or ``StoreError``.
        """
        return run_sync(Recoverer(self._engine, SYNC)(older_than=older_than, limit=limit, dry_run=dry_run, watch=True))

    async def arecover(
        self, *, older_than: float | timedelta | None = None, limit: int | None = None, dry_run: bool = False
    ) -> Recovery:
        """As ``recover``, for asynchronous callers; a cancellation waits until the run in hand is over."""
        stopped: list[bool] = []
        recoverer = Recoverer(self._engine, ASYNCIO, stop=lambda: bool(stopped))
        work = asyncio.ensure_future(recoverer(older_than=older_than, limit=limit, dry_run=dry_run, watch=True))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stopped.append(True)
            await asyncio.wait([work])
            raise

    def prune(self, *, older_than: float | timedelta, dry_run: bool = False, forget_keys: bool = False) -> Pruned:
        """Forget runs, and calls outside a run, that were settled ``older_than`` (seconds, or a ``timedelta``) ago.

        Nothing that is open, in doubt, held or needs a person is forgotten, and no run with a done call under a
        business key, unless ``forget_keys``. What is forgotten is new when it comes again: its run id is opened, its
        key is called. Agents go on meanwhile; an interruption leaves what is not forgotten yet.

        Raises ``ConfigurationError`` or ``StoreError``.
        """
        check_flag("dry_run", dry_run)
        return self._pruner(older_than, forget_keys)(dry_run=dry_run)

    async def aprune(
        self, *, older_than: float | timedelta, dry_run: bool = False, forget_keys: bool = False
    ) -> Pruned:
        """As ``prune``, for asynchronous callers; a cancellation waits for the batch in hand."""
        check_flag("dry_run", dry_run)
        stopped: list[bool] = []
        pruner = self._pruner(older_than, forget_keys, stop=lambda: bool(stopped))
        work = asyncio.ensure_future(asyncio.to_thread(pruner, dry_run=dry_run))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stopped.append(True)
            await asyncio.wait([work])
            raise

    def _pruner(
        self, older_than: float | timedelta, forget_keys: bool, stop: Callable[[], bool] = lambda: False
    ) -> Pruner:
        check_flag("forget_keys", forget_keys)
        return Pruner(
            self._store, namespace=self._engine.namespace, before_us=cutoff_us(older_than), forget_keys=forget_keys,
            stop=stop,
        )  # fmt: skip

    def current_run(self) -> Run | None:
        """The run in force here, or None."""
        run = current_run.get()
        return run if run is not None and run.engine is self._engine and not run.inherited else None

    def turns_of(self, thread: str) -> list[RunInfo]:
        """The latest runs ``THREAD/n`` of a conversation, the highest n first (for adapters)."""
        return [run_info(record) for record in self._store.turns_of(self._engine.namespace, thread)]

    def current_call(self) -> Call | None:
        """The call whose body is running here, or None; it has ``idempotency_key`` and ``idempotency_headers``."""
        return current_call.get()

    @contextlib.contextmanager
    def override(
        self,
        *,
        store: str | Store | None = None,
        approver: Approver | Callable[[ApprovalRequest], Any] | str | None = None,
    ) -> Iterator[Self]:
        """Work on another ``store``, or with another ``approver``, within the block; for tests of what uses this guard.

        Its tools, policies and layers stay. The other store is closed at the end. Raises ``ConfigurationError`` while a
        run of this guard is open.
        """
        with contextlib.ExitStack() as stack:
            if approver is not None:
                stack.enter_context(self._engine.with_approver(approver_of(approver)))
            if store is not None:
                other = self._connect(store) if isinstance(store, str) else store
                stack.enter_context(self._engine.on_another_store(other))
            yield self

    # -- budgets -------------------------------------------------------------------------------------------------

    def set_budget(self, scope: str, budget: Budgets, *, actor: str | None = None) -> None:
        """Set what may be used of a scope (or a glob, ``"user:*"``) from now on, in every process over this store.

        It holds at the next claim, whether or not the scope was ever used, in the place of what a guard declares of
        that scope, or of a broader glob, in the same unit and window; what calls on record have used in the window
        counts. Raises ``ConfigurationError`` or ``StoreError``.
        """
        self.budgets.set(scope, budget, actor=actor)

    async def aset_budget(self, scope: str, budget: Budgets, *, actor: str | None = None) -> None:
        """As ``set_budget``, for asynchronous callers."""
        await ASYNCIO.io(self.set_budget, scope, budget, actor=actor)

    def freeze(self, scope: str, *, reason: str, actor: str | None = None) -> Frozen:
        """Let nothing of ``scope`` begin any more, in every process over this store, from the next claim on.

        Args:
            scope: ``"tool:pay"``, ``"agent:x"``, ``"user:42"``, ``"tenant:t"``, ``"model:m"``, ``"run:ID"``, a glob of
                these (``"tool:pay_*"``), or ``"all"``.
            reason: why, for whoever finds it frozen.
            actor: who decides; None is the user of this process.

        What is frozen raises ``ScopeFrozen``; what runs goes on to its end, and what is undone is undone. Raises
        ``ConfigurationError``, ``ResolutionError`` if it is frozen already, or ``StoreError``.
        """
        return freeze(self._store, self.namespace, scope, reason=reason, actor=actor)

    async def afreeze(self, scope: str, *, reason: str, actor: str | None = None) -> Frozen:
        """As ``freeze``, for asynchronous callers."""
        return await ASYNCIO.io(self.freeze, scope, reason=reason, actor=actor)

    def unfreeze(self, scope: str, *, actor: str | None = None) -> Frozen:
        """Let a frozen ``scope`` go on; returns what had held it. Raises ``ResolutionError`` if it is not frozen."""
        return unfreeze(self._store, self.namespace, scope, actor=actor)

    async def aunfreeze(self, scope: str, *, actor: str | None = None) -> Frozen:
        """As ``unfreeze``, for asynchronous callers."""
        return await ASYNCIO.io(self.unfreeze, scope, actor=actor)

    def frozen(self) -> Sequence[Frozen]:
        """What is frozen, paused runs among it, oldest first."""
        return frozen(self._store, self.namespace)

    async def afrozen(self) -> Sequence[Frozen]:
        """As ``frozen``, for asynchronous callers."""
        return await ASYNCIO.io(self.frozen)

    def llm_call(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
        provider: str | None = None,
        demand: Demand | None = None,
        limit_output: bool = False,
        operation: str = "chat",
        span: Span = INVALID_SPAN,
    ) -> LlmCall:
        """A call of a model made by whatever client: ``with guard.llm_call("gpt-4o", input_tokens=900) as call: ...``.

        Entering (``with`` or ``async with``) reserves the most it can cost; in the block say what it used:
        ``call.record_usage(response)``, or ``call.record_usage(input_tokens=950, output_tokens=480)``.

        Args:
            model: its name, with the provider in front or not.
            input_tokens: at most so many go in.
            max_output_tokens: the limit the request sets; None: the model's own limit counts.
            provider: who serves it, where the name does not say so.
            demand: all upper bounds together, instead of the two.
            limit_output: limit the answer if the budgets cannot pay for the longest one; the request must then be sent
                with ``call.output_limit``, unless that is None.
            operation: what is asked for: ``"chat"``, ``"embeddings"``, ``"generate_content"``, ``"text_completion"``.
            span: that another instrumentation opened for this very call, where that is not the current one.

        Entering raises ``BudgetExceeded``; ``PolicyDenied`` for a model without a known price under a hard budget of
        money; ``RunClosed`` or ``StoreError``.
        """
        demand = demand or Demand(input_tokens=input_tokens, output_tokens=max_output_tokens)
        return LlmCall(
            self._engine, self.prices, model, demand, provider=provider, limit_output=limit_output,
            operation=operation, span=span,
        )  # fmt: skip

    def llm(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
        provider: str | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """A decorator for a function that calls a model and returns its response; each call is an ``llm_call``.

        Raises ``ConfigurationError``, also for what is no function, or one that gives its answer piece by piece.
        """
        check_name("model", model)
        demand = Demand(input_tokens=input_tokens, output_tokens=max_output_tokens)
        return metered(lambda: self.llm_call(model, provider=provider, demand=demand))

    def check_loop(self, tool: str, args: Mapping[str, Any] | None = None, *, allowed: int | None = None) -> None:
        """Count a call of ``tool`` that this guard does not make; raises ``LoopDetected`` after ``allowed`` equal ones.

        ``allowed`` None: as for tools whose policy does not say (5, or ``SAGASPAN_LOOP``). Counted are equal calls
        among the latest 64 of the run in force (else of this guard's session), with whatever result; the error has
        ``count`` and ``signature``. The third refusal stops the run, whoever handles the error. In a run all this is on
        record, so that whoever resumes it goes on counting, and what it checks once more counts once; a session ends
        with its process. Raises
        ``ConfigurationError`` for ``args`` that are no mapping, or ``StoreError``.
        """
        run = self.current_run()
        most = self._engine.loop if allowed is None else allowed
        try:
            check_loop(self._engine, run, tool, args or {}, most)
        except LoopDetected as error:
            if self.mode != "observe":
                if run is not None and error.stops:
                    run.doom(error)
                raise
            _log.info("observed only: %s", error)

    async def acheck_loop(
        self, tool: str, args: Mapping[str, Any] | None = None, *, allowed: int | None = None
    ) -> None:
        """As ``check_loop``, for asynchronous callers."""
        await ASYNCIO.io(self.check_loop, tool, args, allowed=allowed)

    def usage(
        self,
        *,
        run: str | None = None,
        user: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        tool: str | None = None,
        model: str | None = None,
        since: timedelta | datetime | None = None,
    ) -> Spending:
        """What was used, of all calls that fit; amounts are ``Decimal`` US dollars.

        ``reserved``, ``limit`` and ``remaining`` are of the tightest budget of money of the one scope that was asked
        for, None where there is none. Raises ``StoreError``.
        """
        scope = {"run": run, "user": user, "tenant": tenant, "agent": agent, "tool": tool, "model": model}
        return spending_of(self._engine, {kind: name for kind, name in scope.items() if name is not None}, since)

    async def ausage(self, **which: Any) -> Spending:
        """As ``usage``, for asynchronous callers."""
        return await ASYNCIO.io(self.usage, **which)

    def usage_by(
        self, kind: Literal["run", "agent", "user", "tenant", "tool", "model"], *,
        since: timedelta | datetime | None = None,
    ) -> list[Spending]:  # fmt: skip
        """What was used, for each of a ``kind`` of scope (``.key``), the dearest first. Raises ``StoreError``."""
        check_choice("kind", kind, KINDS)
        return usage_by(self._store, self._engine.namespace, {}, kind, since)

    async def ausage_by(
        self, kind: Literal["run", "agent", "user", "tenant", "tool", "model"], *,
        since: timedelta | datetime | None = None,
    ) -> list[Spending]:  # fmt: skip
        """As ``usage_by``, for asynchronous callers."""
        return await ASYNCIO.io(self.usage_by, kind, since=since)

    # -- the ledger ----------------------------------------------------------------------------------------------

    @property
    def runs(self) -> Runs:
        """What the ledger has of the runs of this namespace."""
        return Runs(self._store, self._engine.namespace)

    @property
    def budgets(self) -> Accounts:
        """What is used of the budgets of this namespace, and whether that is what its calls say."""
        return Accounts(self._store, self._engine.namespace)

    @property
    def approvals(self) -> Approvals:
        """What waits for approval in this namespace, and deciding it."""
        return self.approvals_of("api")

    def approvals_of(self, channel: str) -> Approvals:
        """``approvals``, decided through ``channel`` (for adapters)."""
        engine = self._engine
        return Approvals(self._store, engine.namespace, engine.digest, channel=channel, reads=engine.known.reads_of)

    @property
    def audit(self) -> Audit:
        """The audit trail of this namespace: whether it is as it was written, and a copy of it for others."""
        return Audit(lambda: self._connect(self._store.url, create=False), self._engine.namespace)

    @property
    def calls(self) -> Calls:
        """What the ledger has of the calls of this namespace."""
        return Calls(self._store, self._engine.namespace)

    def close(self) -> None:
        """End the session and close the store; the guard may be used again, and opens again then."""
        self._engine.close()

    async def aclose(self) -> None:
        """As ``close``, for asynchronous callers."""
        await ASYNCIO.io(self._engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def guard_function(guard: Guard, function: Callable[..., Any], name: str, book: PolicyBook) -> Callable[..., Any]:
    """``function`` as a guarded one called ``name``, under the policies of ``book`` (for adapters)."""
    tool = guard._tool(function, name, Policy(), book)  # noqa: SLF001 - the same room
    engine = guard._engine  # noqa: SLF001 - the same room
    engine.known.register(tool)
    return guarded_function(engine, tool)


def _in_code(policies: Any) -> Policies | None:
    """The policies that are no file's; raises ``ConfigurationError`` for what is neither."""
    if isinstance(policies, str | Path):
        return None
    if policies is None or isinstance(policies, Mapping):
        return policies
    raise ConfigurationError(
        f"policies takes a dict such as {{'pay': Policy(effect='write')}}, or the path of a TOML file, not "
        f"{described(policies)}"
    )
