"""What a model is told of an error, in any loop."""

from __future__ import annotations

import pytest

from sagaspan import (
    BudgetExceeded,
    CircuitOpen,
    ConfigurationError,
    Guard,
    LockConflict,
    LoopDetected,
    NotApplied,
    OutcomeUnknown,
    PolicyDenied,
    RateLimited,
    RunClosed,
    ScopeFrozen,
    StoreUnavailable,
)
from sagaspan.adapters import told, told_of_tool


def test_what_the_model_is_told() -> None:
    """Refusals and doubts are data; a budget, a frozen scope, a run, a store or a mistake of ours are not."""
    assert told(PolicyDenied("no")) == {
        "status": "refused",
        "retry": "forbidden",
        "error": "PolicyDenied",
        "message": "no",
    }
    assert told(OutcomeUnknown("?", tool_ran="yes"))["status"] == "done"  # type: ignore[index] # not None
    limited = told(RateLimited("slow down", retry_after=2.0))
    assert limited is not None
    assert (limited["retry"], limited["retry_after"]) == ("later", 2.0)
    locked = told(LockConflict("held", lock="account:1", holder="run-1"))
    assert locked is not None
    assert (locked["status"], locked["retry"], locked["error"]) == ("refused", "later", "LockConflict")
    broken = told(CircuitOpen("the bank fails"))  # by a layer of somebody's own
    assert broken is not None
    assert (broken["status"], broken["retry"]) == ("refused", "later")
    budget = BudgetExceeded("no", scope="run:r", limit=1, spent=1, reserved=0, requested=1)  # type: ignore[arg-type] # any number
    for error in (
        budget,
        ScopeFrozen("x"),
        RunClosed("x", status="s"),
        StoreUnavailable("x"),
        ConfigurationError("x"),
        ValueError(),
    ):
        assert told(error) is None


def test_a_loop_is_told_until_it_stops_the_run() -> None:
    """The refusal that ends the run is not for the model any more."""
    assert told(LoopDetected("again", signature="s", count=6)) is not None
    assert told(LoopDetected("again", signature="s", count=8, stops=True)) is None


def test_what_a_tool_raised_names_its_record(guard: Guard) -> None:
    """And whether it may have happened; an error from anywhere else is only what it says."""

    @guard.tool(effect="write")
    def pay(fails: bool) -> None:
        raise NotApplied("no") if fails else TimeoutError("lost")

    with guard.run("r", id="r"):
        with pytest.raises(NotApplied) as failed:
            pay(True)
        with pytest.raises(TimeoutError) as unknown:
            pay(False)
    calls = guard.runs.get("r").calls
    assert told_of_tool(failed.value, "write") == {
        "status": "failed", "error": "NotApplied", "record": calls[0].id, "message": "no",
    }  # fmt: skip
    assert told_of_tool(unknown.value, "write")["retry"] == "forbidden"
    assert "retry" not in told_of_tool(unknown.value, "read")
    assert told_of_tool(ValueError("x"), None) == {"status": "failed", "error": "ValueError", "message": "x"}
