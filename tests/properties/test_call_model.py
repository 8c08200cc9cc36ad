"""A model of runs: random tools, failures, crashes and resumes, against the rules nobody may cross."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sagaspan import CompensationFailed, Guard, OutcomeUnknown, RunClosed
from tests.ledger.test_transitions import replayed


class Declined(Exception):
    """It did not happen."""


class Crash(BaseException):
    """The worker dies here: nothing of it goes on, as after a SIGKILL."""


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["undoable", "write", "read", "plain"]),
        st.integers(0, 2),
        st.sampled_from(["ok", "ok", "ok", "fail", "lose", "crash"]),
    ),
    min_size=1,
    max_size=5,
)
INCARNATIONS = st.lists(st.tuples(st.sampled_from(["end", "error", "pause"]), st.booleans()), min_size=1, max_size=4)


class World:
    """What happened outside, and the tools that make it happen; how a step ends is told by the plan."""

    def __init__(self, guard: Guard, undo_fails: bool) -> None:
        self.effects: Counter[tuple[str, int]] = Counter()
        self.undone: list[int] = []
        self.order: list[int] = []
        self.how = "ok"

        def act(kind: str, n: int) -> int:
            if self.how == "fail":
                raise Declined
            self.effects[kind, n] += 1
            if kind == "undoable":
                self.order.append(n)
            if self.how == "lose":
                raise ConnectionResetError
            if self.how == "crash":
                raise Crash
            return n

        def cancel(n: int) -> None:
            if undo_fails and n == 0:
                raise ConnectionResetError
            self.undone.append(n)

        self.tools = {
            "undoable": guard.tool("undoable", compensate=cancel)(lambda n: act("undoable", n)),
            "write": guard.tool("write", effect="write")(lambda n: act("write", n)),
            "read": guard.tool("read", effect="read")(lambda n: act("read", n)),
            "plain": guard.tool("plain")(lambda n: act("plain", n)),
        }


def _job(guard: Guard, world: World, plan: list[Any], ending: str, handle: bool, first: bool) -> str:
    try:
        with guard.run("model", id="a", on_interrupt="hold") as run:
            for kind, n, how in plan:
                world.how = how if first else "ok"
                try:
                    world.tools[kind](n)
                except (Declined, ConnectionResetError):
                    if not handle:
                        raise
            if ending == "error":
                raise Declined
            if ending == "pause":
                run.pause()
    except (Declined, ConnectionResetError, OutcomeUnknown, RunClosed, CompensationFailed, Crash) as error:
        return type(error).__name__
    return "none"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, INCARNATIONS, st.booleans())
def test_any_history_keeps_the_rules(plan: list[Any], incarnations: list[Any], undo_fails: bool) -> None:
    """Whatever fails, crashes and is resumed: writes happen once, what happened is undone or listed, in order."""
    with tempfile.TemporaryDirectory() as folder, Guard(f"sqlite:///{Path(folder) / 'l.db'}") as guard:
        world = World(guard, undo_fails)
        for number, (ending, handle) in enumerate(incarnations):
            _job(guard, world, plan, ending, handle, first=number == 0)
        info = guard.runs.get("a")
        assert info is not None
        planned = Counter((kind, n) for kind, n, _ in plan)
        for (kind, n), count in world.effects.items():
            if kind in ("undoable", "write"):
                assert count == 1  # done once
            if kind == "plain":
                assert count <= planned[kind, n]  # an equal call is a new one, and none is repeated by itself
        calls = [call for call in info.calls if call.phase == "forward"]
        for call in calls:
            happened = world.effects[call.tool, call.args["n"]]
            assert call.state != "done" or happened
            if call.state == "failed" and call.tool in ("undoable", "write"):
                assert not happened
        assert info.status not in ("running", "compensating")
        if info.status in ("compensated", "partially_compensated"):
            expected = list(dict.fromkeys(reversed(world.order)))
            if undo_fails:
                expected = [n for n in expected if n]
            assert world.undone == expected
            left = [
                call
                for call in calls
                if call.state in ("done", "compensation_failed") and call.tool in ("undoable", "write")
            ]
            assert (info.status == "partially_compensated") == bool(left)
        else:
            assert world.undone == []
        if info.status == "completed":
            assert all(call.state != "unknown" for call in calls if call.tool in ("undoable", "write"))
        rows = guard._store.audit_of("default", "a")
        assert replayed(rows, None) == info.status
        for call in info.calls:
            assert replayed(rows, call.id) == call.state
