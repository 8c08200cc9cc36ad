"""Forking in the middle of anything: the child goes on by itself, and what its parent had in hand stays the parent's.

Every child ends within seconds, whatever is wrong: it is killed by its own alarm, and then the test fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sagaspan import Guard

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PREAMBLE = """
import contextvars, faulthandler, logging, os, signal, sqlite3, sys, threading, time, traceback
import sagaspan
from sagaspan import CompensationFailed, Guard, RunInProgress

folder = sys.argv[1]
SECONDS = 15

def fork(job):
    "A child that runs job and dies of its alarm if that hangs; the parent gets its pid."
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(SECONDS - 2)
    code = 1
    try:
        job()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def sink():
    from opentelemetry.sdk.trace import TracerProvider
    from sagaspan.telemetry import JsonLinesSpanProcessor
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(JsonLinesSpanProcessor(folder + "/traces"))
    return provider

def guarded(**options):
    return Guard(f"sqlite:///{folder}/ledger.db", tracer_provider=sink(), **options)
"""


def play(script: str, folder: Path) -> str:
    """Run ``script`` after the preamble in a process of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PREAMBLE + textwrap.dedent(script), str(folder)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CROWD = """
guard = guarded()
pay = guard.tool("pay", effect="write")(lambda order: order)
look = guard.tool("look", effect="read", timeout=5)(lambda order: order)
stop = threading.Event()

def work(worker):
    number = 0
    while not stop.is_set():
        pay(f"{worker}-{number}"), look(number)
        number += 1

def child(number):
    pay(f"alone-{number}"), look(number)
    with guard.run("child", id=f"child-{number}"):
        pay(number), look(number)
    guard.close()

with guard.run("crowd", id="crowd"):
    pay("first")
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, n), daemon=True) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    outside = contextvars.Context()  # children are outside the run, as a server's workers are
    codes = []
    while len(codes) < 20 and not any(codes):
        codes.append(ended(outside.run(fork, lambda: child(len(codes)))))
    stop.set()
    for thread in threads:
        thread.join()
print(codes)
"""


def test_a_child_forked_in_the_middle_of_calls_goes_on(tmp_path: Path) -> None:
    """No lock and no waiting write of the parent's threads is the child's, with spans in a file."""
    assert play(CROWD, tmp_path) == str([0] * 20)
    guard = Guard(f"sqlite:///{tmp_path}/ledger.db")
    assert guard.runs.get("crowd").status == "completed"
    assert {call.state for call in guard.runs.get("crowd").calls} == {"done"}
    for number in range(20):
        run = guard.runs.get(f"child-{number}")
        assert (run.status, [call.result for call in run.calls]) == ("completed", [number, number])


