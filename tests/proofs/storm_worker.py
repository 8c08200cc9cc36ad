"""The processes of the storm: workers over a queue that delivers at least once, recoverers, and a person.

Each is forked, does its part until nothing is left to do, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sagaspan import CallInfo, Guard, SagaspanError, StoreUnavailable
from sagaspan import _owner as owner
from sagaspan.ledger.resolution import going_on
from sagaspan.stores import connect
from tests.proofs.storm_provider import UNDO, Client
from tests.proofs.storm_shop import Shop, work_without

VISIBLE_SECONDS: Final = 1.5
"""How long an order that was taken is nobody else's; whoever takes longer is worked beside."""

LEASE_SECONDS: Final = "1.0"
BUDGETS: Final = {"tenant:shop": "1000000 USD"}
"""Every charge costs the shop a dollar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pass of the storm takes place."""

    folder: Path
    port: int
    kind: str
    store: str

    @property
    def client(self) -> Client:
        """A client of the provider."""
        return Client(self.port)

    def guard(self) -> Guard:
        """A guard of its own on the ledger."""
        return Guard(self.store, budgets=BUDGETS)

    def back_up_badly(self) -> None:
        """Open and close the ledger's file, as a backup agent in this process does: SQLite's locks of it are gone."""
        if self.store.startswith("sqlite:///"):
            Path(self.store.removeprefix("sqlite:///")).open("rb").close()


