"""Proofs of the budgets: no crowd gets past a cap, and no crash separates a budget from the call that spent it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sagaspan import Guard
from sagaspan.ledger.records import CallState
from tests.conftest import Sql
from tests.proofs import budget_crowd as crowd

PROCESSES = 4
ROOT = Path(__file__).parents[2]


def _start(what: str, url: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.proofs.budget_crowd", what, url, str(folder)]
    return subprocess.Popen(command, cwd=ROOT)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _until(file: Path, size: int, *processes: subprocess.Popen[bytes]) -> None:
    """Wait until ``file`` has so many bytes."""
    until = time.monotonic() + crowd.SECONDS
    while _size(file) < size:
        assert time.monotonic() < until, f"{file.name} has {_size(file)} of {size}"
        assert all(process.poll() is None for process in processes), "a process has ended too early"
        time.sleep(0.002)


@pytest.fixture(params=["", "&slices=8"] if os.environ.get("SAGASPAN_TEST_ON") == "postgres" else [""])
def url(store_url: str, request: pytest.FixtureRequest) -> str:
    """A ledger that exists; on PostgreSQL also one that cuts a budget for which processes wait."""
    with Guard(store_url) as guard:
        guard.calls.list()
    return f"{store_url}{request.param}"


def test_exactly_as_many_run_as_fit(tmp_path: Path, url: str) -> None:
    """256 threads of 4 processes under a cap for 10: 10 run, and no look at the books ever finds more than the cap."""
    processes = [_start(what, url, tmp_path) for what in ("watch", *["crowd"] * PROCESSES)]
    try:
        _until(tmp_path / "ready", PROCESSES + 1, *processes)
        (tmp_path / "go").touch()
        for process in processes[1:]:
            assert process.wait(crowd.SECONDS) == 0
        (tmp_path / "over").touch()
        assert processes[0].wait(crowd.SECONDS) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert _size(tmp_path / "effects") == crowd.FITS
    watched = json.loads((tmp_path / "watched").read_text())
    assert watched["wrong"] == []
    assert watched["seen"] > 10
    assert any(reserved for _, reserved in watched["used"]), "nobody looked while something was reserved"
    guard = Guard(url)
    (account,) = guard.budgets.list("tenant:acme")
    assert (account.spent, account.reserved, account.remaining) == (crowd.FITS, 0, 0)
    assert sum(account.spent for account in guard.budgets.list() if account.scope.startswith("user:")) == crowd.FITS
    assert list(guard.budgets.fsck()) == []


def test_processes_race_to_the_last_cent(tmp_path: Path, url: str) -> None:
    """Each of them is refused only when nothing is left for anybody, and not one call more has run than fits."""
    processes = [_start(what, url, tmp_path) for what in ("watch", *["race"] * PROCESSES)]
    try:
        _until(tmp_path / "ready", PROCESSES + 1, *processes)
        (tmp_path / "go").touch()
        for process in processes[1:]:
            assert process.wait(crowd.SECONDS) == 0
        (tmp_path / "over").touch()
        assert processes[0].wait(crowd.SECONDS) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert (_size(tmp_path / "effects"), _size(tmp_path / "refused")) == (crowd.FITS_RACERS, PROCESSES)
    watched = json.loads((tmp_path / "watched").read_text())
    assert watched["wrong"] == []
    assert (watched["slices"] > 1) == ("slices=" in url)
    guard = Guard(url)
    (account,) = guard.budgets.list("tenant:acme")
    assert (account.spent, account.reserved, account.remaining) == (crowd.FITS_RACERS, 0, 0)
    assert list(guard.budgets.fsck()) == []


def test_killed_processes_leave_what_they_reserved_with_its_records(tmp_path: Path, url: str, sql: Sql) -> None:
    """Whatever the moment: the books are what the calls say, and nothing that happened is missing from them."""
    effects = tmp_path / "effects"
    for _ in range(3):
        process = _start("spend", url, tmp_path)
        try:
            _until(effects, _size(effects) + 40, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        guard = Guard(url)
        assert list(guard.budgets.fsck()) == []
        if "slices=" in url:
            assert sql("select count(*) from slices") == [(8,)]
        (account,) = guard.budgets.list("tenant:acme")
        assert _size(effects) <= account.spent + account.reserved
        open_calls = [call for call in guard.calls.list(limit=1000) if call.state in ("running", CallState.UNKNOWN)]
        assert account.reserved == len(open_calls)
    guard.recover()
    assert list(guard.budgets.fsck()) == []
    (account,) = guard.budgets.list("tenant:acme")
    assert _size(effects) <= account.spent + account.reserved
