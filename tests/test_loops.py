"""Loops: what the tail of a run shows, on recorded incidents and on whatever hypothesis makes up.

The incidents are those people reported in public; each is named by its thread. A trace is what the tools were asked and
answered; ``play`` is the agent that ignores every nudge and asks again when it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagaspan.loops import (
    PAUSE_US,
    RING,
    Ring,
    Signal,
    Step,
    after,
    judge,
    judge_count,
    observe,
    poll_delay,
    polls,
)

SECOND = 1_000_000


@dataclass
class Played:
    """What happened to an agent: after how many calls it was first told, first refused and stopped, and by what."""

    ran: int = 0
    told: int | None = None
    refused: int | None = None
    stopped: int | None = None
    kind: str | None = None
    advice: str | None = None

    @property
    def untouched(self) -> bool:
        """Whether nobody said a word."""
        return self.told is None and self.refused is None


def play(
    trace: Iterable[tuple[Any, ...]], *, allowed: int = 5, every: int = SECOND, exempt: Iterable[str] = ()
) -> Played:
    """Run ``trace``: (tool, arguments, result), an exception's class as result for a failure."""
    ring: Ring = ()
    played, refusals, now = Played(), 0, 10**15
    for tool, args, result in trace:
        verdict = None if tool in exempt else judge(ring, tool, str(args), now, allowed=allowed, refusals=refusals)
        while verdict is not None:
            refusals += 1
            played.refused = played.ran if played.refused is None else played.refused
            played.kind = verdict.kind
            if verdict.step is Step.STOP:
                played.stopped = refusals
                return played
            verdict = judge(ring, tool, str(args), now, allowed=allowed, refusals=refusals)
        failed = isinstance(result, type)
        ring = after(ring, Signal(
            tool, str(args), None if failed else str(result), result.__name__ if failed else None,
            now, now + SECOND // 10, tool not in exempt,
        ))  # fmt: skip
        played.ran += 1
        now += every
        nudge = observe(ring, allowed=allowed)
        if nudge is not None and played.told is None and tool not in exempt:
            played.told, played.kind, played.advice = played.ran, nudge.kind, nudge.advice
    return played


def _growing(tool: str, args: str) -> Iterator[tuple[str, str, str]]:
    return ((tool, args, f"{number} lines") for number in count())


