"""Going on after processes that died by SIGKILL, in other processes: each run is taken once, by whoever can."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Applied, CompensationFailed, ConfigurationError, Guard, Recovery, _saga
from sagaspan.testing import World
from tests.conftest import Sql, Worker
from tests.faults.test_crashes import CRASH_AT, _check_audit
from tests.nursery import Forked

# The user's application: what the processes that die and those that recover have in common.
SHOP = """
import os, signal, time
from pathlib import Path
from sagaspan import Guard
guard = Guard(os.environ["TEST_STORE"])
effects = Path(os.environ["TEST_EFFECTS"])
def effect(what):
    with effects.open("a") as file:
        file.write(str(what) + "\\n")
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def cancel(result):
    if result == os.environ.get("DIE_UNDOING"):
        die()
    if result == os.environ.get("FAIL_UNDOING"):
        effect(f"tried-{result}")
        raise RuntimeError("the hotel does not answer")
    time.sleep(float(os.environ.get("SLOW_UNDOING", "0")))
    while "UNDO_WHEN" in os.environ and not os.path.exists(os.environ["UNDO_WHEN"]):
        time.sleep(0.01)
    effect(f"undo-{result}")
@guard.tool(compensate=cancel)
def book(name):
    effect(f"book-{name}")
    if name == os.environ.get("DIE_BOOKING"):
        die()
    return name
class Declined(Exception): ...
"""
TRIP = """
sys.path.insert(0, os.getcwd())
from shop import *
def trip(id, on_interrupt="compensate", end=die):
    with guard.run("trip", id=id, on_interrupt=on_interrupt, nested=False):
        book(f"{id}-flight")
        book(f"{id}-hotel")
        end()
def fail():
    raise Declined("no money")
"""
RECOVER = TRIP + "report = guard.recover()\n"


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)


class Program:
    """``sagaspan`` as a process of its own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, *args: str, app: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, app=app, **environment)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def start(self, *args: str, app: bool = True, **environment: str) -> Forked:
        where = ["--app", "shop:guard"] if app else ["--store", self._worker.store_url]
        return self._worker.start_program(*args, *where, **environment)


@pytest.fixture
def program(worker: Worker) -> Program:
    """``sagaspan`` with ``--app shop:guard``, or without (``app=False``)."""
    return Program(worker)


def _status(store_url: str) -> dict[str, str]:
    with Guard(store_url) as guard:
        return {run.id: str(run.status) for run in guard.runs.list()}


def _died(worker: Worker, script: str, **environment: str) -> None:
    died = worker.run(TRIP + script, **environment)
    assert died.returncode == -9, died.stderr


# -- each state ----------------------------------------------------------------------------------------------------


def test_killed_between_two_steps_it_is_undone(worker: Worker, program: Program, store_url: str) -> None:
    """A run that nobody can resume is compensated in reverse by the program, with the tools of ``--app``."""
    _died(worker, "trip('a')")
    done = program("recover", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(run["id"], run["status"], run["reason"]) for run in report["compensated"]] == [
        ("a", "compensated", "interrupted")
    ]
    assert worker.effects[-2:] == ["undo-a-hotel", "undo-a-flight"]
    assert program("recover").stdout == "Nothing to recover.\n"
    _check_audit(store_url)


def test_killed_between_two_steps_it_is_held(worker: Worker, program: Program, store_url: str) -> None:
    """A run whose id is the caller's waits for him, and goes on where it was."""
    _died(worker, "trip('a', 'hold')")
    report = json.loads(program("recover", "--json").stdout)
    assert [(run["id"], run["status"], run["reason"]) for run in report["held"]] == [("a", "held", "interrupted")]
    again = worker.run(TRIP + "trip('a', 'hold', end=lambda: None)")
    assert again.returncode == 0, again.stderr
    assert worker.effects == ["book-a-flight", "book-a-hotel"]
    assert _status(store_url) == {"a": "completed"}
    _check_audit(store_url)


