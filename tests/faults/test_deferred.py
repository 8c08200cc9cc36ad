"""Processes that die by SIGKILL while what was deferred is sent: each call is sent once, or somebody must look."""

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

# The user's application: what the processes that die and those that recover have in common.
SHOP = (
    """
import os, signal, sys, time, asyncio
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
class Declined(Exception): ...
def recall(to): effect(f"recall-{to}")
def cancel(name): effect(f"undo-{name}")
@guard.tool(compensate=cancel)
def book(name): effect(f"book-{name}")
@guard.tool(defer=True, compensate=recall)
def mail(to):
    if to == os.environ.get("DIE_BEFORE"):
        die()
    if to == os.environ.get("FAIL"):
        raise Declined(to)
    effect(f"mail-{to}")
    if to == os.environ.get("DIE_SENDING"):
        die()
    return to
@guard.tool(defer=True)
async def note(to):
    await asyncio.sleep(0)
    effect(f"note-{to}")
"""
)
POST = """
sys.path.insert(0, os.getcwd())
from shop import *
import shop
on_interrupt = os.environ.get("ON_INTERRUPT", "compensate")
def post(id="a"):
    with guard.run("post", id=id, on_interrupt=on_interrupt) as run:
        mail("ann")
        book("room")
        with guard.run("inner"):
            mail("bob")
        if "COMMIT" in os.environ:
            run.commit()
        if "STOP" in os.environ:
            die()
        mail("cid")
        run.output = "posted"
async def apost(id="a"):
    async with guard.run("post", id=id, on_interrupt=on_interrupt) as run:
        await note("ann")
        await note("bob")
"""
RUN = POST + "post()\nprint(guard.runs.get('a').status, shop.commits)\n"
RECOVER = POST + "report = guard.recover()\nprint(*(f'{run.id}:{run.status}' for run in report.completed))\n"
ALL = {"mail-ann", "mail-bob", "mail-cid", "book-room"}


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)


@pytest.fixture
def program(worker: Worker) -> Program:
    """``sagaspan`` with ``--app shop:guard``, or without (``app=False``)."""
    return Program(worker)


def _status(store_url: str, run_id: str = "a") -> str:
    with Guard(store_url) as guard:
        info = guard.runs.get(run_id)
        return "none" if info is None else str(info.status)


def _died(worker: Worker, script: str, **environment: str) -> None:
    died = worker.run(script, **environment)
    assert died.returncode == -9, died.stderr


@pytest.mark.parametrize(("again", "on_interrupt"), [("recover", "compensate"), ("enter", "hold")])
def test_a_crash_at_every_step_of_completing(worker: Worker, store_url: str, again: str, on_interrupt: str) -> None:
    """Once it was decided to complete, everything is sent, in order, once; before that nothing is."""
    policy = {"ON_INTERRUPT": on_interrupt}
    decided = 0
    for step in range(1, 100):
        for side in sides(step, other=again == "enter"):
            worker.begin_anew()
            died = worker.run(RUN, CRASH=f"{side} {step}", **policy)
            if died.returncode == 0:
                assert died.stdout == f"completed {step - 1}\n"
                # Before and after each of: the decision, three claims and settles, completing.
                assert decided in ((15,) if FULL else (7, 8))
                return
            assert died.returncode == -9, died.stderr
            was_decided = _was_decided(store_url)
            decided += was_decided
            assert was_decided or not [effect for effect in worker.effects if effect.startswith("mail")]
            done = worker.run(RECOVER if again == "recover" else RUN, **policy)
            assert done.returncode in (0, 1), done.stderr
            effects = [effect for effect in worker.effects if effect.startswith("mail")]
            assert len(effects) == len(set(effects))
            if was_decided:
                if _status(store_url) == "completed":
                    assert effects == ["mail-ann", "mail-bob", "mail-cid"]
                    assert not [effect for effect in worker.effects if "undo" in effect]
                else:
                    assert _status(store_url) == "held", done.stderr
                    _decide(store_url, worker)
                    assert worker.run(RECOVER, **policy).stdout == "a:completed\n"
                    assert worker.effects[1:] == ["mail-ann", "mail-bob", "mail-cid"]
            elif again == "recover":
                assert effects == []
            _check_audit(store_url)
    pytest.fail("it never got through")


def _was_decided(store_url: str) -> bool:
    with Guard(store_url) as guard:
        return any(row.event == "run.finish" for row in guard._store.audit_of("default", "a"))


def _decide(store_url: str, worker: Worker) -> None:
    with Guard(store_url) as guard:
        for run_id in ("a", "a/inner#1"):
            for call in guard.runs.get(run_id).calls:
                if call.state == "unknown":
                    happened = f"mail-{call.args['to']}" in worker.effects
                    guard.calls.resolve(call.id, "happened" if happened else "did-not-happen", note="looked")


