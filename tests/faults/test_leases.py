"""Leases: who answers for what, from when to when, and what a process may still do that was away for too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard, OutcomeUnknown, Recovery
from tests.conftest import PREAMBLE, Sql, Worker
from tests.nursery import Forked

TTL = 0.6

# Of another container on this machine: the boot is ours, but nothing is proved about its processes.
CONTAINER = """
from sagaspan import _owner
_owner._pid_namespace = lambda: "elsewhere"
"""
# Of another machine, or of an earlier boot.
MACHINE = """
from sagaspan import _owner
_owner._boot_id = lambda: "another-boot"
"""
SKEWED = """
_true_time = time.time_ns
time.time_ns = lambda: _true_time() + {hours} * 3600 * 10**9
"""
# Works in a run until it is told to stop: "step", then "end".
SLOW = """
@guard.tool(key="n")
def act(n):
    effect(f"act-{n}")
    print("in", flush=True)
    sys.stdin.readline()
    return f"late-{n}"
@guard.tool(effect="write")
def more():
    effect("more")
try:
    with guard.run("job", id="a", on_interrupt="hold"):
        print(act(1), flush=True)
        more()
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", str(TTL))


@pytest.fixture
def start(worker: Worker) -> Iterator[Callable[[str], Forked]]:
    """Start a process that has printed "in", and take it away in the end."""
    started: list[Forked] = []

    def start(script: str) -> Forked:
        process = worker.start(script)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "in\n", (line, process.poll() is not None and process.stderr and process.stderr.read())
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return value


def _until_held(guard: Guard) -> Recovery:
    """Recover until a run needs a person: its call can be judged a round earlier than the run is."""
    return next(report for report in iter(lambda: _until(guard.recover), None) if report.needs_human)


# -- renewing ------------------------------------------------------------------------------------------------------


