"""A call in doubt is decided by evidence, in a fixed order, or by a person; never by a guess (rule book (a) 6)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sagaspan import (
    Applied,
    CallInfo,
    ConfigurationError,
    Guard,
    NotApplied,
    OutcomeUnknown,
    Policy,
    ResolutionError,
    ToolTimeout,
    Unsure,
)
from tests.conftest import Caller, Worker
from tests.ledger.test_transitions import replayed


class Declined(Exception):
    """It did not happen."""


LOST = ConnectionResetError("the line went dead")


def _raises(error: type[BaseException] | BaseException) -> Callable[..., Any]:
    def probe() -> None:
        raise error

    return probe


def _checked(guard: Guard, run_id: str) -> list[str]:
    """The states of a run's forward calls, after the audit rows were seen to lead there."""
    info = guard.runs.get(run_id)
    assert info is not None
    rows = guard._store.audit_of("default", run_id)
    assert replayed(rows, None) == info.status
    for call in info.calls:
        assert replayed(rows, call.id) == call.state
    return [str(call.state) for call in info.calls if call.phase == "forward"]


# -- the probe ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "state", "status"),
    [
        (lambda: Applied("found"), "compensated", "compensated"),
        (lambda: NotApplied(), "failed", "failed"),
        (lambda: NotApplied, "failed", "failed"),
        (_raises(NotApplied), "failed", "failed"),
        (_raises(NotApplied("no such payment")), "failed", "failed"),
        (lambda: Unsure("the index lags"), "needs_human", "held"),
        (lambda: Unsure, "needs_human", "held"),
        (lambda: None, "needs_human", "held"),
        (lambda: True, "needs_human", "held"),
        (lambda: False, "needs_human", "held"),
        (_raises(ConnectionRefusedError), "needs_human", "held"),
        (None, "unknown", "held"),
    ],
)
def test_a_run_asks_the_probes_before_it_ends(
    guard: Guard, caller: Caller, probe: Callable[[], Any] | None, state: str, status: str
) -> None:
    """Applied: undone with the rest. NotApplied: failed. Anything else: held, and nothing is undone."""
    undone: list[Any] = []

    def cancel(result: Any) -> None:
        undone.append(result)

    @caller.tool(guard, compensate=cancel)
    def hotel() -> str:
        return "hotel"

    @caller.tool(guard, compensate=cancel, probe=probe and caller.body(probe))
    def pay() -> str:
        raise LOST

    async def job() -> None:
        async with caller.run(guard, id="a"):
            if status != "failed":
                await caller.call(hotel)
            await caller.call(pay)

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    assert _checked(guard, "a")[-1] == state
    assert guard.runs.get("a").status == status
    assert undone == (["found", "hotel"] if status == "compensated" else [])


def test_a_run_that_ends_well_completes_if_the_probe_decides(guard: Guard, caller: Caller) -> None:
    """A doubt that the agent swallowed is found out too, and then the run is completed, not held."""
    answers = [Unsure(), Applied(7)]

    @caller.tool(guard, effect="write", probe=lambda: answers.pop(0))
    def pay() -> str:
        raise LOST

    async def job() -> None:
        async with caller.run(guard, id="a"):
            with pytest.raises((ConnectionResetError, OutcomeUnknown)):
                await caller.call(pay)

    caller.play(job)
    assert (guard.runs.get("a").status, guard.runs.get("a").reason) == ("held", "unresolved")

    async def again() -> Any:
        async with caller.run(guard, id="a"):
            return await caller.call(pay)

    assert caller.play(again) == 7
    assert guard.runs.get("a").status == "completed"
    assert _checked(guard, "a") == ["done"]


@pytest.mark.parametrize(("left_by", "status"), [("timeout", "compensated"), ("refusal", "held")])
def test_a_timeout_that_the_probe_explains_is_an_error_like_others(guard: Guard, left_by: str, status: str) -> None:
    """Found done, it is undone with the rest. A mere refusal to run it again undoes nothing: the run can go on."""
    undone: list[str] = []
    answers: list[Any] = [Unsure(), Unsure(), Applied("found")] if left_by == "refusal" else [Applied("found")]

    def cancel(result: str) -> None:
        undone.append(result)

    @guard.tool(compensate=cancel, timeout=0.05, probe=lambda: answers.pop(0))
    def pay() -> None:
        time.sleep(0.1)
        raise LOST  # a result that comes late would be evidence of its own

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        pay()
    if left_by == "refusal":
        with pytest.raises(OutcomeUnknown), guard.run(id="a"):
            pay()
    assert guard.runs.get("a").status == status
    assert undone == (["found"] if status == "compensated" else [])


