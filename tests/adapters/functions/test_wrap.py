"""``guard.wrap`` of plain callables."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, Policy


def pay(amount: int, card: str = "c1") -> str:
    """Pay."""
    return f"{amount} on {card}"


async def apay(amount: int) -> int:
    """Pay later."""
    return amount


def refund(amount: int) -> None:
    """Undo."""
    _undone.append(amount)


_undone: list[int] = []


def test_one_function(guard: Guard) -> None:
    """A wrapped function is guarded, of the same signature; the original is left as it is."""
    wrapped = guard.wrap(pay, {"pay": {"effect": "write"}})
    with guard.run() as run:
        assert wrapped(5) == wrapped(amount=5) == "5 on c1"
        assert pay(5) == "5 on c1"
        assert [call.tool for call in run.calls] == ["pay"]
    assert wrapped.__doc__ == "Pay."
    assert not hasattr(pay, "__sagaspan_tool__")


def test_async_functions_stay_async(guard: Guard) -> None:
    """An async function comes back async."""
    wrapped = guard.wrap(apay)
    assert asyncio.run(wrapped(3)) == 3


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_tools(guard: Guard, kind: Any) -> None:
    """A list comes back as a list of the same length and order; a policy may name another tool of it."""
    _undone.clear()
    wrapped = guard.wrap(kind([pay, refund]), {"pay": Policy(compensate="refund"), "re*": {"effect": "idempotent"}})
    assert type(wrapped) is kind
    with guard.run() as run:
        wrapped[0](5)
        run.abort()
    assert _undone == [5]


def test_policies_for_tools_that_are_not_there(guard: Guard) -> None:
    """A policy for a name the target does not have is refused with the nearest one."""
    with pytest.raises(
        ConfigurationError, match="names the tool 'pya', which the function 'pay' does not have; did you mean pay"
    ):
        guard.wrap(pay, {"pya": {}})
    with pytest.raises(ConfigurationError, match=r"tool 'pay': .*did you mean timeout"):
        guard.wrap(pay, {"pay": {"timout": 3}})


def test_names(guard: Guard) -> None:
    """``name=`` names one function; a partial has the name of what it calls."""
    wrapped = guard.wrap(pay, {"billing.pay": {"effect": "write"}}, name="billing.pay")
    partial = guard.wrap(functools.partial(pay, card="c2"))
    with guard.run() as run:
        wrapped(1)
        assert partial(1) == "1 on c2"
        assert [call.tool for call in run.calls] == ["billing.pay", "pay"]
    with pytest.raises(ConfigurationError, match="name= is for one function"):
        guard.wrap([pay, refund], name="x")


@pytest.mark.parametrize("target", [5, "pay", [], [pay, 5], {"pay": pay}, int, object()])
def test_what_nobody_knows(guard: Guard, target: Any) -> None:
    """A target that no adapter knows is refused, naming what it is and the adapters there are."""
    with pytest.raises(ConfigurationError, match=r"does not know what .*adapters installed: crewai, functions"):
        guard.wrap(target)


def test_a_function_opens_no_run(guard: Guard) -> None:
    """``run_id`` and ``on_interrupt`` are refused: a function has no run of its own."""
    with pytest.raises(ConfigurationError, match="opens no run"):
        guard.wrap(pay, run_id="a")
    with pytest.raises(ConfigurationError, match="opens no run"):
        guard.wrap(pay, on_interrupt="hold")


def test_guarded_once(guard: Guard) -> None:
    """A function that is guarded already is not guarded twice."""
    with pytest.raises(ConfigurationError, match="is guarded already"):
        guard.wrap(guard.tool(pay))
