"""``guard.audit``: whatever somebody does to the audit trail is found, and named."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from sagaspan import Approval, ApprovalPending, AuditReport, ConfigurationError, Guard, SchemaOutdated
from sagaspan import _owner as owner
from sagaspan._accounts import Accounts
from sagaspan._audit import Audit
from sagaspan.ledger import chain, contents
from sagaspan.ledger.histories import Histories
from sagaspan.ledger.records import ApprovalRecord, AuditRow, CallRecord, FreezeRecord, LimitRecord, RunRecord
from sagaspan.stores import connect
from tests.conftest import Caller, Sql

DOCS = Path(__file__).parents[1] / "docs" / "audit.md"
COLUMNS = (
    "at_us", "namespace", "run_id", "call_id", "approval_id", "event", "from_state", "to_state", "actor", "digest",
    "detail", "number", "content", "hash",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a bit of everything: runs that ended in each way, an approval, calls outside a run, a limit."""
    path = tmp_path_factory.mktemp("audit") / "ledger.db"
    with Guard(f"sqlite:///{path}", approver=lambda request: True) as guard:
        guard._store._never_sync = True  # type: ignore[attr-defined]
        pay = guard.tool("pay", compensate=lambda result: None, approve="amount > 100")(lambda amount: f"p-{amount}")
        look = guard.tool("look", effect="read")(lambda n: n)
        with guard.run(id="order", input={"n": 1}) as run:
            look(1)
            pay(500)
            run.output = "done"
        with pytest.raises(LookupError), guard.run(id="undone"):
            pay(5)
            raise LookupError
        look(2)
        guard.set_budget("user:42", "50 USD/day")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)")
    return path


@pytest.fixture
def ledger(written: Path, tmp_path: Path) -> Path:
    """A copy of it to do something to."""
    return Path(shutil.copy(written, tmp_path / "ledger.db"))


def verified(path: Path, run: str | None = None, **how: Any) -> AuditReport:
    return Guard(f"sqlite:///{path}").audit.verify(run, **how)


