"""Every row of a real ledger's audit trail: flipped in each column, dropped, swapped with each other one, or put in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Approval, ApprovalPending, Guard
from sagaspan._audit import _Verifying
from sagaspan.ledger.records import NO_RUN, AuditRow, ChainedRow
from sagaspan.ledger.verifying import AuditFinding
from sagaspan.stores import connect


class Touched:
    """A store whose audit rows are those of a test; of its records every question is asked once."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._known: dict[str, Any] = {}
        self.rows: Sequence[ChainedRow] = ()

    def __getattr__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = cache(getattr(self._store, name))
        known = self._known[name]
        return lambda *args, **how: known(*args, **{key: _hashable(value) for key, value in how.items()})

    def snapshot(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        names = sorted({(one.row.namespace, one.row.run_id) for one in self.rows})
        return [name for name in names if after is None or name > after][:limit]

    def chained(self, namespace: str, run_id: str, after: int, *, limit: int) -> list[ChainedRow]:
        mine = [one for one in self.rows if (one.row.namespace, one.row.run_id) == (namespace, run_id)]
        return sorted((one for one in mine if one.seq > after), key=lambda one: one.seq)[:limit]

    def found(self, rows: Sequence[ChainedRow]) -> tuple[AuditFinding, ...]:
        self.rows = rows
        store: Any = self
        return _Verifying(store, None, None, None, lambda _: None)().findings


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Touched, list[ChainedRow]]]:
    """Runs that ended well, undone, and waiting for a second person; a call outside of any; a freeze and limits."""
    path = tmp_path_factory.mktemp("every") / "ledger.db"
    _written(path)
    with closing(connect(f"sqlite:///{path}")) as store:
        rows = [row for name in store.chains(None, limit=99) for row in store.chained(*name, 0, limit=999)]
        yield Touched(store), sorted(rows, key=lambda row: row.seq)


def _written(path: Path) -> None:
    with Guard(f"sqlite:///{path}", approver="inbox") as guard:
        guard._store._never_sync = True  # type: ignore[attr-defined]
        undo = guard.tool("undo")(lambda result: None)
        pay = guard.tool("pay", compensate=undo, approve="amount > 100", approval=Approval(approvers=2))(
            lambda amount: f"p-{amount}"
        )
        with pytest.raises(ApprovalPending) as waits, guard.run(id="order", input={"n": 1}):
            pay(500)
        for by in ("bob", "carol"):
            guard.approvals.approve(waits.value.approval_id, by=by)
        with guard.run(id="order", input={"n": 1}):
            pay(500)
        with pytest.raises(LookupError), guard.run(id="undone"):
            pay(5)
            raise LookupError
        pay(7)
        guard.set_budget("user:42", "50 USD/day")
        guard.freeze("tool:x", reason="an incident")
        guard.unfreeze("tool:x")
        guard.freeze("tool:y", reason="another one")


def _named(found: Sequence[AuditFinding], row: ChainedRow) -> bool:
    """Whether a row is named by its number, or its place if it has none; ends of chains by the record they are of."""
    of_run = [one for one in found if one.run == row.row.run_id]
    return any(
        (one.number is not None and one.number <= (row.number or 0) <= (one.until or one.number))
        or one.seq == row.seq
        or one.problem == "record"
        for one in of_run
    )


def _changed(value: Any) -> Iterator[Any]:
    """Other values for a column: a bit, a character, nothing, something."""
    if isinstance(value, int):
        yield from (value + 1, -value - 1, None)
    elif isinstance(value, bytes):
        yield from (bytes([value[0] ^ 1]) + value[1:], value[:-1], b"", None) if value else (b"x",)
    elif isinstance(value, str):
        yield from (f"{value}x", value[:-1], chr(ord(value[0]) ^ 1) + value[1:]) if value else ("x",)
    else:
        yield "x"


def test_nothing_is_found_in_what_nobody_touched(ledger: tuple[Touched, list[ChainedRow]]) -> None:
    """And there is something of everything in it."""
    touched, rows = ledger
    assert touched.found(rows) == ()
    assert {row.row.run_id for row in rows} >= {"order", "undone", NO_RUN}
    assert len(rows) > 25


def test_every_column_of_every_row(ledger: tuple[Touched, list[ChainedRow]]) -> None:
    """The row is named, or the chain that lost it."""
    touched, rows = ledger
    for at, row in enumerate(rows):
        said = [(field.name, replace(row.row, **{field.name: value}))
                for field in fields(AuditRow) for value in _changed(getattr(row.row, field.name))
                if value is not None]  # fmt: skip
        changed = [(name, replace(row, row=other)) for name, other in said]
        changed += [(name, replace(row, **{name: value})) for name in ("number", "content", "hash")
                    for value in _changed(getattr(row, name) or b"")]  # fmt: skip
        for name, other in changed:
            found = touched.found([*rows[:at], other, *rows[at + 1 :]])
            assert _named(found, row), (name, other, found)


def test_every_row_and_every_two_rows_dropped(ledger: tuple[Touched, list[ChainedRow]]) -> None:
    """Each of them is missed."""
    touched, rows = ledger
    for gone in (*combinations(rows, 1), *combinations(rows, 2)):
        found = touched.found([row for row in rows if row not in gone])
        assert all(_named(found, row) for row in gone), (gone, found)


def test_every_two_rows_of_a_chain_swapped(ledger: tuple[Touched, list[ChainedRow]]) -> None:
    """Both are named."""
    touched, rows = ledger
    for one, other in combinations(rows, 2):
        if one.row.run_id != other.row.run_id:
            continue
        places = {id(one): replace(one, seq=other.seq), id(other): replace(other, seq=one.seq)}
        found = touched.found([places.get(id(row), row) for row in rows])
        assert _named(found, one), (one, other, found)
        assert _named(found, other), (one, other, found)


def test_every_row_put_in_once_more(ledger: tuple[Touched, list[ChainedRow]]) -> None:
    """Before all others, or after them: that row is named, or the rows that are missing before it by its number."""
    touched, rows = ledger
    last = rows[-1].seq
    for row in rows:
        for seq in (-1, 0, last + 1, last + 1000):
            for number in (row.number, 0, (row.number or 0) + 1, 999):
                copy = replace(row, seq=seq, number=number)
                found = touched.found([*rows, copy])
                of_run = [one for one in found if one.run == row.row.run_id]
                assert any(one.seq == seq or (one.until or 0) + 1 == number for one in of_run), (copy, found)
