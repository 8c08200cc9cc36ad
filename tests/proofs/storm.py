"""The kill storm: workers are killed and stopped at random, the provider behaves badly, and nothing is done twice.

    uv run --all-extras python -m tests.proofs.storm                             # 12 workers, 3,000 orders a pass
    uv run --all-extras python -m tests.proofs.storm --workers 4 --orders 50     # bounded
    uv run --all-extras python -m tests.servers -- python -m tests.proofs.storm --store postgres
    uv run --all-extras python -m tests.proofs.storm --restarts 12               # of a PostgreSQL server of its own
    uv run --all-extras python -m tests.proofs.storm --restarts 12 --store mariadb    # of a MariaDB server of its own

One pass for each kind of provider (see ``storm_provider``), and one without the library: the control arm. Workers take
orders from a queue that delivers at least once, while others are killed (SIGKILL), or stopped and woken again;
recoverers run beside, and are killed too. A third of the workers is in containers, where nobody can prove a death. A
person looks at the provider's books and says what became of what needs one. On SQLite each of them drops the locks of
its process again and again, and a visitor opens and closes the ledger.

It fails unless, with the library, no step of an order was in force twice and none was undone before it was done; every
order is shipped, or undone if it was declined; every doubt on record was decided, and by what; the budget has each
charge, once; and nothing runs, holds a lock or waits for anybody. And unless the control arm charged somebody twice:
else the storm proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

from sagaspan import Guard
from sagaspan.ledger.judgement import LOST
from sagaspan.ledger.records import AuditRow
from sagaspan.ledger.resolution import PERMITTED
from sagaspan.ledger.transitions import CallEvent
from sagaspan.testing import assert_settled
from tests.proofs import STORE, ledger_on, server_of, storm_provider
from tests.proofs.storm_provider import KINDS, UNDO
from tests.proofs.storm_server import KINDS as SERVERS
from tests.proofs.storm_server import restarted
from tests.proofs.storm_shop import STEPS, TOLD, Shop, run_id
from tests.proofs.storm_worker import (
    Place,
    Queue,
    fork,
    look_at_everything,
    person,
    recoverer,
    visitor,
    worker,
    worker_without,
)

CONTROL: Final = "control"
DECLINED_EVERY: Final = 5
RECOVERERS: Final = 2
LIFE_SECONDS: Final = 3.0
"""How long a process lives, on average, until something happens to it."""

TOLD_IN_FULL: Final = 3
"""How many of the orders that went wrong are told with their history."""

STOPPED_SECONDS: Final = 1.6
"""A process is stopped for up to so long: past its lease."""


@dataclass(kw_only=True)
class Figures:
    """The counts of one pass."""

    arm: str
    orders: int
    deliveries: int = 0
    killed: int = 0
    stopped: int = 0
    restarts: int = 0
    requests: int = 0
    bad_answers: int = 0
    doubts: int = 0
    by_a_person: int = 0
    recovered: int = 0
    doubled: int = 0
    lost: int = 0
    violations: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class Pass:
    """One pass: its figures, what was violated, and how its doubts came and went."""

    figures: Figures
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)


class Processes:
    """The children of a pass: killed, stopped and replaced."""

    def __init__(self, folder: Path, seeded: random.Random) -> None:
        self.killed = self.stopped = 0
        self._folder = folder
        self._seeded = seeded
        self._jobs: dict[int, Callable[[], None]] = {}
        self._asleep: dict[int, float] = {}

    def start(self, job: Callable[[], None]) -> None:
        """Start a process that may be struck."""
        self._jobs[fork(self._folder, job)] = job

    def strike(self) -> None:
        """Kill one and put another one in its place, or stop one for a while."""
        self.wake()
        awake = [pid for pid in self._jobs if pid not in self._asleep]
        if not awake:
            return
        pid = self._seeded.choice(awake)
        if self._seeded.random() < 0.6:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.killed += 1
            self.start(self._jobs.pop(pid))
        else:
            os.kill(pid, signal.SIGSTOP)
            self.stopped += 1
            self._asleep[pid] = time.monotonic() + self._seeded.uniform(0.05, STOPPED_SECONDS)

    def wake(self, *, all_: bool = False) -> None:
        """Let those go on that were stopped for long enough."""
        for pid, until in list(self._asleep.items()):
            if all_ or time.monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self._asleep[pid]

    def bury(self) -> None:
        """Start those again that ended by themselves in the middle."""
        for pid in list(self._jobs):
            if pid not in self._asleep and os.waitpid(pid, os.WNOHANG)[0]:
                self.start(self._jobs.pop(pid))

    def end(self, seconds: float) -> None:
        """Wait until all have ended, at most so long; then kill them."""
        self.wake(all_=True)
        deadline = time.monotonic() + seconds
        while self._jobs and time.monotonic() < deadline:
            for pid in list(self._jobs):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._jobs[pid]
            time.sleep(0.02)
        for pid in list(self._jobs):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self._jobs[pid]


def run_pass(
    arm: str, *, orders: int, workers: int, seed: int, limit: float, say: Callable[[str], None],
    store: str | None = None, disturb: Callable[[float], float] = lambda _: 0.0,
) -> Pass:  # fmt: skip
    """One pass of the storm.

    ``limit``: seconds after which what is not over is lost; ``store``: the URL of an empty ledger, else a new file;
    ``disturb`` is told again and again which share of the orders is over, does something to the ledger's server, and
    says which share of them is to wait.
    """
    names = [str(number) for number in range(orders)]
    declined = frozenset(name for name in names if int(name) % DECLINED_EVERY == 0)
    figures = Figures(arm=arm, orders=orders)
    kind = "neither" if arm == CONTROL else arm
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="storm-") as name:
        folder = Path(name)
        queue = Queue(folder)
        queue.fill(names)
        queue.hold(int(orders * disturb(0.0)))
        del queue  # not over a fork
        provider, port = storm_provider.start(seed, kind, declined)
        place = Place(folder=folder, port=port, kind=kind, store=store or f"sqlite:///{folder / 'ledger.db'}")
        seeded = random.Random(f"{seed}:{arm}")
        processes = Processes(folder, seeded)
        alone = _start(processes, place, arm, workers)
        try:
            _storm(processes, place, workers, seeded, started + limit, say, disturb)
        finally:
            for pid in alone:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            processes.end(20.0)
        done = Pass(figures=figures)
        figures.killed, figures.stopped = processes.killed, processes.stopped
        try:
            _judge(done, place, arm, names, declined)
        finally:
            os.kill(provider, signal.SIGKILL)
            os.waitpid(provider, 0)
        done.wrong += [file.read_text() for file in folder.glob("broken-*.txt")]
    figures.seconds = round(time.monotonic() - started, 1)
    figures.violations = len(done.wrong)
    return done


def _start(processes: Processes, place: Place, arm: str, workers: int) -> list[int]:
    """Start everybody; returns the pids of those that nothing happens to."""
    if arm == CONTROL:
        for _ in range(workers):
            processes.start(worker_without(place))
        return []
    for number in range(workers):
        elsewhere = f"container-{number}" if number % 3 == 2 else None
        processes.start(worker(place, is_async=number % 2 == 1, elsewhere=elsewhere))
    for _ in range(RECOVERERS):
        processes.start(recoverer(place))
    if place.store.startswith("sqlite:"):
        processes.start(visitor(place))
    return [fork(place.folder, person(place))]


def _storm(
    processes: Processes, place: Place, workers: int, seeded: random.Random, deadline: float,
    say: Callable[[str], None], disturb: Callable[[float], float],
) -> None:  # fmt: skip
    """Strike until nearly all orders are over; the last ones are left in peace, so that the storm has an end."""
    queue = Queue(place.folder)
    total = left = queue.left()
    told = time.monotonic()
    while left and time.monotonic() < deadline:
        time.sleep(seeded.expovariate((workers + RECOVERERS) / LIFE_SECONDS))
        processes.bury()
        left = queue.left()
        if left > min(workers, total // 10):
            processes.strike()
        else:
            processes.wake()
            time.sleep(0.1)
        queue.hold(int(total * disturb(1 - left / total)))
        if time.monotonic() - told > 5:
            told = time.monotonic()
            say(f"  {total - left} of {total} orders are over; {processes.killed} killed, {processes.stopped} stopped")


# -- the judgement -------------------------------------------------------------------------------------------------

Books = Sequence[dict[str, str]]


def _judge(done: Pass, place: Place, arm: str, orders: Sequence[str], declined: frozenset[str]) -> None:
    if arm != CONTROL:
        with place.guard() as guard:
            Shop(guard, place.client, place.kind)
            for _ in range(5):  # what the last workers left, as after any storm
                guard.recover()
                look_at_everything(guard, place.client)
            told = place.client.books()
            done.wrong += wrong_orders(guard, told["books"], orders, declined)
            done.figures.lost = len(done.wrong)
            _check_ledger(guard, done)
            _check_budget(guard, done, told["books"])
    else:
        told = place.client.books()
    check_books(done, told["books"], arm)
    done.faults = Counter(told["faults"])
    done.figures.requests = done.faults.total()
    done.figures.bad_answers = done.faults.total() - done.faults["well"]
    done.figures.deliveries = Queue(place.folder).deliveries()


def check_books(done: Pass, books: Books, arm: str) -> None:
    """Add to ``done`` what the provider's books say of it."""
    twice = in_force_twice(books)
    done.figures.doubled = len(twice)
    if arm == CONTROL:
        if not any(what == "charge" for _, what in twice):
            done.wrong.append("nobody was charged twice without the library, so the storm proves nothing")
        return
    done.wrong += [f"order {order}: {what} was in force twice" for order, what in sorted(twice)]
    done.wrong += [f"order {order}: {what} was undone before it was done" for order, what in undone_too_early(books)]
    effects = Counter((entry["what"], entry["key"]) for entry in books)
    done.wrong += [f"{what} had {count} effects under one key" for (what, _), count in effects.items() if count > 1]