@pytest.mark.of_sqlite("listens to its connection")
def test_a_call_pays_no_statement_for_its_lease(monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    """While the lease is fresh, every call makes the same statements, and none of them is about it."""
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", "600")
    with Guard(store_url) as guard:
        tool = guard.tool("act", effect="write")(lambda n: n)
        with guard.run(id="a"):
            tool(0)
            statements: list[str] = []
            guard._store._connection.set_trace_callback(statements.append)  # type: ignore[attr-defined]
            tool(1)
            one = len(statements)
            for n in range(2, 52):
                tool(n)
    assert not [statement for statement in statements if "owners" in statement]
    assert one * 51 <= len(statements) < one * 51 + 10  # and the end of the run


def test_the_lease_is_renewed_while_something_is_open(worker: Worker) -> None:
    """One thread for all guards of the process renews it until nothing is open, and then ends."""
    script = """
    from sagaspan import _owner
    def lease():
        return guard._store.lease_of(_owner.this_process())
    def until(condition):
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.02)
    def threads():
        return [thread.name for thread in threading.enumerate()].count("sagaspan-lease")

    with Guard(os.environ["TEST_STORE"]) as other, guard.run(id="a"), other.run(id="b"):
        assert threads() == 1
        first = lease()
        until(lambda: lease().beats >= first.beats + 4)
        assert lease().until_us > first.until_us
    until(lambda: threads() == 0)
    with guard.run(id="c"):
        assert threads() == 1
        assert lease().until_us > time.time_ns() // 1000
    print("well")
    """
    done = worker.run(script)
    assert done.stdout == "well\n", done.stderr


def test_a_lease_that_ran_out_is_renewed_before_the_next_claim(guard: Guard, sql: Sql) -> None:
    """What begins after a pause is covered again before it is on disk."""
    tool = guard.tool("act")(lambda: sql("select until_us > ? from owners", (time.time_ns() // 1000,)))
    with guard.run(id="a"):
        pass
    time.sleep(TTL * 1.5)
    with guard.run(id="b"):
        assert tool() == [(1,)]


def test_a_claim_after_a_long_sleep_renews_first(monkeypatch: pytest.MonkeyPatch, store_url: str, sql: Sql) -> None:
    """A machine that was suspended inside a run: its next claim does not wait for the lease thread's next beat."""
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", "600")
    with Guard(store_url) as guard, guard.run(id="a"):
        sql("update owners set until_us = 1")
        guard._engine.lease.lapse()
        assert guard.tool("act")(lambda: sql("select until_us > 1 from owners"))() == [(1,)]


def test_no_claim_is_on_disk_without_its_lease(worker: Worker, sql: Sql) -> None:
    """A crash between the lease and what it covers leaves a lease of nothing; the work is done once, by the next."""
    script = """
    Ledger = type(guard._store)
    renew = Ledger.renew
    def renew_and_die(self, lease):
        if "BEFORE" in os.environ:
            die()
        renew(self, lease)
        if "AFTER" in os.environ:
            die()
    Ledger.renew = renew_and_die
    @guard.tool(effect="write")
    def act(): effect("act")
    with guard.run(id="a"):
        act()
    """
    for point in ("BEFORE", "AFTER"):
        assert worker.run(script, **{point: "1"}).returncode == -9
        assert sql("select count(*) from runs") == [(0,)]
    assert sql("select count(*) from owners") == [(1,)]
    assert worker.run(script).returncode == 0
    assert worker.effects == ["act"]
    uncovered = "select count(*) from runs where owner not in (select owner from owners)"
    assert sql(uncovered) == [(0,)]


def test_the_thread_does_not_keep_the_interpreter_alive(worker: Worker) -> None:
    """A program that ends in the middle of a run ends at once."""
    started = time.monotonic()
    process = worker.start("guard.run(id='a').__enter__()\nprint(threading.active_count())")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "2\n"), err
    assert time.monotonic() - started < 15


def test_a_forked_child_answers_for_itself(worker: Worker, sql: Sql) -> None:
    """It has a lease and a thread of its own, the parent keeps its; no warning of threads that would be lost."""
    done = worker.start("""
    import warnings
    warnings.simplefilter("error")
    @guard.tool(key="n")
    def act(n): return os.getpid()
    with guard.run(id="parent"):
        act(0)
        for n in range(1, 6):
            pid = os.fork()
            if pid == 0:
                assert [t.name for t in threading.enumerate()] == ["MainThread"]
                with guard.run(id=f"child-{n}", nested=False):
                    assert act(n) == os.getpid()
                    assert "sagaspan-lease" in [t.name for t in threading.enumerate()]
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        assert "sagaspan-lease" in [t.name for t in threading.enumerate()]
        act(6)
    print("well")
    """)
    out, err = done.communicate(timeout=300)
    assert out == "well\n", err
    assert sql("select count(*) from owners") == [(6,)]


def test_a_forked_child_may_enter_a_run_that_its_parent_left(worker: Worker) -> None:
    """What the parent was inside of when it forked is not the child's, which may go on with it once it is paused."""
    done = worker.run("""
    @guard.tool(key="n")
    def act(n): return os.getpid()
    told, tell = os.pipe()
    with guard.run(id="a") as run:
        pid = os.fork()
        if pid == 0:
            os.read(told, 1)
            with guard.run(id="a", nested=False) as again:
                print(again.resumed, act(1) == os.getpid(), flush=True)
            os._exit(0)
        run.pause()
    os.write(tell, b"x")
    os.waitpid(pid, 0)
    """)
    assert done.stdout == "True True\n", done.stderr


def test_a_spawned_child_answers_for_itself(tmp_path: Path, store_url: str, sql: Sql) -> None:
    """Nothing of the parent's lease reaches it."""
    (tmp_path / "spawning.py").write_text("""
import multiprocessing, os, sys
from sagaspan import Guard
def work(url):
    with Guard(url) as guard, guard.run(id=f"child-{os.getpid()}"):
        guard.tool("act")(lambda: 1)()
if __name__ == "__main__":
    with Guard(sys.argv[1]) as guard, guard.run(id="parent"):
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=work, args=(sys.argv[1],)) for _ in range(2)]
        for child in children: child.start()
        for child in children: child.join()
        print([child.exitcode for child in children])
""")
    done = subprocess.run([sys.executable, "spawning.py", store_url], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[0, 0]\n", done.stderr
    assert sql("select count(*) from owners") == [(3,)]


@pytest.mark.of_sqlite("a full disk is its file's largest size")
def test_what_could_not_be_settled_is_tried_again(guard: Guard, sql: Sql) -> None:
    """A settle that met a full disk is saved by the lease thread once there is room, without another call."""

    def fill(pages: int) -> None:
        guard._store._connection.execute(f"pragma max_page_count = {pages}")  # type: ignore[attr-defined]

    def act() -> str:
        ((pages,),) = guard._store._connection.execute("pragma page_count").fetchall()  # type: ignore[attr-defined]
        fill(pages)
        return "x" * 9_000_000  # more than the file has free inside

    with guard.run(id="a"):
        assert len(guard.tool("act", effect="write")(act)()) == 9_000_000
        time.sleep(TTL)
        assert sql("select state from calls") == [("running",)]
        fill(2**30)
        _until(lambda: sql("select state from calls") == [("done",)])


def test_old_leases_are_forgotten(guard: Guard, store_url: str, sql: Sql) -> None:
    """A lease that ended a day ago goes, unless it still covers something open."""
    with guard.run(id="a"):
        pass
    for owner in ("gone", "open"):
        sql("insert into owners values (?, 0, 1, 1, 1, 1)", (owner,))
    sql("update runs set state = 'running', owner = 'open'")
    with Guard(store_url) as other, other.run(id="b"):
        owners = {owner for (owner,) in sql("select owner from owners")}
    assert "open" in owners
    assert "gone" not in owners


@pytest.mark.parametrize("seconds", ["0", "nan", "soon", "-1", "1e9"])
def test_a_lease_of_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, store_url: str, seconds: str) -> None:
    """The variable holds a number of seconds that makes sense."""
    monkeypatch.setenv("SAGASPAN_LEASE_SECONDS", seconds)
    with pytest.raises(ConfigurationError, match="SAGASPAN_LEASE_SECONDS"):
        Guard(store_url)


# -- judging -------------------------------------------------------------------------------------------------------


def test_a_process_stopped_past_its_lease_is_fenced(guard: Guard, worker: Worker, start: Any, sql: Sql) -> None:
    """Taken over while it was stopped, it may write nothing when it goes on; its late result is evidence."""
    slow = start(CONTAINER + SLOW)
    same = guard.tool("act", key="n", timeout=5)(lambda n: pytest.fail("ran"))
    assert not guard.recover()  # it renews its lease
    os.kill(slow.pid, signal.SIGSTOP)
    with pytest.raises(OutcomeUnknown):  # waits for the lease, then it is in doubt
        same(1)
    report = guard.recover()
    assert [run.id for run in (*report.held, *report.needs_human)] == ["a"]
    before = sql("select state, epoch, version from runs where id = 'a'")
    assert before[0][:2] == ("held", 2)
    os.kill(slow.pid, signal.SIGCONT)
    out, err = slow.communicate("\n", timeout=300)
    assert out.split()[0] == "late-1", err  # who called it there has it
    assert out.split()[1] in ("RunClosed", "StoreUnavailable")
    assert sql("select state, epoch, version from runs where id = 'a'") == before
    assert same(1) == "late-1"
    assert worker.effects == ["act-1"]
    history = guard._store.audit_of("default", "a")
    assert [row.detail for row in history if row.to_state == "done"] == ["late result"]


def test_an_effect_that_came_twice_reopens_a_rollback(guard: Guard, worker: Worker, start: Any) -> None:
    """The extra one came after everything was undone, of a worker that looked dead: its run is not wholly undone."""
    slow = start(CONTAINER + SLOW.replace('key="n"', 'key="n", compensate=lambda result: effect(f"undo-{result}")'))
    undone = []
    same = guard.tool("act", key="n", timeout=5, compensate=lambda result: undone.append(result))(
        lambda n: f"again-{n}"
    )
    os.kill(slow.pid, signal.SIGSTOP)
    report = _until_held(guard)
    (call,) = (*report.held, *report.needs_human)[0].calls
    guard.calls.resolve(call.id, "retry", note="the worker is gone")
    with pytest.raises(ZeroDivisionError), guard.run("job", id="a", on_interrupt="hold"):
        same(1)
        1 / 0  # noqa: B018
    assert (guard.runs.get("a").status, undone) == ("compensated", ["again-1"])
    os.kill(slow.pid, signal.SIGCONT)
    slow.communicate("\n", timeout=300)
    assert guard.runs.get("a").status == "partially_compensated"
    guard.compensate("a")
    assert undone == ["again-1", "late-1"]
    assert (guard.runs.get("a").status, guard.calls.duplicates()) == ("compensated", [])


def test_a_missing_mark_of_one_that_may_live_proves_nothing(guard: Guard, worker: Worker, start: Any) -> None:
    """Stopped before its second mark and only expired, it may still send: the call is in doubt, and not run again."""
    slow = start(
        CONTAINER
        + """
@guard.tool(key="n", marks_sending=True)
def act(n):
    print("in", flush=True)
    sys.stdin.readline()
    try:
        guard.current_call().sending()
    except OutcomeUnknown:
        print("fenced", flush=True)
        raise
    effect(f"act-{n}")
try:
    act(1)
except OutcomeUnknown:
    pass
"""
    )
    os.kill(slow.pid, signal.SIGSTOP)
    same = guard.tool("act", key="n", marks_sending=True, timeout=5)(lambda n: pytest.fail("ran"))
    with pytest.raises(OutcomeUnknown):
        same(1)
    os.kill(slow.pid, signal.SIGCONT)
    out, err = slow.communicate("\n", timeout=300)
    assert out == "fenced\n", err
    assert worker.effects == []
    with pytest.raises(OutcomeUnknown):
        same(1)


def test_a_live_process_of_this_host_is_never_taken_over(guard: Guard, start: Any) -> None:
    """Stopped past its lease, but there: neither its run nor its call is judged."""
    slow = start(SLOW)
    os.kill(slow.pid, signal.SIGSTOP)
    time.sleep(TTL * 2)
    assert not guard.recover()
    os.kill(slow.pid, signal.SIGCONT)
    out, _ = slow.communicate("\n", timeout=300)
    assert out == "late-1\n"
    assert guard.runs.get("a").status == "completed"


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("place", [CONTAINER, MACHINE], ids=["container", "machine"])
def test_clocks_that_differ_take_nobody_over_early(guard: Guard, start: Any, place: str, hours: int) -> None:
    """An owner whose clock is an hour off is left alone while it renews, and recovered once it does not."""
    slow = start(SKEWED.format(hours=hours) + place + SLOW)
    for _ in range(3):
        assert not guard.recover()
        time.sleep(TTL)
    slow.kill()
    slow.communicate()
    report = _until_held(guard)
    assert [run.id for run in report.needs_human] == ["a"]


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("place", [CONTAINER, MACHINE], ids=["container", "machine"])
def test_a_recoverer_whose_clock_is_off_takes_nobody_over_early(
    start: Any, worker: Worker, place: str, hours: int
) -> None:
    """Neither does its own clock mislead it."""
    slow = start(place + SLOW)
    done = worker.run(SKEWED.format(hours=hours) + f"time.sleep({TTL})\nprint(bool(guard.recover()))")
    assert done.stdout == "False\n", done.stderr
    out, _ = slow.communicate("\n", timeout=300)
    assert out == "late-1\n"


def test_a_real_container_is_judged_by_its_lease(guard: Guard, worker: Worker, sql: Sql) -> None:
    """In a real pid namespace of its own: left alone while it renews, in doubt once it is killed."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespaces here")
    process = subprocess.Popen(
        [*unshare, sys.executable, "-c", PREAMBLE + SLOW],
        env={**os.environ, "TEST_STORE": worker.store_url, "TEST_EFFECTS": str(worker.effects_file)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    time.sleep(TTL * 2)
    assert not guard.recover()
    process.kill()
    process.stdout.read()  # its end: the worker has died, too. Closing its stdin before that would let it go on
    process.communicate()
    report = _until_held(guard)
    assert [run.id for run in report.needs_human] == ["a"]
    assert sql("select count(*) from calls where state = 'unknown'") == [(1,)]
