"""The accounts of budgets: whatever becomes of a call, its budgets are what their calls say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def taken_over(effect: str) -> Callable[[Guard, Callable[..., Any]], None]:
    """In doubt under a business key it is run again by another run, for it may be."""

    def take_over(guard: Guard, act: Callable[..., Any]) -> None:
        errors = [ConnectionResetError("nobody knows what happened")]

        def ask(name: str) -> str:
            if errors:
                raise errors.pop()
            return name

        again = guard.tool("again", effect=effect, key="name", cost="1 USD")(ask)
        with pytest.raises(ConnectionResetError), guard.run("r", id="r"):
            again("a")
        with guard.run("r", id="other"):
            again("a")

    take_over.__name__ = f"taken_over_{effect}"
    return take_over


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
            call.record_usage(input_tokens=9, output_tokens=3)
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


def outside(guard: Guard, act: Callable[..., Any]) -> None:
    """Of a session, whose calls go one by one."""
    act("well")


ENDINGS = (
    done, failed, failed_and_done, in_doubt, decided("happened"), decided("did-not-happen"), decided("compensated"),
    permitted, taken_over("read"), taken_over("idempotent"), undone, deferred, dropped, retried, reopened, nested,
    of_a_model, overdrawn, outside,
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


# -- a limit that comes when something was used already ---------------------------------------------------------------


@pytest.fixture
def used(tmp_path: Path) -> Iterator[Guard]:
    """User 42 has used 4 USD, 1010 tokens and 5 calls, of which one failed; no budget has counted any of it."""
    free = {"local": {"input": 0, "output": 0}}
    with Guard(f"sqlite:///{tmp_path}/used.db", prices=free) as guard:
        buy = guard.tool("buy", cost="2 USD", effect="read")(lambda n: n)

        @guard.tool("fail", cost="9 USD")
        def fail() -> None:
            raise NotApplied("busy")

        with guard.run("shop", id="r", user="42", agent="clerk"):
            buy(1)
            with guard.run("inner", id="inner"):
                buy(2)
            with pytest.raises(NotApplied):
                fail()
            with guard.llm_call("local", input_tokens=1000, max_output_tokens=20) as call:
                call.record_usage(input_tokens=1000, output_tokens=10)
            guard.tool("look", effect="read")(lambda: 1)()
            yield guard


@pytest.mark.parametrize(
    ("scope", "limit", "spent"),
    [("user:42", "9 USD/day", 4), ("user:42", "9 USD", 4), ("user:42", "1M tokens/month", 1010),
     ("user:42", "10 calls/day", 5), ("user:4*", "9 USD/day", 4), ("agent:clerk", "10 calls", 5),
     ("tool:buy", "9 USD/day", 4), ("tool:*y", "9 USD", 4), ("model:local", "1M tokens", 1010), ("run:r", "9 USD", 4),
     ("run:r", "10 calls", 5), ("run:inner", "9 USD", 2), ("run:r/buy", "10 calls", 1), ("run:?", "10 calls", 5)],
)  # fmt: skip
def test_what_was_used_before_a_limit_was_set_counts(used: Guard, scope: str, limit: str, spent: int) -> None:
    """As far as it is in the window; also if it is set again, and the books agree."""
    for _ in range(2):
        used.set_budget(scope, limit)
        (account,) = (account for account in used.budgets.list() if not set("*?") & set(account.scope))
        assert (account.spent, account.limit) == (spent, account.spent + (account.remaining or 0))
        assert list(used.budgets.fsck()) == []


def test_what_was_used_in_an_earlier_window_does_not_count(used: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day begins with nothing."""
    from sagaspan import _usage

    later = _usage.now_us() + int(seconds_of("1d") * 1e6)
    monkeypatch.setattr(_usage, "now_us", lambda: later)
    used.set_budget("user:42", "9 USD/day")
    assert [account.spent for account in used.budgets.list(past=True)] == [0]


def test_what_a_limit_counts_already_is_not_counted_twice(used: Guard) -> None:
    """Nor a call that runs meanwhile; what was used while it was taken back is."""
    used.set_budget("user:42", "20 USD, 20 calls")

    @used.tool(cost="1 USD", effect="read")
    def buy_one(sets: bool) -> None:
        if sets:
            used.set_budget("user:42", "21 USD, 21 calls")

    buy_one(True)
    assert {account.unit: account.spent for account in used.budgets.list()} == {"USD": 5, "calls": 6}
    used.budgets.unset("user:42")
    buy_one(False)
    used.set_budget("user:42", "22 USD, 22 calls")
    assert {account.unit: account.spent for account in used.budgets.list()} == {"USD": 6, "calls": 7}
    assert list(used.budgets.fsck()) == []


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_nothing_is_no_limit(used: Guard, nothing: Any) -> None:
    """It would set nothing, and take nothing back."""
    with pytest.raises(ConfigurationError, match=r"sets no limit of 'user:42'.*guard.budgets.unset"):
        used.set_budget("user:42", nothing)