def test_a_probe_that_comes_later_is_asked(store_url: str) -> None:
    """Who held a run may not have had the probe, or it was unsure: each recovery asks it, and the run stays held."""
    found: list[str] = []

    def shop(**policy: Any) -> tuple[Guard, Callable[[], str]]:
        guard = Guard(store_url)

        @guard.tool(effect="write", **policy)
        def pay() -> str:
            raise KeyboardInterrupt

        return guard, pay

    first, pay = shop()
    with first, pytest.raises(KeyboardInterrupt), first.run("trip", id="t-1", on_interrupt="hold"):
        pay()
    guard, pay = shop(probe=lambda: Applied(found[0]) if found else None)
    with guard:
        assert not guard.recover(dry_run=True)
        assert not guard.recover()
        found.append("paid")
        assert [run.id for run in guard.recover().held] == ["t-1"]
        assert [(call.state, call.result) for call in guard.runs.get("t-1").calls] == [("done", "paid")]
        assert not guard.recover()
        with guard.run("trip", id="t-1", on_interrupt="hold") as run:
            assert pay() == "paid"
        assert run.status == "completed"


@pytest.mark.parametrize("on_interrupt", ["compensate", "hold"])
def test_killed_in_a_write_a_person_is_asked(
    worker: Worker, program: Program, store_url: str, on_interrupt: str
) -> None:
    """Nobody knows whether it happened, so nothing is undone; what was wished goes on once somebody has said."""
    _died(worker, f"trip('a', '{on_interrupt}')", DIE_BOOKING="a-hotel")
    done = program("recover", "--json")
    assert done.returncode == 4, done.stderr
    report = json.loads(done.stdout)
    assert [(run["id"], run["status"]) for run in report["needs_human"]] == [("a", "held")]
    with Guard(store_url) as guard:
        (call,) = guard.calls.list()
        assert (call.state, call.args) == ("unknown", {"name": "a-hotel"})
        assert json.loads(program("recover", "--json").stdout)["compensated"] == []
        guard.calls.resolve(call.id, "happened", result="a-hotel", note="the hotel says so")
    report = json.loads(program("recover", "--json").stdout)
    if on_interrupt == "compensate":
        assert [run["id"] for run in report["compensated"]] == ["a"]
        assert worker.effects == ["book-a-flight", "book-a-hotel", "undo-a-hotel", "undo-a-flight"]
    else:
        assert not any(report.values())
        assert worker.effects == ["book-a-flight", "book-a-hotel"]
    _check_audit(store_url)


def test_killed_in_its_rollback_it_is_finished(worker: Worker, program: Program, store_url: str) -> None:
    """The undo that was going on is done again, under the same key; those before it are not."""
    _died(worker, "trip('a', end=fail)", DIE_UNDOING="a-flight")
    assert worker.effects == ["book-a-flight", "book-a-hotel", "undo-a-hotel"]
    report = json.loads(program("recover", "--json").stdout)
    assert [run["id"] for run in report["compensated"]] == ["a"]
    assert worker.effects[3:] == ["undo-a-flight"]
    _check_audit(store_url)


def test_an_undo_keeps_its_key_over_processes(worker: Worker) -> None:
    """Tried again by another process it is sent under the same key, which the other steps do not have."""
    script = """
    def cancel(result, idempotency_key):
        effect(f"{result}-{idempotency_key}")
        if result == os.environ.get("DIE"):
            die()
    @guard.tool(compensate=cancel)
    def book(name): return name
    if "DIE" not in os.environ:
        print(*(run.id for run in guard.recover().compensated))
    else:
        with guard.run(id="a"):
            book("flight")
            book("hotel")
            raise ValueError
    """
    assert worker.run(script, DIE="hotel").returncode == -9
    assert worker.run(script).stdout == "a\n"
    first, again, other = (effect.split("-") for effect in worker.effects)
    assert (first, other[0]) == (again, "flight")
    assert first[1] != other[1]


def test_a_dead_session_is_closed(worker: Worker, program: Program, store_url: str) -> None:
    """Calls outside any run are in doubt each for itself; there is no run to hold."""
    _died(worker, "book('x')\nbook('y')", DIE_BOOKING="y")
    report = json.loads(program("recover", "--json").stdout)
    assert [(call["args"], call["state"]) for call in report["in_doubt"]] == [({"name": "y"}, "unknown")]
    assert not report["needs_human"]
    assert set(_status(store_url).values()) == {"failed"}
    assert program("recover").stdout == "Nothing to recover.\n"


