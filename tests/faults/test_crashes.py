"""Real processes that die by SIGKILL in the middle: at most one effect, nothing undone by a guess, nothing lost."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Guard, OutcomeUnknown
from sagaspan import _owner as owner
from tests.conftest import Sql, Worker
from tests.ledger.test_transitions import replayed

# Kills the process at the n-th commit of the store, before or after it is made.
CRASH_AT = """
Ledger = type(guard._store)
commits = 0
save = Ledger.commit
def commit(self, changes, *, synced):
    global commits
    commits += 1
    if os.environ.get("CRASH") == f"before {commits}":
        die()
    saved = save(self, changes, synced=synced)
    if os.environ.get("CRASH") == f"after {commits}":
        die()
    return saved
Ledger.commit = commit
"""

JOB = (
    CRASH_AT
    + """
def cancel(result):
    effect(f"undo-{result}")
@guard.tool(compensate=cancel)
def book(name):
    effect(f"book-{name}")
    if os.environ.get("CRASH") == f"in {name}":
        die()
    return name
@guard.tool(effect="read")
def look():
    effect("look")
    return 1
class Declined(Exception): ...
problem = None
try:
    with guard.run("trip", id="a", on_interrupt="hold") as run:
        look()
        book("flight")
        book("hotel")
        if os.environ.get("FAIL"):
            raise Declined
except Exception as error:
    problem = type(error).__name__
guard.close()
print(problem, guard.runs.get("a").status, commits)
"""
)

COMMITS = 8  # of the good path: open, and claim and settle of three calls, and complete
POINTS = [f"{side} {n}" for n in range(1, COMMITS + 1) for side in ("before", "after")] + ["in flight", "in hotel"]


def _check_audit(store_url: str) -> None:
    with Guard(store_url) as guard:
        for info in guard.runs.list():
            rows = guard._store.audit_of("default", info.id)
            assert replayed(rows, None) == info.status
            for call in guard.runs.get(info.id).calls:
                assert replayed(rows, call.id) == call.state


def _words(out: str) -> list[str]:
    return out.split()


@pytest.mark.parametrize("crash", POINTS)
def test_a_crash_at_every_step_of_a_good_run(worker: Worker, store_url: str, crash: str) -> None:
    """Whatever the process was doing when it died, the next one finishes the run or says who must look.

    No booking happens twice, and none is undone.
    """
    died = worker.run(JOB, CRASH=crash)
    assert died.returncode == -9, died.stderr
    again = worker.run(JOB)
    problem, status, _ = _words(again.stdout)
    for name in ("flight", "hotel"):
        assert worker.effects.count(f"book-{name}") <= 1
    assert not [effect for effect in worker.effects if effect.startswith("undo")]
    if problem == "None":
        assert status == "completed"
        assert worker.effects.count("book-flight") == worker.effects.count("book-hotel") == 1
    else:
        assert (problem, status) == ("OutcomeUnknown", "held")
    if crash.startswith("in"):
        assert problem == "OutcomeUnknown"
    _check_audit(store_url)


def test_the_points_are_all_there_are(worker: Worker) -> None:
    """The good path commits exactly as often as the matrix supposes."""
    assert _words(worker.run(JOB).stdout) == ["None", "completed", str(COMMITS)]


UNDO_COMMITS = 14
UNDO_POINTS = [f"{side} {n}" for n in range(8, UNDO_COMMITS + 1) for side in ("before", "after")]


def test_the_points_of_a_rollback_are_all_there_are(worker: Worker) -> None:
    """As above for a run that fails."""
    assert _words(worker.run(JOB, FAIL="1").stdout) == ["Declined", "compensated", str(UNDO_COMMITS - 1)]


@pytest.mark.parametrize("crash", UNDO_POINTS[:-2])
def test_a_crash_at_every_step_of_a_rollback(worker: Worker, store_url: str, crash: str) -> None:
    """A rollback that died is finished by the next process that enters the run: at least once, older last."""
    died = worker.run(JOB, CRASH=crash, FAIL="1")
    assert died.returncode == -9, died.stderr
    decided = crash != "before 8"
    again = worker.run(JOB, FAIL="1")
    problem, status, _ = _words(again.stdout)
    assert (problem, status) == (("RunClosed" if decided else "Declined"), "compensated"), again.stderr
    effects = worker.effects
    for name in ("flight", "hotel"):
        assert effects.count(f"book-{name}") == 1
        assert 1 <= effects.count(f"undo-{name}") <= 2
    assert effects.index("undo-hotel") < effects.index("undo-flight")
    _check_audit(store_url)


NESTED = (
    CRASH_AT
    + """
