"""``sagaspan backup``: a verified copy of a ledger that is in use, and nothing else is touched."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.cli.conftest import Sagaspan
from tests.servers import Postgres

pytestmark = pytest.mark.of_sqlite


@pytest.fixture
def ledger(guard: Guard, home: Path) -> Path:
    """A ledger with ten payments, whose program still has it open."""
    pay = guard.tool("pay", key="order", effect="write")(lambda order: order)
    for order in range(10):
        pay(order)
    return home / "ledger.db"


def test_a_backup_has_everything_that_is_in_the_log(sagaspan: Sagaspan, ledger: Path, tmp_path: Path) -> None:
    """It is one file (0600), which verifies, and a program on it makes none of the calls again."""
    file = tmp_path / "backup.db"
    before = os.umask(0)
    try:
        made = sagaspan("backup", str(file), "--json")
    finally:
        os.umask(before)
    assert made.code == 0, made.err
    assert (made.json["file"], made.json["bytes"], made.json["calls"]) == (str(file), file.stat().st_size, 10)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".sagaspan") == ["backup.db"]
    assert sagaspan("audit", "verify", "--store", f"sqlite:///{file}").code == 0
    with Guard(f"sqlite:///{file}") as guard:
        pay = guard.tool("pay", key="order", effect="write")(lambda order: pytest.fail("paid again"))
        assert [pay(order) for order in range(10)] == [*range(10)]


def test_what_to_do_with_a_backup_is_shown(sagaspan: Sagaspan, ledger: Path, tmp_path: Path) -> None:
    """How to verify it, and which key belongs to it."""
    Path(f"{ledger}.secret").write_text("k" * 32)
    said = " ".join(sagaspan("backup", str(tmp_path / "my backup.db")).out.split())
    assert "10 calls" in said
    assert f"sagaspan audit verify --store 'sqlite:///{tmp_path}/my backup.db'" in said
    assert f"Keep {ledger}.secret too" in said


def test_a_backup_is_of_one_moment_while_others_write(sagaspan: Sagaspan, guard: Guard, tmp_path: Path) -> None:
    """Writers continue meanwhile, and no call of the copy lacks its audit row."""
    act = guard.tool("act")(lambda: 1)
    act()
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            act()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            file = tmp_path / f"backup-{number}.db"
            assert sagaspan("backup", str(file)).code == 0
            assert sagaspan("audit", "verify", "--store", f"sqlite:///{file}").code == 0
    finally:
        stop.set()
        writer.join()


@pytest.mark.usefixtures("ledger")
def test_a_file_that_exists_is_replaced_only_when_told(sagaspan: Sagaspan, tmp_path: Path) -> None:
    """The error names the option."""
    file = tmp_path / "backup.db"
    file.write_text("yesterday")
    refused = sagaspan("backup", str(file))
    assert refused.code == 2
    assert f"{file} exists; nothing was written. Name another file, or add --overwrite" in refused.err
    assert file.read_text() == "yesterday"
    assert sagaspan("backup", str(file), "--overwrite").code == 0
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select count(*) from calls").fetchone() == (10,)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (".sagaspan/ledger.db", "is a file of the ledger itself"),
        (".sagaspan/ledger.db-wal", "is a file of the ledger itself"),
        ("link.db", "is a file of the ledger itself"),
        ("other.db", "other.db-wal is beside the backup"),
        ("nowhere/backup.db", "name a folder you can write to"),
    ],
)
def test_no_ledger_is_overwritten_by_a_backup(
    sagaspan: Sagaspan, ledger: Path, tmp_path: Path, name: str, sentence: str
) -> None:
    """Neither the one that is copied, nor another that may be in use, whatever the options say."""
    (tmp_path / "link.db").hardlink_to(ledger)
    (tmp_path / "other.db-wal").touch()
    refused = sagaspan("backup", str(tmp_path / name), "--overwrite")
    assert refused.code == 2
    assert sentence in " ".join(refused.err.split())
    assert sagaspan("audit", "verify").code == 0
    assert not (tmp_path / "other.db").exists()


def test_a_ledger_of_an_older_version_is_backed_up_as_it_is(
    sagaspan: Sagaspan, guard: Guard, ledger: Path, tmp_path: Path
) -> None:
    """Before it is migrated is when a backup is needed."""
    guard.close()
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("delete from migrations where number = (select max(number) from migrations)")
        connection.commit()
        (newest,) = connection.execute("select max(number) from migrations").fetchone()
    assert "open it once" in sagaspan("runs", "list").err
    made = sagaspan("backup", str(tmp_path / "backup.db"), "--json").json
    assert (made["schema"], made["calls"]) == (newest, 10)
    assert "open it once" in sagaspan("runs", "list").err


def test_a_damaged_ledger_makes_no_backup(sagaspan: Sagaspan, guard: Guard, ledger: Path, tmp_path: Path) -> None:
    """The error says so, and no file is left that looks like one."""
    guard.close()
    with ledger.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 20 * 4096)
    refused = sagaspan("backup", str(tmp_path / "backup.db"))
    assert refused.code == 1
    assert refused.err.startswith("Error: ")
    assert [path.name for path in tmp_path.iterdir()] == [".sagaspan"]


def test_there_is_nothing_to_back_up_before_the_first_call(sagaspan: Sagaspan, tmp_path: Path) -> None:
    """No empty ledger is made for it."""
    assert "there is no ledger" in sagaspan("backup", str(tmp_path / "backup.db")).err
    assert not (tmp_path / "backup.db").exists()


def test_a_ledger_on_a_server_is_backed_up_by_its_server(
    sagaspan: Sagaspan, postgres: Postgres, tmp_path: Path
) -> None:
    """The error names the program."""
    refused = sagaspan("backup", str(tmp_path / "backup.db"), "--store", postgres.url)
    assert refused.code == 1
    assert "pg_dump" in refused.err
    assert not (tmp_path / "backup.db").exists()
