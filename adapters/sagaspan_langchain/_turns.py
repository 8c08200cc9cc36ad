"""One invocation of a guarded graph is one run: joined if one is in force, else opened, resumed, paused and left here.

With a LangGraph ``thread_id`` the runs of a conversation are ``THREAD/1``, ``THREAD/2``, ...: new input opens the next,
``None`` or ``Command(resume=...)`` goes on with the one that its checkpoint was made in. New input after a crash of
which the checkpoint knows nothing, as with ``durability="exit"``, is the same turn again, and what it did is answered.
A guarded graph within a graph that nobody guards has a run for each task of that, named as LangGraph names its
checkpoints. The run is in force while a step of the graph runs, never across a ``yield``: there the code is the
caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeVar
from uuid import UUID
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp, GraphDrained, GraphInterrupt
from langgraph.types import StateSnapshot

from sagaspan import Budget, Run, RunInfo, RunInProgress, StoreUnavailable
from sagaspan.adapters import execution_here, task_here, traceback_outside
from sagaspan_langchain import _branches as branches
from sagaspan_langchain import _checkpoints as checkpoints
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain import _conversations as conversations
from sagaspan_langchain import _errors as errors
from sagaspan_langchain import _origins as origins
from sagaspan_langchain._executions import Executions, executions_here
from sagaspan_langchain._reach import Scope
from sagaspan_langchain._suspended import provider_failed

T = TypeVar("T")
_PAUSES: Final = (GraphInterrupt, GraphDrained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a wrapped graph opens its runs."""

    name: str | None
    run_id: str | None
    budget: tuple[Budget, ...] | None
    on_interrupt: Literal["hold", "compensate"] | None
    agent: str | None = None

    def named(self, agent: str) -> Self:
        """For the graph called ``agent``, which names the runs too unless the user did."""
        return replace(self, name=self.name or agent, agent=agent)


