"""The state machine of the model: processes, failures, deaths, clocks and people, against the truth.

A rule is a thing that happens: a process enters a run, calls a tool that does as it is told, leaves, dies after so many
durable steps, is stopped past its lease while others go on; time passes; somebody recovers, undoes, decides a doubt.
After each of them the ledger is compared with what really happened (rule book, section 6.3); at the end everybody is
dead, the doubts are decided, a last process recovers, and nothing may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final
from unittest import mock

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sagaspan import (
    CallState,
    CompensationFailed,
    Guard,
    LoopDetected,
    OutcomeUnknown,
    Refused,
    ResolutionError,
    RunError,
    RunState,
    StoreUnavailable,
)  # fmt: skip
from sagaspan.ledger.records import CallRecord
from sagaspan.ledger.records import Phase as CallPhase
from sagaspan.ledger.resolution import IN_DOUBT, is_unsent
from sagaspan.testing import Crash, assert_history, frozen_clock
from sagaspan.testing._leaving import leave
from sagaspan.testing._stores import temporary_ledger
from tests.proofs.model_kinds import (
    HOUR,
    RUNS,
    TOOLS,
    Job,
    Kind,
    Plan,
    Step,
    Stop,
    jobs,
    kinds,
    leavings,
    steps,
    undo_plans,
    waits,
)
from tests.proofs.model_truth import MANY, check_end, check_forgotten, compare, is_relied_on
from tests.proofs.model_world import Declined, Process, World

STEPS: Final = 15
EXPECTED: Final = (
    Declined, ConnectionError, asyncio.CancelledError, Crash, OutcomeUnknown, Refused, RunError, StoreUnavailable,
    CompensationFailed, ResolutionError, LoopDetected,
)  # fmt: skip
USER: Final = "ann"
START: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Transition = tuple[str, str, str]
"""From which state, by which event (a run's begins with ``run.``), to which one."""


class Histories(RuleBasedStateMachine):
    """One history; ``reached`` counts in how many a transition was gone through."""

    reached: ClassVar[Counter[Transition]]

    @initialize(declared=kinds, second=st.sampled_from(["here", "container"]), skew=st.sampled_from([-HOUR, 0.0, HOUR]))
    def begin(self, declared: tuple[Kind, ...], second: str, skew: float) -> None:
        self.open = contextlib.ExitStack()
        self.clock = self.open.enter_context(frozen_clock(START))
        ids = itertools.count()  # of records: the same history has the same ones, in their order
        self.open.enter_context(mock.patch("os.urandom", lambda size: next(ids).to_bytes(size, "big")))
        self.ledger = self.open.enter_context(temporary_ledger())()
        self.open.callback(leave, self.ledger)
        self.world = World(self.clock, self.ledger, dict(zip(TOOLS, declared, strict=True)))
        self.recorded: list[CallRecord] = []
        self.gone_through: set[Transition] = set()
        # Three places; the wall clock of another machine may be an hour off.
        self.places = (("here", 0.0), (second, 0.0), ("machine", skew))
        self.processes = [self.spawn(place) for place in range(len(self.places))]

    # -- processes and time -----------------------------------------------------------------------------------

    @rule(at=st.integers(0, 2), steps=st.integers(0, 12), killed=st.booleans())
    def ends(self, at: int, steps: int, killed: bool) -> None:
        """A process ends well, or is killed: now, or after so many durable steps."""
        process = self.pick(at)
        if killed and steps:
            process.life.left = steps
            return
        if not killed:
            self.do(process, process.guard.close)
        process.end()

    # -- what processes do ------------------------------------------------------------------------------------

    @rule(
        at=st.integers(0, 2), run_id=st.sampled_from(RUNS), on_interrupt=st.sampled_from(["hold", "compensate"]),
        reopen=st.booleans(),
    )  # fmt: skip
    def enters(self, at: int, run_id: str, on_interrupt: str, reopen: bool) -> None:
        """A process enters a run, or a nested one if it is inside one."""
        self.enter(self.pick(at), run_id, on_interrupt, reopen)

    @rule(at=st.integers(0, 2), run_id=st.sampled_from(RUNS), reopen=st.booleans())
    def takes_over(self, at: int, run_id: str, reopen: bool) -> None:
        """Another user enters a run that is not his: he is refused."""
        process = self.pick(at)
        if process.runs or process.guard.runs.get(run_id) is None:
            return
        refused = self.do(process, process.guard.run("work", id=run_id, user="bob", reopen=reopen).__enter__)
        assert isinstance(refused, (Crash, RunError, StoreUnavailable)), f"bob entered {run_id}"

    @rule(at=st.integers(0, 2), steps=steps)
    def calls(self, at: int, steps: list[Step]) -> None:
        """A process calls tools, inside its run or outside of any."""
        process = self.pick(at)
        for step in steps:
            self.call(process, *step)

    @rule(at=st.integers(0, 2), commits=st.booleans(), how=leavings, undo_plan=undo_plans)
    def leaves(self, at: int, commits: bool, how: str, undo_plan: list[str]) -> None:
        """A process leaves its innermost run; or it only draws a line in it."""
        process = self.pick(at)
        if commits and process.runs:
            self.do(process, process.runs[-1].commit)
        else:
            self.leave(process, how, undo_plan)

    @rule(jobs=jobs)
    def work(self, jobs: list[Job]) -> None:
        """Processes enter runs, call tools in them and leave; or die on the way."""
        for job in jobs:
            self.clock.advance(job.after)
            process = self.pick(job.at)
            inside = len(process.runs)
            process.life.left = job.dies_in
            self.enter(process, job.run_id, job.on_interrupt, job.reopen)
            if len(process.runs) > inside:
                for step in job.steps:
                    self.call(process, *step)
                if job.commits and not process.life.dead:
                    self.do(process, process.runs[-1].commit)
                self.leave(process, job.how, job.undo_plan)
            process.life.left = None

    @rule(at=st.integers(0, 2), after=waits, undo_plan=undo_plans)
    def recovers(self, at: int, after: float, undo_plan: list[str]) -> None:
        """A process recovers what others left."""
        self.clock.advance(after)
        self.recover(self.pick(at), undo_plan)

    @rule(at=st.integers(0, 2), which=st.integers(0, 9), one=st.booleans(), undo_plan=undo_plans)
    def compensates(self, at: int, which: int, one: bool, undo_plan: list[str]) -> None:
        """Somebody has a run undone, or one call of it."""
        self.compensate(self.pick(at), which, one, undo_plan)

    @precondition(lambda self: any(map(_needs_a_person, self.recorded)))
    @rule(
        which=st.integers(0, 9), knows=st.booleans(), result=st.booleans(),
        otherwise=st.sampled_from(["happened", "did-not-happen", "compensated", "retry"]),
    )  # fmt: skip
    def decides(self, which: int, knows: bool, result: bool, otherwise: str) -> None:
        """A person decides a call that needs one: knowing what happened, or not."""
        calls = self.in_doubt()
        self.decide(calls[which % len(calls)], None if knows else otherwise, result)

    @rule(at=st.integers(0, 2), after=st.sampled_from([0.0, 4 * HOUR]), keys=st.booleans())
    def forgets(self, at: int, after: float, keys: bool) -> None:
        """Somebody prunes what was settled long ago, by his own clock."""
        self.clock.advance(after)
        self.prune(self.pick(at), keys)

    # -- how it is done ---------------------------------------------------------------------------------------

    def spawn(self, place: int) -> Process:
        """A process comes along."""
        where, skew = self.places[place]
        return Process(self.world, where, skew)

    def pick(self, at: int) -> Process:
        """The process at a place, another one if it is dead, and from another place if it is busy."""
        if self.processes[at].busy:
            at = next(place for place, process in enumerate(self.processes) if not process.busy)
        if self.processes[at].life.dead:
            self.processes[at] = self.spawn(at)
        return self.processes[at]

    def do(self, process: Process, action: Callable[..., Any], *arguments: Any) -> Any:
        """Let a process do something; what it returned, or raised if that is one of the errors it may raise."""
        done = process.do(action, *arguments)
        if isinstance(done, BaseException):
            if not isinstance(done, EXPECTED):
                raise done
            assert process.life.dead or not isinstance(done, Crash)
        return done

    def enter(self, process: Process, run_id: str, on_interrupt: str, reopen: bool) -> None:
        inside = bool(process.runs)

        def enter() -> None:
            named = {} if inside else {"id": run_id, "user": USER}
            run = process.guard.run("work", on_interrupt=on_interrupt, reopen=reopen, **named)
            run.__enter__()
            process.runs.append(run)

        self.do(process, enter)

    def call(self, process: Process, tool: str, n: int, plan: Plan) -> None:
        if process.life.dead or (self.world.kinds[tool].defer and not process.runs):
            return
        told = [self.meanwhile(process, tool, n, how) if isinstance(how, Stop) else how for how in plan]
        if self.world.kinds[tool].defer:
            process.send_plan += told
        else:
            process.plan = told
        value = self.do(process, process.tools[tool], n)
        process.plan = []
        if isinstance(value, dict) and value.get("status") == "scheduled":
            self.world.moments.scheduled(value["record"])
        if not isinstance(value, BaseException | dict):
            assert value in (f"{tool}-{n}", None) or type(value) is object
            key = [effect for effect in self.world.effects if (effect.tool, effect.n) == (tool, n)]
            assert key or self.world.told, f"{tool}({n}) returned {value!r} and never happened"

    def meanwhile(self, stopped: Process, tool: str, n: int, stop: Stop) -> tuple[str, Callable[[], None], str]:
        """What the others do while a process is stopped in its body."""

        def go_on() -> None:
            self.clock.advance(stop.seconds)
            for number, action in enumerate(stop.actions):
                if all(process.busy for process in self.processes):
                    return
                self.act(action, self.pick(0), stopped, tool, n, number)

        return stop.when, go_on, stop.end

    def act(self, action: str, other: Process, stopped: Process, tool: str, n: int, number: int) -> None:
        """One thing that another process does meanwhile."""
        its_run = stopped.runs[0].id if stopped.runs else None
        if action == "recover":
            self.recover(other, [])
        elif action == "call":
            self.call(other, tool, n, [])
        elif action == "enter":
            self.enter(other, RUNS[number % 2], "hold", reopen=False)
        elif action == "compensate":
            self.compensate(other, number, one=False, undo_plan=[])
        elif action == "undo" and its_run is not None:
            self.do(other, other.guard.compensate, its_run)
        elif action == "again":
            if its_run is not None and not other.runs:
                self.enter(other, its_run, "hold", reopen=False)
            self.call(other, tool, n, [])
        elif calls := self.in_doubt():
            its_call = next((call for call in calls if call.id == stopped.inside), calls[0])
            self.decide(its_call, {"denies": "did-not-happen", "permits": "retry"}.get(action), result=True)

    def leave(self, process: Process, how: str, undo_plan: list[str]) -> None:
        if not process.runs or process.life.dead:
            return
        run = process.runs.pop()
        process.undo_plan = list(undo_plan)

        def leave() -> None:
            if how == "pause":
                run.pause()
            if how == "abort":
                run.abort()
            errors: dict[str, BaseException] = {"error": Declined(), "cancelled": asyncio.CancelledError()}
            error = errors.get(how)
            if error is None:
                run.__exit__(None, None, None)
                return
            try:
                raise error
            except BaseException:
                run.__exit__(type(error), error, error.__traceback__)
                raise

        self.do(process, leave)
        process.undo_plan = []

    def recover(self, process: Process, undo_plan: list[str]) -> None:
        process.undo_plan = list(undo_plan)
        self.do(process, process.guard.recover)
        process.undo_plan = []

    def compensate(self, process: Process, which: int, one: bool, undo_plan: list[str]) -> None:
        runs = self.ledger.list_runs()
        if not runs:
            return
        run = runs[which % len(runs)]
        steps = [call for call in self.ledger.calls_of(run.namespace, run.id) if call.phase is CallPhase.FORWARD]
        if one and not steps:
            return
        call = steps[which % len(steps)].id if one else None
        if call is not None:
            self.world.asked.add(call)
        process.undo_plan = list(undo_plan)
        self.do(process, lambda: process.guard.compensate(run.id, call=call))
        process.undo_plan = []

    def prune(self, process: Process, keys: bool) -> None:
        self.gone_through |= self.transitions()
        calls = {call.id: call for call in self.ledger.list_calls(limit=MANY)}
        runs = {(run.namespace, run.id): run for run in self.ledger.list_runs(limit=MANY)}
        self.do(process, lambda: process.guard.prune(older_than=3 * HOUR, forget_keys=keys))
        left = {call.id: call for call in self.ledger.list_calls(limit=MANY)}
        left_runs = {(run.namespace, run.id): run for run in self.ledger.list_runs(limit=MANY)}
        gone = [call for call in calls.values() if call.id not in left]
        gone_runs = [run for key, run in runs.items() if key not in left_runs]
        self.world.moments.forgotten({run.id for run in gone_runs})
        check_forgotten(
            gone, gone_runs, {run.id for run in left_runs.values() if not run.is_session}, keys=keys,
        )  # fmt: skip
        # A business key that is forgotten starts over, whatever was under it before the last time.
        again = {(call.tool, call.key) for call in gone if call.key_source == "business"}
        earlier = [call for call in left.values() if (call.tool, call.key) in again and call.key_source == "business"]
        known = {call.idempotency_key for call in left.values()} - {call.idempotency_key for call in earlier}
        # Also what had handed its key over, which is named otherwise since.
        started_over = {call.idempotency_key for call in gone if is_relied_on(call)}
        self.world.forget({call.idempotency_key for call in (*gone, *earlier)} - known | started_over)

    def in_doubt(self) -> list[CallRecord]:
        """What a person may be asked about, or can say more of."""
        late = {call.id for call in self.ledger.late_calls(MANY, namespace=None)}
        return [call for call in self.forward_calls() if _needs_a_person(call) or call.id in late]

    def forward_calls(self) -> list[CallRecord]:
        """What is on record but for compensations."""
        return [call for call in self.ledger.list_calls(limit=MANY) if call.phase is CallPhase.FORWARD]

    def decide(self, call: CallRecord, otherwise: str | None, result: bool) -> None:
        happened = bool(self.world.by_key(call.idempotency_key))
        truth = "happened" if happened else "did-not-happen"
        if call.state is CallState.COMPENSATION_FAILED or call.scope.startswith("duplicate:"):
            truth = "compensated"
        outcome = otherwise or truth
        decider = self.pick(0)
        value = {"result": f"{call.tool}-{_n(call)}"} if result and outcome == "happened" else {}

        def decide() -> None:
            decider.guard.calls.resolve(call.id, outcome, note="looked", actor="somebody", **value)

        self.do(decider, decide)
        decided = self.ledger.get_call(call.id)
        if decided is None or decided.version == call.version:  # refused; it counts if only its decider died after it
            return
        if outcome == "retry" or outcome != truth or outcome == "did-not-happen":
            self.world.told.add(call.idempotency_key)
        if outcome == "compensated":
            self.world.undone.append(call.id)

    # -- the rules nobody may cross ---------------------------------------------------------------------------

    @invariant()
    def the_ledger_is_true(self) -> None:
        """Compare the ledger with what really happened."""
        try:
            self.compare()
        except AssertionError as wrong:
            wrong.add_note("\n".join(self.told()))
            raise

    def told(self) -> Iterator[str]:
        """What the ledger says happened, and what did."""
        rows = (row for run in self.ledger.list_runs(limit=MANY) for row in self.ledger.audit_of(run.namespace, run.id))
        for row in sorted(rows, key=lambda row: row.at_us):
            seconds = row.at_us / 1e6 - START.timestamp()
            who = f"{row.run_id} {(row.call_id or '')[-4:]}"
            yield f"{seconds:>10.1f}  {who:<20} {row.event} -> {row.to_state}  {row.actor[-4:]}  {row.detail or ''}"
        for effect in self.world.effects:
            yield f"{effect.at - self.world.began:>10.1f}  {effect.tool}({effect.n}) happened, by {effect.call[-4:]}"
        yield f"undone: {[call[-4:] for call in self.world.undone]}; told: {self.world.told}"

    def compare(self) -> None:
        self.recorded = self.forward_calls()
        compare(self.world, self.ledger, self.recorded)

    def teardown(self) -> None:
        """Everybody is dead, time passes, the doubts are decided, a last process recovers: nothing may be left."""
        if not hasattr(self, "open"):
            return
        try:
            if sys.exception() is None:  # what went wrong before says more
                self.end()
        finally:
            for process in self.processes:
                process.end()
            self.open.close()

    def end(self) -> None:
        for process in self.processes:
            process.end()
        self.clock.advance(72 * HOUR)
        last = self.pick(0)
        self.recover(last, [])
        for call in self.in_doubt():
            if call.state in IN_DOUBT:
                self.decide(call, None, result=True)
        assert not [call for call in self.in_doubt() if call.state in IN_DOUBT]
        self.recover(last, [])
        for number, run in enumerate(self.ledger.list_runs(states=[RunState.HELD, RunState.PAUSED])):
            if run.parent_id is None:
                self.enter(last, run.id, "hold", reopen=False)
                self.leave(last, "error" if number % 2 else "well", [])
        self.recover(last, [])
        self.do(last, last.guard.close)
        self.the_ledger_is_true()
        check_end(self.ledger)
        with Guard(self.ledger) as guard:
            assert list(guard.budgets.fsck()) == []
        assert_history(last.guard)
        self.reached.update(self.gone_through | self.transitions())

    def transitions(self) -> set[Transition]:
        """What the history went through, as far as it is on record."""
        rows = (row for run in self.ledger.list_runs(limit=MANY) for row in self.ledger.audit_of(run.namespace, run.id))
        return {(str(row.from_state), row.event.removeprefix("compensation."), row.to_state) for row in rows}


def _needs_a_person(call: CallRecord) -> bool:
    lost = call.state is CallState.DONE and (call.result_lost is not None or call.scope.startswith("duplicate:"))
    return call.state in (*IN_DOUBT, CallState.COMPENSATION_FAILED) or lost or is_unsent(call)


def _n(call: CallRecord) -> int:
    from sagaspan import codecs

    return int(codecs.decode(call.arguments)["n"])


def live(cases: int, start: str, *, shrink: bool = True) -> Counter[Transition]:
    """Live ``cases`` histories, the same ones for the same ``start``; returns in how many each transition was reached.

    What goes wrong is raised, with the shortest history in which it does (``shrink``: else with the first).
    """
    found: Counter[Transition] = Counter()

    class Part(Histories):
        reached = found

    how = settings(
        max_examples=cases, stateful_step_count=STEPS, deadline=None, database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    log = logging.getLogger("sagaspan")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        run_state_machine_as_test(seed(start)(Part), settings=how)
    finally:
        log.setLevel(level)
    return found