def test_a_run_called_session_is_a_run(worker: Worker, program: Program, store_url: str) -> None:
    """A user's own run of that name is undone like any other, not closed as calls outside a run are."""
    _died(worker, 'with guard.run("session", id="chat", on_interrupt="compensate"):\n    book("x")\n    die()')
    report = json.loads(program("recover", "--json").stdout)
    assert [run["id"] for run in report["compensated"]] == ["chat"]
    assert worker.effects == ["book-x", "undo-x"]


NESTED = """
with guard.run("trip", id="outer", on_interrupt="compensate"):
    book("1")
    with guard.run("trip", id="inner", on_interrupt="hold"):
        book("2")
        die()
"""


def test_nested_runs_are_undone_with_the_one_they_are_in(worker: Worker, program: Program, store_url: str) -> None:
    """Killed in a nested run, newest first, whatever the inner one would do alone."""
    _died(worker, NESTED)
    report = json.loads(program("recover", "--json").stdout)
    assert [run["id"] for run in report["compensated"]] == ["inner", "outer"]
    assert worker.effects == ["book-1", "book-2", "undo-2", "undo-1"]
    _check_audit(store_url)


RECOVERER = CRASH_AT + TRIP + "report = guard.recover()\nprint(commits)\n"


@pytest.mark.parametrize("undoing", [False, True])
def test_a_recoverer_that_dies_is_recovered(worker: Worker, store_url: str, undoing: bool) -> None:
    """Killed at every commit in turn, recovery is finished by the next: each step is undone, the older one last."""
    for step in range(1, 100):
        for side in ("before", "after"):
            worker.begin_anew()
            if undoing:
                _died(worker, "trip('a', end=fail)", DIE_UNDOING="a-hotel")
            else:
                _died(worker, "trip('a')")
            died = worker.run(RECOVERER, CRASH=f"{side} {step}")
            if died.returncode == 0:
                assert step > 5
                return
            assert died.returncode == -9, died.stderr
            done = worker.run(RECOVERER)
            assert done.returncode == 0, done.stderr
            assert _status(store_url) == {"a": "compensated"}
            counts = Counter(worker.effects)
            assert counts["book-a-flight"] == counts["book-a-hotel"] == 1
            assert all(1 <= counts[f"undo-a-{name}"] <= 2 for name in ("flight", "hotel"))
            assert worker.effects.index("undo-a-hotel") < worker.effects.index("undo-a-flight")
            _check_audit(store_url)
    pytest.fail("it never got through")


# -- many at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["apart", "nested"])
def test_eight_recoverers_take_each_run_once(worker: Worker, store_url: str, shape: str) -> None:
    """Every run of a dead process is undone exactly once, and reported by the one that did it."""
    runs = 10
    _died(
        worker,
        f"""
for n in range({runs}):
    guard.run("trip", id=f"r{{n}}", on_interrupt="compensate", nested={shape == "nested"}).__enter__()
    book(f"r{{n}}")
die()
""",
    )
    go = worker.effects_file.with_name("go")
    script = (
        TRIP
        + f"""
print("ready", flush=True)
while not os.path.exists({str(go)!r}): time.sleep(0.001)
report = guard.recover()
assert not (report.held or report.needs_human or report.queued)
print(*(run.id for run in report.compensated))
"""
    )
    recoverers = [worker.start(script, SLOW_UNDOING="0.02") for _ in range(8)]
    for one in recoverers:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    go.touch()
    ended = [(one.communicate(timeout=300), one.returncode) for one in recoverers]
    assert not [err for (_, err), code in ended if code], ended
    assert sorted(" ".join(out for (out, _), _ in ended).split()) == sorted(f"r{n}" for n in range(runs))
    assert set(_status(store_url).values()) == {"compensated"}
    assert Counter(worker.effects) == {f"{what}-r{n}": 1 for what in ("book", "undo") for n in range(runs)}
    _check_audit(store_url)


