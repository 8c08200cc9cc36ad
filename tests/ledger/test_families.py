"""What is read of a run, and of those nested in it, before a write of it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Guard, OutcomeUnknown
from sagaspan.stores import connect
from tests.ledger.stores import Earlier, Weighed


def _tools(guard: Guard) -> tuple[Any, Any]:
    act = guard.tool("act", effect="write")(lambda n: n)
    ask = guard.tool("ask", effect="write")(_fails)
    return act, ask


def _fails(n: int) -> None:
    raise ConnectionResetError


def _interrupted(guard: Guard, calls: int) -> None:
    """A run that is held by a doubt after so many calls, as many of them in a run within it."""
    act, ask = _tools(guard)
    with pytest.raises(ConnectionResetError), guard.run(id="a"):
        for n in range(calls):
            act(n)
        with guard.run("within"):
            for n in range(calls):
                act(n)
            ask(0)


def test_what_a_write_of_a_resumed_run_reads_does_not_grow_with_its_run(tmp_path: Path) -> None:
    """Each new one looks whether an earlier one is in doubt: a run may have made ten thousand that are done."""
    read = []
    for calls in (2, 40):
        store = Weighed(tmp_path / f"{calls}.db")
        with Guard(store) as guard:
            _interrupted(guard, calls)
            (doubt,) = guard.calls.list()
            guard.calls.resolve(doubt.id, "happened", note="the provider has it")
            act, _ = _tools(guard)
            with guard.run(id="a"):
                before = store.rows
                act("new")
                read.append(store.rows - before)
    assert read[0] == read[1]


@pytest.mark.parametrize("column", ["state", "phase"])
def test_a_write_that_nobody_can_read_is_in_doubt(tmp_path: Path, column: str) -> None:
    """A row of a later version, or a damaged one: what it says may have happened."""
    file = tmp_path / "ledger.db"
    with Guard(f"sqlite:///{file}") as guard:
        act, _ = _tools(guard)
        with guard.run(id="a") as run:
            act(1)
            run.pause()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("pragma ignore_check_constraints = on")
        connection.execute(f"update calls set {column} = 'sending'")
    with Guard(f"sqlite:///{file}") as guard:
        act, _ = _tools(guard)
        with pytest.raises(OutcomeUnknown, match="did not run: nobody knows whether 'act'"), guard.run(id="a"):
            act("new")


def test_a_store_that_cannot_sift_finds_the_same_doubt(store_url: str) -> None:
    """Who made a store of his own before that is not to change it: its calls are read, as they were."""
    earlier: Any = Earlier(connect(store_url))
    for store in (earlier, store_url):
        with Guard(store, namespace=type(store).__name__) as guard:
            _interrupted(guard, 1)
            act, _ = _tools(guard)
            with pytest.raises(OutcomeUnknown, match="did not run: nobody knows whether 'ask'"), guard.run(id="a"):
                act("new")
