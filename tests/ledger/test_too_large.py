"""What has ended and is too large for the ledger: it has ended, and nothing else waits for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagaspan import CallInfo, Guard, OutcomeUnknown, StoreError
from sagaspan.stores.sqlite import SqliteStore

LARGE = "é" * 100_000


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """Over a ledger whose rows hold 100 kB."""
    opened = SqliteStore._open

    def limited(store: SqliteStore) -> sqlite3.Connection:
        connection = opened(store)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        return connection

    monkeypatch.setattr(SqliteStore, "_open", limited)
    return Guard(f"sqlite:///{tmp_path}/ledger.db", budgets={"user:*": "20 USD/day"})


def _first_call(guard: Guard) -> CallInfo:
    return guard.runs.get("r").calls[0]


def test_a_result_that_is_too_large_is_done_and_in_nobodys_way(guard: Guard) -> None:
    """The caller has it, the books are right, it is not made again, and the next call goes on."""
    ran: list[int] = []
    tell = guard.tool("tell", effect="write", cost="1 USD")(lambda n: ran.append(n) or LARGE)
    act = guard.tool("act", effect="write")(lambda n: ran.append(n))
    with guard.run(id="r", user="ada"):
        assert tell(1) == LARGE
    with guard.run(id="q"):
        act(2)
    assert guard.usage(user="ada").spent == 1
    assert _first_call(guard).state == "done"
    assert "cannot hold it" in (_first_call(guard).result_lost or "")
    with (
        pytest.raises(OutcomeUnknown, match="is done and is not run again, but its result was not recorded"),
        guard.run(id="r", user="ada"),
    ):
        tell(1)
    assert ran == [1, 2]


def test_arguments_that_are_too_large_start_nothing(guard: Guard) -> None:
    """The ledger has to say what was done before it is done."""
    act = guard.tool("act", effect="write")(lambda text: pytest.fail("ran"))
    with pytest.raises(StoreError, match="cannot hold a value") as caught, guard.run(id="r"):
        act(LARGE)
    assert caught.value.tool_ran == "no"


def test_an_error_that_quotes_too_much_undoes_as_any_other(tmp_path: Path) -> None:
    """Its beginning is on record, of the call and of its run."""
    undone: list[int] = []
    with Guard(f"sqlite:///{tmp_path}/ledger.db") as guard:
        pay = guard.tool("pay", compensate=lambda n: undone.append(n))(lambda n: n)
        with pytest.raises(ValueError, match="xxx"), guard.run(id="r"):
            pay(1)
            raise ValueError("x" * 1_000_000)
        assert undone == [1]
        assert len(guard.runs.get("r").error or "") < 101_000


def test_a_compensation_whose_result_is_too_large_has_undone(guard: Guard) -> None:
    """Its step is undone, once, and what that had returned stays on record."""
    undone: list[int] = []

    def refund(n: int) -> str:
        undone.append(n)
        return LARGE

    pay = guard.tool("pay", compensate=refund)(lambda n: {"paid": n})
    with pytest.raises(KeyError), guard.run(id="r"):
        pay(1)
        raise KeyError("stop")
    assert undone == [1]
    assert guard.runs.get("r").status == "compensated"
    assert (_first_call(guard).state, _first_call(guard).result) == ("compensated", {"paid": 1})


@pytest.mark.parametrize("output", [LARGE, {"all": LARGE}])
def test_an_output_that_is_too_large_is_not_recorded(
    guard: Guard, output: Any, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """The run is completed all the same, and the log says what is missing."""
    act = guard.tool("act", effect="write")(lambda n: n)
    with guard.run(id="r") as run:
        act(1)
        run.output = output
    assert (guard.runs.get("r").status, guard.runs.get("r").output) == ("completed", None)
    assert [said for said in warnings_of_sagaspan() if "output of run 'r' is not recorded" in said]