def test_who_meets_another_recoverer_goes_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have taken meanwhile is left out at once, and not tried one by one."""
    tried: list[bool] = []
    take_over = _saga.take_over

    async def counted(*args: Any, **more: Any) -> Any:
        taken = await take_over(*args, **more)
        tried.append(taken is not None)
        return taken

    def work(world: World, job: Callable[[Guard, Any], Any], undone: Callable[[], Any] = lambda: None) -> Any:
        with Guard(world.store) as guard:
            return job(guard, guard.tool("book", compensate=lambda n: undone())(lambda n: world.effect("booked")))

    def leave(guard: Guard, book: Any) -> None:
        for n in range(6):
            guard.run("trip", id=f"r{n}", on_interrupt="compensate", nested=False).__enter__()
            book(n)

    def recover(guard: Guard, _: Any) -> list[str]:
        return [run.id for run in guard.recover().compensated]

    monkeypatch.setattr(_saga, "take_over", counted)
    with World() as world:
        world.process(lambda world: work(world, leave), die_at="book: after settle (6)")
        others: list[str] = []

        def meanwhile() -> None:  # while the first one undoes a run, another one recovers all the others
            others.extend(world.process(lambda world: work(world, recover)))

        mine = world.process(lambda world: work(world, recover, meanwhile))
    assert (len(mine), len(others)) == (1, 5)
    assert tried == [*[True] * 6, False]


def test_a_nested_run_is_left_to_the_one_it_is_in(worker: Worker, store_url: str) -> None:
    """While the outer run goes on in another process, it decides about what is nested in it."""
    outer = worker.start(
        TRIP
        + """
with guard.run("trip", id="outer", on_interrupt="hold"):
    pid = os.fork()
    if pid == 0:
        with guard.run("trip", id="inner", on_interrupt="compensate"):
            book("2")
            die()
    os.waitpid(pid, 0)
    print("in", flush=True)
    sys.stdin.readline()
print("left", flush=True)
"""
    )
    assert outer.stdout is not None
    assert outer.stdout.readline() == "in\n"
    assert worker.run(RECOVER + "print(bool(report))").stdout == "False\n"
    outer.communicate("\n", timeout=300)
    done = worker.run(RECOVER + "print(*(run.id for run in report.compensated))")
    assert done.stdout == "inner\n", done.stderr
    assert worker.effects == ["book-2", "undo-2"]
    assert _status(store_url) == {"inner": "compensated", "outer": "completed"}


def test_two_rollbacks_that_meet_undo_once(worker: Worker, store_url: str) -> None:
    """Somebody undoes one call while recovery undoes its run: one of them is refused before it runs anything."""
    _died(worker, "trip('a')")
    met = worker.effects_file.with_name("met")
    slow = worker.start(RECOVER + "print(report.compensated)", UNDO_WHEN=str(met))
    with Guard(store_url) as guard:
        deadline = time.monotonic() + 300
        (hotel,) = [call for call in guard.runs.get("a").calls if call.args == {"name": "a-hotel"}]
        while guard.calls.get(hotel.id).state != "compensating":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    done = worker.run(
        TRIP
        + f"""
from sagaspan._backends import SYNC, run_sync
from sagaspan import _saga as saga
run = guard._store.get_run("default", "a")
step = guard._store.get_call({hotel.id!r})
try:
    run_sync(saga.rollback_of(guard._engine, run, backend=SYNC, span=guard._engine.span_here)([step]))
except StoreUnavailable as refused:
    print("refused")