def _mixed(*traces: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return (call for calls in zip(*traces, strict=False) for call in calls)


def _same(*call: Any) -> Iterator[tuple[Any, ...]]:
    return (call for _ in count())


# -- loops that were missed ---------------------------------------------------------------------------------


def test_openclaw_16808_the_same_poll_1535_times() -> None:
    """Two hours of "no new output" for 150 USD: told after 3 calls, refused after 5, stopped by the third refusal."""
    played = play(islice(_same("process", "log X", "no new output"), 1535), every=5 * SECOND)
    assert (played.told, played.refused, played.stopped, played.ran) == (3, 5, 3, 5)
    assert played.kind == "repeat"
    assert played.advice is not None
    assert played.advice.startswith("This is call 3 of process with the same arguments")


def test_openclaw_70546_slow_repeats_of_one_command() -> None:
    """21 equal commands at the pace of a model that thinks for 48 seconds."""
    assert play(islice(_same("exec", "scan", "exit 0"), 21), every=48 * SECOND).refused == 5


def test_stella_359_read_failing_edit_failing_test() -> None:
    """The commonest way to be stuck has three steps; the first two succeed or fail alike each time."""
    rounds = [("read", "a.py", "text"), ("edit", "a.py x>y", ValueError), ("test", "", "1 failed")] * 20
    played = play(rounds)
    assert (played.told, played.refused, played.kind) == (9, 15, "cycle")
    assert played.advice is not None
    assert "3 rounds of edit, test, read" in played.advice or "3 rounds of read, edit, test" in played.advice


def test_openclaw_112479_two_files_in_turn() -> None:
    """The same content written to two paths, back and forth."""
    played = play([("write", "/tmp/a", "ok"), ("write", "/tmp/b", "ok")] * 50)
    assert (played.told, played.refused, played.kind) == (6, 10, "cycle")


def test_openclaw_77318_everything_fails() -> None:
    """A cascade over many tools with ever new arguments: no call repeats, and none gets anywhere."""
    played = play([(f"tool{number % 3}", number, ConnectionError) for number in range(100)])
    assert (played.told, played.refused, played.kind) == (10, 20, "errors")


def test_one_tool_only_fails() -> None:
    """Guessing at arguments: told after five failures, refused after ten; another tool may still be called."""
    trace = [("ssh", number, PermissionError) for number in range(100)]
    played = play(trace)
    assert (played.told, played.refused, played.kind) == (5, 10, "errors")
    ring = _ring(trace[:10])
    assert judge(ring, "ssh", "10", _now(ring)) is not None
    assert judge(ring, "ask_for_help", "", _now(ring)) is None


def test_going_in_circles_without_a_period() -> None:
    """A few calls in no fixed order, answered as before each time: nothing new comes in."""
    order = [0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 2, 1, 2, 0, 1, 1, 0, 2] * 10
    played = play([("look", number, f"room {number}") for number in order])
    assert (played.told, played.kind) == (16, "stall")
    assert played.refused == 32
    assert played.stopped == 3


def test_codeframe_740_the_third_refusal_stops_the_run() -> None:
    """Stuck is an ending of its own: the ladder says stop, so that no run ends as completed by giving up on it."""
    ring = _ring([("poll", "", "same")] * 5)
    steps = [judge(ring, "poll", "", _now(ring), refusals=refusals) for refusals in range(4)]
    assert [verdict and verdict.step for verdict in steps] == [Step.DENY, Step.DENY, Step.STOP, Step.STOP]


# -- work that was killed -----------------------------------------------------------------------------------


def test_openmono_47_polling_a_job_that_moves_on() -> None:
    """Equal arguments with changing results are never a loop, however often."""
    assert play(islice(_growing("CheckStatus", "job 7"), 1000)).untouched


def test_stella_359_polling_and_sleeping_in_turn() -> None:
    """The sleep between two polls answers the same each time; the polls move on."""
    assert play(islice(_mixed(_growing("read_output", "h1"), _same("bash", "sleep 5", "")), 500)).untouched


@pytest.mark.parametrize("jobs", [1, 2, 3, 4, 8])
def test_pi_go_262_polling_jobs_side_by_side(jobs: int) -> None:
    """A fan-out repeats by construction; each answer is new, and it is no cycle when one job ends either."""
    trace = list(islice(_mixed(*(_growing("bg", f"bg_{job}") for job in range(jobs))), 300))
    trace += list(islice(_mixed(*(_growing("bg", f"bg_{job}") for job in range(1, jobs))), 300))
    assert play(trace).untouched


def test_deepagents_208_attaching_three_files() -> None:
    """Equal results of different arguments are work."""
    assert play([("attach_file", f"{number}.txt", True) for number in range(100)]).untouched


def test_openclaw_71671_a_stale_repeat_accuses_nobody() -> None:
    """Five equal polls, then other work: the later poll is a new beginning."""
    trace = [("process", "poll", "nothing")] * 5 + [("read", "a", "text")] + [("process", "poll", "nothing")] * 3
    assert play(trace).refused is None


def test_openclaw_40144_a_schedule_is_no_loop() -> None:
    """The same two calls every five minutes, with the same answers, for ever."""
    heartbeat = [("read", "inbox", "empty"), ("message", "all quiet", "ok")] * 100
    assert play(heartbeat, every=301 * SECOND).untouched


def test_running_the_tests_after_each_edit() -> None:
    """The result of the tests does not change for a long time; the edits do."""
    edits = (("edit", f"try {number}", "ok") for number in count())
    assert play(islice(_mixed(edits, _same("run_tests", "", "1 failed")), 500)).untouched


def test_a_tool_that_is_slow_is_not_a_pause() -> None:
    """What counts is the silence between two calls, not how long one takes."""
    ring: Ring = ()
    now = 10**15
    for _ in range(5):
        ring = after(ring, Signal("build", "", "failed", None, now, now + 10 * PAUSE_US))
        now += 10 * PAUSE_US + SECOND
    assert judge(ring, "build", "", now) is not None
    assert judge(ring, "build", "", now + PAUSE_US) is None


def test_a_tool_that_may_repeat_itself() -> None:
    """``loop=False`` exempts the tool, and what is called in turn with it; a number moves the limit."""
    assert play(
        islice(_mixed(_same("status", "", "running"), _same("sleep", "5", None)), 500), exempt=["status"]
    ).untouched
    assert play([*[("status", "", ConnectionError)] * 50, ("work", "", "ok")], exempt=["status"]).untouched
    played = play(islice(_same("status", "", "running"), 100), allowed=20)
    assert (played.told, played.refused) == (12, 20)
    assert play(islice(_same("status", "", "running"), 100), allowed=1).refused == 1


# -- rules --------------------------------------------------------------------------------------------------


def _ring(trace: Iterable[tuple[Any, ...]]) -> Ring:
    ring: Ring = ()
    for number, (tool, args, result) in enumerate(trace):
        failed = isinstance(result, type)
        answer, error = (None, result.__name__) if failed else (str(result), None)
        ring = after(ring, Signal(tool, str(args), answer, error, number * SECOND, number * SECOND + 1))
    return ring


def _now(ring: Ring) -> int:
    return ring[-1].ended_us + SECOND if ring else 0


calls = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(["1", "2", "3", OSError]))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 500])
def test_the_ring_keeps_the_newest(length: int) -> None:
    """64 signals, in order."""
    ring = _ring(islice(_same("t", "", "same"), length))
    assert [signal.started_us // SECOND for signal in ring] == list(range(length))[-64:]


@pytest.mark.parametrize("trace", [
    [("a", "x", "1")] * 40,
    [("a", "x", "1"), ("b", "x", "1")] * 20,
    [("a", "x", "1"), ("a", "y", "1"), ("a", "x", "1"), ("a", "x", "1"), ("a", "y", "1"), ("a", "z", "1")] * 7,
])  # fmt: skip
def test_something_new_is_always_allowed(trace: list[Any]) -> None:
    """However stuck a run is: a call it has not made, with another tool or other arguments, gets through."""
    ring = _ring(trace)
    assert judge(ring, "a", "x", _now(ring)) is not None or judge(ring, "b", "x", _now(ring)) is not None
    assert judge(ring, "a", "new", _now(ring)) is None
    assert judge(ring, "new", "x", _now(ring)) is None


def test_leaving_the_circle_is_allowed() -> None:
    """Refused is the call whose turn it is; one that breaks the pattern gets through."""
    ring = _ring([("a", "x", "1"), ("a", "y", "1")] * 5)
    assert judge(ring, "a", "x", _now(ring)) is not None
    assert judge(ring, "a", "y", _now(ring)) is None


@given(st.lists(calls, max_size=60), st.sampled_from("ab"), st.sampled_from("xy"))
def test_what_never_answers_twice_alike_is_never_refused(trace: list[Any], tool: str, args: str) -> None:
    """Whatever is asked in whatever order: as long as every answer is new, nobody is stopped."""
    ring = _ring((tool, args, f"{number}") for number, (tool, args, _) in enumerate(trace))
    assert judge(ring, tool, args, _now(ring)) is None
    assert observe(ring) is None


@given(st.lists(calls, max_size=20), st.integers(2, 8), st.data())
def test_every_cycle_is_found_whatever_came_before(before: list[Any], period: int, data: st.DataObject) -> None:
    """Three equal rounds are told, five are refused, at any point of the round and after any beginning."""
    block = [("t", str(number), "same") for number in range(period)]
    offset = data.draw(st.integers(0, period - 1))
    told = observe(_ring(before + block * 3 + block[:offset]))
    assert told is not None
    assert told.kind in ("cycle", "stall")
    ring = _ring(before + block * 5 + block[:offset])
    refused = judge(ring, *block[offset][:2], _now(ring))
    assert refused is not None
    assert {args for _, args in refused.calls} <= {str(number) for number in range(period)}


@given(st.lists(calls, max_size=40), st.lists(calls, min_size=40, max_size=RING))
def test_only_the_ring_counts(before: list[Any], tail: list[Any]) -> None:
    """What fell out of the ring changes no verdict."""
    padding = [("c", str(number), str(number)) for number in range(RING)]
    long, short = _ring(before + padding + tail), _ring(padding + tail)
    for tool, args in [("a", "x"), ("b", "y"), tail[-1][:2]]:
        one, other = judge(long, tool, args, _now(long)), judge(short, tool, args, _now(short))
        assert (one and (one.kind, one.count)) == (other and (other.kind, other.count))


@given(st.lists(calls, max_size=RING), st.sampled_from("ab"), st.sampled_from("xy"))
def test_a_call_is_only_refused_for_what_it_repeats(trace: list[Any], tool: str, args: str) -> None:
    """A refusal for repeating names a call that was made before, with the same arguments."""
    ring = _ring(trace)
    verdict = judge(ring, tool, args, _now(ring))
    if verdict is not None and verdict.kind != "errors":
        assert (tool, args) in verdict.calls
        assert (tool, args) in {signal[:2] for signal in ring}


@given(st.lists(calls, max_size=RING), st.integers(1, 10))
def test_who_is_refused_was_told_before(trace: list[Any], allowed: int) -> None:
    """The ladder has no missing rung: an agent that is refused for repeating itself more than once was told so."""
    played = play(trace, allowed=allowed)
    if played.refused is not None and allowed > 2:
        assert played.told is not None
        assert played.told <= played.refused


def test_agentfuse_the_sixth_identical_call_fails_with_count_and_signature() -> None:
    """Callers who report no results have every equal call in the ring counted, each arguments' for themselves."""
    ring: Ring = ()
    for number in range(5):
        assert judge_count(ring, "search", "python") is None
        ring = after(ring, Signal("search", "python", None, None, number, number))
        ring = after(ring, Signal("search", f"other {number}", None, None, number, number))
    verdict = judge_count(ring, "search", "python")
    assert verdict is not None
    assert (verdict.count, verdict.signature, verdict.step) == (6, "search|python", Step.DENY)
    assert judge_count(ring, "search", "rust") is None
    assert judge_count(ring, "search", "python", allowed=6) is None


def test_agentfuse_equal_calls_far_apart_are_forgotten() -> None:
    """What left the ring is not held against anybody."""
    ring: Ring = ()
    for number in range(500):
        args = "python" if number % 50 == 0 else str(number)
        assert judge_count(ring, "search", args) is None
        ring = after(ring, Signal("search", args, None, None, number, number))


def test_polling_is_slowed_and_not_stopped() -> None:
    """Free at first, then doubling up to five seconds; only calls with changing answers are polling."""
    assert [poll_delay(number) for number in (0, 4, 5, 6, 8, 20, 10**9)] == [0, 0, 0.1, 0.2, 0.8, 5.0, 5.0]
    ring = _ring([("work", "", "done"), *islice(_growing("status", "j"), 7)])
    assert polls(ring, "status", "j", _now(ring)) == 7
    assert polls(ring, "status", "other", _now(ring)) == 0
    ring = _ring([("status", "j", "same")] * 7)
    assert polls(ring, "status", "j", _now(ring)) == 0
    assert polls((), "status", "j", 0) == 0