def test_asked_again_the_probe_decides_whether_it_runs(guard: Guard, caller: Caller) -> None:
    """The same call in the same block: found done it is answered, found not done it runs."""
    ran: list[str] = []
    answers = {"done": Applied("by the probe"), "not": NotApplied()}

    @caller.tool(guard, effect="write", probe=lambda what: answers[what])
    def pay(what: str) -> str:
        ran.append(what)
        if ran.count(what) == 1:
            raise LOST
        return "by the second run"

    async def job() -> list[str]:
        async with caller.run(guard, id="a"):
            results = []
            for what in ("done", "not"):
                with pytest.raises(ConnectionResetError):
                    await caller.call(pay, what)
                results.append(await caller.call(pay, what))
            return results

    assert caller.play(job) == ["by the probe", "by the second run"]
    assert ran == ["done", "not", "not"]


def test_a_probe_gets_what_it_asks_for_by_name(guard: Guard, caller: Caller) -> None:
    """The arguments, the key the service was sent, and the call."""
    seen: list[Any] = []

    def find(order: str, idempotency_key: str, call: CallInfo) -> Any:
        seen.extend([order, idempotency_key, call.state, guard.current_run(), guard.current_call()])
        return Applied()

    @caller.tool(guard, effect="write", probe=caller.body(find))
    def pay(order: str, amount: int = 5) -> None:
        seen.append(guard.current_call().idempotency_key)
        raise LOST

    async def job() -> None:
        async with caller.run(guard) as run:
            with pytest.raises(ConnectionResetError):
                await caller.call(pay, "o-1")
            with pytest.raises(OutcomeUnknown, match="nobody said what it returned") as caught:
                await caller.call(pay, "o-1")
            assert caught.value.tool_ran == "yes"
            assert guard.current_run() is run if caller.is_async else True

    caller.play(job)
    sent, order, key, state, run, call = seen
    assert (order, key, state, run, call) == ("o-1", sent, "unknown", None, None)


@pytest.mark.parametrize("probe", [lambda orders: 1, lambda result: 1, lambda *, nothing: 1])
def test_a_probe_that_cannot_be_filled_is_refused_at_definition(guard: Guard, probe: Callable[..., Any]) -> None:
    """A parameter that nothing can fill is named, with what it could take."""
    with pytest.raises(ConfigurationError, match=r"nothing can fill the parameter .* of the probe"):
        guard.tool("pay", probe=probe)(lambda order: 1)
    with pytest.raises(ConfigurationError, match="generator"):
        guard.tool("pay", probe=lambda: (yield))(lambda order: 1)


def test_a_guarded_tool_serves_as_a_probe(guard: Guard) -> None:
    """Its unguarded function is asked: looking is no step of the run."""

    @guard.tool(effect="read")
    def find(order: str) -> Applied:
        return Applied(order)

    @guard.tool(effect="write", probe=find)
    def pay(order: str) -> None:
        raise LOST

    with pytest.raises(ConnectionResetError), guard.run(id="a"):
        pay("o-1")
    assert [call.tool for call in guard.runs.get("a").calls] == ["pay"]
    assert guard.runs.get("a").calls[0].result == "o-1"


def test_not_applied_does_not_count_while_the_body_still_runs(guard: Guard) -> None:
    """A body that timed out can still land: "not there" is then no proof, and its late result is evidence."""
    go_on = threading.Event()

    @guard.tool(effect="write", timeout=0.05, probe=lambda: NotApplied())
    def pay() -> str:
        go_on.wait(60)
        return "late"

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        pay()
    assert (guard.runs.get("a").status, _checked(guard, "a")) == ("held", ["unknown"])
    with pytest.raises(OutcomeUnknown), guard.run(id="a"):
        pay()
    go_on.set()
    _until(lambda: guard.runs.get("a").calls[0].state == "done")
    with guard.run(id="a"):
        assert pay() == "late"


def test_not_applied_counts_once_the_body_has_ended(guard: Guard) -> None:
    """The end of a body without a result is recorded; from then on "not there" is proof."""
    go_on = threading.Event()
    ran = []

    @guard.tool(effect="write", timeout=0.05, probe=lambda: NotApplied())
    def pay() -> str:
        ran.append(1)
        if len(ran) == 1:
            go_on.wait(60)
            raise LOST
        return "second"

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        pay()
    go_on.set()
    _until(lambda: guard._store.audit_of("default", "a")[-1].event == "body_ended")
    with guard.run(id="a"):
        assert pay() == "second"
    assert _checked(guard, "a") == ["done"]


