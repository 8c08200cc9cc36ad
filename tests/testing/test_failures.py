"""Failures on order: the tool is the real one, its body raises, and everything around it does what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent

from sagaspan import CompensationFailed, ConfigurationError, Guard, NotApplied, OutcomeUnknown, Policy, Retry
from sagaspan.testing import assert_undone, fail, temporary_store
from tests.adapters.langchain.scripts import ask, model
from tests.conftest import Caller


class Declined(Exception):
    """The card is declined."""


class Shop:
    """A shop's tools, and what they did."""

    def __init__(self, guard: Guard, caller: Caller, **fields: Any) -> None:
        self.did: list[str] = []

        def cancel(item: str) -> None:
            self.did.append(f"cancel-{item}")

        def book(item: str) -> str:
            self.did.append(f"book-{item}")
            return item

        def charge(amount: int) -> int:
            self.did.append(f"charge-{amount}")
            return amount

        self.book = caller.tool(guard, compensate=caller.body(cancel))(book)
        self.charge = caller.tool(guard, effect="write", **fields)(charge)


@pytest.fixture
def order(guard: Guard, caller: Caller) -> Callable[..., Any]:
    """An order of both kinds of caller: books, then charges."""

    def order(shop: Shop, run_id: str = "a") -> Any:
        async def job() -> Any:
            async with caller.run(guard, id=run_id):
                await caller.call(shop.book, "flight")
                return await caller.call(shop.charge, 5)

        return caller.play(job)

    return order


def test_a_tool_fails_as_if_its_own_body_had_raised(guard: Guard, caller: Caller, order: Callable[..., Any]) -> None:
    """Its own ``raise`` proves that nothing happened: the rest is undone, and the tool is as before afterwards."""
    shop = Shop(guard, caller)
    with pytest.raises(Declined), fail(guard, "charge", Declined("no")) as failure:
        order(shop)
    assert failure.count == 1
    assert shop.did == ["book-flight", "cancel-flight"]
    run = guard.runs.get("a")
    assert [(call.tool, call.state, call.error) for call in run.calls if call.tool == "charge"] == [
        ("charge", "failed", f"{Declined.__module__}.Declined: no")
    ]
    assert_undone(run)
    assert order(shop, "b") == 5


@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError("late"), KeyError("unread")])
def test_after_the_effect_nobody_knows(
    guard: Guard, caller: Caller, order: Callable[..., Any], error: BaseException | type[BaseException]
) -> None:
    """``after_effect``: it happened, and then the error came as from a client; nothing is undone by a guess."""
    shop = Shop(guard, caller)
    lost = (ConnectionResetError, TimeoutError, KeyError)
    with pytest.raises(lost), fail(guard, "charge", error, after_effect=True):
        order(shop)
    assert shop.did == ["book-flight", "charge-5"]
    assert guard.runs.get("a").status == "held"
    with pytest.raises(OutcomeUnknown):
        order(shop)


def test_an_error_that_leaves_it_open_does_so_before_the_effect(
    guard: Guard, caller: Caller, order: Callable[..., Any]
) -> None:
    """A lost connection proves nothing, whoever raises it."""
    shop = Shop(guard, caller)
    with pytest.raises(ConnectionResetError), fail(guard, "charge", ConnectionResetError()):
        order(shop)
    assert guard.runs.get("a").status == "held"
    assert shop.did == ["book-flight"]


def test_only_the_first_times(guard: Guard, caller: Caller, order: Callable[..., Any]) -> None:
    """``times``: then the real body runs, so that retries can be tested."""
    shop = Shop(guard, caller, retry=Retry(attempts=3, initial_delay=0))
    with fail(guard, "charge", NotApplied, times=2) as failure:
        assert order(shop) == 5
    assert failure.count == 2
    assert guard.runs.get("a").calls[1].attempts == 3


def test_what_undoes_a_call_fails(guard: Guard, caller: Caller, order: Callable[..., Any]) -> None:
    """A compensation by its name, for all its attempts: the step is listed as not undone."""
    shop = Shop(guard, caller)
    declined, lost = fail(guard, "charge", Declined), fail(guard, "cancel", ConnectionResetError)
    with pytest.raises(CompensationFailed), declined, lost as failure:
        order(shop)
    assert failure.count == 3
    with pytest.raises(AssertionError, match=r"partially_compensated, and not undone: book is compensation_failed"):
        assert_undone(guard.runs.get("a"))
    guard.compensate("a")  # by then it works again
    assert_undone(guard.runs.get("a"))
    assert shop.did == ["book-flight", "cancel-flight"]


def test_an_instance_can_be_raised_many_times(guard: Guard) -> None:
    """Its traceback does not grow from call to call."""
    act = guard.tool("act")(lambda n: n)
    with fail(guard, "act", Declined("no")) as failure:
        depths = set()
        for n in range(3):
            with pytest.raises(Declined) as caught:
                act(n)
            depths.add(len(caught.traceback))
    assert (failure.count, len(depths)) == (3, 1)


def test_a_failure_that_never_came_is_said(guard: Guard) -> None:
    """A misspelt name is not a test that passes."""
    act = guard.tool("charge")(lambda: None)
    near = pytest.raises(AssertionError, match=r"fail\(guard, 'chrage'\).*did you mean 'charge'\?")
    with near, fail(guard, "chrage", Declined):
        act()
    with pytest.raises(AssertionError, match="called were: none"), fail(guard, "charge", Declined):
        pass
    with pytest.raises(ConfigurationError, match="times=0"), fail(guard, "charge", Declined, times=0):
        pass


def test_a_tool_of_a_wrapped_agent(guard: Guard) -> None:
    """What LangChain makes of the error is LangChain's: the agent is told, and goes on."""
    did: list[str] = []

    def charge(amount: int) -> str:
        """Charge the card."""
        did.append(f"charge-{amount}")
        return "paid"

    agent = create_agent(model(("charge", {"amount": 5})), [charge])
    agent = guard.wrap(agent, {"charge": Policy(effect="write", critical=True)})
    with guard.run(id="ok"):
        agent.invoke(ask())
    with pytest.raises(Declined), fail(guard, "charge", Declined), guard.run(id="a"):
        agent.invoke(ask())
    assert did == ["charge-5"]
    charged = [call.state for call in guard.runs.get("a").calls if call.tool == "charge"]
    assert charged == ["failed"]


def test_it_goes_with_another_store(guard: Guard) -> None:
    """``fail`` and ``override`` combine, whichever is outside."""
    act = guard.tool("act", effect="write")(lambda: 1)
    declined, failing = pytest.raises(Declined), fail(guard, "act", Declined)
    with declined, temporary_store() as store, guard.override(store=store), failing, guard.run(id="a"):
        act()
    declined, failing = pytest.raises(Declined), fail(guard, "act", Declined)
    with declined, temporary_store() as store, failing, guard.override(store=store), guard.run(id="a"):
        act()
    with guard.run(id="a"):
        assert act() == 1