def cancel(result):
    effect(f"undo-{result}")
@guard.tool(compensate=cancel)
def book(name):
    effect(f"book-{name}")
    return name
class Declined(Exception): ...
if os.environ.get("CRASH") == "recover":
    guard.recover()
try:
    with guard.run("trip", id="a", on_interrupt="hold"):
        with guard.run("inner"):
            book("flight")
            book("hotel")
        raise Declined
except (Declined, RunClosed):
    pass
guard.close()
print(commits, *(f"{run.name}-{run.status}" for run in guard.runs.list()))
"""
)
NESTED_COMMITS = 15


@pytest.mark.parametrize("crash", [f"{side} {n}" for n in range(8, NESTED_COMMITS + 1) for side in ("before", "after")])
def test_a_crash_at_every_step_of_a_rollback_of_nested_runs(worker: Worker, store_url: str, crash: str) -> None:
    """Recovered anywhere, both runs end as without a crash, and their id is not free to do it all over again."""
    died = worker.run(NESTED, CRASH=crash)
    assert died.returncode == -9, died.stderr
    again = worker.run(NESTED, CRASH="recover")
    assert again.stdout.split()[1:] == ["inner-compensated", "trip-compensated"], again.stderr
    for name in ("flight", "hotel"):
        assert worker.effects.count(f"book-{name}") == 1
        assert 1 <= worker.effects.count(f"undo-{name}") <= 2
    _check_audit(store_url)


def test_the_points_of_a_nested_rollback_are_all_there_are(worker: Worker) -> None:
    """As above for nested runs."""
    assert _words(worker.run(NESTED).stdout)[0] == str(NESTED_COMMITS)


@pytest.mark.parametrize(("policy", "runs"), [
    ("effect='write'", 1), ("key='n'", 1), ("", 1), ("effect='read'", 2), ("effect='idempotent'", 2),
])  # fmt: skip
def test_killed_in_the_body(worker: Worker, policy: str, runs: int) -> None:
    """Killed in its body, a write is in doubt and never repeated by a guess; reads and idempotent tools run again."""
    script = f"""
    @guard.tool({policy})
    def act(n):
        effect("act")
        if "KILL" in os.environ:
            die()
        return n
    try:
        with guard.run(id="a"):
            act(1)
    except OutcomeUnknown as problem:
        print("unknown", problem.call.state, problem.tool_ran)
    """
    worker.run(script, KILL="1")
    assert worker.effects == ["act"]
    again = worker.run(script)
    assert worker.effects == ["act"] * runs
    assert again.stdout.split() == (["unknown", "unknown", "unknown"] if runs == 1 else [])


def test_a_live_owner_is_never_taken_over(worker: Worker) -> None:
    """A call whose process is only stopped is waited for, whatever the clock says, and answered when it goes on."""
    slow = worker.start("""
    @guard.tool(key="n")
    def act(n):
        effect("act")
        print("in", flush=True)
        sys.stdin.readline()
        return os.getpid()
    act(1)
    """)
    assert slow.stdout is not None
    assert slow.stdout.readline() == "in\n"
    os.kill(slow.pid, signal.SIGSTOP)
    asks = """
    @guard.tool(key="n", timeout=0.3)
    def act(n):
        effect("twice")
    try:
        print(act(1))
    except CallInProgress:
        print("in progress")
    """
    assert worker.run(asks).stdout == "in progress\n"
    os.kill(slow.pid, signal.SIGCONT)
    slow.communicate("\n", timeout=300)
    assert worker.run(asks).stdout == f"{slow.pid}\n"
    assert worker.effects == ["act"]


def test_a_late_result_after_a_take_over_is_evidence(guard: Guard, worker: Worker, sql: Sql) -> None:
    """A worker that was wrongly declared dead settles its result as late evidence, and undoes nothing."""
    slow = worker.start("""
    @guard.tool(key="n")
    def act(n):
        print("in", flush=True)
        sys.stdin.readline()
        return "late"
    print(act(1))
    """)
    assert slow.stdout is not None
    assert slow.stdout.readline() == "in\n"
    sql("update calls set state = 'unknown', version = version + 1")
    same = guard.tool("act", key="n")(lambda n: pytest.fail("ran"))
    with pytest.raises(OutcomeUnknown):
        same(1)
    out, err = slow.communicate("\n", timeout=300)
    assert out == "late\n", err
    assert same(1) == "late"


def test_a_storm_of_kills(worker: Worker, store_url: str) -> None:
    """Workers on the same orders, killed at random: no order is booked twice, and every doubt is on record."""
    script = """
    @guard.tool(key="order")
    def pay(order):
        time.sleep(0.002)
        effect(f"pay-{order}")
        time.sleep(0.002)
        return order
    for order in range(30):
        try:
            with guard.run("order", id=f"order-{order}", wait=5):
                pay(order)
        except (OutcomeUnknown, RunInProgress):
            pass
    """
    seeded = random.Random(7)
    for _ in range(4):
        workers = [worker.start(script) for _ in range(2)]
        time.sleep(0.35 + seeded.random() * 0.25)
        for one in workers:
            one.kill()
            one.communicate()
    finished = worker.run(script)
    assert finished.returncode == 0, finished.stderr
    effects = worker.effects
    assert len(effects) == len(set(effects))
    with Guard(store_url) as guard:
        by_order: dict[int, str] = {
            call.args["order"]: str(call.state)
            for info in guard.runs.list(limit=100)
            for call in guard.runs.get(info.id).calls
        }
    assert set(by_order.values()) <= {"done", "unknown"}
    assert len(by_order) == 30
    for order, state in by_order.items():
        assert state == "unknown" or f"pay-{order}" in effects
    _check_audit(store_url)


def test_evidence_of_death(request: pytest.FixtureRequest) -> None:
    """A dead process is proved dead, a live one and one of another machine never."""
    code = "from sagaspan import _owner; print(_owner.this_process(), flush=True); import sys; sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    request.addfinalizer(child.communicate)
    request.addfinalizer(child.kill)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    if not Path("/proc/self/stat").exists():
        pytest.skip("nothing can be proved on this system")
    assert not owner.provably_dead(name, "x")
    boot, namespace, pid, start, _ = name.split(":")
    for other in (f"{boot}x:{namespace}:{pid}:{start}:r", f"{boot}:{namespace}x:{pid}:{start}:r", "garbage", "::::",
                  f"{boot}:{namespace}:{pid}::r", f"{boot}:{namespace}x:4194304:{start}:r"):  # fmt: skip
        assert not owner.provably_dead(other, "x")
    assert owner.provably_dead(f"{boot}:{namespace}:{pid}:1{start}:r", "x")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner.provably_dead(name, "x")  # a zombie writes no more
    child.communicate()
    assert owner.provably_dead(name, "x")
    token = os.urandom(4).hex()
    assert owner.provably_dead(owner.this_process(), token)
    owner.hold(token)
    owner.hold(token)
    owner.drop(token)
    assert not owner.provably_dead(owner.this_process(), token)
    owner.drop(token)
    assert owner.provably_dead(owner.this_process(), token)


def test_out_of_file_descriptors_is_no_death() -> None:
    """A process that cannot open ``/proc`` takes nobody for dead."""
    mine = owner.this_process()
    parent = mine.split(":")
    parent[2] = str(os.getppid())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[Any] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 128), hard))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        dead = owner.provably_dead(":".join(parent), "x")
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not dead