def wrong_orders(guard: Guard, books: Books, orders: Sequence[str], declined: frozenset[str]) -> list[str]:
    """The orders that did not end as they should, in the ledger and in the world."""
    counts = Counter((entry["order"], entry["what"]) for entry in books)
    wrong = []
    for order in orders:
        run = guard.runs.get(run_id(order))
        ends = {what: counts[order, what] - counts[order, f"{UNDO}{what}"] for what in (*STEPS, TOLD)}
        found = ("missing" if run is None else str(run.status), set(ends.values()))
        if found != (("compensated", {0}) if order in declined else ("completed", {1})):
            history = _history_in(guard, run_id(order)) if len(wrong) < TOLD_IN_FULL else ""
            name = f"order {order}{' (declined)' if order in declined else ''}"
            wrong.append(f"{name} is {found[0]}, in the books {ends}{history}")
    return wrong


def _history_in(guard: Guard, run: str) -> str:
    rows = guard._store.audit_of("default", run)
    told = [
        (row.at_us, (row.call_id or "the run")[-7:], row.event, row.to_state, row.detail, row.actor) for row in rows
    ]
    return "".join(f"\n      {row}" for row in told)


def in_force_twice(books: Books) -> set[tuple[str, str]]:
    """Order and step of what was done while it was done already, and not undone."""
    return {step for step, count in _history(books) if count > 1}