def do(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    """Change the file behind everybody's back."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement, values)
        connection.commit()


def fetch(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def found(path: Path, **how: Any) -> set[tuple[str, int | None, str]]:
    return {(one.run, one.number, str(one.problem)) for one in verified(path, **how).findings}


def test_what_nobody_touched_is_as_it_was_written(ledger: Path) -> None:
    """All rows are in chains, and records are what their history says."""
    report = verified(ledger)
    assert report.ok, report.findings
    assert (report.rows, report.chains) == (fetch(ledger, "select count(*) from audit")[0][0], 4)
    assert (report.outside, report.forgotten, report.anchored) == (0, 0, 0)
    assert verified(ledger, "order").chains == 1


# -- every single change -----------------------------------------------------------------------------------------------


def _flipped(value: Any, at: int, bit: int) -> Any:
    """``value`` with one bit of it flipped."""
    if value is None:
        return "x"
    if isinstance(value, int):
        return value ^ (1 << bit)
    data = bytearray(value.encode() if isinstance(value, str) else value)
    if not data:
        return b"x" if isinstance(value, bytes) else "x"
    data[at % len(data)] ^= 1 << bit
    return bytes(data)


@pytest.fixture(scope="module")
def touched(written: Path) -> Iterator[Callable[..., tuple[Any, AuditReport]]]:
    """Do something to one row of the ledger, verify, and take it back."""
    rows = fetch(written, "select seq, run_id, number from audit order by seq")
    copy = Path(shutil.copy(written, written.with_name("touched.db")))

    def touch(which: int, change: Callable[[sqlite3.Connection, Any], None]) -> tuple[Any, AuditReport]:
        row = rows[which % len(rows)]
        shutil.copy(written, copy)
        with closing(sqlite3.connect(copy)) as connection:
            connection.text_factory = bytes
            change(connection, row)
            connection.commit()
        return row, verified(copy)

    yield touch
    copy.unlink()


quick = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


@example(which=8, column="namespace", at=8, bit=1)
@quick
@given(which=st.integers(0, 100), column=st.sampled_from(COLUMNS), at=st.integers(0, 300), bit=st.integers(0, 6))
def test_a_flipped_bit_of_any_column_of_any_row_is_found(
    touched: Any, written: Path, which: int, column: str, at: int, bit: int
) -> None:
    """In the row that has it, or, of one that was moved to another chain, in the chain that lost it.

    A chain that lost one of its ends is told by its run, whose record says more than the chain.
    """

    def flip(connection: sqlite3.Connection, row: Any) -> None:
        ((value,),) = connection.execute(f"select {column} from audit where seq = ?", (row[0],))
        kept = value if isinstance(value, int) or column in ("content", "hash") else value and value.decode()
        flipped = _flipped(kept, at, bit)
        kind = "blob" if column in ("content", "hash") else "text"
        marks = "?" if isinstance(flipped, int) else f"cast(? as {kind})"
        connection.execute(f"update audit set {column} = {marks} where seq = ?", (flipped, row[0]))

    (_, run, number), report = touched(which, flip)
    named = {(one.run, each) for one in report.findings for each in _numbers(one)}
    (ends,) = fetch(written, f"select min(number), max(number) from audit where run_id = '{run}'")
    at_an_end = number in ends and any(one.run == run for one in report.findings)
    assert (run, number) in named or at_an_end, report.findings


def _numbers(found: Any) -> range:
    return range(found.number, (found.until or found.number) + 1) if found.number is not None else range(0)


@quick
@given(which=st.integers(0, 100))
def test_a_dropped_row_is_missed(touched: Any, which: int) -> None:
    """By its number; the last of a chain by what its record says."""

    def drop(connection: sqlite3.Connection, row: Any) -> None:
        connection.execute("delete from audit where seq = ?", (row[0],))

    (_, run, number), report = touched(which, drop)
    of_run = [one for one in report.findings if one.run == run]
    assert any(one.problem == "record" or number in _numbers(one) for one in of_run), report.findings


@quick
@given(which=st.integers(0, 100), other=st.integers(0, 100))
def test_two_rows_that_changed_places_are_found(touched: Any, which: int, other: int) -> None:
    """Each of them by its number."""
    swapped: list[Any] = []

    def swap(connection: sqlite3.Connection, row: Any) -> None:
        rows = connection.execute("select seq, number from audit where run_id = ? order by seq", (row[1],)).fetchall()
        mine = next(one for one in rows if one[0] == row[0])
        its = rows[other % len(rows)]
        swapped.extend((mine[1], its[1]))
        for old, new in ((mine[0], -1), (its[0], mine[0]), (-1, its[0])):
            connection.execute("update audit set seq = ? where seq = ?", (new, old))

    (_, run, _), report = touched(which, swap)
    if swapped[0] == swapped[1]:
        return
    named = {each for one in report.findings if one.run == run for each in _numbers(one)}
    assert set(swapped) <= named, report.findings


@quick
@given(which=st.integers(0, 100), after=st.integers(0, 100))
def test_a_row_that_was_put_in_is_found(touched: Any, which: int, after: int) -> None:
    """A copy of another one, at the end or with a number that was free."""

    def insert(connection: sqlite3.Connection, row: Any) -> None:
        names = ", ".join(COLUMNS)
        seq = 1000 if after % 2 else "(select max(seq) + 1 from audit)"
        connection.execute(f"insert into audit (seq, {names}) select {seq}, {names} from audit where seq = ?", row[:1])

    (_, run, number), report = touched(which, insert)
    assert any(one.run == run and one.number == number for one in report.findings), report.findings


# -- without an anchor, and with one -----------------------------------------------------------------------------------


def test_a_truncated_chain_is_found_by_its_records(ledger: Path) -> None:
    """Who takes away the end of a history and leaves the records is caught by them."""
    do(ledger, "delete from audit where run_id = 'undone' and number > 4")
    report = verified(ledger)
    assert {one.run for one in report.findings} == {"undone"}
    assert any("its history ends with" in one.what for one in report.findings)


def _rewritten(path: Path) -> None:
    """What somebody can do who knows all of this and can write to the file: no trace of the run is left."""
    for table in ("audit", "calls", "approvals", "usage"):
        do(path, f"delete from {table} where run_id = 'order'")
    do(path, "delete from runs where id = 'order'")


def test_a_removed_run_needs_an_anchor(ledger: Path, tmp_path: Path) -> None:
    """Without one nobody can tell; with one it is named."""
    anchor = tmp_path / "anchor.jsonl"
    assert verified(ledger, write_anchor=anchor).ok
    assert anchor.stat().st_mode & 0o777 == 0o600
    report = verified(ledger, anchor=anchor)
    assert (report.ok, report.anchored) == (True, 4)
    _rewritten(ledger)
    assert verified(ledger).ok
    assert found(ledger, anchor=anchor) == {("order", None, "truncated")}


def test_a_chain_that_was_written_anew_needs_an_anchor(ledger: Path, tmp_path: Path) -> None:
    """A history that holds together, but is another one."""
    anchor = tmp_path / "anchor.jsonl"
    verified(ledger, write_anchor=anchor)
    _rewritten(ledger)
    with Guard(f"sqlite:///{ledger}") as guard, guard.run(id="order"):
        for n in range(8):
            guard.tool("look", effect="read")(lambda n: n)(n)
    assert verified(ledger).ok
    ((run, _, problem),) = found(ledger, anchor=anchor)
    assert (run, problem) == ("order", "replaced")


def test_a_tail_that_was_taken_away_with_its_records_needs_an_anchor(ledger: Path, tmp_path: Path) -> None:
    """The limit that somebody set, and nothing else is known of."""
    anchor = tmp_path / "anchor.jsonl"
    verified(ledger, write_anchor=anchor)
    do(ledger, "delete from audit where run_id = ''")
    assert not verified(ledger).ok
    do(ledger, "delete from limits")
    assert verified(ledger).ok
    assert found(ledger, anchor=anchor) == {("", None, "truncated")}


def test_an_end_that_was_taken_away_with_its_records_needs_an_anchor(ledger: Path, tmp_path: Path) -> None:
    """A run that is as if it had not gone on: what is left holds together."""
    url, anchor = f"sqlite:///{ledger}", tmp_path / "anchor.jsonl"
    with Guard(url) as guard:
        guard.set_budget("user:7", "1 USD")
        guard.audit.verify(write_anchor=anchor)
    do(ledger, "delete from audit where run_id = '' and number = 2")
    assert not verified(ledger).ok
    do(ledger, "delete from limits where pattern = 'user:7'")
    assert verified(ledger).ok
    assert found(ledger, anchor=anchor) == {("", 2, "truncated")}


def test_what_goes_on_after_an_anchor_is_well(ledger: Path, tmp_path: Path) -> None:
    """New rows and new runs are no change of the old ones."""
    anchor = tmp_path / "anchor.jsonl"
    verified(ledger, write_anchor=anchor)
    with Guard(f"sqlite:///{ledger}") as guard:
        guard.set_budget("user:7", "1 USD")
        with guard.run(id="new"):
            pass
    assert verified(ledger, anchor=anchor).ok


def test_no_anchor_is_written_of_what_is_not_well(ledger: Path, tmp_path: Path) -> None:
    """It would say that it is."""
    do(ledger, "update audit set actor = 'nobody' where number = 2")
    anchor = tmp_path / "anchor.jsonl"
    assert not verified(ledger, write_anchor=anchor).ok
    assert not anchor.exists()


@pytest.mark.parametrize("text", ["", "{}", "[]\n[]", '{"what": "x"}\n{}', "cut"])
def test_what_is_no_anchor_is_refused(ledger: Path, tmp_path: Path, text: str) -> None:
    """Also one that lost its end."""
    anchor = tmp_path / "anchor.jsonl"
    if text == "cut":
        verified(ledger, write_anchor=anchor)
        text = "\n".join(anchor.read_text().splitlines()[:-1])
    anchor.write_text(text)
    with pytest.raises(ConfigurationError, match="no anchor"):
        verified(ledger, anchor=anchor)


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("update calls set state = 'failed' where tool = 'pay' and run_id = 'order'", "ends with done"),
        ("update calls set arguments = replace(arguments, '500', '50') where run_id = 'order'", "arguments"),
        ("update calls set result = '\"p-50\"' where run_id = 'order' and tool = 'pay'", "result"),
        ("update calls set tool = 'look2' where run_id = 'order' and tool = 'look'", "tool"),
        ("update calls set version = 1 where run_id = 'order' and tool = 'pay'", "was changed 1 times"),
        ("delete from calls where run_id = 'order' and tool = 'pay'", "not in the ledger"),
        ("update runs set state = 'failed' where id = 'order'", "ends with completed"),
        ("update runs set output = null where id = 'order'", "output"),
        ("update runs set input = '{}' where id = 'order'", "input"),
        ("update approvals set subject = replace(subject, '500', '50')", "subject"),
        ("update approvals set votes = replace(votes, 'callback', 'webhook')", "votes"),
        ("update approvals set state = 'denied'", "ends with consumed"),
        ("delete from approvals", "not in the ledger"),
        ("delete from audit where run_id = 'order'", "no history"),
    ],
)
def test_a_record_that_is_not_what_its_history_says_is_found(ledger: Path, change: str, said: str) -> None:
    """Arguments, results, states, decisions: of calls, runs and requests."""
    do(ledger, change)
    report = verified(ledger)
    assert {one.run for one in report.findings} == {"order"}
    assert any(said in one.what for one in report.findings), report.findings


IN_ROWS: dict[type[Any], set[str]] = {
    CallRecord: {"id", "namespace", "run_id", "state", "version", "claim_seq"},
    RunRecord: {"id", "namespace", "state", "version"},
    ApprovalRecord: {"id", "namespace", "run_id", "state", "version"},
}
"""What is no part of a content: it is in the rows themselves, or is where and how many they are."""
STAND_IN_ROWS = {"freezes": FreezeRecord, "limits": LimitRecord}
NOT_IN_CHAINS = {
    "budgets": "made anew from the calls", "usage": "what was metered", "rates": "of the last minutes",
    "locks": "as long as their runs go on", "loops": "what repeats within a run", "owners": "who lives",
    "nonces": "what was used once", "hooks": "how far they have read", "deliveries": "the outbox",
    "facts": "of the ledger itself", "migrations": "of its tables", "controls": "whether limits are to be read again",
}  # fmt: skip


def test_every_column_of_every_table_is_covered_or_named_as_not(ledger: Path) -> None:
    """A new column of a record is put into a new format, because rows of the old one are in ledgers."""
    found: dict[str, set[str]] = {}
    names = "select m.name, c.name from sqlite_master m, pragma_table_info(m.name) c where m.type = 'table'"
    for table, column in fetch(ledger, names):
        found.setdefault(table, set()).add(column)
    covered = {"audit": {*COLUMNS, "seq"}}
    for kind, table in ((CallRecord, "calls"), (RunRecord, "runs"), (ApprovalRecord, "approvals")):
        columns = sum(contents.COLUMNS[contents.FORMAT][kind], ())
        assert len(columns) == len(set(columns))
        covered[table] = {*columns} | IN_ROWS[kind]
    covered["calls"].add("seq")  # in which order pages come
    covered |= {table: {field.name for field in fields(kind)} for table, kind in STAND_IN_ROWS.items()}
    assert {table: columns for table, columns in found.items() if table not in NOT_IN_CHAINS} == covered
    assert found.keys() >= NOT_IN_CHAINS.keys()


@pytest.mark.parametrize("kind", IN_ROWS)
def test_whatever_is_written_into_a_column_of_a_record_is_found(ledger: Path, kind: type[Any]) -> None:
    """Of calls, runs and requests: what asked, who asked, until when, under which key, for whom, with which tags."""
    with closing(connect(f"sqlite:///{ledger}")) as store:
        (record,) = {
            CallRecord: [one for one in store.calls_of("default", "order") if one.tool == "pay"],
            RunRecord: [store.get_run("default", "order")],
            ApprovalRecord: store.list_approvals(),
        }[kind]
        rows = store.chained("default", "order", 0, limit=100)

    def findings(record: Any) -> list[Any]:
        histories = Histories("default", "order")
        for row in rows:
            histories.take(row)
        return [*histories.check(record)]

    assert findings(record) == []
    for column in IN_ROWS[kind] - {"id", "namespace", "run_id"} | {*sum(contents.COLUMNS[contents.FORMAT][kind], ())}:
        value = getattr(record, column)
        changed = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value or ''}x"
        assert findings(replace(record, **{column: changed})), column


@pytest.mark.parametrize(
    "change",
    [
        "update calls set scheduled_seq = 0 where tool = 'pay'",
        "update calls set claim_seq = (select max(seq) from audit where audit.call_id = calls.id) where tool = 'pay'",
    ],
)
def test_nobody_moves_a_call_behind_the_line_of_a_commit(ledger: Path, change: str) -> None:
    """What was committed is not undone, and what comes first is undone last: so its place is not for anybody to say."""
    do(ledger, change)
    findings = verified(ledger).findings
    assert {one.run for one in findings} == {"order", "undone"}, findings


def test_who_asked_cannot_be_changed_for_the_moment_of_a_decision(tmp_path: Path) -> None:
    """Taken away, approved by that very person, and put back: the row of the decision says what it was made about."""
    path = tmp_path / "ledger.db"
    with Guard(f"sqlite:///{path}", approver="inbox") as guard:
        wire = guard.tool("wire", approve=True, approval=Approval(four_eyes=True))(lambda amount: amount)
        with pytest.raises(ApprovalPending) as waits, guard.run(id="order", user="ada"):
            wire(5)
        id_ = waits.value.approval_id
        ((asked,),) = fetch(path, "select requested_by from approvals")
        do(path, "update approvals set requested_by = '[]'")
        guard.approvals.approve(id_, by="ada")
        do(path, "update approvals set requested_by = ?", values=(asked,))
    (finding,) = verified(path).findings
    assert "requested_by" in finding.what


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("delete from freezes", "freeze tool:pay: it was set and not lifted, and is not in force"),
        ("update freezes set reason = 'other'", "freeze tool:pay: it is not what was set"),
        ("update freezes set scope = 'tool:x'", "freeze tool:x: it is in force, and nobody set it"),
        (
            "insert into freezes values ('default', 'tool:old', 'r', 'a', 1)",
            "freeze tool:old: it is in force, and nobody",
        ),
        ("update limits set amount = amount * 2", "limit user:42 USD day: it is not what was set"),
        ("delete from limits", "limit user:42 USD day: it was set and not lifted, and is not in force"),
        ("update limits set pattern = 'user:*'", "limit user:* USD day: it is in force, and nobody set it"),
    ],
)
def test_what_operators_did_not_set_is_found(ledger: Path, change: str, said: str) -> None:
    """A freeze or a limit that was taken away, put in or changed by hand; what was lifted and set again is well."""
    with Guard(f"sqlite:///{ledger}") as guard:
        guard.freeze("tool:old", reason="an incident")
        guard.unfreeze("tool:old")
        guard.freeze("tool:pay", reason="an incident")
        guard.set_budget("user:42", "40 USD/day")
        guard.set_budget("user:43", "40 USD/day")
        Accounts(guard._store, "default").unset("user:43")
        report = guard.audit.verify()
        assert report.ok, report.findings
    do(ledger, change)
    assert any(one.what.startswith(said) for one in verified(ledger).findings), verified(ledger).findings


@pytest.mark.parametrize("format_", [0, 1])
def test_a_ledger_of_an_older_format_is_verified(ledger: Path, format_: int) -> None:
    """In format 0 a row does not say of which it is; what goes on in such a ledger is of the newest one."""
    url = f"sqlite:///{ledger}"
    with closing(connect(url)) as store:
        records = {**{one.id: one for one in store.list_approvals(limit=99)}}
        for run in store.list_runs(limit=99):
            records |= {run.id: run, **{call.id: call for call in store.calls_of("default", run.id)}}
    with closing(sqlite3.connect(ledger)) as connection:
        heads: dict[str, Any] = {}
        rows = connection.execute("select * from audit order by seq")
        names = [one[0] for one in rows.description]
        for row in [dict(zip(names, one, strict=True)) for one in rows.fetchall()]:
            said = AuditRow(**{field.name: row[field.name] for field in fields(AuditRow)})
            about = records.get(said.call_id or said.approval_id or said.run_id) if row["content"] else None
            older = _format_1 if format_ else _format_0
            content = None if about is None else older(about, is_new=row["from_state"] is None)
            heads[said.run_id] = chain.link(heads.get(said.run_id, chain.START), row["seq"], said, content)
            values = (content, heads[said.run_id][1], row["seq"])
            connection.execute("update audit set content = ?, hash = ? where seq = ?", values)
        connection.commit()
    report = verified(ledger)
    assert report.ok, report.findings
    with Guard(url) as guard, guard.run(id="order", reopen=True, input={"n": 1}):
        guard.tool("look", effect="read")(lambda n: n)(9)
    report = verified(ledger)
    assert report.ok, report.findings
    do(ledger, "update calls set arguments = replace(arguments, '500', '50')")
    assert any("arguments" in one.what for one in verified(ledger).findings)


def _format_0(record: Any, *, is_new: bool) -> bytes | None:
    """As the versions before 0.1.0 wrote it."""
    columns = contents.COLUMNS_0[type(record)]
    if is_new:
        record = replace(record, **{name: "[]" if name == "votes" else None for name in columns.changes})
    texts = [getattr(record, name) for name in (*(columns.once if is_new else ()), *columns.changes)]
    if not is_new and not any(texts):
        return None
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()).digest()


def _format_1(record: Any, *, is_new: bool) -> bytes:
    """As the versions wrote it that did not cover who had a call, and its place in the order."""
    once, stands, changes = contents.COLUMNS[1][type(record)]
    hashed = (*((once,) if is_new else ()), *((stands,) if stands else ()), changes)
    values = [[getattr(record, name) for name in names] for names in hashed]
    plain = [[int(one) if isinstance(one, bool) else one for one in of] for of in values]
    texts = [json.dumps(of, ensure_ascii=False, separators=(",", ":")).encode() for of in plain]
    return b"\x01" + b"".join(hashlib.sha256(text).digest() for text in texts)


@pytest.mark.parametrize("content", [b"\x03" + bytes(32), b"\x02", b"", bytes(64)])
def test_a_content_of_no_known_format_is_found(ledger: Path, content: bytes) -> None:
    """And not taken for nothing, as one of a later version would be."""
    do(ledger, "update audit set content = ? where event = 'claim'", values=(content,))
    assert any("are not what was recorded" in one.what for one in verified(ledger).findings)


def test_a_guard_verifies_an_older_ledger_as_it_opens_one(tmp_path: Path) -> None:
    """It migrates it where it would anyway, also if that is the first thing it is asked for."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"")
    with pytest.raises(SchemaOutdated), Guard(f"sqlite:///{path}", migrate="check") as guard:
        guard.audit.verify()
    with Guard(f"sqlite:///{path}") as guard:
        assert guard.audit.verify().ok


# -- calls outside runs, and what has no history -----------------------------------------------------------------------


@pytest.fixture
def outside(guard: Guard) -> Guard:
    """A guard that paid outside a run, once after it asked, and once within one."""
    pay = guard.tool("pay", effect="write", key="order")(lambda order: f"p-{order}")
    ask = guard.tool("ask", effect="write", key="order", approve=True)(lambda order: order)
    pay("o-1")
    with guard.override(approver=lambda request: True):
        ask("o-2")
    with guard.run(id="order"):
        pay("o-3")
    pay("o-4")
    return guard


_OF_SESSION = "(select id from runs where name = 'session')"
_O_1 = "(select id from (select id from calls where \"key\" like '%o-1%') as one)"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([f"delete from calls where id = {_O_1}"], "call {} is in the history (done) and not in the ledger"),
        ([f"update calls set run_id = 'order' where id = {_O_1}"], "call {}: it has no history"),
        ([f"update calls set run_id = 'ghost' where id = {_O_1}"], "call {}: it has no history"),
        ([f"update calls set run_id = '' where id = {_O_1}"], "call {} is in the history (done) and not in the ledger"),
        ([f"update calls set namespace = 'other' where id = {_O_1}"], "is in the history (done) and not in the ledger"),
        ([f"delete from audit where call_id = {_O_1}", f"delete from calls where id = {_O_1}"],
         "no row says that it was pruned"),
        ([f"delete from audit where call_id = {_O_1}"], "call {}: it has no history"),
        ([f"update calls set run_id = {_OF_SESSION} where run_id = 'order'"], "not in the ledger"),
        (["delete from approvals"], "is in the history (consumed) and not in the ledger"),
        (["update approvals set run_id = 'order'"], "it has no history"),
        (["update approvals set run_id = 'ghost'"], "it has no history"),
        ([f"delete from audit where run_id = {_OF_SESSION}"], "call {}: it has no history"),
        ([f"delete from audit where run_id = {_OF_SESSION}", "delete from runs where name = 'session'"],
         "call {}: it has no history"),
    ],
)  # fmt: skip
def test_a_call_or_request_outside_runs_cannot_be_taken_away_or_moved_unseen(
    outside: Guard, sql: Sql, tmp_path: Path, changes: list[str], said: str
) -> None:
    """As in a run: each record is in the chain of its run, and each history leads to its record; with an anchor too."""
    anchor = tmp_path / "anchor.jsonl"
    assert outside.audit.verify(write_anchor=anchor).ok
    ((first,),) = sql(f"select id from calls where id = {_O_1}")
    outside.close()
    for change in changes:
        sql(change)
    for how in ({}, {"anchor": anchor}):
        found = [one.what for one in outside.audit.verify(**how).findings]
        assert any(said.format(first) in what for what in found), found


