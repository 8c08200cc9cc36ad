"""Loops: verdicts on the tail of what a run's tools were asked and what they answered (rule book (f)).

A *signal* is one finished call: tool, arguments, result or error, as hashes. Only equal arguments with *equal results*
go round in circles; equal arguments with changing results are polling, and equal results of different arguments are
work. Only the tail counts: what was repeated once and is over accuses nobody, nor does what came before a long pause.

==============  =================================================  ==================  =======================
verdict         the tail shows                                     the model is told   the next is refused
==============  =================================================  ==================  =======================
``repeat``      one call with one result, over and over            from the third      after the fifth
``cycle``       2 to 8 calls in turn, each with its one result     after three rounds  after five rounds
``errors``      one tool that only fails (or any, twice as often)  after 5             after 10
``stall``       no more than a quarter of the results are new      after 16            after 32
==============  =================================================  ==================  =======================

``allowed`` (the policy's ``loop``, 5) moves the first two. The third refusal stops the run. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

RING: Final = 64
"""Signals that are kept of a run."""
ALLOWED: Final = 5
REFUSALS: Final = 3
"""The refusal that stops the run."""
PAUSE_US: Final = 300 * 1_000_000
"""A silence so long (microseconds) ends a loop: what calls every few minutes is a schedule."""

_PERIODS: Final = range(2, 9)
_ERRORS: Final = 5
_STALL: Final = 16


class Signal(NamedTuple):
    """One finished call. ``args`` and ``result`` are hashes, ``error`` a class; times are microseconds since the epoch.

    ``result`` and ``error`` are both None where nobody knows the result: such signals count as equal. ``counts`` is
    False for a tool that may repeat itself (``loop=False``): each of its calls counts as new.
    """

    tool: str
    args: str
    result: str | None
    error: str | None
    started_us: int
    ended_us: int
    counts: bool = True


Ring: TypeAlias = tuple[Signal, ...]
ARGS: Final = itemgetter(Signal._fields.index("args"))
"""What a signal says of its arguments: every call asks it of a whole ring."""


class Step(StrEnum):
    """What follows from a verdict: the ladder, from the bottom."""

    NUDGE = "nudge"
    DENY = "deny"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the tail shows. ``calls`` are the (tool, args) that repeat, in order.

    ``count``: of a repeat, the calls, the one that is asked included; of a cycle, the full rounds; else the calls at
    the tail that the verdict is about.
    """

    kind: str
    step: Step
    count: int
    calls: tuple[tuple[str, str], ...]

    @property
    def signature(self) -> str:
        """``tool|args`` of each call that repeats."""
        return " > ".join(f"{tool}|{args}" for tool, args in self.calls)

    @property
    def advice(self) -> str:
        """The verdict as a sentence for the model."""
        names = ", ".join(dict.fromkeys(tool for tool, _ in self.calls))
        return _ADVICE[self.kind].format(names=names, count=self.count)


_ADVICE: Final = {
    "repeat": "This is call {count} of {names} with the same arguments, and the result has not changed. "
    "Calling it again will not help: use what it returned, try something else, or say that you are stuck.",
    "cycle": "{count} rounds of {names} had the same arguments and the same results. "
    "Another round will not help: try something else, or say that you are stuck.",
    "errors": "{count} calls in a row have failed, the last one of {names}. "
    "Find out why before calling again, try another way, or say that you are stuck.",
    "stall": "The last {count} calls brought hardly anything new. "
    "Decide with what you know, try something else, or say that you are stuck.",
}


@dataclass(frozen=True, slots=True)
class _Bar:
    """How much of each it takes, for which step; ``asked`` is 1 if the call is still to come."""

    step: Step
    rounds: int
    errors: int
    stall: int
    asked: int


def after(ring: Ring, signal: Signal) -> Ring:
    """``ring`` with ``signal`` as its newest, and the oldest dropped if it is full."""
    return (*ring[-(RING - 1) :], signal)


