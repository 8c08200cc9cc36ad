"""What the histories of the model are made of: kinds of tools, how their bodies end, what processes do in runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import strategies as st

DEDUPE_SECONDS: Final = 3600.0
LAG_SECONDS: Final = 60.0
HOUR: Final = 3600.0
TOOLS: Final = ("t0", "t1", "t2")
RUNS: Final = ("a", "b")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one tool is declared."""

    effect: str | None = None
    undoable: bool = False
    empty_safe: bool = False
    expects: bool = False
    keyed: bool = False
    locks: bool = False
    defer: bool = False
    pivot: bool = False
    probe: str | None = None  # truth, no result, lagging, unsure
    dedupes: bool = False
    marks: bool = False
    attempts: int = 1
    critical: bool | None = None

    @property
    def rerunnable(self) -> bool:
        """Whether it may happen many times."""
        return self.effect in ("read", "idempotent")


@dataclass(frozen=True)
class Stop:
    """A body is stopped ``when`` (before or after its effect); others act meanwhile, and then it ends as it is told."""

    when: str
    seconds: float
    actions: tuple[str, ...]
    end: str


Plan = list[Any]
Step = tuple[str, int, Plan]


@dataclass(frozen=True)
class Job:
    """What one process does in one run, ``after`` so many seconds; it ``dies_in`` so many durable steps, or not."""

    at: int
    after: float
    run_id: str
    on_interrupt: str
    reopen: bool
    dies_in: int | None
    steps: list[Step]
    commits: bool
    how: str
    undo_plan: list[str]


def asked_again(jobs: list[Job]) -> list[Job]:
    """The same work in the same run: by those that come after the first one, which failed or died at it."""
    asked = [(tool, n, []) for tool, n, _ in jobs[0].steps]
    return [jobs[0], *(replace(job, run_id=jobs[0].run_id, steps=asked + job.steps) for job in jobs[1:])]


_sometimes = st.sampled_from([False, False, True])
_probes = st.sampled_from([None, "truth", "no result", "lagging", "unsure"])
_critical = st.sampled_from([None, None, False, True])

_harmless = st.builds(
    Kind,
    effect=st.sampled_from(["read", "idempotent"]),
    keyed=_sometimes,
    locks=_sometimes,
    probe=st.sampled_from([None, "unsure"]),
    attempts=st.integers(1, 2),
) | st.builds(Kind, attempts=st.integers(1, 2))
_plain = st.builds(
    Kind, effect=st.sampled_from([None, "write"]), keyed=st.booleans(), locks=_sometimes, probe=_probes,
    dedupes=st.booleans(), marks=st.booleans(), attempts=st.integers(1, 2), critical=_critical,
)  # fmt: skip
_undoable = st.builds(
    Kind, undoable=st.just(True), empty_safe=_sometimes, expects=_sometimes, keyed=_sometimes, locks=_sometimes,
    probe=_probes, dedupes=_sometimes, marks=_sometimes, attempts=st.integers(1, 2), critical=_critical,
)  # fmt: skip
_deferred = st.builds(
    Kind, effect=st.sampled_from([None, "write", "irreversible"]), defer=st.just(True), keyed=_sometimes,
    locks=_sometimes, probe=_probes, dedupes=_sometimes, marks=_sometimes, attempts=st.integers(1, 2),
    critical=_critical,
) | st.builds(Kind, defer=st.just(True), undoable=st.just(True), empty_safe=st.booleans(), probe=_probes)  # fmt: skip
_pivots = st.builds(
    Kind, effect=st.just("irreversible"), pivot=st.just(True), keyed=_sometimes, locks=_sometimes, probe=_probes,
    dedupes=_sometimes, marks=_sometimes, attempts=st.integers(1, 2), critical=_critical,
)  # fmt: skip
# In doubt, with a probe that cannot say, and perhaps sent again under its key: what a person or time decides.
_unsure = st.builds(
    Kind, effect=st.just("write"), probe=st.sampled_from(["unsure", "unsure", None]), keyed=st.booleans(),
    dedupes=st.booleans(),
)  # fmt: skip
_writes = _plain | _undoable | _undoable | _unsure
kinds = st.tuples(_undoable | _writes, _writes | _deferred | _pivots, _harmless | _writes | _deferred)

_endings = st.sampled_from(["ok", "ok", "ok", "declined", "refused", "vague", "lost", "cancelled", "unencodable"])
_actions = st.sampled_from(["recover", "call", "enter", "resolve", "compensate", "again"])
_SCRIPTS: Final = (
    # Somebody is wrong about what is stopped and comes late: it is done again, or undone without it.
    ("recover", "denies", "again"), ("recover", "permits", "again"), ("recover", "denies", "undo"),
    ("recover", "denies", "recover"), ("recover", "again"), ("recover", "undo"),
)  # fmt: skip
_stops = st.builds(
    Stop, st.sampled_from(["before", "before", "after"]), st.sampled_from([5.0, 41.0, 2 * HOUR]),
    st.lists(_actions, max_size=3).map(tuple) | st.sampled_from(_SCRIPTS), st.sampled_from(["ok", "ok", "lost"]),
)  # fmt: skip
plans = st.just([]) | st.lists(st.one_of(_endings, _endings, _stops), min_size=1, max_size=2)
leavings = st.sampled_from(["well", "well", "error", "error", "pause", "abort", "cancelled"])
steps = st.lists(st.tuples(st.sampled_from(TOOLS), st.sampled_from([0, 0, 1]), plans), min_size=1, max_size=4)
waits = st.sampled_from([0.0, 0.0, 0.0, 1.0, 20.0, 41.0, 70.0, 0.95 * HOUR, 3 * HOUR])
undo_plans = (
    st.just([])
    | st.just(["fails"] * 3)  # as often as it is tried
    | st.lists(st.sampled_from(["ok", "fails", "lost", "changed", "cannot look"]), max_size=4)
)
_jobs = st.builds(
    Job, st.integers(0, 2), waits, st.sampled_from(RUNS), st.sampled_from(["hold", "compensate"]), st.booleans(),
    st.sampled_from([None] * 20 + [*range(1, 20)]), steps, _sometimes, leavings, undo_plans,
)  # fmt: skip
_work = st.lists(_jobs, min_size=2, max_size=4)


def _wronged(at: int, how: str, script: tuple[str, ...], jobs: list[Job]) -> list[Job]:
    """A body is stopped for so long that others take it for dead, are wrong about it, and start over."""
    late: list[Step] = [("t0", 0, []), ("t0", 1, [Stop("before", 2 * HOUR, script, "ok")])]
    run_id = jobs[0].run_id
    first = replace(jobs[0], at=at, dies_in=None, steps=late, commits=False, how=how)
    return [first, *(replace(job, run_id=run_id, reopen=True, dies_in=None) for job in jobs[1:])]


jobs = (
    _work | _work.map(asked_again) | st.builds(_wronged, st.integers(1, 2), leavings, st.sampled_from(_SCRIPTS), _work)
)