def test_what_an_interrupted_prune_left_is_no_change(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that names the calls is written with their deletion; the next prune takes their rows and that one."""
    look = guard.tool("look", effect="read")(lambda n: n)
    for n in range(3):
        look(n)
    (session,) = guard.runs.list()
    with monkeypatch.context() as patched:
        patched.setattr(guard._store, "forget_audit", lambda *_, **__: (0, None))
        assert guard.prune(older_than=0).calls == 3
    events = [row.event for row in guard._store.audit_of("default", session.id)]
    assert (events.count("claim"), events[-1]) == (3, "forget.records")
    report = guard.audit.verify()
    assert report.ok, report.findings
    look(9)
    assert guard.prune(older_than=0).audit_rows == 8
    assert [row.event for row in guard._store.audit_of("default", session.id)] == ["run.open", "forget"]
    assert guard.audit.verify().ok


def test_a_call_that_was_taken_away_is_not_covered_up_by_a_prune(outside: Guard, sql: Sql) -> None:
    """Only rows of calls that the prune itself forgot go; a record that comes back is found, too."""
    outside.close()
    sql(f"delete from calls where id = {_O_1}")
    outside.tool("look", effect="read")(lambda n: n)(1)
    assert outside.prune(older_than=0).calls == 1
    assert [one.problem for one in outside.audit.verify().findings] == ["record"]


# -- how long it takes -------------------------------------------------------------------------------------------------


def _steps_of(path: Path, runs: int, job: Callable[[Audit], object]) -> int:
    """How many steps SQLite makes for ``job`` on a ledger of so many runs, with a request in each."""
    with Guard(f"sqlite:///{path}", approver=lambda request: True) as guard:
        guard._store._never_sync = True  # type: ignore[attr-defined]
        pay = guard.tool("pay", effect="write", approve=True)(lambda n: n)
        for n in range(runs):
            with guard.run(id=f"r-{n}"):
                pay(n)
        for n in range(runs):
            pay(n)
        audit, steps = guard.audit, 0
        opening = audit._open

        def count() -> int:
            nonlocal steps
            steps += 10
            return 0

        def opened() -> Any:
            store = opening()
            store.facts("")
            store._connection.set_progress_handler(count, 10)  # type: ignore[attr-defined]
            return store

        audit._open = opened  # type: ignore[method-assign]
        job(audit)
        return steps


@pytest.mark.parametrize(
    ("what", "most"),
    [
        (lambda audit: audit.verify(), 2.4),
        (lambda audit: list(audit.rows()), 2.4),
        (lambda audit: audit.verify("r-7"), 1.2),
        (lambda audit: list(audit.rows("r-7")), 1.2),
    ],
    ids=["verify", "export", "verify one run", "export one run"],
)
def test_twice_the_runs_take_twice_the_steps_and_one_run_takes_the_same(
    tmp_path: Path, what: Callable[[Audit], object], most: float
) -> None:
    """Every statement is answered by an index, from where the one before it ended."""
    few, many = (_steps_of(tmp_path / f"{runs}.db", runs, what) for runs in (40, 80))
    assert many / few < most


# -- what was pruned, what is old --------------------------------------------------------------------------------------


def test_what_was_pruned_is_no_change(ledger: Path, tmp_path: Path) -> None:
    """A row says who took away what, also to who has an anchor from before."""
    anchor = tmp_path / "anchor.jsonl"
    verified(ledger, write_anchor=anchor)
    with Guard(f"sqlite:///{ledger}") as guard:
        guard.tool("look", effect="read")(lambda n: n)(7)
        assert guard.prune(older_than=0).runs == 3
        report = guard.audit.verify(anchor=anchor)
        assert report.ok, report.findings
        assert report.forgotten > 20
        (row,) = guard._store.audit_of("default", "order")
        assert (row.event, row.to_state) == ("forget", "forgotten")
        with guard.run(id="order"):
            pass
        assert guard.audit.verify(anchor=anchor).ok


@pytest.mark.parametrize("between", ["", "keyed", "keyed keyed"])
def test_what_was_pruned_again_and_again_is_no_change(guard: Guard, between: str) -> None:
    """Of calls outside a run, whose session goes on; also where some of them stay in between."""
    look = guard.tool("look", effect="read")(lambda n: n)
    pay = guard.tool("pay", key="n")(lambda n: n)
    stays = iter(range(9))
    for n in range(3):
        look(n)
        for _ in between.split():
            pay(next(stays))
            look(n)
        assert guard.prune(older_than=0).calls == 1 + len(between.split())
        report = guard.audit.verify()
        assert report.ok, report.findings


@pytest.mark.parametrize("days", ["pFlpflplfF", "plpflpflplfF"])
def test_what_is_pruned_piece_by_piece_is_no_change(guard: Guard, days: str) -> None:
    """What stays between two pieces may be a row that says what was pruned, and what was before it goes later."""
    look = guard.tool("look", effect="read")(lambda n: n)
    pay = guard.tool("pay", key="n")(lambda n: n)
    for number, what in enumerate(days):
        if what in "lp":
            (look if what == "l" else pay)(number)
        else:
            guard.prune(older_than=0, forget_keys=what == "F")
        assert guard.audit.verify().ok, guard.audit.verify().findings


def test_a_deletion_that_says_it_was_a_prune_must_say_so(ledger: Path) -> None:
    """A row that was altered to say so is found; without it the rows are missing."""
    with Guard(f"sqlite:///{ledger}") as guard:
        look = guard.tool("look", effect="read")(lambda n: n)
        for n in range(3):
            look(n)
        guard.prune(older_than=0)
        for n in range(3):
            look(n)
        session = guard.runs.list()[0].id
    ((detail,),) = fetch(ledger, f"select detail from audit where event = 'forget' and run_id = '{session}'")
    assert verified(ledger).ok
    ((first, last, digest),) = json.loads(detail)
    do(ledger, f"delete from audit where number = {last + 3} and run_id = '{session}'")
    assert any(one.problem == "missing" and one.number == last + 3 for one in verified(ledger).findings)
    said = json.dumps([[first, last, digest], [last + 3, last + 3, "00" * 32]])
    do(ledger, f"update audit set detail = '{said}' where event = 'forget' and run_id = '{session}'")
    assert any(one.problem == "altered" for one in verified(ledger).findings)


def test_rows_from_before_there_were_chains_are_outside(tmp_path: Path) -> None:
    """They are told, and never said to be verified; no later row gets away with it."""
    path = tmp_path / "old.db"
    with Guard(f"sqlite:///{path}") as guard, guard.run(id="old"):
        guard.tool("look", effect="read")(lambda n: n)(1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update audit set number = null, content = null, hash = null")
        connection.execute("insert into facts select '', 'audit chained from', max(seq) + 1 from audit")
        connection.commit()
    with Guard(f"sqlite:///{path}") as guard:
        with guard.run(id="old", reopen=True):
            guard.tool("look", effect="read")(lambda n: n)(2)
        report = guard.audit.verify()
    assert report.ok, report.findings
    assert report.outside == 4
    assert report.rows > 0
    do(path, "update audit set number = null, content = null, hash = null where number = 1")
    assert ("old", None, "unchained") in found(path)


def test_a_ledger_of_an_older_version_begins_its_chains_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The migration marks where."""
    from sagaspan.stores import _migrate

    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        known = _migrate.migrations("sqlite")
        monkeypatch.setattr(_migrate, "migrations", lambda _: known[:9])
        _migrate.migrate(connection, "old", apply=True)
        monkeypatch.undo()
        connection.execute(
            "insert into audit (at_us, namespace, run_id, event, to_state, actor) "
            "values (1, 'default', 'r', 'run.open', 'running', 'a')"
        )
    with Guard(f"sqlite:///{path}") as guard, guard.run(id="new"):
        pass
    report = verified(path)
    assert (report.outside, report.rows) == (1, 2)
    assert connect(f"sqlite:///{path}").facts("") == {"audit chained from": "2"}


def test_a_name_in_the_environment_decides_nothing(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who resolves a call, sets a limit or prunes is the user of the operating system."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "alice")

    def lost() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        guard.tool("pay", effect="write")(lost)()
    (call,) = guard.calls.list()
    guard.calls.resolve(call.id, "did-not-happen", note="looked")
    guard.set_budget("user:42", "50 USD/day")
    rows = [row for row in guard.audit.rows() if row["event"] in ("limit.set", "disprove")]
    guard.prune(older_than=0)
    rows += [row for row in guard.audit.rows() if row["event"] == "forget"]
    assert len(rows) == 3
    assert {row["actor"] for row in rows} == {owner.os_user()}


# -- export ------------------------------------------------------------------------------------------------------------


def test_an_export_says_who_approved_what_by_which_channel_for_which_digest(ledger: Path, tmp_path: Path) -> None:
    """One JSON document a line, with all that the hash is over."""
    guard = Guard(f"sqlite:///{ledger}")
    count = guard.audit.export(tmp_path / "out.jsonl", run="order")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == count == len(fetch(ledger, "select 1 from audit where run_id = 'order'"))
    (approved,) = (row for row in rows if row["event"] == "approval.approve")
    (request,) = guard.approvals.list(status=())
    said = {name: approved[name] for name in ("tool", "channel", "digest", "approval_id", "to_state")}
    assert said == {"tool": "pay", "channel": "callback", "digest": request.digest, "approval_id": request.id,
                    "to_state": "approved"}  # fmt: skip
    assert approved["actor"]
    assert approved["at"].startswith("20")
    assert all(len(row["hash"]) == 64 for row in rows)
    guard.audit.export(tmp_path / "out.json", run="order", format="json")
    assert json.loads((tmp_path / "out.json").read_text()) == rows


def test_an_export_is_verified_by_what_the_docs_say(ledger: Path, tmp_path: Path) -> None:
    """With nothing of ours."""
    (code,) = re.findall(r"```python\n(def verify.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {"json": json, "hashlib": hashlib}
    exec(code, names)
    Guard(f"sqlite:///{ledger}").audit.export(tmp_path / "out.jsonl", run="order")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    names["verify"](rows)
    rows[2]["actor"] = "nobody"
    with pytest.raises(AssertionError, match="3"):
        names["verify"](rows)


def test_of_nothing_an_export_is_an_empty_document(ledger: Path, tmp_path: Path) -> None:
    """Valid JSON whatever there is."""
    guard = Guard(f"sqlite:///{ledger}")
    assert guard.audit.export(tmp_path / "out.json", run="none", format="json") == 0
    assert json.loads((tmp_path / "out.json").read_text()) == []


def test_agents_go_on_while_it_is_verified(guard: Guard, caller: Caller) -> None:
    """It reads beside them, also of the run that goes on."""
    look = caller.tool(guard, "look", effect="read")(lambda n: n)

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(look, 1)
            report = await guard.audit.averify()
            assert report.ok, report.findings
            await caller.call(look, 2)
        assert (await guard.audit.averify("a")).rows == 6

    if caller.is_async:
        caller.play(job)


def test_what_is_encrypted_is_verified_without_its_key(tmp_path: Path) -> None:
    """Hashes are over what is stored, and who approved is readable."""
    from tests.test_codec import FernetCodec, new_key

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Guard(url, codec=FernetCodec(new_key()), approver=lambda request: True) as guard:
        pay = guard.tool("pay", effect="write", approve=True)(lambda amount: f"p-{amount}")
        with guard.run(id="order", input={"n": 1}) as run:
            pay(5)
            run.output = "done"
    report = Guard(url).audit.verify()
    assert report.ok, report.findings
    assert [row["channel"] for row in Guard(url).audit.rows() if row["event"] == "approval.approve"] == ["callback"]
    do(tmp_path / "ledger.db", "update calls set result = arguments")
    assert not Guard(url).audit.verify().ok
