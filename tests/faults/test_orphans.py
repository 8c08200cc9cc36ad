"""Orphans that are undone at the end of a resumed run, through SIGKILL at every step of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sagaspan import Guard
from tests.conftest import Worker
from tests.faults.test_crashes import CRASH_AT, _check_audit
from tests.faults.test_recovery import Program
from tests.proofs import FULL, sides

APP = (
    """
import os, signal, sys, time
from pathlib import Path
from sagaspan import Guard
guard = Guard(os.environ["TEST_STORE"])
effects = Path(os.environ["TEST_EFFECTS"])
def effect(what):
    with effects.open("a") as file:
        file.write(str(what) + "\\n")
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    + CRASH_AT
    + """
def cancel(name):
    effect(f"undo-{name}")
@guard.tool(compensate=cancel)
def book(name):
    effect(f"book-{name}")
@guard.tool(defer=True)
def mail(to):
    effect(f"mail-{to}")
"""
)
TRIP = """
sys.path.insert(0, os.getcwd())
from trip import *
import trip
def first():
    with guard.run("trip", id="a") as run:
        book("ritz")
        book("car")
        mail("ritz")
        run.pause()
def second():
    with guard.run("trip", id="a", orphans="compensate") as run:
        book("plaza")
        mail("plaza")
        run.output = "plaza"
    return run
"""
AGAIN = TRIP + "run = second()\nprint(run.status, run.output, trip.commits)\n"
RECOVER = TRIP + "print(*(run.id for run in guard.recover().completed))\n"


@pytest.fixture(autouse=True)
def _trip(tmp_path: Path) -> None:
    (tmp_path / "trip.py").write_text(APP)


def _decided(store_url: str) -> bool:
    with Guard(store_url) as guard:
        return any(row.event == "run.finish" for row in guard._store.audit_of("default", "a"))


@pytest.mark.parametrize("again", ["recover", "enter"])
def test_a_crash_at_every_step(worker: Worker, store_url: str, again: str) -> None:
    """Once it was decided, what was left is undone and sent by whoever goes on; before, the block runs again."""
    decided = 0
    for step in range(1, 100):
        for side in sides(step, other=again == "enter"):
            worker.begin_anew()
            assert worker.run(TRIP + "first()").returncode == 0
            died = worker.run(AGAIN, CRASH=f"{side} {step}")
            if died.returncode == 0:
                assert died.stdout.startswith("completed plaza")
                assert decided in ((15,) if FULL else (7, 8))
                return
            assert died.returncode == -9, died.stderr
            was_decided = _decided(store_url)
            decided += was_decided
            worker.run(RECOVER if again == "recover" and was_decided else AGAIN)
            with Guard(store_url) as guard:
                info = guard.runs.get("a")
                if info.status == "held":  # it died in a body, or before that was settled
                    (call,) = [call for call in info.calls if call.state == "unknown"]
                    if f"{call.tool}-plaza" in worker.effects:
                        guard.calls.resolve(call.id, "happened", result="plaza", note="looked")
                    else:
                        guard.calls.resolve(call.id, "did-not-happen", note="looked")
            worker.run(AGAIN)
            counts = Counter(worker.effects)
            assert all(1 <= counts.pop(f"undo-{name}") <= 2 for name in ("ritz", "car"))
            assert counts == {"book-ritz": 1, "book-car": 1, "book-plaza": 1, "mail-plaza": 1}
            assert worker.effects.index("undo-car") < worker.effects.index("undo-ritz")
            with Guard(store_url) as guard:
                info = guard.runs.get("a")
                assert (info.status, info.output, len(info.orphans)) == ("completed", "plaza", 3)
            _check_audit(store_url)
    pytest.fail("it never got through")


def test_the_program_shows_them_and_goes_on(worker: Worker, store_url: str) -> None:
    """``runs show`` names them; without the tools the run is queued, with them it is completed."""
    worker.run(TRIP + "first()")
    died = worker.run(AGAIN, CRASH="after 6")
    assert died.returncode == -9
    program = Program(worker)
    shown = program("runs", "show", "a", app=False).stdout
    assert "orphans       not asked for again: mail (refused), book (compensating), book (compensating)" in shown
    assert len(json.loads(program("runs", "show", "a", "--json", app=False).stdout)["orphans"]) == 3
    listed = program("recover", app=False).stdout
    assert "run a (trip): waits for a process that has the tools to finish it" in listed
    assert "what waits for cancel, mail: sagaspan recover --app MODULE:GUARD" in listed
    done = program("recover", "--app", "trip:guard", app=False)
    assert "run a (trip): completed: what it had left to undo or to send is done" in done.stdout, done.stderr
    assert worker.effects[-3:] == ["undo-car", "undo-ritz", "mail-plaza"]