class Queue:
    """Orders to work on, in a file of its own: an order comes again until somebody says that it is over."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "queue.db", isolation_level=None, timeout=30)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = off")

    def fill(self, orders: list[str]) -> None:
        """Make the queue."""
        self._connection.execute("create table orders (id text primary key, free_at real, taken integer, over integer)")
        self._connection.execute("create table noted (id text, what text)")
        self.add(orders)

    def add(self, orders: list[str]) -> None:
        """More of them."""
        self._connection.executemany("insert into orders values (?, 0, 0, 0)", [(order,) for order in orders])

    def hold(self, count: int) -> None:
        """So many of those that nobody has had wait; the others may be taken."""
        self._connection.execute(
            "update orders set free_at = iif(id in (select id from orders where taken = 0 order by id limit ?), 9e9, 0)"
            " where taken = 0", (count,),
        )  # fmt: skip

    def take(self) -> str | None:
        """An order that nobody has, or had for too long; None if all are over or with somebody."""
        now = time.time()
        rows = self._connection.execute(
            "update orders set free_at = ?, taken = taken + 1 where id = "
            "(select id from orders where not over and free_at < ? order by free_at limit 1) returning id",
            (now + VISIBLE_SECONDS, now),
        ).fetchall()
        return rows[0][0] if rows else None

    def put_back(self, order: str, seconds: float) -> None:
        """It comes again after so long."""
        self._connection.execute("update orders set free_at = ? where id = ?", (time.time() + seconds, order))

    def over(self, order: str) -> None:
        """It does not come again."""
        self._connection.execute("update orders set over = 1 where id = ?", (order,))

    def left(self) -> int:
        """How many orders are not over."""
        (left,) = self._connection.execute("select count(*) from orders where not over").fetchone()
        return int(left)

    def deliveries(self) -> int:
        """How often an order was given to somebody."""
        (taken,) = self._connection.execute("select sum(taken) from orders").fetchone()
        return int(taken)

    def note(self, order: str, what: str) -> None:
        """A step is done (of the workers without the library)."""
        self._connection.execute("insert into noted values (?, ?)", (order, what))

    def noted(self, order: str) -> set[str]:
        """The steps that are."""
        return {what for (what,) in self._connection.execute("select what from noted where id = ?", (order,))}


def fork(folder: Path, job: Callable[[], None]) -> int:
    """Do ``job`` in a child process; what breaks it is written to ``folder``."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ["SAGASPAN_LEASE_SECONDS"] = LEASE_SECONDS
        logging.getLogger("sagaspan").setLevel(logging.CRITICAL)
        job()
        code = 0
    except BaseException:
        (folder / f"broken-{os.getpid()}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _while_there_is_work(queue: Queue, pause: float) -> Iterator[None]:
    parent = os.getppid()
    while os.getppid() == parent and queue.left():
        yield
        time.sleep(pause)


def worker(place: Place, *, is_async: bool, elsewhere: str | None) -> Callable[[], None]:
    """Work on orders with the library; ``elsewhere``: in a container of that name, where nobody can prove a death."""

    def job() -> None:
        if elsewhere is not None:
            owner._pid_namespace = lambda: elsewhere
        queue = Queue(place.folder)
        with place.guard() as guard:
            shop = Shop(guard, place.client, place.kind, is_async=is_async)
            for _ in _while_there_is_work(queue, 0.0):
                place.back_up_badly()
                order = queue.take()
                if order is None:
                    time.sleep(0.05)
                    continue
                with contextlib.suppress(StoreUnavailable):  # its server is being restarted: the order comes again
                    if shop.work(order):
                        queue.over(order)
                    else:
                        queue.put_back(order, 0.3 + 0.4 * random.random())

    return job


def worker_without(place: Place) -> Callable[[], None]:
    """Work on orders without the library."""

    def job() -> None:
        queue = Queue(place.folder)
        for _ in _while_there_is_work(queue, 0.0):
            order = queue.take()
            if order is None:
                time.sleep(0.05)
                continue
            with contextlib.suppress(Exception):  # it comes again
                work_without(place.client, order, queue.noted(order), lambda what, order=order: queue.note(order, what))  # type: ignore[misc]
                queue.over(order)

    return job


def recoverer(place: Place) -> Callable[[], None]:
    """Go on after the workers that died."""

    def job() -> None:
        with place.guard() as guard:
            Shop(guard, place.client, place.kind)
            for _ in _while_there_is_work(Queue(place.folder), 0.25):
                place.back_up_badly()
                with contextlib.suppress(SagaspanError):
                    guard.recover()

    return job


def visitor(place: Place) -> Callable[[], None]:
    """Open the ledger, look, and close it again, as each command line does: maybe as its last user."""

    def job() -> None:
        for _ in _while_there_is_work(Queue(place.folder), 0.1):
            with contextlib.suppress(StoreUnavailable), contextlib.closing(connect(place.store)) as store:
                store.namespaces()

    return job


# -- the person ----------------------------------------------------------------------------------------------------


def person(place: Place) -> Callable[[], None]:
    """Somebody who looks at the provider's books, and says of what needs a person whether it happened."""

    def job() -> None:
        with place.guard() as guard:
            Shop(guard, place.client, place.kind)
            for _ in _while_there_is_work(Queue(place.folder), 0.25):
                place.back_up_badly()
                with contextlib.suppress(StoreUnavailable):
                    look_at_everything(guard, place.client)

    return job


def look_at_everything(guard: Guard, client: Client) -> None:
    """Decide what can be decided now."""
    for call in guard.calls.list(status=["unknown", "needs_human", "compensation_failed"], limit=10_000):
        with contextlib.suppress(SagaspanError):  # somebody was faster, or it goes on meanwhile
            if call.state == "compensation_failed":
                _undo(guard, client, call)
            elif call.phase == "forward":
                _decide(guard, client, call)


def _decide(guard: Guard, client: Client, call: CallInfo) -> None:
    """Happened, if the books have it. Else it did not, but only once nobody can send it any more."""
    may_come = _may_still_send(guard, call)  # asked first: what is sent until then is seen in the books
    found = client.find(call.tool, call.idempotency_key)
    if found["id"] is not None:
        guard.calls.resolve(
            call.id, "happened", result=found["id"], note="the books have it", actor="person",
            expected_version=call.version,
        )  # fmt: skip
    elif not found["pending"] and not may_come:
        word = random.choice(("did-not-happen", "retry"))
        guard.calls.resolve(
            call.id, word, note="the books do not have it", actor="person", expected_version=call.version
        )


def _undo(guard: Guard, client: Client, call: CallInfo) -> None:
    """Undone, if the books have that; else it is tried again."""
    books = client.books()["books"]
    run = guard.runs.get(call.run_id)
    keys = {one.idempotency_key for one in run.calls if one.compensates == call.id} if run is not None else set()
    if any(entry["what"] == f"{UNDO}{call.tool}" and entry["key"] in keys for entry in books):
        guard.calls.resolve(
            call.id, "compensated", note="the books have its undoing", actor="person", expected_version=call.version
        )
    else:
        guard.compensate(call.run_id)


def _may_still_send(guard: Guard, call: CallInfo) -> bool:
    """Whether a process that ran it is still there, and did not say that the body has ended."""
    rows = [row for row in guard._store.audit_of(call.namespace, call.run_id) if row.call_id == call.id]
    return any(_is_there(process) for process in going_on(rows, last_is_dead=False))


def _is_there(process: str) -> bool:
    _, _, pid, start, _ = process.split(":")
    return owner._lives(int(pid), start)
