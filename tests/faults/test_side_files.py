"""Delete, replace or unlock the side files of a live SQLite ledger: no payment is made twice."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sagaspan import Guard, StoreUnavailable
from sagaspan.stores._sqlite_files import LedgerFiles
from tests.conftest import Worker
from tests.faults.test_crashes import JOB, POINTS
from tests.nursery import Forked
from tests.proofs import FULL

pytestmark = [
    pytest.mark.of_sqlite,
    pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open file descriptions"),
]

# Obeys its standard input: pays orders, or copies the ledger as a backup agent in the same process would.
PROGRAM = """
import shutil
@guard.tool(key="order", effect="write")
def pay(order):
    effect(order)
    if order.startswith("slow"):
        print("paying", flush=True)
        sys.stdin.readline()
    return order
for line in iter(sys.stdin.readline, ""):
    word, *rest = line.split()
    answer = "ok"
    try:
        if word == "copy":
            shutil.copy(*rest)
        else:
            for order in rest:
                pay(order)
    except (StoreUnavailable, OutcomeUnknown, CallInProgress) as error:
        answer = f"{type(error).__name__}, ran: {error.tool_ran}: {error}"
    print(answer, flush=True)
guard.close()
"""
FIRST = [f"order-{number}" for number in range(5)]


def _tell(program: Forked, said: str) -> str:
    program.stdin.write(f"{said}\n")
    return program.stdout.readline().strip()


def _begin(worker: Worker) -> Forked:
    program = worker.start(PROGRAM)
    assert _tell(program, f"pay {' '.join(FIRST)}") == "ok"
    return program


def _end(program: Forked, how: str = "closed") -> None:
    if how == "killed":
        program.kill()
    program.communicate(timeout=300)


def _pay_again(worker: Worker, *orders: str) -> None:
    """Start the program again; it pays all orders, of which some were paid before."""
    program = worker.start(PROGRAM)
    assert _tell(program, f"pay {' '.join((*FIRST, *orders))}") == "ok"
    _end(program)
    assert sorted(worker.effects) == sorted((*FIRST, *orders))


def _file(worker: Worker, suffix: str) -> Path:
    return Path(f"{worker.store_url.removeprefix('sqlite:///')}{suffix}")


def _close_by_command_line(worker: Worker) -> None:
    program = worker.start_program("runs", "list", "--store", worker.store_url)
    _, errors = program.communicate(timeout=300)
    assert program.returncode == 0, errors


def _close_by_another_program(worker: Worker) -> None:
    done = worker.run(f"""
    import sqlite3
    connection = sqlite3.connect({str(_file(worker, ""))!r})
    connection.execute("select count(*) from calls").fetchone()
    connection.close()
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("close", [_close_by_command_line, _close_by_another_program])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_who_closes_a_copied_ledger_leaves_the_log_to_its_program(
    worker: Worker, tmp_path: Path, close: Callable[[Worker], None], end: str
) -> None:
    """To copy the ledger drops SQLite's locks of that process. Its log stays all the same, and it continues."""
    program = _begin(worker)
    assert _tell(program, f"copy {_file(worker, '')} {tmp_path / 'copy.db'}") == "ok"
    close(worker)
    assert _file(worker, "-wal").exists()
    assert _tell(program, "pay order-5 order-6") == "ok"
    _end(program, end)
    _pay_again(worker, "order-5", "order-6")


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("how", ["deleted", "replaced by a copy", "replaced by an empty file"])
@pytest.mark.parametrize("suffixes", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_program_whose_side_files_are_gone_claims_nothing_more(
    worker: Worker, suffixes: tuple[str, ...], how: str, end: str
) -> None:
    """Its next call is refused before it runs. What it recorded is in the ledger when it is started again."""
    program = _begin(worker)
    for suffix in suffixes:
        file = _file(worker, suffix)
        other = file.with_name("other")
        if how == "replaced by a copy":
            shutil.copy(file, other)
        else:
            other.touch()
        if how == "deleted":
            file.unlink()
        else:
            other.replace(file)
    for _ in range(2):
        answer = _tell(program, "pay order-5")
        assert answer.startswith("StoreUnavailable, ran: no: ")
        assert all(str(_file(worker, suffix)) in answer for suffix in suffixes)
        assert "was deleted or replaced while the ledger was in use; nothing was started" in answer
        assert "Stop every process that uses this ledger, then start them again" in answer
    _end(program, end)
    _pay_again(worker, "order-5")


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_the_ledger_is_not_opened_beside_a_program_whose_side_file_was_deleted(worker: Worker, suffix: str) -> None:
    """It would begin a second log or index, and neither program would see what the other claims."""
    program = _begin(worker)
    _file(worker, suffix).unlink()
    other = worker.start("from sagaspan.stores import sqlite\nsqlite.BUSY_SECONDS = 0.1\n" + PROGRAM)
    answer = _tell(other, "pay order-0")
    assert answer.startswith(f"StoreUnavailable, ran: no: {_file(worker, suffix)} was deleted while process ")
    assert not _file(worker, suffix).exists()
    _end(other)
    _end(program)
    _pay_again(worker)


def test_a_result_that_cannot_be_recorded_is_not_lost_in_a_deleted_log(worker: Worker) -> None:
    """The caller gets it, the next claim is refused, and after a restart the payment is in doubt, not made again."""
    program = _begin(worker)
    assert _tell(program, "pay slow-order") == "paying"
    _file(worker, "-wal").unlink()
    assert _tell(program, "continue") == "ok"
    assert _tell(program, "pay order-5").startswith("StoreUnavailable, ran: no: ")
    _end(program, "killed")
    program = worker.start(PROGRAM)
    assert _tell(program, "pay slow-order").startswith("OutcomeUnknown")
    _end(program)
    _pay_again_but(worker, "slow-order")


def _pay_again_but(worker: Worker, *doubted: str) -> None:
    program = worker.start(PROGRAM)
    assert _tell(program, f"pay {' '.join(FIRST)}") == "ok"
    _end(program)
    assert worker.effects == [*FIRST, *doubted]


def test_a_program_that_ends_saves_its_deleted_log(worker: Worker) -> None:
    """It need not have noticed: to close the ledger writes the log into it."""
    program = _begin(worker)
    _file(worker, "-wal").unlink()
    _end(program)
    _pay_again(worker)


def test_a_log_that_was_deleted_for_good_is_not_passed_over(worker: Worker) -> None:
    """Its program died before it noticed: the ledger is not opened until a person has accepted the loss."""
    program = _begin(worker)
    _file(worker, "-wal").rename(_file(worker, "-away"))
    _end(program, "killed")
    program = worker.start(PROGRAM)
    answer = _tell(program, "pay order-0")
    assert answer.startswith("StoreUnavailable, ran: no: ")
    assert "what was recorded last is lost; nothing was started. Put the log back" in answer
    assert answer.endswith(f"rm {_file(worker, '-shm')}")
    _file(worker, "-away").rename(_file(worker, "-wal"))
    assert _tell(program, f"pay {' '.join(FIRST)}") == "ok"
    _end(program)
    assert worker.effects == FIRST


def test_a_loss_that_a_person_accepted_is_no_obstacle(worker: Worker) -> None:
    """Without the index of the lost log the ledger opens again."""
    _end(program := _begin(worker), "killed")
    assert program.returncode == -signal.SIGKILL
    _file(worker, "-wal").unlink()
    _file(worker, "-shm").unlink()
    with Guard(worker.store_url) as guard:
        assert guard.calls.list(open=False) == []


def test_a_claim_whose_log_is_deleted_in_its_commit_does_not_run(store_url: str) -> None:
    """It is compared after the commit, too: what no other process will read is no claim."""
    log = Path(f"{store_url.removeprefix('sqlite:///')}-wal")
    ran: list[str] = []
    guard = Guard(store_url)
    pay = guard.tool("pay", key="order", effect="write")(lambda order: ran.append(order))
    pay("first")
    guard._store._connection.set_trace_callback(  # type: ignore[attr-defined]
        lambda statement: log.unlink(missing_ok=True) if statement == "commit" else None
    )
    with pytest.raises(StoreUnavailable, match="was deleted or replaced") as caught:
        pay("second")
    assert caught.value.tool_ran == "no"
    assert ran == ["first"]
    with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
        guard.close()  # the end of its session is not recorded either
    guard.close()


def test_a_deleted_log_is_noticed_where_it_cannot_be_locked(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks of open file descriptions the last to close may delete the log. No claim follows."""
    monkeypatch.setattr(LedgerFiles, "_lock", lambda *_: None)
    guard = Guard(worker.store_url)
    pay = guard.tool("pay", key="order", effect="write")(lambda order: order)
    pay("first")
    shutil.copy(_file(worker, ""), tmp_path / "copy.db")
    _close_by_another_program(worker)
    assert not _file(worker, "-wal").exists()
    with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
        pay("second")
    with contextlib.suppress(StoreUnavailable):
        guard.close()


def test_a_ledger_that_is_opened_and_closed_by_many_is_open_to_all(worker: Worker) -> None:
    """Processes that come and go, as the last one or not, do not take each other's opening for a deleted log."""
    script = """
    act = guard.tool("act")(lambda: 1)
    for _ in range(20):
        act()
        guard.close()
    """
    processes = [worker.start(script) for _ in range(4)]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert not _file(worker, "-wal").exists()
    with contextlib.closing(sqlite3.connect(_file(worker, ""))) as connection:
        assert connection.execute("select count(*) from calls where state = 'done'").fetchone() == (80,)
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


# Where a process of the crash matrix would die, it loses its side files instead.
LOSE = """
def die():
    for suffix in os.environ["LOSE"].split():
        Path(os.environ["TEST_STORE"].removeprefix("sqlite:///") + suffix).unlink(missing_ok=True)
"""
SIDES = ("-wal", "-shm", "-wal -shm")
LOSSES = [
    (point, sides)
    for at, point in enumerate(POINTS)
    for number, sides in enumerate(SIDES)
    if FULL or (at + number) % len(SIDES) == 0
]


@pytest.mark.parametrize(("point", "sides"), LOSSES)
def test_side_files_that_go_away_at_every_step_of_a_run(worker: Worker, point: str, sides: str) -> None:
    """Started again, the run is completed and each booking came once. Or it is held in doubt, and none came twice."""
    worker.run(LOSE + JOB, CRASH=point, LOSE=sides)
    again = worker.run(JOB)
    problem, state, _ = again.stdout.split()
    bookings = [worker.effects.count(f"book-{name}") for name in ("flight", "hotel")]
    assert not [effect for effect in worker.effects if effect.startswith("undo")]
    if problem == "None":
        assert state == "completed"
        assert bookings == [1, 1]
    else:
        assert (problem, state) == ("OutcomeUnknown", "held"), again.stderr
        assert max(bookings) <= 1
