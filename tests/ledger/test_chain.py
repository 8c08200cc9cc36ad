"""Every transition is a row in the hash chain of its run, whoever writes beside whom."""

from __future__ import annotations

import contextvars
import hashlib
import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sagaspan import Guard, RunClosed
from sagaspan.ledger import chain, contents
from sagaspan.ledger.records import NO_RUN, AuditRow, CallRecord, CallState
from sagaspan.ledger.store import NoteChange
from sagaspan.stores import connect
from tests.conftest import Caller, Worker

_FIELDS = (
    "seq, number, at_us, namespace, run_id, call_id, approval_id, event, from_state, to_state, actor, digest, detail"
)

pytestmark = pytest.mark.of_sqlite("reads its file")


def chains(path: Path) -> dict[str, list[str]]:
    """The events of each chain, recomputed by hand from what ``docs/audit.md`` says, and from nothing of ours."""
    found: dict[str, list[str]] = {}
    before: dict[str, bytes] = {}
    with sqlite3.connect(path) as connection:
        for *fields, content, digest in connection.execute(
            f"select {_FIELDS}, content, hash from audit order by namespace, run_id, number"
        ):
            run, text = fields[4], json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
            data = before.get(run, bytes(32)) + (content or bytes(32)) + text.encode()
            assert digest == hashlib.sha256(data).digest(), f"row {fields[1]} of {run!r} does not fit"
            before[run] = digest
            found.setdefault(run, []).append(fields[7])
            assert fields[1] == len(found[run])
        in_order = list(connection.execute("select number from audit where run_id = 'order' order by seq"))
        assert in_order == sorted(in_order)
    connection.close()
    return found


NOTE = AuditRow(
    at_us=1, namespace="default", run_id=NO_RUN, call_id=None, event="note", from_state=None, to_state="note", actor="a"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_every_transition_is_a_link_of_its_run(guard: Guard, caller: Caller, path: Path) -> None:
    """Calls, runs, compensations and requests; calls outside a run are of the session; limits of none."""
    pay = caller.tool(guard, "pay", compensate=lambda result: None)(lambda amount: f"paid {amount} “£”\n")

    async def job() -> None:
        await caller.call(pay, 1)
        with pytest.raises(LookupError):
            async with caller.run(guard, id="order"):
                await caller.call(pay, 5)
                raise LookupError

    caller.play(job)
    guard.set_budget("user:42", "50 USD/day")
    found = chains(path)
    assert found["order"] == [
        "run.open", "claim", "succeed", "run.compensate", "compensate", "compensation.claim", "compensation.succeed",
        "compensation_succeeded", "run.compensated",
    ]  # fmt: skip
    (session,) = (run for run in found if run not in ("order", NO_RUN))
    assert found[session] == ["run.open", "claim", "succeed"]
    assert found[NO_RUN] == ["limit.set"]
    (row,) = guard._store.audit_of("default", NO_RUN)
    assert json.loads(row.detail or "")["amount"] == 50_000_000_000


def test_what_is_refused_leaves_no_hole(guard: Guard, path: Path) -> None:
    """A replay, a conflict and a claim that came too late roll back what they appended."""
    pay = guard.tool("pay", effect="write")(lambda amount: amount)
    with guard.run(id="order") as run:
        for amount in (1, 1, 2, 2, 1, 3):
            pay(amount)
        run.abort()
        with pytest.raises(RunClosed):
            pay(4)
    assert chains(path)["order"].count("claim") == 3


def test_parallel_writers_append_to_one_chain(guard: Guard, store_url: str, path: Path) -> None:
    """Threads of one guard, which write in groups, and of another one on a connection of its own."""
    other = Guard(store_url)
    tools = [one.tool("look", effect="read")(lambda n: n) for one in (guard, other)]
    start = threading.Barrier(4)

    def work(tool: Any, first: int) -> None:
        start.wait()
        for n in range(12):
            tool(first + n)

    with guard.run(id="order"):
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(work, tools[n % 2], 100 * n))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    other.close()
    assert sum(events.count("claim") for events in chains(path).values()) == 48


def test_two_connections_that_take_turns_keep_the_chains_whole(store_url: str, path: Path) -> None:
    """What each remembers of a chain is old after every turn of the other one."""
    guards = [Guard(store_url), Guard(store_url)]
    for turn in range(6):
        guard = guards[turn % 2]
        with guard.run(id="order", reopen=True):
            guard.tool("pay", effect="write")(lambda n: n)(turn)
    for turn in range(6):
        guards[turn % 2].set_budget("user:1", f"{turn + 1} USD/day")
    for guard in guards:
        guard.close()
    found = chains(path)
    assert found["order"].count("claim") == 6
    assert found[NO_RUN] == ["limit.set"] * 6


def test_what_is_rolled_back_is_remembered_by_nobody(guard: Guard, store_url: str, path: Path) -> None:
    """Also where another connection has taken the place of the row that never was."""
    pay = guard.tool("pay", effect="write")(lambda amount: amount)
    other = connect(store_url)
    with guard.run(id="order"):
        pay(1)
        pay(1)  # refused, and answered from the record
        other.commit([NoteChange(NOTE)], synced=False)
        pay(2)
    other.close()
    assert chains(path)["order"].count("claim") == 2


def test_two_processes_append_to_one_chain(worker: Worker, path: Path) -> None:
    """A child and its parent set limits, whose rows are all of one chain."""
    done = worker.run("""
    def write():
        for n in range(5):
            guard.set_budget("user:1", f"{n + 1} USD/day")  # no claim between: a refused one forgets what was known

    heard, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(heard, 1)
        write()
        os._exit(0)
    write()
    os.write(tell, b"x")  # what is remembered here is behind the child by the time that it has written
    write()
    assert os.waitpid(child, 0)[1] == 0
    write()
    """)
    assert done.returncode == 0, done.stderr
    assert chains(path)[NO_RUN] == ["limit.set"] * 20


def test_a_changed_column_changes_the_hash() -> None:
    """Of the row as of what was recorded: text and null, and where one ends and the next begins, are told apart."""
    row = AuditRow(
        at_us=1, namespace="n", run_id="r", call_id="c", event="claim", from_state=None, to_state="running", actor="a"
    )
    rows = [row, *(_changed(row, name) for name in AuditRow.__dataclass_fields__)]
    links = {chain.link(chain.START, 1, one, None)[1] for one in rows}
    links |= {chain.link(chain.START, 2, row, None)[1], chain.link((1, bytes(32)), 1, row, None)[1]}
    links |= {chain.link(chain.START, 1, row, b"x" * 32)[1], chain.link((0, b"x" * 32), 1, row, None)[1]}
    assert len(links) == len(rows) + 4
    record = CallRecord(
        id="c", namespace="n", scope="s", tool="t", key="k", key_source="content", idempotency_key="i",
        fingerprint="f", run_id="r", state=CallState.RUNNING, arguments="{}", owner="o", created_us=1, started_us=1,
    )  # fmt: skip
    names = sum(contents.COLUMNS[contents.FORMAT][CallRecord], ())
    assert len({contents.content_of(_changed(record, name), is_new=True) for name in names}) == len(names)


def _changed(record: Any, name: str) -> Any:
    value = getattr(record, name)
    changed = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value or ''}x"
    return replace(record, **{name: changed})