def observe(ring: Ring, *, allowed: int = ALLOWED) -> Verdict | None:
    """What to tell the model after the newest signal, if anything; ``allowed`` is that of its tool."""
    if not ring:
        return None
    # Told before it is refused, but never after one single call.
    bar = _Bar(Step.NUDGE, max(2, allowed * 3 // 5), _ERRORS, _STALL, asked=0)
    return _verdict(ring, ring[-1].started_us, ring[-1][:2], bar)


def judge(
    ring: Ring, tool: str, args: str, now_us: int, *, allowed: int = ALLOWED, refusals: int = 0
) -> Verdict | None:
    """Whether calling ``tool`` with ``args`` now would go on with a loop that was long enough: refuse it then.

    ``refusals`` is how often the run was refused so far.
    """
    bar = _Bar(_ladder(refusals), allowed, 2 * _ERRORS, 2 * _STALL, asked=1)
    return _verdict(ring, now_us, (tool, args), bar)


def judge_count(ring: Ring, tool: str, args: str, *, allowed: int = ALLOWED, refusals: int = 0) -> Verdict | None:
    """As ``judge``, for callers who report no results: counts the equal calls in the ring, wherever they are."""
    count = 1 + sum(1 for signal in ring if signal.counts and signal[:2] == (tool, args))
    if count <= allowed:
        return None
    return Verdict(kind="repeat", step=_ladder(refusals), count=count, calls=((tool, args),))


def _ladder(refusals: int) -> Step:
    return Step.STOP if refusals + 1 >= REFUSALS else Step.DENY


def polls(ring: Ring, tool: str, args: str, now_us: int) -> int:
    """How many calls at the tail asked just this and got changing answers; 0 if it is no polling."""
    tail = _tail(ring, now_us)
    count = _length(tail, lambda index: tail[index][:2] == (tool, args))
    return count if len({signal.result for signal in tail[len(tail) - count :]}) > 1 else 0


def poll_delay(count: int, *, free: int = 5, first: float = 0.1, most: float = 5.0) -> float:
    """Seconds to wait before poll ``count`` + 1: nothing for the ``free`` first, then doubling up to ``most``."""
    return 0.0 if count < free else min(most, first * 2.0 ** min(count - free, 60))


def _tail(ring: Ring, until_us: int) -> Ring:
    """The newest signals, oldest first, back to the first long silence between two of them (or before ``until_us``)."""
    if ring and until_us - ring[0].ended_us < PAUSE_US:
        return ring  # too short a time for any long silence in it
    for index in range(len(ring) - 1, -1, -1):
        if until_us - ring[index].ended_us >= PAUSE_US:
            return ring[index + 1 :]
        until_us = ring[index].started_us
    return ring


def _verdict(ring: Ring, until_us: int, call: tuple[str, str], bar: _Bar) -> Verdict | None:
    earlier = ring if bar.asked else ring[:-1]
    if ring and ring[-1].error is None and call[1] not in map(ARGS, earlier):
        return None  # a first call after a success is no loop of any kind: most calls end here
    tail = _tail(ring, until_us)
    return _repeat(tail, call, bar) or _cycle(tail, call, bar) or _errors(tail, call, bar) or _stall(tail, call, bar)


def _same(one: Signal, other: Signal) -> bool:
    # The time is no part of it; compared from the field that differs most often.
    return (
        one.args == other.args
        and one.result == other.result
        and one.tool == other.tool
        and one.error == other.error
        and one.counts
    )


def _length(tail: Ring, holds: Callable[[int], bool]) -> int:
    """For how many of the newest signals, counted back without a gap, ``holds`` their index."""
    length = 0
    while length < len(tail) and holds(len(tail) - 1 - length):
        length += 1
    return length


def _repeat(tail: Ring, call: tuple[str, str], bar: _Bar) -> Verdict | None:
    if not tail or tail[-1][:2] != call:
        return None
    count = _length(tail, lambda index: _same(tail[index], tail[-1]))
    if count < bar.rounds:
        return None
    return Verdict(kind="repeat", step=bar.step, count=count + bar.asked, calls=(call,))


def _cycle(tail: Ring, call: tuple[str, str], bar: _Bar) -> Verdict | None:
    for period in _PERIODS:
        # A call that is asked would come next: what was called one period ago.
        if period >= len(tail) or tail[-period if bar.asked else -1][:2] != call:
            continue
        rounds = _matching(tail, period) // period + 1
        if rounds >= max(2, bar.rounds):
            return Verdict(kind="cycle", step=bar.step, count=rounds, calls=tuple(one[:2] for one in tail[-period:]))
    return None


def _matching(tail: Ring, lag: int) -> int:
    return _length(tail, lambda index: index >= lag and _same(tail[index], tail[index - lag]))


def _errors(tail: Ring, call: tuple[str, str], bar: _Bar) -> Verdict | None:
    failed = _length(tail, lambda index: tail[index].error is not None and tail[index].counts)
    if failed < bar.errors:
        return None
    of_tool = min(failed, _length(tail, lambda index: tail[index].tool == call[0]))
    if of_tool < bar.errors and failed < 2 * bar.errors:
        return None
    count = of_tool if of_tool >= bar.errors else failed
    return Verdict(kind="errors", step=bar.step, count=count, calls=(tail[-1][:2],))


def _stall(tail: Ring, call: tuple[str, str], bar: _Bar) -> Verdict | None:
    recent = tail[-bar.stall :]
    if len(recent) < bar.stall:
        return None
    known = {signal[:4] for signal in recent if signal.counts}
    different = len(known) + sum(not signal.counts for signal in recent)
    if different * 4 > bar.stall or call not in {one[:2] for one in known}:
        return None
    return Verdict(kind="stall", step=bar.step, count=bar.stall, calls=(call,))