"""
    )
    assert done.stdout == "refused\n", done.stderr
    met.touch()
    out, err = slow.communicate(timeout=300)
    assert slow.returncode == 0, err
    assert worker.effects[2:] == ["undo-a-hotel", "undo-a-flight"], out
    assert _status(store_url) == {"a": "compensated"}


# -- what a process cannot do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["running", "compensating"])
def test_what_needs_tools_waits_for_who_has_them(worker: Worker, program: Program, store_url: str, when: str) -> None:
    """Without ``--app`` nothing is dead-lettered: the run is left as it is, and the program says what it takes."""
    if when == "running":
        _died(worker, "trip('a')")
    else:
        _died(worker, "trip('a', end=fail)", DIE_UNDOING="a-hotel")
    listed = program("recover", app=False)
    assert listed.returncode == 0, listed.stderr
    assert "waits for a process that has the tools to undo it" in listed.stdout
    assert "sagaspan recover --app MODULE:GUARD" in listed.stdout
    assert _status(store_url) == {"a": when}
    assert [run["id"] for run in json.loads(program("recover", "--json", app=False).stdout)["queued"]] == ["a"]
    program("recover")
    assert _status(store_url) == {"a": "compensated"}


def test_a_run_that_was_given_back_is_taken_by_another_process(worker: Worker, store_url: str) -> None:
    """A live process that cannot undo a run leaves it to others at once, without having to die."""
    _died(worker, "trip('a', end=fail)", DIE_UNDOING="a-flight")
    stranger = worker.start("""
    def other(): ...
    @guard.tool(compensate=other)
    def pay(): ...
    try:
        guard.compensate("a")
    except CompensationFailed:
        print("queued", flush=True)
    sys.stdin.readline()
    """)
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "queued\n"
    done = worker.run(RECOVER + "print(*(run.id for run in report.compensated))")
    assert done.stdout == "a\n", done.stderr
    stranger.communicate("\n", timeout=300)
    assert _status(store_url) == {"a": "compensated"}


def test_a_run_held_because_a_call_was_busy_is_not_undone(worker: Worker, store_url: str) -> None:
    """An error that only says "not now" never undoes a run, in recovery neither."""
    worker.run(
        TRIP
        + """
def busy():
    raise CallInProgress("elsewhere")
trip("a", end=busy)
"""
    )
    assert _status(store_url) == {"a": "held"}
    assert worker.run(RECOVER + "print(bool(report))").stdout == "False\n"
    assert worker.effects == ["book-a-flight", "book-a-hotel"]


# -- compensations that fail ---------------------------------------------------------------------------------------

LATER = """
_true_time = time.time_ns
time.time_ns = lambda: _true_time() + {seconds} * 10**9
"""


def _retry(worker: Worker, seconds: int, *lists: str, **environment: str) -> str:
    show = "".join(f"print('{name}', *(run.id for run in report.{name}))\n" for name in lists)
    done = worker.run(LATER.format(seconds=seconds) + RECOVER + show, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_compensation_that_fails_is_tried_again_within_the_hour(worker: Worker, store_url: str) -> None:
    """Three attempts at once, five more by recovery, each after a pause; then a person must look."""
    failing = {"FAIL_UNDOING": "a-hotel"}
    worker.run(TRIP + "trip('a', end=fail)", **failing)
    assert _status(store_url) == {"a": "partially_compensated"}
    assert worker.effects.count("tried-a-hotel") == 3
    tried = []
    for seconds in range(0, 3400, 60):
        before = worker.effects.count("tried-a-hotel")
        _retry(worker, seconds, **failing)
        if worker.effects.count("tried-a-hotel") > before:
            tried.append(seconds)
    assert worker.effects.count("tried-a-hotel") == 8
    assert len(tried) == 5
    assert _retry(worker, 3300, "waiting", "needs_human", "compensated") == "waiting\nneeds_human\ncompensated\n"
    assert worker.effects.count("undo-a-flight") == 1
    assert _status(store_url) == {"a": "partially_compensated"}


def test_a_compensation_that_works_again_is_finished_by_recovery(worker: Worker, store_url: str) -> None:
    """Not after an hour, when nobody expects it any more."""
    worker.run(TRIP + "trip('a', end=fail)\n", FAIL_UNDOING="a-hotel")
    worker.run(TRIP + "trip('b', end=fail)\n", FAIL_UNDOING="b-hotel")
    assert _retry(worker, 4000, "waiting", "compensated") == "waiting\ncompensated\n"
    assert sorted(_retry(worker, 120, "compensated").split()[1:]) == ["a", "b"]
    assert set(_status(store_url).values()) == {"compensated"}
    with Guard(store_url) as guard:
        undo = [call for call in guard.runs.get("a").calls if call.compensates and call.args == {"result": "a-hotel"}]
        assert [call.attempts for call in undo] == [4]


# -- how it is asked -----------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing(worker: Worker, sql: Sql) -> None:
    """It names what would be done, and does not even mark a call as in doubt."""
    _died(worker, "trip('undone')")
    _died(worker, "trip('kept', 'hold')")
    _died(worker, "trip('doubtful')", DIE_BOOKING="doubtful-hotel")
    _died(worker, NESTED)
    before = worker.effects
    rows = _rows(sql)
    done = worker.run(
        TRIP
        + """
