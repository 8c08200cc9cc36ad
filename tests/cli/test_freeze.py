"""``sagaspan freeze``, ``unfreeze``, ``runs pause`` and ``runs resume``, and what ``status`` says of them."""

from __future__ import annotations

import pytest

from sagaspan import Guard, ScopeFrozen
from tests.cli.conftest import Sagaspan


@pytest.fixture
def pay(guard: Guard) -> object:
    """A tool, and a ledger."""
    guard.runs.list()
    return guard.tool("pay", effect="write")(lambda amount: amount)


def test_a_scope_is_frozen_and_goes_on(sagaspan: Sagaspan, guard: Guard, pay: object) -> None:
    """``status`` lists it with the command that lets it go on, and exits with 4."""
    said = sagaspan("freeze", "tool:pay", "--reason", "incident \x1b[31m7", "--actor", "ada")
    assert (said.code, "sagaspan unfreeze tool:pay" in said.out) == (0, True)
    with pytest.raises(ScopeFrozen):
        pay(1)  # type: ignore[operator]
    status = sagaspan("status", "--json")
    (item,) = status.json
    assert (status.code, item["state"], item["next"]) == (4, "frozen", "sagaspan unfreeze tool:pay")
    assert "by ada" in item["why"]
    assert "\x1b" not in sagaspan("status").out
    assert sagaspan("freeze", "tool:pay", "--reason", "again").code == 1
    assert sagaspan("unfreeze", "tool:pay", "--json").json["by"] == "ada"
    assert sagaspan("unfreeze", "tool:pay").code == 1
    assert pay(1) == 1  # type: ignore[operator]
    assert sagaspan("status").code == 0


def test_a_freeze_says_why(sagaspan: Sagaspan, pay: object) -> None:
    """Without a reason, or with a scope that is none, nothing is frozen."""
    assert pay(1) == 1  # type: ignore[operator]
    assert sagaspan("freeze", "all").code == 2
    answer = sagaspan("freeze", "tol:pay", "--reason", "x")
    assert (answer.code, "did you mean 'tool:pay'?" in answer.err) == (2, True)


def test_a_run_is_paused_and_resumed(sagaspan: Sagaspan, guard: Guard, pay: object) -> None:
    """By a unique prefix of its id; what it did stays."""
    with pytest.raises(ScopeFrozen), guard.run("order", id="order-17"):
        pay(1)  # type: ignore[operator]
        assert "begins nothing more" in sagaspan("runs", "pause", "order", "--reason", "wait").out
        pay(2)  # type: ignore[operator]
    assert guard.runs.get("order-17").status == "paused"
    (frozen,) = [one for one in sagaspan("status", "--json").json if one["kind"] == "freeze"]
    assert frozen["next"] == "sagaspan runs resume order-17"
    assert "entered with the same id" in sagaspan("runs", "resume", "order-17").out
    with guard.run("order", id="order-17"):
        assert [pay(1), pay(2)] == [1, 2]  # type: ignore[operator]
    assert sagaspan("runs", "pause", "order-17", "--reason", "x").code == 1
    assert sagaspan("runs", "pause", "nothing", "--reason", "x").code == 3