MULTIPROCESSING = """
import multiprocessing

guard = guarded()

def work(number):
    signal.alarm(SECONDS)
    child = guarded() if sys.argv[2] == "spawn" else guard
    with child.run("child", id=f"child-{number}"):
        child.tool("pay", effect="write")(job)(number)
    child.close()

def job(order):
    return order

if __name__ == "__main__":
    pay = guard.tool("pay", effect="write")(job)
    stop = threading.Event()
    def load(worker):
        number = 0
        while not stop.is_set():
            pay(f"{worker}-{number}")
            number += 1
    threads = [threading.Thread(target=load, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context(sys.argv[2])
    workers = [context.Process(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS + 10)
    stop.set()
    for thread in threads:
        thread.join()
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_started_by_multiprocessing_work(tmp_path: Path, method: str) -> None:
    """While four threads of the parent are in calls, forked and spawned workers make theirs."""
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + MULTIPROCESSING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path), method],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == "[0, 0, 0]", done.stderr
    guard = Guard(f"sqlite:///{tmp_path}/ledger.db")
    assert all(guard.runs.get(f"child-{number}").status == "completed" for number in range(3))


def test_a_call_imports_nothing(tmp_path: Path) -> None:
    """A child that is forked while another thread imports a module waits for that import for ever."""
    script = """
    import asyncio

    guard = guarded()
    async def apay(order): pass
    async def arefund(order): pass
    pay = guard.tool("pay", compensate=lambda order: None, timeout=5, retry=2)(lambda order: order)
    apay = guard.tool("apay", compensate=arefund, timeout=5)(apay)
    known = set(sys.modules)

    async def play():
        async with guard.run("async"):
            await apay(1)
            raise ValueError

    def job():
        with guard.run("sync"):
            pay({"é": [1.5, None, 2**60, b"x"]})
            raise ValueError

    for run in (job, lambda: asyncio.run(play())):
        try:
            run()
        except ValueError:
            pass
    guard.close()
    print(sorted(set(sys.modules) - known))
    """
    assert play(script, tmp_path) == "[]"


def test_what_a_child_wrote_survives_the_end_of_its_parent(tmp_path: Path) -> None:
    """SQLite keeps locks by process in memory that a child inherits; it must not believe that it has its parent's.

    Else the parent, the last that seems to have the file open, deletes the WAL that the child goes on to write.
    """
    script = """
    guard = guarded()
    pay = guard.tool("pay", effect="write")(lambda order: order)
    pay("parent")
    written, closed = os.pipe(), os.pipe()

    def child():
        with guard.run("child", id="child"):
            pay(1)
            os.write(written[1], b"x"), os.read(closed[0], 1)
            pay(2)

    pid = fork(child)
    os.read(written[0], 1)
    pay("parent again")
    guard.close()
    os.write(closed[1], b"x")
    print(ended(pid))
    """
    assert play(script, tmp_path) == "0"
    run = Guard(f"sqlite:///{tmp_path}/ledger.db").runs.get("child")
    assert (run.status, [call.result for call in run.calls]) == ("completed", [1, 2])


def test_a_child_takes_no_step_in_its_parents_run(tmp_path: Path) -> None:
    """What it did there would not be undone with the run: it is refused, and told to open a nested run."""
    script = """
    guard = guarded()
    pay = guard.tool("pay", effect="write")(lambda order: order)

    def child():
        assert guard.current_run() is None
        for refused in (lambda: pay(1), run.commit, run.abort):
            try:
                refused()
            except RunInProgress as problem:
                assert "forked from" in str(problem) and problem.tool_ran == "no", problem
            else:
                raise AssertionError("not refused")
        with guard.run("own", id="own") as own:
            pay(2)
        with guard.run("own") as nameless:
            pay(4)
        assert (own.record.parent_id, nameless.record.parent_id) == ("outer", "outer")
        assert run.child_id("own") != nameless.id
        raise ValueError("unwinds the parent's block")

    with guard.run("outer", id="outer") as run:
        pay(0)
        def unwind():
            try:
                child()
            except ValueError:
                run.__exit__(*sys.exc_info())
        print(ended(fork(unwind)))
        pay(3)
    print(run.status, [call.result for call in run.calls], guard.runs.get("own").status)
    """
    assert play(script, tmp_path).splitlines() == ["0", "completed [0, 3] completed"]


def test_a_call_is_settled_by_the_process_that_claimed_it(tmp_path: Path) -> None:
    """A child forked inside a body returns from it too; how the call ended is what the parent says."""
    script = """
    guard = guarded()
    forked = []

    @guard.tool("pay", effect="write")
    def pay(order):
        forked.append(os.fork())
        if forked[-1] == 0:
            signal.alarm(SECONDS)
            return "of the child"
        assert ended(forked[-1]) == 0
        return "of the parent"

    with guard.run("outer", id="outer"):
        value = pay(1)
        if forked[-1] == 0:
            os._exit(0 if value == "of the child" else 1)
    call, = guard.runs.get("outer").calls
    print(call.state, call.result, value)
    """
    assert play(script, tmp_path) == "done of the parent of the parent"


def test_an_undo_is_settled_by_the_process_that_began_it(tmp_path: Path) -> None:
    """A child forked by a signal while a compensation is awaited neither ends the rollback nor gives it back."""
    script = """
    from sagaspan import _rollback
    _rollback.PATIENCE_SECONDS = 0.5
    guard = guarded()
    forked = []

    def fork_and_go_on(*_):
        forked.append(os.fork())
        if not forked[-1]:
            return signal.alarm(SECONDS)
        assert ended(forked[-1]) == 0

    signal.signal(signal.SIGUSR1, fork_and_go_on)

    def refund(order):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        while not forked:
            time.sleep(0.01)

    pay = guard.tool("pay", compensate=refund)(lambda order: order)
    try:
        with guard.run("outer", id="outer"):
            pay(1)
            raise ValueError("no")
    except BaseException as error:
        if forked[-1] == 0:
            os._exit(0)
        assert type(error) is ValueError, repr(error)
    call, undo = guard.runs.get("outer").calls
    print(guard.runs.get("outer").status, call.state, undo.state, len(guard.runs.get("outer").calls))
    """
    assert play(script, tmp_path) == "compensated compensated done 2"


def test_a_child_of_an_undo_that_nobody_waits_for_any_more_says_nothing_of_its_end(tmp_path: Path) -> None:
    """A compensation that was given up forks: here the child would say that it worked, and it did not."""
    script = """
    from sagaspan import _rollback
    _rollback.PATIENCE_SECONDS = 0.2
    guard = guarded()
    given_up = threading.Event()

    def refund(order):
        assert given_up.wait(SECONDS)
        pid = os.fork()
        if not pid:
            threading.Timer(1, os._exit, [0]).start()
            return
        assert ended(pid) == 0
        raise OSError("no connection")

    pay = guard.tool("pay", compensate=refund)(lambda order: order)
    try:
        with guard.run("outer", id="outer"):
            pay(1)
            raise ValueError("no")
    except CompensationFailed:
        given_up.set()
    until = time.monotonic() + SECONDS
    while guard.runs.get("outer").calls[1].state == "running" and time.monotonic() < until:
        time.sleep(0.01)
    print(*(call.state for call in guard.runs.get("outer").calls))
    """
    assert play(script, tmp_path) == "compensation_failed unknown"


def test_a_fork_that_cannot_wait_leaves_a_child_without_the_ledger(tmp_path: Path) -> None:
    """Forked by a signal handler in the middle of a commit, say: the child is told so, and the parent goes on."""
    script = """
    from sagaspan.stores import sqlite
    sqlite.FORK_SECONDS = 0.05
    guard = guarded()
    act = guard.tool("act")(lambda n: n)
    act(1)

    def child():
        try:
            act(2)
        except sagaspan.StoreUnavailable as problem:
            assert "spawn" in str(problem), problem
        else:
            raise AssertionError("not refused")

    with guard._store._lock:
        pid = fork(child)
    print(ended(pid), act(3))
    """
    assert play(script, tmp_path) == "0 3"


def test_a_ledger_that_was_replaced_is_not_opened_after_a_fork(tmp_path: Path) -> None:
    """A fork closes the ledger for a moment; neither process makes a new one in its place."""
    script = """
    guard = guarded()
    act = guard.tool("act")(lambda n: n)
    act(1)

    def refused():
        try:
            act(2)
        except sagaspan.StoreUnavailable as problem:
            assert "moved, deleted or replaced" in str(problem), problem
        else:
            raise AssertionError("not refused")

    def child():
        os.rename(folder + "/ledger.db", folder + "/elsewhere.db")
        refused()

    print(ended(fork(child)))
    refused()
    print(os.path.exists(folder + "/ledger.db"))
    """
    assert play(script, tmp_path).split() == ["0", "False"]