def test_settle_says_how_long_the_source_lags(guard: Guard, caller: Caller) -> None:
    """Before that NotApplied says only "not yet"; the answer's own ``settle`` wins over the policy's."""
    answers: list[Any] = [NotApplied()]
    ran: list[int] = []

    @caller.tool(guard, effect="write", settle=60, probe=lambda: answers[-1])
    def pay() -> None:
        ran.append(1)
        raise LOST

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(pay)

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    for answer in (NotApplied(), NotApplied(settle=50)):
        answers.append(answer)
        with pytest.raises(OutcomeUnknown):
            caller.play(job)
        assert (_checked(guard, "a"), len(ran)) == (["unknown"], 1)
    answers.append(NotApplied(settle=0))
    with pytest.raises(ConnectionResetError):
        caller.play(job)
    assert (_checked(guard, "a"), len(ran)) == (["failed"], 2)


def test_a_probe_that_hangs_cannot_say(guard: Guard) -> None:
    """It is given the tool's ``timeout``."""

    @guard.tool(effect="write", timeout=0.05, probe=lambda: time.sleep(0.2))
    def pay() -> None:
        raise LOST

    with pytest.raises(ConnectionResetError), guard.run(id="a"):
        pay()
    assert _checked(guard, "a") == ["needs_human"]


# -- after a crash --------------------------------------------------------------------------------------------

CRASH = """
@guard.tool(effect="write", probe=lambda: %s)
def pay():
    effect("pay")
    if os.environ.get("KILL"):
        die()
    return "second"
try:
    with guard.run(id="a", on_interrupt="hold"):
        print(pay())
except OutcomeUnknown as problem:
    print("unknown", problem.call.state)
print(guard.runs.get("a").status)
"""


@pytest.mark.parametrize(
    ("answer", "out", "effects"),
    [
        ("Applied('found')", ["found", "completed"], 1),
        ("NotApplied()", ["second", "completed"], 2),
        ("Unsure()", ["unknown", "needs_human", "held"], 1),
        ("1 / 0", ["unknown", "needs_human", "held"], 1),
    ],
)
def test_killed_in_the_body_the_probe_decides(worker: Worker, answer: str, out: list[str], effects: int) -> None:
    """A dead process lands nothing more, so the next one's probe may also say that it did not happen."""
    script = CRASH % answer
    assert worker.run(script, KILL="1").returncode == -9
    assert worker.run(script).stdout.split() == out
    assert len(worker.effects) == effects


def test_not_applied_of_a_live_worker_elsewhere_counts_if_its_body_has_ended(guard: Guard, worker: Worker) -> None:
    """Another process may be alive: what it recorded of its body's end tells whether it can land."""
    script = """
    @guard.tool(key="n", timeout=0.2)
    def pay(n):
        if n == 2:
            time.sleep(60)
        raise ConnectionResetError
    for n in (1, 2):
        try:
            pay(n)
        except Exception:
            pass
    print("both in doubt", flush=True)
    time.sleep(60)
    """
    other = worker.start(script)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "both in doubt\n"
        pay = guard.tool("pay", key="n", probe=lambda: NotApplied())(lambda n: "second")
        assert pay(1) == "second"
        with pytest.raises(OutcomeUnknown):
            pay(2)
    finally:
        other.kill()
        other.communicate()
    assert pay(2) == "second"


def test_a_resume_on_another_path_asks_the_probe_first(guard: Guard, caller: Caller) -> None:
    """A new write of a resumed run waits for what is in doubt; the probe may clear it."""
    answers: list[Any] = [Unsure()]

    @caller.tool(guard, effect="write", probe=lambda: answers[-1])
    def pay() -> int:
        raise LOST

    @caller.tool(guard, effect="write")
    def mail() -> str:
        return "sent"

    async def job(tool: Any) -> Any:
        async with caller.run(guard, id="a"):
            return await caller.call(tool)

    with pytest.raises(ConnectionResetError):
        caller.play(job, pay)
    with pytest.raises(OutcomeUnknown, match=r"mail.*did not run"):
        caller.play(job, mail)
    answers.append(Applied(1))
    assert caller.play(job, mail) == "sent"
    assert _checked(guard, "a") == ["done", "done"]


# -- the same key again ---------------------------------------------------------------------------------------


def test_the_same_key_is_sent_again_while_the_service_does_it_once(guard: Guard, caller: Caller) -> None:
    """Within ``downstream_dedupes_for`` a call in doubt is repeated with its key: as a retry, and asked again."""
    keys: list[str] = []

    @caller.tool(guard, effect="write", downstream_dedupes_for=60, retry={"attempts": 2, "initial_delay": 0})
    def pay(n: int) -> int:
        keys.append(guard.current_call().idempotency_key)
        if len(keys) < 4:
            raise LOST
        return len(keys)

    async def job() -> int:
        async with caller.run(guard, id="a"):
            with pytest.raises(ConnectionResetError):
                await caller.call(pay, 1)
            return await caller.call(pay, 1)

    assert caller.play(job) == 4
    assert len(set(keys)) == 1
    assert _checked(guard, "a") == ["done"]


