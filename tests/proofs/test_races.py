"""Races of real processes: eight want the same at the same moment, and one of them has it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.conftest import Worker

PROCESSES = 8
SECONDS = 60.0

SPENDER = """
guard = Guard(os.environ["TEST_STORE"], approver="inbox")
@guard.tool(approve=True)
def act(n):
    effect(n)
def spend():
    try:
        act(1)
        print("ran")
    except ApprovalPending as error:
        print(error.approval_id)
"""
PAYER = """
@guard.tool(key=lambda order: order)
def pay(order):
    effect("pay")
    time.sleep(0.3)  # so that the others come while it runs
    return os.getpid()
"""
RACE = """
print("ready", flush=True)
while not (effects.parent / "go").exists(): time.sleep(0.01)
"""


@pytest.fixture
def go(worker: Worker) -> Path:
    """The file that starts a race, on a ledger that exists."""
    with Guard(worker.store_url) as guard:
        guard.calls.list()
    return worker.effects_file.with_name("go")


def _race(worker: Worker, go: Path, script: str) -> list[str]:
    """``script``, after all of the processes are ready; returns what each said."""
    runners = [worker.start(script) for _ in range(PROCESSES)]
    for one in runners:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    go.touch()
    ended = [(one.communicate(timeout=SECONDS), one.returncode) for one in runners]
    assert not [err for (_, err), code in ended if code], ended
    return [out.strip() for (out, _), _ in ended]


def test_one_approval_is_used_once(worker: Worker, go: Path) -> None:
    """Eight processes have one approval between them: one runs, and the others attach to one new question."""
    asked = worker.run(SPENDER + "spend()").stdout.strip()
    with Guard(worker.store_url) as guard:
        guard.approvals.approve(asked, by="alice")
    said = Counter(_race(worker, go, SPENDER + RACE + "spend()\n"))
    assert worker.effects == ["1"]
    assert said.pop("ran") == 1
    assert list(said.values()) == [PROCESSES - 1]
    assert asked not in said


@pytest.mark.parametrize("together", ["in one run", "over runs"])
def test_one_key_is_run_once(worker: Worker, go: Path, together: str) -> None:
    """Eight processes call under one business key: one body runs, and each of them has what it returned."""
    call = {
        "in one run": "with guard.run(id='one', wait=60): print(pay('o-1'))",
        "over runs": "with guard.run(): print(pay('o-1'))",
    }[together]
    said = _race(worker, go, f"{PAYER}{RACE}{call}\n")
    assert worker.effects == ["pay"]
    assert len(set(said)) == 1, said
    with Guard(worker.store_url) as guard:
        (paid,) = guard.calls.list(open=False)
        assert (paid.state, paid.attempts) == ("done", 1)
        assert guard.calls.duplicates() == []