def undone_too_early(books: Books) -> set[tuple[str, str]]:
    """Order and step of what was undone before it was done."""
    return {step for step, count in _history(books) if count < 0}


def _history(books: Books) -> Iterator[tuple[tuple[str, str], int]]:
    """Each step as it changes, with how often it is in force then."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in books:
        step = entry["order"], entry["what"].removeprefix(UNDO)
        counts[step] += -1 if entry["what"].startswith(UNDO) else 1
        yield step, counts[step]


def _check_ledger(guard: Guard, done: Pass) -> None:
    """Nothing runs, is in doubt, holds a lock or waits, and every doubt that there was is explained."""
    try:
        assert_settled(guard)
    except AssertionError as problem:
        done.wrong.append(str(problem))
    done.wrong += [f"call {extra.id} of {extra.tool} came twice{_history_in(guard, extra.run_id)}"
                   for extra, _ in guard.calls.duplicates()]  # fmt: skip
    if report := guard.recover(dry_run=True):
        done.wrong.append(f"recovery still finds something to do: {report}")
    for run in guard.runs.list(limit=1_000_000):
        if run.locks:
            done.wrong.append(f"run {run.id} still holds {run.locks}")
        _explain(done, run.id, guard._store.audit_of(run.namespace, run.id))


def _check_budget(guard: Guard, done: Pass, books: Books) -> None:
    """The books of the budget are what the calls say, and those have each charge of the provider's books once.

    An attempt in doubt of which a person said neither, but permitted another one, may have cost something, and counts.
    """
    done.wrong += [f"the books of the budgets differ from the calls: {found}" for found in guard.budgets.fsck()]
    charges = {call.id for call in guard.calls.list(limit=1_000_000, open=False) if call.tool == "charge"}
    rows = (row for run in guard.runs.list(limit=1_000_000) for row in guard._store.audit_of("default", run.id))
    permitted = sum(row.detail == PERMITTED for row in rows if row.call_id in charges)
    charged = sum(entry["what"] == "charge" for entry in books)
    for account in guard.budgets.list("tenant:shop"):
        if (account.spent, account.reserved) != (charged + permitted, 0):
            done.wrong.append(
                f"{charged} charges, and {permitted} attempts that were permitted in doubt, cost the shop "
                f"{account.spent}, and {account.reserved} is reserved"
            )


def _explain(done: Pass, run: str, rows: Sequence[AuditRow]) -> None:
    """Pair each doubt of a run with what decided it."""
    open_doubts: dict[str, str] = {}
    for row in rows:
        call = row.call_id or ""
        done.figures.by_a_person += row.actor == "person"
        done.figures.recovered += row.event in _TAKEN and row.detail in LOST.values()
        if row.event in _DECIDED and call in open_doubts:
            done.explained[
                f"{open_doubts.pop(call)} -> {row.event} ({row.detail or 'the answer of another attempt'})"
            ] += 1
        if row.event == CallEvent.LOSE:
            done.figures.doubts += 1
            open_doubts[call] = row.detail or "no reason"
    done.wrong += [f"run {run}: nobody says what became of the doubt of call {call} ({why})"
                   for call, why in open_doubts.items()]  # fmt: skip


_TAKEN: Final = ("run.resume", "run.compensate", "run.finish")
_DECIDED: Final = frozenset(
    {CallEvent.SUCCEED, CallEvent.DISPROVE, CallEvent.PERMIT, CallEvent.CLAIM, CallEvent.HAND_OVER,
     CallEvent.UNDONE_BY_HAND, CallEvent.COMPENSATE}
)  # fmt: skip


# -- the command ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if nothing was violated."""
    parser = argparse.ArgumentParser(prog="tests.proofs.storm", description=__doc__.split("\n")[0])
    parser.add_argument("--orders", type=int, default=3000, help="orders of each pass")
    parser.add_argument("--workers", type=int, default=12, help="processes that work on them")
    parser.add_argument("--arms", default=",".join((*KINDS, CONTROL)), help="which passes")
    parser.add_argument("--seed", type=int, default=None, help="decides the provider's moods and who is struck")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which a pass is given up")
    parser.add_argument("--store", help=STORE)
    parser.add_argument("--restarts", type=int, default=0,
                        help="how often a server of its own is restarted: PostgreSQL, or --store mariadb")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    own = options.store or "postgres"
    if options.restarts and own not in SERVERS:
        parser.error(f"--restarts is of a server of its own; --store says which kind: {', '.join(SERVERS)}")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    passes = []
    for arm in options.arms.split(","):
        _say(f"{arm}: {options.orders} orders, {options.workers} workers, --seed {seed}")
        with (restarted(options.restarts, own, _say) as server,
              ledger_on(server.url or server_of(options.store)) as store):  # fmt: skip
            done = run_pass(arm, orders=options.orders, workers=options.workers, seed=seed, limit=options.limit,
                            say=_say, store=store, disturb=server)  # fmt: skip
            done.figures.restarts = server.done
            if server.left:
                done.wrong.append(f"{server.left} of the restarts never came: the storm was over before")
            passes.append(done)
        for problem in passes[-1].wrong[:20]:
            _say(f"  VIOLATION {problem}")
    _table(passes)
    if options.json is not None:
        rows = [{**asdict(one.figures), "faults": one.faults, "explained": one.explained, "wrong": one.wrong}
                for one in passes]  # fmt: skip
        options.json.write_text(json.dumps({"seed": seed, "passes": rows}))
    return 1 if any(one.wrong for one in passes) else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _table(passes: Sequence[Pass]) -> None:
    names = [field.name for field in fields(Figures)]
    print("\n" + "  ".join(f"{name:>{max(7, len(name))}}" for name in names))
    for one in passes:
        print("  ".join(f"{getattr(one.figures, name)!s:>{max(7, len(name))}}" for name in names))
    explained: Counter[str] = sum((one.explained for one in passes), Counter())
    print("\nhow doubts came and went:")
    for how, count in explained.most_common():
        print(f"  {count:>6}  {how}")


if __name__ == "__main__":
    sys.exit(main())