class Turn:
    """One invocation: its run, and what must happen to that when the invocation ends."""

    def __init__(self, scope: Scope, opening: Opening, graph: Any, asked: Any, config: RunnableConfig | None) -> None:
        seen = tasks.in_force(getattr(graph, "config", None), config)
        self._scope = scope
        self._guard = guard = scope.guard
        self._opening = opening
        self._nested = tasks.is_nested(seen)
        # A budget of its own is counted in a run of its own, nested in the one in force.
        self._joined = guard.current_run() if opening.budget is None else None
        thread = seen.get("configurable", {}).get("thread_id")
        self._thread = None if thread is None else str(thread)
        self._place = tasks.place_of(seen, graph) if self._nested and guard.current_run() is None else None
        saver = getattr(graph, "checkpointer", None) if self._place is None else tasks.checkpointer_of(seen)
        self._saver = saver if self._thread is not None and isinstance(saver, BaseCheckpointSaver) else None
        self._has_history = self._saver is not None
        if self._place is not None:
            self._continues, self._begins_at = tasks.is_resuming(seen), None
        else:
            is_seen = self._has_history and not self._nested
            self._continues = conversations.is_to_go_on(asked) or (is_seen and conversations.may_go_on(asked, seen))
            self._begins_at = functools.partial(conversations.begins_at, asked, seen)
        self._states: RunnableConfig = (config or {}) if self._place is None else tasks.at(seen, self._place)
        self._watch = _Watch()
        self._executions = Executions.here(guard)
        self._run: Run
        self._branch: branches.Branch
        # Inside another graph's node it is that graph that pauses, and its own watch that sees it.
        self.config = config if self._nested else tasks.merged(config, {"callbacks": [self._watch]})

    @classmethod
    def enter(cls, scope: Scope, opening: Opening, graph: Any, asked: Any, config: RunnableConfig | None) -> Self:
        """Begin an invocation with the input ``asked``; raises what entering a run raises."""
        turn = cls(scope, opening, graph, asked, config)
        seen = turn._gone_on_from(checkpoints.seen(graph, turn._states, turn._saver)) if turn._goes_on else None
        if turn._joined is None:
            saver = turn._looks_back
            origin = None if saver is None or seen is None else origins.origin_of(saver, seen.snapshot)
            turn_id, lost = turn._turn_id(origin)
            is_same = lost is not None and turn._is_begun_again(lost, graph.get_state(tasks.latest(turn._states)))
            try:
                turn._open(lost.id if lost is not None and is_same else turn_id)
            except RunInProgress:
                if not is_same:
                    raise
                turn._open(turn_id)  # it goes on elsewhere: this is another turn
        else:
            checkpoints.take_up(turn._joined, graph, config)
        turn._begin()
        try:
            turn._go_on(seen)
        except BaseException as error:  # noqa: BLE001 - raised again once the run knows
            turn.leave(error)
        return turn

    @classmethod
    async def aenter(
        cls, scope: Scope, opening: Opening, graph: Any, asked: Any, config: RunnableConfig | None
    ) -> Self:
        """As ``enter``, in a running loop."""
        turn = cls(scope, opening, graph, asked, config)
        seen = turn._gone_on_from(await checkpoints.aseen(graph, turn._states, turn._saver)) if turn._goes_on else None
        if turn._joined is None:
            saver = turn._looks_back
            origin = None if saver is None or seen is None else await origins.aorigin_of(saver, seen.snapshot)
            turn_id, lost = await asyncio.to_thread(turn._turn_id, origin) if turn._thread else (None, None)
            is_same = lost is not None and turn._is_begun_again(
                lost, await graph.aget_state(tasks.latest(turn._states))
            )
            try:
                await turn._aopen(lost.id if lost is not None and is_same else turn_id)
            except RunInProgress:
                if not is_same:
                    raise
                await turn._aopen(turn_id)
        else:
            await checkpoints.atake_up(turn._joined, graph, config)
        turn._begin()
        try:
            if seen is not None:
                await asyncio.to_thread(turn._go_on, seen)
        except BaseException as error:  # noqa: BLE001 - as above
            await turn.aleave(error)
        return turn

    # -- which run ---------------------------------------------------------------------------------------------

    @property
    def _goes_on(self) -> bool:
        return self._continues and self._has_history and (not self._nested or self._place is not None)

    @property
    def _looks_back(self) -> BaseCheckpointSaver[Any] | None:
        """What has the checkpoint that tells which run is gone on with."""
        return self._saver if self._goes_on and self._place is None and self._opening.run_id is None else None

    def _gone_on_from(self, seen: checkpoints.Seen) -> checkpoints.Seen | None:
        """The checkpoint to go on from; None if what was asked begins a turn there."""
        if self._begins_at is None or not self._begins_at(seen.snapshot):
            return seen
        self._continues = False
        return None

    def _open(self, turn_id: str | None) -> None:
        self._run = self._next_run(turn_id)
        with conversations.saying_how_to_go_on(self._run) if turn_id else contextlib.nullcontext():
            self._run.__enter__()
        self._run.deactivate()

    async def _aopen(self, turn_id: str | None) -> None:
        self._run = self._next_run(turn_id)
        with conversations.saying_how_to_go_on(self._run) if turn_id else contextlib.nullcontext():
            await self._run.__aenter__()
        self._run.deactivate()

    def _next_run(self, turn_id: str | None) -> Run:
        opening = self._opening
        # Its model may do otherwise when the code around it is run again, where a run that is replayed could not go on.
        execution = execution_here.set(None)
        try:
            return self._guard.run(
                opening.name or "agent",
                id=opening.run_id or turn_id,
                conversation=self._thread,
                agent=opening.agent,
                budget=opening.budget,
                on_interrupt=opening.on_interrupt,
            )
        finally:
            execution_here.reset(execution)

    def _turn_id(self, origin: origins.Origin | None) -> tuple[str | None, RunInfo | None]:
        """The id of the run; and the thread's last run, if it was interrupted and new input may begin it again."""
        if self._thread is None or self._place is not None:
            return None if self._thread is None else f"{self._thread}/{self._place}", None
        try:
            turns = self._guard.turns_of(self._thread)
        except StoreUnavailable:
            if self._continues or not self._guard.fail_open:
                raise
            return None, None  # nobody knows which turn it is: this one gets an id of its own
        name, following = self._opening.name or "agent", conversations.next_turn(self._thread, turns)
        last = next((turn for turn in turns if turn.name == name), None)
        if not self._continues:
            may_be_lost = self._has_history and not self._nested
            return following, last if may_be_lost and conversations.is_interrupted(last) else None
        if self._looks_back is not None and origin is None:
            return None, None  # there is nothing to go on from, as LangGraph will say: that is no turn
        if origin is None or (origin.unknown == "unsaid" and tasks.named_in(self._states) is None):
            return following if last is None else last.id, None
        return conversations.gone_on_with(self._guard, name, self._thread, turns, origin), None

    def _is_begun_again(self, lost: RunInfo, head: StateSnapshot) -> bool:
        """Whether new input begins ``lost`` again: nothing is saved of it, and nobody goes back in the conversation."""
        named = tasks.named_in(self._states)
        return named in (None, tasks.named_in(head.config)) and conversations.is_unknown_to(head, lost)

    def _begin(self) -> None:
        if self._joined is not None:
            self._run = self._joined
        self._run.go_on()
        self.config = tasks.merged(self.config, origins.marks(self._run))
        self._branch = branches.begin(self._run)

    def _go_on(self, seen: checkpoints.Seen | None) -> None:
        """Take up a run where its checkpoint stands: what that answers is not asked again, so an equal call is new."""
        if seen is None:
            return
        is_over = checkpoints.ended_tasks(seen, self._states)
        if is_over is not None:
            self._run.tasks_are_over(is_over)
        if self._run.resumed and self._run not in _counted:
            _counted.add(self._run)
            # Of a run that others are in, too, the checkpoint says nothing but what the model was answered.
            before = checkpoints.ended_steps(seen.snapshot) if self._joined is None else None
            self._run.answered_elsewhere(
                checkpoints.answered(seen.snapshot),
                checkpoints.answers_until(seen.snapshot),
                before=before,
                is_over=is_over,
            )

    # -- while it runs -----------------------------------------------------------------------------------------

    def step(self, advance: Callable[[], T]) -> T:
        """One step of the graph, with the run in force."""
        with self._in_force():
            return advance()

    async def astep(self, advance: Callable[[], Awaitable[T]]) -> T:
        """As ``step``, awaiting it."""
        with self._in_force():
            return await advance()

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        with self._scope.in_force(), self._branch.in_force(), self._saying_tasks():
            if self._joined is not None:  # it is in force here already, with the caller's own span over it
                yield
                return
            self._run.activate()
            try:
                yield
            finally:
                self._run.deactivate()

    @contextlib.contextmanager
    def _saying_tasks(self) -> Iterator[None]:
        """Each call knows in which task it is made, and says so on record where a checkpoint may answer for that."""
        executions, execution = executions_here.set(self._executions), execution_here.set(tasks.path_here)
        task = task_here.set(tasks.path_here) if self._has_history else None
        try:
            yield
        finally:
            if task is not None:
                task_here.reset(task)
            execution_here.reset(execution)
            executions_here.reset(executions)

    # -- how it ends -------------------------------------------------------------------------------------------

    def leave(self, failure: BaseException | None) -> None:
        """End the invocation, and the run if it opened it; raises ``failure`` as the caller shall see it."""
        self._branch.end()
        shown = self._shown(failure)
        error = self._ending(shown)
        if self._joined is None:
            self._run.activate()
            self._run.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if shown is not None:
            raise _shortened(shown)

    async def aleave(self, failure: BaseException | None) -> None:
        """As ``leave``, in a running loop."""
        self._branch.end()
        shown = self._shown(failure)
        error = self._ending(shown)
        if self._joined is None:
            self._run.activate()
            await self._run.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if shown is not None:
            raise _shortened(shown)

    def _shown(self, failure: BaseException | None) -> BaseException | None:
        """The error itself, unless it still has to pass the error handlers of the graph around this one."""
        if failure is None or (self._nested and self._joined is not None):
            return failure
        return errors.original(failure)

    def _ending(self, shown: BaseException | None) -> BaseException | None:
        """What ends the run: LangGraph's control flow does not; the run pauses with the graph.

        Nor does an answer that was refused: the question is still open, and nothing that was done is undone for it.
        """
        is_refused = errors.is_wrong_answer(shown) or self._is_no_answer(shown)
        paused = is_refused or isinstance(shown, _PAUSES) or (shown is None and self._watch.paused)
        if paused and (self._joined is None or not self._nested):
            self._run.pause()
        can_go_on = is_refused or (self._is_gone_on_with and provider_failed(shown))
        if shown is not None and can_go_on:
            self._run.can_resume_after(shown)
        return None if is_refused or isinstance(shown, GraphBubbleUp) else shown

    @property
    def _is_gone_on_with(self) -> bool:
        """Whether whoever goes on with the run goes on with this graph: not where the body of a call invoked it."""
        if self._joined is None:
            return self._has_history
        return self._has_history and not self._nested and self._guard.current_call() is None

    def _is_no_answer(self, shown: BaseException | None) -> bool:
        """Whether LangGraph refused what was to go on: an answer to a question that is none, or to which of several."""
        goes_on = self._goes_on and (self._joined is not None or self._run.resumed)
        return goes_on and shown is not None and tasks.is_before_the_first_step(shown)


_counted: WeakSet[Run] = WeakSet()
"""Runs whose answered calls were counted: a second resume in the same block counts them itself."""


class _Watch(GraphCallbackHandler):
    """Sees whether the graph was interrupted; its end looks the same otherwise."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_retriever = ignore_agent = ignore_custom_event = True

    def __init__(self) -> None:
        self.paused = False
        self._root: UUID | None = None

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **details: Any) -> None:  # noqa: ARG002 - LangChain's signature
        self._root = self._root or run_id

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        # A graph of its own that a tool invokes inherits this handler: its pause is not ours.
        self.paused = self.paused or event.run_id == self._root


def _shortened(error: BaseException) -> BaseException:
    """``error`` with the frames of the agent's and the tool's own code; SAGASPAN_TRACEBACKS=full keeps them all."""
    if not isinstance(error, Exception):
        return error
    return error.with_traceback(traceback_outside(error, ("langchain", "langchain_core", "langgraph")))