def test_a_sender_that_dies_is_recovered_at_every_step(worker: Worker, store_url: str) -> None:
    """Killed at every commit in turn, recovery is finished by the next, with the output of the block."""
    for step in range(1, 100):
        for side in sides(step):
            worker.begin_anew()
            _died(worker, RUN, DIE_BEFORE="ann")
            with Guard(store_url) as guard:
                (ann,) = [call for call in guard.runs.get("a").calls if call.args == {"to": "ann"}]
                guard.calls.resolve(ann.id, "did-not-happen", note="it never left")
            died = worker.run(RECOVER, CRASH=f"{side} {step}")
            if died.returncode == 0:
                assert step > 8
                return
            worker.run(RECOVER)
            if _status(store_url) != "completed":
                _decide(store_url, worker)
                worker.run(RECOVER)
            assert _status(store_url) == "completed"
            assert Counter(worker.effects) == dict.fromkeys(ALL, 1)
            with Guard(store_url) as guard:
                assert guard.runs.get("a").output == "posted"
            _check_audit(store_url)
    pytest.fail("it never got through")


@pytest.mark.parametrize("on_interrupt", ["hold", "compensate"])
def test_what_a_commit_let_go_is_sent_before_the_run_is_ended(
    worker: Worker, store_url: str, on_interrupt: str
) -> None:
    """Killed after it, in the middle of sending: the rest of it is sent, then the run is held or undone as always."""
    policy = {"ON_INTERRUPT": on_interrupt, "COMMIT": "1"}
    _died(worker, RUN, DIE_SENDING="ann", **policy)
    assert worker.effects == ["book-room", "mail-ann"]
    with Guard(store_url) as guard:
        (ann,) = [call for call in guard.runs.get("a").calls if call.args == {"to": "ann"}]
        guard.calls.resolve(ann.id, "happened", result="ann", note="ann has it")
    worker.run(RECOVER, **policy)
    assert worker.effects == ["book-room", "mail-ann", "mail-bob"]  # and what was committed is not undone
    assert _status(store_url) == ("held" if on_interrupt == "hold" else "failed")


def test_what_a_commit_cannot_send_holds_a_dead_run(worker: Worker, store_url: str) -> None:
    """A run that would be undone waits for a person first: what was let go is decided."""
    policy = {"COMMIT": "1"}
    _died(worker, RUN, CRASH="after 8", **policy)
    assert worker.effects == ["book-room"]
    worker.run(RECOVER, FAIL="bob", **policy)
    assert (worker.effects, _status(store_url)) == (["book-room", "mail-ann"], "held")
    assert worker.run(RUN, **policy).stdout.startswith("completed")
    assert worker.effects == ["book-room", "mail-ann", "mail-bob", "mail-cid"]


def test_killed_before_the_end_it_is_dropped_or_kept(worker: Worker, store_url: str) -> None:
    """Nothing was decided: a run that is undone drops what it scheduled, one that is held keeps it."""
    _died(worker, RUN, STOP="1")
    worker.run(RECOVER)
    assert (worker.effects, _status(store_url)) == (["book-room", "undo-room"], "compensated")
    with Guard(store_url) as guard:
        states = [call.state for run_id in ("a", "a/inner#1") for call in guard.runs.get(run_id).calls]
    assert states.count("refused") == 2
    worker.begin_anew()
    _died(worker, RUN, STOP="1", ON_INTERRUPT="hold")
    worker.run(RECOVER)
    assert (worker.effects, _status(store_url)) == (["book-room"], "held")
    assert worker.run(RUN, ON_INTERRUPT="hold").stdout.startswith("completed")
    assert worker.effects == ["book-room", "mail-ann", "mail-bob", "mail-cid"]