@pytest.mark.parametrize("fields", [{"downstream_dedupes_for": 0.05}, {"downstream_dedupes_for": 5, "timeout": 5}])
def test_not_when_the_request_might_arrive_too_late(guard: Guard, caller: Caller, fields: dict[str, Any]) -> None:
    """The window counts from the first attempt, with a margin of a tenth or the timeout."""
    ran: list[int] = []

    @caller.tool(guard, effect="write", retry={"attempts": 3, "initial_delay": 0}, **fields)
    def pay() -> None:
        ran.append(1)
        time.sleep(0.06)
        raise LOST

    async def job() -> None:
        async with caller.run(guard, id="a"):
            with pytest.raises(ConnectionResetError):
                await caller.call(pay)
            await caller.call(pay)

    with pytest.raises(OutcomeUnknown):
        caller.play(job)
    assert len(ran) == 1


def test_a_clean_failure_of_the_second_sending_proves_nothing_of_the_first(guard: Guard, caller: Caller) -> None:
    """A 429, say, of the repeated request: the first may have happened, so the call stays in doubt."""
    ran: list[int] = []

    @caller.tool(guard, effect="write", downstream_dedupes_for=60)
    def pay() -> None:
        ran.append(1)
        raise LOST if len(ran) == 1 else Declined

    async def job() -> None:
        async with caller.run(guard, id="a"):
            with pytest.raises(ConnectionResetError):
                await caller.call(pay)
            await caller.call(pay)

    with pytest.raises(Declined):
        caller.play(job)
    assert _checked(guard, "a") == ["unknown"]
    assert guard.runs.get("a").status == "held"


def test_the_same_holds_for_an_idempotent_tool(guard: Guard, caller: Caller) -> None:
    """Run again after a doubt and failing cleanly, it is not failed: the first may have happened."""
    ran: list[int] = []

    @caller.tool(guard, effect="idempotent")
    def put() -> None:
        ran.append(1)
        raise LOST if len(ran) == 1 else Declined

    async def job() -> None:
        async with caller.run(guard, id="a", on_interrupt="hold") as run:
            with pytest.raises((ConnectionResetError, Declined)):
                await caller.call(put)
            run.pause()

    caller.play(job)
    caller.play(job)
    assert (len(ran), _checked(guard, "a")) == (2, ["unknown"])


@pytest.mark.parametrize(("window", "runs"), [("60", 2), ("None", 1)])
def test_a_business_key_is_sent_again_by_another_run(worker: Worker, window: str, runs: int) -> None:
    """A doubt of a dead worker goes over to the run that sends the key again; both keys are one to the service."""
    script = f"""
    @guard.tool(key="order", downstream_dedupes_for={window})
    def pay(order, idempotency_key):
        effect(idempotency_key)
        if os.environ.get("KILL"):
            die()
        return "paid"
    try:
        with guard.run(id=os.environ["RUN"], on_interrupt="hold"):
            print(pay("o-1"))
    except OutcomeUnknown:
        print("unknown")
    with guard.run(id="first") as run:
        pass
    print(run.status)
    """
    worker.run(script, KILL="1", RUN="first")
    again = worker.run(script, RUN="second")
    assert again.stdout.split() == (["paid", "completed"] if runs == 2 else ["unknown", "held"]), again.stderr
    assert (len(worker.effects), len(set(worker.effects))) == (runs, 1)


def test_the_window_counts_from_the_first_run_that_sent_the_key(worker: Worker) -> None:
    """A third run does not send a key again because a second one did so lately: the service saw it first long ago."""
    script = """
    true_time = time.time_ns
    time.time_ns = lambda: true_time() + int(os.environ["LATER"]) * 10**9
    @guard.tool(key="order", downstream_dedupes_for=60)
    def pay(order):
        effect("pay")
        die()
    try:
        with guard.run(on_interrupt="hold"):
            pay("o-1")
    except OutcomeUnknown:
        print("unknown")
    """
    assert worker.run(script, LATER="0").returncode == -9
    assert worker.run(script, LATER="30").returncode == -9
    assert worker.run(script, LATER="70").stdout == "unknown\n"
    assert worker.effects == ["pay", "pay"]


