"""``mode="observe"``: nothing is refused, what would have been is noted; what protects effects holds all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import ApprovalDenied, ConfigurationError, Guard, KeyConflict, PolicyDenied, ScopeFrozen
from sagaspan.testing import frozen_clock
from tests.conftest import Caller

DENY = "[[rules]]\ntools = 'pay'\nwhen = 'amount > 10'\naction = 'deny'\nreason = 'too much'\n"


@pytest.fixture
def watching(store_url: str, provider: TracerProvider, tmp_path: Path) -> Iterator[Callable[..., Guard]]:
    """A guard that only observes."""
    with contextlib.ExitStack() as stack:

        def make(text: str = "", **options: Any) -> Guard:
            (tmp_path / "p.toml").write_text(text)
            options = {"policies": "p.toml", "mode": "observe", "tracer_provider": provider, **options}
            return stack.enter_context(Guard(store_url, **options))

        yield make


def _kinds(guard: Guard) -> list[list[str]]:
    """What each call would have been refused for, oldest first."""
    calls = reversed(guard.calls.list(open=False))
    return [[note.partition(":")[0] for note in call.observed] for call in calls]


@pytest.mark.parametrize(
    ("text", "fields", "options", "kinds"),
    [
        (DENY, {}, {}, [[], ["policy_denied"], ["policy_denied"]]),
        ("", {"approve": "amount > 10"}, {}, [[], ["approval_pending"], ["approval_pending"]]),
        ("", {}, {"budget": "1 calls"}, [[], ["budget_exceeded"], ["budget_exceeded"]]),
        ("", {"max_calls": 2}, {}, [[], [], ["budget_exceeded"]]),
        ("", {"cost": "2 USD"}, {"budgets": {"user:*": "3 USD/day"}}, [[], ["budget_exceeded"], ["budget_exceeded"]]),
        ("", {"rate": "1/hour"}, {}, [[], ["rate_limited"], ["rate_limited"]]),
        (DENY, {"rate": "2/hour", "approve": True}, {"budget": "2 calls"},
         [["approval_pending"], ["policy_denied", "approval_pending"],
          ["policy_denied", "approval_pending", "budget_exceeded", "rate_limited"]]),
    ],
)  # fmt: skip
def test_what_would_be_refused_runs_and_is_noted(
    watching: Callable[..., Guard], caller: Caller, text: str, fields: dict[str, Any], options: dict[str, Any],
    kinds: list[list[str]],
) -> None:  # fmt: skip
    """On its record, in the order in which it would have been refused."""
    guard, did = watching(text, **options), []
    pay = caller.tool(guard, "pay", effect="write", **fields)(lambda amount: did.append(amount))

    async def job() -> None:
        async with caller.run(guard, "r", user="42"):
            for amount in (1, 20, 30):
                await caller.call(pay, amount)

    caller.play(job)
    assert (did, _kinds(guard)) == ([1, 20, 30], kinds)
    assert guard.approvals.list(status=()) == []
    assert guard.runs.list()[0].status == "completed"


def test_loops_and_time_are_observed_too(watching: Callable[..., Guard]) -> None:
    """Also a run that is out of time, and calls outside a run where one is required."""
    guard = watching(budget="10 s", require_run=True)
    look = guard.tool("look", effect="read", loop=2)(lambda: 1)
    with frozen_clock() as clock, guard.run("r"):
        for _ in range(6):
            look()
        clock.advance(11)
        look()
    look()
    kinds = _kinds(guard)
    assert "loop_detected" in kinds[3]
    assert "budget_exceeded" in kinds[6]
    guard.check_loop("x", allowed=1)
    guard.check_loop("x", allowed=1)


def test_budgets_are_counted(watching: Callable[..., Guard]) -> None:
    """Where they would refuse, they say how far they are over; a guard that enforces goes by that."""
    guard = watching(budgets={"user:42": "2 calls"})
    act = guard.tool("act")(lambda n: n)
    with guard.run("r", user="42"):
        assert [act(n) for n in range(5)] == list(range(5))
    (account,) = guard.budgets.list("user:42")
    assert (account.spent, guard.budgets.fsck()) == (5, [])


def test_the_span_and_the_record_say_why(watching: Callable[..., Guard], spans: InMemorySpanExporter) -> None:
    """The kind on the span, the sentence on the record."""
    guard = watching(DENY)
    pay = guard.tool("pay", rate="1/hour burst 1")(lambda amount: amount)
    pay(1)
    pay(50)
    (first, span) = spans.get_finished_spans()
    assert "sagaspan.observed" not in first.attributes
    assert span.attributes["sagaspan.observed"] == ("policy_denied", "rate_limited")
    call, _ = guard.calls.list(open=False)
    assert "too much" in call.observed[0]


def test_what_protects_effects_holds(watching: Callable[..., Guard], caller: Caller) -> None:
    """Once, also where a key conflicts; a freeze, which somebody asked for; and wrong declarations."""
    guard, did = watching(DENY), []
    pay = caller.tool(guard, "pay", effect="write", key="'k'")(lambda amount: did.append(amount))
    caller.play(lambda: caller.call(pay, 50))
    caller.play(lambda: caller.call(pay, 50))
    with pytest.raises(KeyConflict):
        caller.play(lambda: caller.call(pay, 60))
    guard.freeze("tool:other", reason="x")
    other = caller.tool(guard, "other")(lambda: did.append(0))
    with pytest.raises(ScopeFrozen):
        caller.play(lambda: caller.call(other))
    wipe = caller.tool(guard, "wipe", effect="irreversible", approve=False)(lambda n: did.append(n))

    async def twice() -> None:
        async with caller.run(guard, "r"):
            await caller.call(wipe, 7)
            await caller.call(wipe, 7)

    with pytest.raises(ApprovalDenied, match="already done"):
        caller.play(twice)
    assert did == [50, 7]


@pytest.mark.parametrize(
    ("argument", "environment", "in_file", "refuses"),
    [(None, None, "", True), (None, None, "mode = 'observe'", False), (None, "observe", "", False),
     (None, "enforce", "mode = 'observe'", True), ("enforce", "observe", "", True), ("observe", "enforce", "", False)],
)  # fmt: skip
def test_where_the_mode_is_said(
    watching: Callable[..., Guard], monkeypatch: pytest.MonkeyPatch, argument: Any, environment: str | None,
    in_file: str, refuses: bool,
) -> None:  # fmt: skip
    """``SAGASPAN_MODE``: below the code, above the file."""
    if environment is not None:
        monkeypatch.setenv("SAGASPAN_MODE", environment)
    guard = watching(f"[guard]\n{in_file}\n{DENY}", mode=argument)
    pay = guard.tool("pay")(lambda amount: amount)
    with pytest.raises(PolicyDenied) if refuses else contextlib.nullcontext():
        pay(50)
    assert guard.mode == ("enforce" if refuses else "observe")


def test_a_mode_that_is_none_is_refused(watching: Callable[..., Guard], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of where it is written."""
    for attempt in ({"mode": "watch"}, {"text": "[guard]\nmode = 'off'", "mode": None}):
        with pytest.raises(ConfigurationError, match="mode"):
            watching(**attempt)
    monkeypatch.setenv("SAGASPAN_MODE", "no")
    with pytest.raises(ConfigurationError, match="SAGASPAN_MODE"):
        watching(mode=None)


def test_the_mode_of_the_file_can_be_changed_while_agents_run(watching: Callable[..., Guard]) -> None:
    """From observing to refusing, without a restart."""
    with frozen_clock() as clock:
        guard = watching(f"[guard]\nmode = 'observe'\n{DENY}", mode=None)
        pay = guard.tool("pay", approve="amount > 1000")(lambda amount: amount)
        assert pay(50) == 50
        Path("p.toml").write_text(DENY)
        clock.advance(60)  # the file has the time of the machine
        with pytest.raises(PolicyDenied):
            pay(50)
