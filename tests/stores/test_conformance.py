"""The kit of ``sagaspan.testing`` on every store of the house."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from sagaspan import Guard
from sagaspan.ledger.store import SAVED, ApprovalChange, CallChange, Change, Commit, ReserveChange, RunChange, Store
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing import StoreConformance
from tests.servers import Mariadb, Postgres


class TestSqlite(StoreConformance):
    """A file."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[object]:
        """The ledger of this test, opened again."""
        made: list[Store] = []

        def make() -> Store:
            made.append(SqliteStore(tmp_path / "ledger.db", durability="off"))
            return made[-1]

        yield make
        for store in made:
            store.close()


class TestPostgres(StoreConformance):
    """A server."""

    @pytest.fixture
    def make_store(self, postgres: Postgres) -> object:
        """The ledger of this test, opened again."""
        return postgres.store


class TestMariadb(StoreConformance):
    """A server of another kind."""

    @pytest.fixture
    def make_store(self, mariadb: Mariadb) -> object:
        """The ledger of this test, opened again."""
        return mariadb.store


class Own:
    """A store of somebody else: it is of no class of ours, and has what the protocol asks for and nothing besides."""

    _ASKED: Final = {name for name in dir(Store) if not name.startswith("_")} | set(Store.__annotations__)

    def __init__(self, path: Path) -> None:
        self._inside = SqliteStore(path, durability="off")

    def __getattr__(self, name: str) -> Any:
        if name not in self._ASKED:
            raise AttributeError(name)
        return getattr(self._inside, name)


class TestOwn(StoreConformance):
    """A store of somebody else."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> object:
        """The ledger of this test, opened again."""
        return lambda: Own(tmp_path / "ledger.db")

    def test_a_guard_takes_it(self, make_store: Callable[[], Any]) -> None:
        """A run on it is claimed, resumed, rolled back and counted as on any other."""
        undone: list[int] = []
        with Guard(make_store(), budgets={"user:*": "1 USD"}) as guard:
            pay = guard.tool("pay", compensate=lambda result: undone.append(result), cost="0.4 USD")(lambda n: n)
            for _ in range(2):
                with guard.run("r", id="r", user="ada"):
                    pay(1)
            with pytest.raises(ValueError, match="no"), guard.run("q", id="q", user="ada"):
                pay(2)
                raise ValueError("no")
            assert undone == [2]
            assert guard.usage(user="ada").spent * 10 == 8
            assert not guard.recover()
            assert [run.status for run in guard.runs.list()] == ["compensated", "completed"]


def _unversioned(changes: Sequence[Change], store: Store) -> list[Change]:
    """Each change over whatever version there is."""
    found = [
        (change, store.get_call(change.record.id) if isinstance(change, CallChange)
         else store.get_run(change.record.namespace, change.record.id) if isinstance(change, RunChange) else None)
        for change in changes
    ]  # fmt: skip
    return [change if now is None else replace(change, expected_version=now.version) for change, now in found]


CARELESS: Final[dict[str, tuple[Callable[[Sequence[Change], Store], Sequence[Change]], str]]] = {
    "saves over any version": (_unversioned, "test_a_change_over_another_version_saves_nothing"),
    "takes no epoch for wrong": (
        lambda changes, _: [
            replace(one, claims=False) if isinstance(one, CallChange) else one for one in changes
        ],
        "test_a_claim_needs_its_run_at_its_epoch_and_running",
    ),
    "takes every budget for endless": (
        lambda changes, _: [
            replace(one, record=replace(one.record, cap=None)) if isinstance(one, ReserveChange) else one
            for one in changes
        ],
        "test_what_does_not_fit_is_refused",
    ),
    "uses an approval as often as it is asked": (
        lambda changes, _: [one for one in changes if not isinstance(one, ApprovalChange) or one.consumes_at is None],
        "test_an_approval_is_used_as_it_was_given",
    ),
    "saves the half of it": (lambda changes, _: changes[:1], "test_what_is_saved_is_read_as_it_was"),
}  # fmt: skip


@pytest.mark.parametrize("careless", [*CARELESS, "says that it saved"])
def test_the_kit_notices_a_store_that(tmp_path: Path, careless: str) -> None:
    """It is what others go by who bring a store of their own."""
    changed, test = CARELESS.get(careless, (None, "test_one_key_is_claimed_once"))

    class Careless(Own):
        def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
            if changed is not None:
                return self._inside.commit(changed(changes, self._inside), synced=synced)
            self._inside.commit(changes, synced=synced)
            return SAVED

    conforms: Callable[..., None] = getattr(StoreConformance(), test)
    conforms(lambda: Own(tmp_path / "own.db"))
    with pytest.raises(AssertionError):
        conforms(lambda: Careless(tmp_path / "careless.db"))