def test_a_clock_that_was_set_back_opens_no_window(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first attempt in the future says nothing of how long ago it was: the key is not sent again."""
    ran: list[int] = []

    @guard.tool(effect="write", downstream_dedupes_for=60)
    def pay() -> None:
        ran.append(1)
        raise LOST

    with pytest.raises(ConnectionResetError), guard.run(id="a"):
        pay()
    true_time = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_time() - 3600 * 10**9)
    with pytest.raises(OutcomeUnknown), guard.run(id="a"):
        pay()
    assert ran == [1]


# -- late results ---------------------------------------------------------------------------------------------


def _late(
    guard: Guard, between: Callable[[CallInfo], None], before_late: type[Exception] | None = None, **policy: Any
) -> list[Any]:
    """The first body times out and ends after ``between``, and after its run (by ``before_late``); what was undone."""
    go_on, ended = threading.Event(), threading.Event()
    ran: list[int] = []
    undone: list[Any] = []

    def cancel(result: str) -> None:
        undone.append(result)

    @guard.tool(compensate=cancel, timeout=0.2, **policy)
    def pay() -> str:
        ran.append(1)
        if len(ran) == 1:
            go_on.wait(60)
            ended.set()
            return "first"
        return "second"

    with pytest.raises(ToolTimeout), guard.run("late", id="a"):
        pay()
    between(guard.runs.get("a").calls[0])
    try:
        with guard.run("late", id="a") as run:
            pay()
            if before_late is not None:
                raise before_late
            run.pause()
    except (OutcomeUnknown, Declined):
        pass
    go_on.set()
    assert ended.wait(60)
    time.sleep(0.1)
    return undone


def test_an_effect_that_came_twice_is_an_incident_with_an_undo(guard: Guard) -> None:
    """Run again after a wrong word, the late result of the first is recorded too, listed, and can be undone alone."""
    undone = _late(guard, lambda call: guard.calls.resolve(call.id, "did-not-happen", note="not in the books"))
    ((extra, first),) = guard.calls.duplicates()
    assert first is not None
    assert (first.result, extra.result, extra.state) == ("second", "first", "done")
    assert _checked(guard, "a") == ["done", "done"]
    guard.compensate("a", call=extra.id)
    assert undone == ["first"]
    assert guard.calls.duplicates() == []
    with guard.run("late", id="a"):
        pass
    assert undone == ["first"]


def test_a_failing_run_undoes_both_effects(guard: Guard) -> None:
    """Everything that happened is undone, the extra effect first."""
    undone = _late(guard, lambda call: guard.calls.resolve(call.id, "retry", note="once more"))
    with pytest.raises(Declined), guard.run("late", id="a"):
        raise Declined
    assert undone == ["first", "second"]
    assert guard.runs.get("a").status == "compensated"


def test_no_incident_where_the_service_does_it_once(guard: Guard) -> None:
    """Sent again with its key inside the window, both results are of one effect."""
    _late(guard, lambda call: None, downstream_dedupes_for=60)
    assert guard.calls.duplicates() == []
    assert _checked(guard, "a") == ["done"]


def test_a_late_result_while_it_runs_again(guard: Guard, store_url: str) -> None:
    """The late result settles the call; what the second run brings is then the extra effect."""
    first_go_on, second_runs, second_go_on = threading.Event(), threading.Event(), threading.Event()
    results: list[str] = []

    @guard.tool("pay", effect="write", timeout=0.05)
    def first() -> str:
        first_go_on.wait(60)
        return "first"

    def second() -> str:
        second_runs.set()
        second_go_on.wait(60)
        return "second"

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        first()
    guard.calls.resolve(_doubt(guard).id, "retry", note="once more")

    def again() -> None:
        with Guard(store_url) as other, other.run(id="a"):
            results.append(other.tool("pay", effect="write")(second)())

    thread = threading.Thread(target=again)
    thread.start()
    assert second_runs.wait(60)
    first_go_on.set()
    _until(lambda: _doubt(guard).state == "done")
    second_go_on.set()
    thread.join()
    assert results == ["second"]  # it did happen, and its caller is told so
    ((extra, call),) = guard.calls.duplicates()
    assert call is not None
    assert (call.result, extra.result) == ("first", "second")
    _checked(guard, "a")


def test_a_late_result_while_it_is_sent_again_is_of_the_same_effect(guard: Guard, store_url: str) -> None:
    """The service does one key once: what the second sending brings is no second effect, and is undone once."""
    first_go_on, second_runs, second_go_on = threading.Event(), threading.Event(), threading.Event()
    undone: list[str] = []
    fields: Any = {"downstream_dedupes_for": 60, "compensate": lambda result: undone.append(result)}

    @guard.tool("pay", timeout=0.05, **fields)
    def first() -> str:
        first_go_on.wait(60)
        return "first"

    def second() -> str:
        second_runs.set()
        second_go_on.wait(60)
        return "second"

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        first()

    def again() -> None:
        with Guard(store_url) as other, contextlib.suppress(Declined), other.run(id="a"):
            other.tool("pay", **fields)(second)()
            raise Declined

    thread = threading.Thread(target=again)
    thread.start()
    assert second_runs.wait(60)
    first_go_on.set()
    _until(lambda: _doubt(guard).state == "done")
    second_go_on.set()
    thread.join()
    assert guard.calls.duplicates() == []
    assert (guard.runs.get("a").status, undone) == ("compensated", ["first"])


def test_a_wrong_word_of_a_person_is_corrected_by_the_late_result(guard: Guard) -> None:
    """Nobody ran it again: the call that "did not happen" is done."""
    go_on = threading.Event()

    @guard.tool(effect="write", timeout=0.05)
    def pay() -> str:
        go_on.wait(60)
        return "late"

    with pytest.raises(ToolTimeout), guard.run(id="a"):
        pay()
    (call,) = guard.runs.get("a").calls
    assert guard.calls.resolve(call.id, "did-not-happen", note="not in the books").state == "failed"
    go_on.set()
    _until(lambda: guard.runs.get("a").calls[0].state == "done")
    assert guard.calls.duplicates() == []
    with guard.run(id="a"):
        assert pay() == "late"


# -- a person -------------------------------------------------------------------------------------------------


def _held(guard: Guard) -> tuple[Callable[[], Any], list[Any], list[Any]]:
    """A run ``a`` held for its last step; the tool, what ran and what was undone."""
    ran: list[int] = []
    undone: list[Any] = []

    def cancel(result: Any) -> None:
        undone.append(result)

    hotel = guard.tool("hotel", compensate=cancel)(lambda: "hotel")

    @guard.tool(compensate=cancel)
    def pay() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise LOST
        return "second"

    def job(fail: bool = False) -> Any:
        with guard.run("job", id="a"):
            hotel()
            result = pay()
            if fail:
                raise Declined
            return result

    with pytest.raises(ConnectionResetError):
        job()
    assert guard.runs.get("a").status == "held"
    return job, ran, undone


def _doubt(guard: Guard) -> CallInfo:
    return guard.runs.get("a").calls[-1]


@pytest.mark.parametrize(
    ("outcome", "more", "result", "runs"),
    [("happened", {"result": "told"}, "told", 1), ("did-not-happen", {}, "second", 2), ("retry", {}, "second", 2)],
)
def test_a_decision_lets_the_run_go_on(
    guard: Guard, outcome: str, more: dict[str, Any], result: str, runs: int
) -> None:
    """Entered again, the run answers, runs or repeats the call as was said; the audit row tells who and why."""
    job, ran, undone = _held(guard)
    guard.calls.resolve(_doubt(guard).id, outcome, note="looked in the books", actor="ada", **more)
    row = guard._store.audit_of("default", "a")[-1]
    assert (row.actor, row.detail) == ("ada", "looked in the books")
    assert job() == result
    assert (len(ran), undone, guard.runs.get("a").status) == (runs, [], "completed")
    _checked(guard, "a")


@pytest.mark.parametrize(
    ("outcome", "more", "undone"),
    [("happened", {"result": "told"}, ["told", "hotel"]), ("did-not-happen", {}, ["hotel"]),
     ("compensated", {}, ["hotel"])],
)  # fmt: skip
def test_a_decision_lets_the_run_be_undone(guard: Guard, outcome: str, more: dict[str, Any], undone: list[str]) -> None:
    """``guard.compensate`` refuses while it is in doubt; then it undoes exactly what happened."""
    _, ran, seen = _held(guard)
    with pytest.raises(OutcomeUnknown):
        guard.compensate("a")
    guard.calls.resolve(_doubt(guard).id, outcome, note="n", **more)
    guard.compensate("a")
    assert (seen, ran, guard.runs.get("a").status) == (undone, [1], "compensated")
    _checked(guard, "a")


def test_happened_without_a_result_is_told_and_can_be_completed(guard: Guard) -> None:
    """The run cannot be answered, nor undone by what nobody knows; the result may be given later."""
    job, ran, _ = _held(guard)
    call = guard.calls.resolve(_doubt(guard).id, "happened", note="n")
    assert (call.state, call.result_lost) == ("done", "nobody said what it returned")
    with pytest.raises(OutcomeUnknown, match="nobody said what it returned"):
        job()
    guard.calls.resolve(call.id, "happened", result={"id": 5}, note="from the receipt")
    assert job() == {"id": 5}
    assert ran == [1]


def test_one_more_run_is_permitted_only_once(guard: Guard, caller: Caller) -> None:
    """In doubt again after it, the call is refused again."""
    ran: list[int] = []

    @caller.tool(guard, effect="write")
    def pay() -> None:
        ran.append(1)
        raise LOST

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(pay)

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    guard.calls.resolve(_doubt(guard).id, "retry", note="n")
    with pytest.raises(ConnectionResetError):
        caller.play(job)
    with pytest.raises(OutcomeUnknown):
        caller.play(job)
    assert len(ran) == 2


def test_a_clean_failure_of_a_permitted_run_is_still_in_doubt(guard: Guard, caller: Caller) -> None:
    """It proves nothing of the first; the run stays held."""
    ran: list[int] = []

    @caller.tool(guard, effect="write")
    def pay() -> None:
        ran.append(1)
        raise LOST if len(ran) == 1 else Declined

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(pay)

    with pytest.raises(ConnectionResetError):
        caller.play(job)
    guard.calls.resolve(_doubt(guard).id, "retry", note="n")
    with pytest.raises(Declined):
        caller.play(job)
    assert (_checked(guard, "a"), guard.runs.get("a").status) == (["unknown"], "held")


def test_a_stale_decision_is_refused(guard: Guard) -> None:
    """Bound to the version that was seen; also while two decide at once, and for what is not in doubt."""
    _held(guard)
    call = _doubt(guard)
    with pytest.raises(ResolutionError, match="has changed since version"):
        guard.calls.resolve(call.id, "happened", note="n", expected_version=call.version - 1)
    guard.calls.resolve(call.id, "did-not-happen", note="n", expected_version=call.version)
    with pytest.raises(ResolutionError, match="has changed since version"):
        guard.calls.resolve(call.id, "happened", note="n", expected_version=call.version)
    with pytest.raises(ResolutionError, match="is failed"):
        guard.calls.resolve(call.id, "happened", note="n")
    with pytest.raises(ResolutionError, match="no call"):
        guard.calls.resolve("nothing", "happened", note="n")
    with pytest.raises(ResolutionError, match="'happened', 'did-not-happen'"):
        guard.calls.resolve(call.id, "perhaps", note="n")
    hotel = guard.runs.get("a").calls[0]
    for outcome in ("happened", "did-not-happen", "compensated", "retry"):
        with pytest.raises(ResolutionError, match="is done"):
            guard.calls.resolve(hotel.id, outcome, note="n")


def test_a_running_call_is_nobody_s_to_decide(guard: Guard, worker: Worker) -> None:
    """While its process lives; once that is dead a person may decide at once."""
    other = worker.start("""
    @guard.tool(effect="write")
    def pay():
        print("in", flush=True)
        time.sleep(60)
    with guard.run(id="a"):
        pay()
    """)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(ResolutionError, match="still running"):
            guard.calls.resolve(_doubt(guard).id, "happened", note="n")
    finally:
        other.kill()
        other.communicate()
    assert guard.calls.resolve(_doubt(guard).id, "happened", note="n").state == "done"
    rows = guard._store.audit_of("default", "a")
    assert replayed(rows, _doubt(guard).id) == "done"


async def test_the_asynchronous_twin(guard: Guard) -> None:
    """``aresolve`` is ``resolve``; the actor is this process's user if none is named."""

    @guard.tool(effect="write")
    async def pay() -> None:
        raise LOST

    with pytest.raises(ConnectionResetError):
        async with guard.run(id="a"):
            await pay()
    assert (await guard.calls.aresolve(_doubt(guard).id, "happened", result=None, note="n")).result is None
    row = guard._store.audit_of("default", "a")[-1]
    assert row.actor
    assert ":" not in row.actor


def test_policies_are_checked() -> None:
    """A window or a wait that cannot be is refused where it is written down."""
    for fields in ({"downstream_dedupes_for": 0}, {"settle": -1}, {"probe": "find"}, {"marks_sending": 1}):
        with pytest.raises(ConfigurationError):
            Policy(**fields)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_stands_after_a_rollback_is_closed_by_a_person(guard: Guard) -> None:
    """A write that nothing undoes, undone by hand: then the run is compensated, and nobody need look any more."""
    pay = guard.tool("pay", effect="write")(lambda: "paid")
    with pytest.raises(Declined), guard.run("trip", id="a"):
        pay()
        with guard.run("inner", id="b"):
            pay()
        raise Declined
    first, second = guard.runs.get("a").calls[0], guard.runs.get("b").calls[0]
    with pytest.raises(ResolutionError, match="is done"):
        guard.calls.resolve(first.id, "did-not-happen", note="n")
    guard.calls.resolve(first.id, "compensated", note="refunded by hand", actor="ada")
    assert guard.runs.get("a").status == "partially_compensated"
    assert guard.calls.resolve(second.id, "compensated", note="refunded").state == "compensated"
    assert guard.runs.get("a").status == guard.runs.get("b").status == "compensated"
    assert not guard.compensate("a").not_compensable
    _checked(guard, "a")


def test_a_step_of_a_run_that_goes_on_is_not_undone_by_hand(guard: Guard) -> None:
    """It would be run again in it."""
    pay = guard.tool("pay", effect="write")(lambda: "paid")
    with guard.run("trip", id="a") as run:
        with guard.run("inner", id="b") as inner:
            pay()
        with pytest.raises(ResolutionError, match="is done"):
            guard.calls.resolve(inner.calls[0].id, "compensated", note="n")
        run.pause()
    with pytest.raises(ResolutionError, match="is done"):
        guard.calls.resolve(inner.calls[0].id, "compensated", note="n")


# -- what happened after all, when its run was over ---------------------------------------------------------------


@dataclass
class Late:
    """A payment that was said not to have happened, and then came: what was undone since, and how to let it come."""

    arrive: Callable[[], None]
    undone: list[Any]
    run: Callable[..., Any]


@pytest.fixture
def late(guard: Guard) -> Late:
    """``run(ending)`` is the run ``a``; its payment times out, and somebody says that it did not happen."""
    go_on, undone = threading.Event(), []

    @guard.tool(compensate=lambda result: undone.append(result))
    def book(what: str) -> str:
        return what

    @guard.tool(compensate=lambda result: undone.append(result), timeout=0.05)
    def pay() -> str:
        go_on.wait(60)
        return "late"

    def run(error: Exception | None) -> None:
        with contextlib.suppress(Declined), guard.run("trip", id="outer"):
            book("car")
            with guard.run("trip", id="a"):
                book("room")
                with pytest.raises(ToolTimeout):
                    pay()
                guard.calls.resolve(guard.runs.get("a").calls[1].id, "did-not-happen", note="not in the books")
                if error is not None:
                    raise error

    def arrive() -> None:
        go_on.set()
        _until(lambda: guard.runs.get("a").calls[1].state == "done")

    return Late(arrive, undone, run)


def test_a_late_effect_of_a_rolled_back_run_is_not_forgotten(guard: Guard, late: Late, warnings_of_sagaspan) -> None:
    """The rollback did not know of it: the run, and the one it is in, is not wholly undone; asked again, it is."""
    late.run(Declined())
    assert (guard.runs.get("a").status, late.undone, guard.calls.late()) == ("compensated", ["room", "car"], [])
    late.arrive()
    (call,) = guard.calls.late()
    assert (call.tool, call.result) == ("pay", "late")
    assert guard.runs.get("a").status == guard.runs.get("outer").status == "partially_compensated"
    assert any("happened after all" in warning for warning in warnings_of_sagaspan())
    guard.compensate("outer")
    assert late.undone == ["room", "car", "late"]
    assert guard.runs.get("a").status == guard.runs.get("outer").status == "compensated"
    assert guard.calls.late() == []
    _checked(guard, "a")


def test_a_late_effect_of_a_completed_run_is_listed(guard: Guard, late: Late) -> None:
    """The agent went by that it did not happen: somebody undoes it, or says that it stays."""
    late.run(None)
    late.arrive()
    (call,) = guard.calls.late()
    assert guard.runs.get("a").status == "completed"
    assert guard.calls.resolve(call.id, "happened", note="paid in cash as well; they keep it").state == "done"
    assert guard.calls.late() == []
    with pytest.raises(ResolutionError, match="is done"):
        guard.calls.resolve(call.id, "happened", note="again")
    guard.compensate("a", call=call.id)
    assert late.undone == ["late"]
    _checked(guard, "a")


def test_a_late_effect_of_a_run_that_failed_can_be_undone(guard: Guard) -> None:
    """There was nothing to undo, and then there is; entered again, the run answers it from the record instead."""
    go_on = threading.Event()
    undone: list[str] = []

    @guard.tool(compensate=lambda result: undone.append(result), timeout=0.05)
    def pay() -> str:
        go_on.wait(60)
        return "late"

    for id_ in ("a", "b"):
        with contextlib.suppress(Declined), guard.run(id=id_):
            with pytest.raises(ToolTimeout):
                pay()
            guard.calls.resolve(guard.runs.get(id_).calls[0].id, "did-not-happen", note="n")
            raise Declined
        assert guard.runs.get(id_).status == "failed"
    go_on.set()
    _until(lambda: len(guard.calls.late()) == 2)
    guard.compensate("a")
    assert (undone, guard.runs.get("a").status) == (["late"], "compensated")
    with guard.run(id="b"):
        assert pay() == "late"
    _checked(guard, "a")


def test_an_effect_that_came_twice_is_undone_with_its_run(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its first body runs on, a run waits to be undone; then both effects are."""
    monkeypatch.setattr("sagaspan._leaving.GRACE_SECONDS", 0.2)
    undone = _late(guard, lambda call: guard.calls.resolve(call.id, "retry", note="once more"), before_late=Declined)
    assert (guard.runs.get("a").status, undone) == ("held", [])
    guard.recover()
    assert sorted(undone) == ["first", "second"]
    assert (guard.runs.get("a").status, guard.calls.duplicates()) == ("compensated", [])
