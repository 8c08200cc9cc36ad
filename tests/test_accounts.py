"""The accounts of budgets: whatever becomes of a call, its budgets are what their calls say."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, NotApplied, Retry
from sagaspan._durations import seconds_of

BUDGET = ["10 USD", "100 calls"]


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    """A guard with budgets of every tool, for ever, beside those of runs."""
    return Guard(f"sqlite:///{tmp_path}/ledger.db", budget=BUDGET, budgets={"tool:*": "100 USD/month"})


def done(guard: Guard, act: Callable[..., Any]) -> None:
    """It ends well."""
    with guard.run("r", id="r"):
        act("done")


def failed(guard: Guard, act: Callable[..., Any]) -> None:
    """It fails, provably."""
    with pytest.raises(NotApplied), guard.run("r", id="r"):
        act("failed")


def failed_and_done(guard: Guard, act: Callable[..., Any]) -> None:
    """It fails, provably, and is run again under the same record."""
    with guard.run("r", id="r"):
        with pytest.raises(NotApplied):
            act("failed")
        act("failed")


def in_doubt(guard: Guard, act: Callable[..., Any]) -> None:
    """Nobody knows how it ended."""
    with pytest.raises(ConnectionResetError), guard.run("r", id="r"):
        act("doubt")


def decided(outcome: str) -> Callable[[Guard, Callable[..., Any]], None]:
    """A person says what became of it."""

    def decide(guard: Guard, act: Callable[..., Any]) -> None:
        in_doubt(guard, act)
        (call,) = guard.runs.get("r").calls
        guard.calls.resolve(call.id, outcome, note="looked it up")

    decide.__name__ = outcome
    return decide


def permitted(guard: Guard, act: Callable[..., Any]) -> None:
    """A person permits one more run of it, and that ends well."""
    decided("retry")(guard, act)
    with guard.run("r", id="r"):
        act("doubt")


def taken_over(guard: Guard, act: Callable[..., Any]) -> None:
    """A read in doubt under a business key is read again by another run."""
    errors = [ConnectionResetError("nobody knows what happened")]

    def ask(name: str) -> str:
        if errors:
            raise errors.pop()
        return name

    look = guard.tool("look", effect="read", key="name", cost="1 USD")(ask)
    with pytest.raises(ConnectionResetError), guard.run("r", id="r"):
        look("a")
    with guard.run("r", id="other"):
        look("a")


def undone(guard: Guard, act: Callable[..., Any]) -> None:
    """It is done, and undone with its run."""
    with pytest.raises(ValueError, match="no"), guard.run("r", id="r"):
        act("done")
        raise ValueError("no")


def deferred(guard: Guard, act: Callable[..., Any]) -> None:
    """It is scheduled, and sent when the run completes."""
    send = guard.tool("send", defer=True, cost="1 USD")(lambda to: to)
    with guard.run("r", id="r"):
        send("a")


def dropped(guard: Guard, act: Callable[..., Any]) -> None:
    """It is scheduled, and given up with its run."""
    send = guard.tool("send", defer=True, cost="1 USD")(lambda to: to)
    with pytest.raises(ValueError, match="no"), guard.run("r", id="r"):
        send("a")
        raise ValueError("no")


def retried(guard: Guard, act: Callable[..., Any]) -> None:
    """Its second attempt ends well."""
    left = iter([NotApplied("busy"), None])

    def flaky() -> None:
        error = next(left)
        if error is not None:
            raise error

    tool = guard.tool("flaky", effect="write", cost="1 USD", retry=Retry(attempts=2, initial_delay=0))(flaky)
    with guard.run("r", id="r"):
        tool()


def reopened(guard: Guard, act: Callable[..., Any]) -> None:
    """A run that was undone starts over."""
    undone(guard, act)
    with guard.run("r", id="r", reopen=True):
        act("done")


def nested(guard: Guard, act: Callable[..., Any]) -> None:
    """What a run inside a run spends is spent of both."""
    with guard.run("outer", id="o"), guard.run("inner"):
        act("done")


def of_a_model(guard: Guard, act: Callable[..., Any]) -> None:
    """Calls of models: settled, left by an error, and forgotten."""
    with guard.run("r", id="r"):
        with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=10) as call:
            call.settle(input_tokens=9, output_tokens=3)
        with pytest.raises(ConnectionResetError), guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=10):
            raise ConnectionResetError("nobody knows what happened")
        with pytest.raises(NotApplied), guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=10):
            raise NotApplied("busy")
        with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=10):
            pass


def overdrawn(guard: Guard, act: Callable[..., Any]) -> None:
    """It costs more than it had reserved, and more than there is."""
    tool = guard.tool("dear", effect="write", cost=lambda result: "1 USD" if result is None else "30 USD")(lambda: 1)
    with guard.run("r", id="r"):
        tool()


ENDINGS = (
    done, failed, failed_and_done, in_doubt, decided("happened"), decided("did-not-happen"), decided("compensated"),
    permitted, taken_over, undone, deferred, dropped, retried, reopened, nested, of_a_model, overdrawn,
)  # fmt: skip


@pytest.fixture
def act(guard: Guard) -> Callable[..., Any]:
    """A tool of 1 USD that ends as it is told at first, and then well."""
    errors = {"failed": NotApplied("busy"), "doubt": ConnectionResetError("nobody knows what happened")}

    @guard.tool(cost="1 USD", compensate=lambda how: None, key="how")
    def act(how: str) -> str:
        if how in errors:
            raise errors.pop(how)
        return how

    return act


@pytest.mark.parametrize("ending", ENDINGS, ids=[ending.__name__ for ending in ENDINGS])
def test_the_books_agree(guard: Guard, act: Callable[..., Any], ending: Callable[..., None]) -> None:
    """Reserved is the sum over open calls, spent that over all, however they ended; also once they are pruned."""
    ending(guard, act)
    assert guard.budgets.list()
    assert list(guard.budgets.fsck()) == []
    guard.prune(older_than=1e-9, forget_keys=True)
    assert list(guard.budgets.fsck()) == []


def test_what_is_pruned_stays_spent(guard: Guard, act: Callable[..., Any]) -> None:
    """A month is not given back because its calls are forgotten; a run that is gone has no account."""
    done(guard, act)
    (before,) = guard.budgets.list("tool:act")
    guard.prune(older_than=1e-9, forget_keys=True)
    assert guard.budgets.list("tool:act") == [before]
    assert (before.spent, before.limit, before.window) == (Decimal(1), Decimal(100), "month")
    assert guard.budgets.list("run:r") == []


def test_windows_that_are_over(guard: Guard, act: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Are listed if they are asked for."""
    done(guard, act)
    from sagaspan import _accounts

    later = _accounts.now_us() + int(seconds_of("40d") * 1e6)
    monkeypatch.setattr(_accounts, "now_us", lambda: later)
    assert guard.budgets.list("tool:act") == []
    assert [account.spent for account in guard.budgets.list("tool:act", past=True)] == [Decimal(1)]


def test_what_is_no_scope_is_refused(guard: Guard) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match="user:42"):
        guard.budgets.list("usr:42")


async def test_asynchronous_twins(guard: Guard, act: Callable[..., Any]) -> None:
    """They say the same."""
    done(guard, act)
    assert await guard.budgets.alist() == guard.budgets.list()
    assert await guard.budgets.afsck() == []
    assert await guard.ausage_by("tool") == guard.usage_by("tool")
    assert [(one.key, one.spent, one.calls) for one in guard.usage_by("tool")] == [("act", Decimal(1), 1)]