def test_the_program_sends_with_the_tools_of_the_app(worker: Worker, program: Program, store_url: str) -> None:
    """Without ``--app`` it is queued and said; what fails then is listed with what to do."""
    _died(worker, RUN, DIE_BEFORE="cid")
    with Guard(store_url) as guard:
        (cid,) = [call for call in guard.runs.get("a").calls if call.args == {"to": "cid"}]
    status = json.loads(program("status", "--json", app=False).stdout)
    assert "Recovery sends what was deferred in it" in next(item["why"] for item in status if item["id"] == "a")
    listed = program("recover", app=False)
    assert "run a (post): waits for a process that has the tools to finish it" in listed.stdout
    assert "To go on with what waits for mail" in listed.stdout
    assert [run["id"] for run in json.loads(program("recover", "--dry-run", "--json").stdout)["needs_human"]] == ["a"]
    done = program("recover", "--json")
    assert done.returncode == 4, done.stderr  # its process died in the body of the last one
    assert [run["id"] for run in json.loads(done.stdout)["needs_human"]] == ["a"]
    (item,) = [item for item in json.loads(program("status", "--json", app=False).stdout) if item["kind"] == "run"]
    assert "its deferred call mail may or may not have been sent" in item["why"]
    assert f"calls resolve {cid.id}" in item["next"]
    assert "it has ended well; what was deferred is to be sent" in program("runs", "show", "a", app=False).stdout
    assert program("recover").stdout == "Nothing to recover.\n"
    assert program("calls", "resolve", cid.id, "did-not-happen", "--note", "no trace", app=False).returncode == 0
    failing = program("recover", FAIL="cid")
    assert failing.returncode == 4
    (item,) = [item for item in json.loads(program("status", "--json", app=False).stdout) if item["kind"] == "run"]
    assert "its deferred call mail failed, so it was not sent (cid)" in item["why"]
    assert program("recover").stdout == "Nothing to recover.\n"  # the service said no: nobody asks it again unasked
    said = program("calls", "resolve", cid.id, "retry", "--note", "try again", app=False)
    assert "it is sent again" in said.stdout
    sent = program("recover")
    assert "run a (post): completed: what it had left to undo or to send is done" in sent.stdout
    assert worker.effects == ["book-room", "mail-ann", "mail-bob", "mail-cid"]
    _check_audit(store_url)


def test_a_dry_run_sends_nothing(worker: Worker, program: Program, store_url: str) -> None:
    """It says what would be completed."""
    _died(worker, RUN, CRASH="after 9")
    assert _was_decided(store_url)
    report = json.loads(program("recover", "--dry-run", "--json").stdout)
    assert [run["id"] for run in report["completed"]] == ["a"]
    assert worker.effects == ["book-room"]


def test_eight_recoverers_send_each_once(worker: Worker, store_url: str) -> None:
    """Whoever takes the run sends all of it; the others find nothing to do."""
    runs = 6
    _died(
        worker,
        POST
        + f"""
Ledger = type(guard._store)
commit = Ledger.commit
def stop(self, changes, *, synced):
    if any(change.audit.event == "run.finish" for change in changes if hasattr(change, "audit")):
        commit(self, changes, synced=synced)
        raise KeyboardInterrupt
    return commit(self, changes, synced=synced)
Ledger.commit = stop
for n in range({runs}):
    try:
        post(f"r{{n}}")
    except KeyboardInterrupt:
        pass
die()
""",
    )
    assert not [effect for effect in worker.effects if effect.startswith("mail")]
    recoverers = [worker.start(RECOVER) for _ in range(8)]
    ended = [(one.communicate(timeout=300), one.returncode) for one in recoverers]
    assert not [err for (_, err), code in ended if code], ended
    assert sorted(" ".join(out for (out, _), _ in ended).split()) == [f"r{n}:completed" for n in range(runs)]
    counts = Counter(effect for effect in worker.effects if effect.startswith("mail"))
    assert counts == {"mail-ann": runs, "mail-bob": runs, "mail-cid": runs}
    _check_audit(store_url)


def test_asynchronous_runs_are_finished_too(worker: Worker, guard: Guard, store_url: str) -> None:
    """An async tool that was deferred is sent by ``recover`` of a synchronous process, and by ``arecover``."""
    for number in (1, 2):
        _died(worker, POST + f"asyncio.run(apost('r{number}'))", CRASH="after 4")
    worker.run(POST + "guard.recover(limit=1)")
    assert worker.effects == ["note-ann", "note-bob"]
    done = worker.run(POST + "print(*(run.id for run in asyncio.run(guard.arecover()).completed))")
    assert done.stdout.split() == ["r1"], done.stderr
    assert worker.effects == ["note-ann", "note-bob"] * 2


def test_what_a_forked_child_defers_is_sent_by_its_parent(worker: Worker, store_url: str) -> None:
    """A nested run of the child's ends with the run it was forked in, which is not told of it."""
    done = worker.run(
        POST
        + """
with guard.run("post", id="a"):
    pid = os.fork()
    if pid == 0:
        with guard.run("inner"):
            mail("ann")
        os._exit(0)
    os.waitpid(pid, 0)
    effect("end")
"""
    )
    assert done.returncode == 0, done.stderr
    assert (worker.effects, _status(store_url)) == (["end", "mail-ann"], "completed")


def test_a_child_forked_while_sending_sends_nothing(worker: Worker, store_url: str) -> None:
    """What comes after is sent once, by the process whose run it is."""
    done = worker.run(
        POST
        + """
@guard.tool(defer=True)
def fork():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
try:
    with guard.run("post", id="a"):
        fork()
        mail("ann")
except RunInProgress:
    effect("child")
    os._exit(0)
"""
    )
    assert done.returncode == 0, done.stderr
    assert (worker.effects, _status(store_url)) == (["child", "mail-ann"], "completed")