report = guard.recover(dry_run=True)
for name in ("compensated", "held", "needs_human", "queued"):
    print(name, *(run.id for run in getattr(report, name)))
print(len(report.in_doubt), bool(report))
"""
    )
    assert done.stdout.splitlines() == [
        "compensated inner outer undone", "held kept", "needs_human doubtful", "queued", "1 True"
    ], done.stderr  # fmt: skip
    assert (worker.effects, _rows(sql)) == (before, rows)


def _rows(sql: Sql) -> list[Any]:
    return sql("select id, state, version from runs union select id, state, version from calls")


def test_only_so_many_and_only_so_old(worker: Worker, store_url: str) -> None:
    """``limit`` and ``older_than`` leave the others for the next time."""
    for n in range(3):
        _died(worker, f"trip('r{n}')")
    done = worker.run(
        TRIP
        + """
from datetime import timedelta
print(len(guard.recover(older_than=60).compensated), len(guard.recover(older_than=timedelta(hours=1)).compensated))
print(len(guard.recover(limit=2).compensated), len(guard.recover(limit=2).compensated))
"""
    )
    assert done.stdout == "0 0\n2 1\n", done.stderr
    with Guard(store_url) as guard:
        for wrong in ({"limit": 0}, {"older_than": -1}, {"older_than": float("nan")}):
            with pytest.raises(ConfigurationError):
                guard.recover(**wrong)


def test_asynchronous_callers_recover_too(worker: Worker, guard: Guard) -> None:
    """``arecover`` does the same, and lets a cancellation wait for the run in hand."""
    _died(worker, "trip('a')")
    undone: list[str] = []

    async def cancel(result: str) -> None:
        await asyncio.sleep(0.01)
        undone.append(result)

    guard.tool("book", compensate=cancel)(lambda name: name)

    async def work() -> Recovery:
        task = asyncio.ensure_future(guard.arecover())
        while guard.runs.get("a").status == "running":  # noqa: ASYNC110 - another thread's work
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await guard.arecover()

    assert not asyncio.run(work())
    assert undone == ["a-hotel", "a-flight"]
    assert guard.runs.get("a").status == "compensated"


def test_watching_goes_on_until_a_signal(worker: Worker, program: Program, store_url: str) -> None:
    """``--watch`` recovers what dies while it runs, one after the other, and ends well on SIGTERM and SIGINT."""
    for stop in (signal.SIGTERM, signal.SIGINT):
        watching = program.start("recover", "--watch", "--interval", "200ms")
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("Watching: every 0.2 s, until Ctrl+C or SIGTERM.")
        for number in (1, 2):
            _died(worker, f"trip('{stop.name}-{number}')")
            _wait_for(lambda number=number, stop=stop: _status(store_url)[f"{stop.name}-{number}"] == "compensated")  # type: ignore[misc] # bound now
        watching.send_signal(stop)
        out, err = watching.communicate(timeout=300)
        assert (watching.returncode, err) == (0, "")
        assert [line for line in out.splitlines() if line.endswith("(trip): undone")] == [
            f"run {stop.name}-{number} (trip): undone" for number in (1, 2)
        ]


@pytest.mark.parametrize(("app", "says"), [
    ("nowhere:guard", "there is no module 'nowhere'"),
    ("shop:nothing", "shop has no 'nothing'"),
    ("shop:book", "is a function, not a sagaspan.Guard"),
    ("broken:guard", "importing 'broken' failed: ZeroDivisionError"),
    (":guard", "no module name"),
])  # fmt: skip
def test_an_app_that_is_none_is_a_sentence(program: Program, tmp_path: Path, app: str, says: str) -> None:
    """What is wrong with ``--app`` is said in a sentence, with exit code 2."""
    (tmp_path / "broken.py").write_text("1 / 0")
    done = program("recover", app=False, SAGASPAN_APP=app)
    assert done.returncode == 2
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_an_app_with_another_ledger_is_refused(program: Program, tmp_path: Path) -> None:
    """Two ledgers on one command line are a mistake, not a choice."""
    done = program("recover", "--store", f"sqlite:///{tmp_path / 'other.db'}")
    assert done.returncode == 2
    assert "has another ledger" in done.stderr


# -- what somebody asked to undo ------------------------------------------------------------------------------------


def _booked(worker: Worker, store_url: str, id_: str) -> list[str]:
    """A completed run of two steps; the ids of its calls."""
    done = worker.run(TRIP + f"trip({id_!r}, end=lambda: None)")
    assert done.returncode == 0, done.stderr
    with Guard(store_url) as guard:
        return [call.id for call in guard.runs.get(id_).calls]


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_the_command_line_queues_a_watcher_undoes(worker: Worker, program: Program, store_url: str) -> None:
    """A whole run and a single call: asked for by a process without tools, done once by one that has them."""
    watching = program.start("recover", "--watch", "--interval", "200ms")
    _booked(worker, store_url, "a")
    flight, _ = _booked(worker, store_url, "b")
    for what in (["a"], ["b", "--call", flight]):
        queued = program("compensate", *what, "--yes", app=False)
        assert queued.returncode == 4, queued.stderr
        assert f"next: sagaspan recover --store {shlex.quote(store_url)} --app MODULE:GUARD" in queued.stdout
    _wait_for(lambda: _status(store_url)["a"] == "compensated" and "undo-b-flight" in worker.effects)
    watching.send_signal(signal.SIGTERM)
    out, err = watching.communicate(timeout=300)
    assert (watching.returncode, err) == (0, "")
    assert f"call {flight} (book): undone" in out
    assert [effect for effect in worker.effects if "undo" in effect] == [
        "undo-a-hotel",
        "undo-a-flight",
        "undo-b-flight",
    ]
    assert _status(store_url) == {"a": "compensated", "b": "completed"}
    assert program("compensate", "a", "--yes", app=False).returncode == 0
    _check_audit(store_url)


def test_killed_while_undoing_one_call_it_is_finished(worker: Worker, program: Program, store_url: str) -> None:
    """By recovery, or by asking again; the rest of its run stays."""
    for id_, finish in (("a", ["recover"]), ("b", ["compensate", "b", "--yes"])):
        _, hotel = _booked(worker, store_url, id_)
        if finish[0] == "compensate":
            finish += ["--call", hotel]
        died = program("compensate", id_, "--call", hotel, "--yes", DIE_UNDOING=f"{id_}-hotel")
        assert died.returncode == -9, died.stderr
        assert program("status").returncode == 4
        assert program(*finish).returncode == 0
        assert program("status").returncode == 0
    assert [effect for effect in worker.effects if "undo" in effect] == ["undo-a-hotel", "undo-b-hotel"]
    assert set(_status(store_url).values()) == {"completed"}
    _check_audit(store_url)


def test_a_single_compensation_that_fails_is_tried_again(worker: Worker, program: Program, store_url: str) -> None:
    """Later, by recovery, as those of a whole run are; the run stays completed."""
    _, hotel = _booked(worker, store_url, "a")
    failed = program("compensate", "a", "--call", hotel, "--yes", FAIL_UNDOING="a-hotel")
    assert failed.returncode == 4, failed.stderr
    tried = worker.effects.count("tried-a-hotel")
    assert tried == 3
    assert program("recover").stdout == "Nothing to recover.\n"
    assert _retry(worker, 120, "alone", FAIL_UNDOING="a-hotel") == f"alone {hotel}\n"
    assert worker.effects.count("tried-a-hotel") == 4
    assert _retry(worker, 1000, "alone") == f"alone {hotel}\n"
    assert worker.effects.count("undo-a-hotel") == 1
    assert _status(store_url) == {"a": "completed"}
    _check_audit(store_url)


def test_eight_recoverers_undo_one_call_once(worker: Worker, store_url: str) -> None:
    """Each queued call is undone by one of them."""
    calls = [(f"r{n}", call) for n in range(3) for call in _booked(worker, store_url, f"r{n}")]
    with Guard(store_url) as without_tools:
        for run_id, call in calls:
            with pytest.raises(CompensationFailed, match="not registered in this process"):
                without_tools.compensate(run_id, call=call)
    workers = [worker.start(RECOVER, SLOW_UNDOING="0.05") for _ in range(8)]
    for process in workers:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    undone = Counter(effect for effect in worker.effects if "undo" in effect)
    assert set(undone.values()) == {1}
    assert len(undone) == 6
    _check_audit(store_url)
