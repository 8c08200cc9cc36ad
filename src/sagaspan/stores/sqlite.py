"""The embedded store: one SQLite file in WAL mode, one connection a process.

A claim is committed with ``synchronous=FULL``, or in a crowd flushed with others (``_sqlite_flushing``); what follows
it is not synced by itself. The WAL is a prefix log, so the next claim's sync makes every earlier settle durable too:
no later effect can rest on a lost result (rule book, 2).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sagaspan import _clock as clock
from sagaspan import _fork as fork
from sagaspan._home import NAME as HOME_NAME
from sagaspan._home import make as make_home
from sagaspan._reentry import is_inside, once
from sagaspan.exceptions import StoreError, StoreUnavailable
from sagaspan.ledger.records import AuditRow, LeaseRecord
from sagaspan.ledger.seal import Seal
from sagaspan.ledger.store import SAVED, Booked, Change, Commit
from sagaspan.stores import _columns as columns
from sagaspan.stores import _sqlite_audit as audit
from sagaspan.stores import _sqlite_budgets as budgets
from sagaspan.stores._forgetting import Runs, SqlForgets
from sagaspan.stores._migrate import current_version, migrate, migrations, refuse_if_migrated
from sagaspan.stores._mounts import MOUNTINFO, refuse_network_files
from sagaspan.stores._reading import marks
from sagaspan.stores._sleeping import Sleeper
from sagaspan.stores._sqlite_audit import Chains
from sagaspan.stores._sqlite_backup import Backup, Progress, copy_ledger
from sagaspan.stores._sqlite_changes import save_all
from sagaspan.stores._sqlite_files import LedgerFiles
from sagaspan.stores._sqlite_flushing import Flushing

R = TypeVar("R")

BUSY_SECONDS: Final = 10.0
"""How long to wait for a lock of another process; who queues up behind one of ours waits twice as long at most."""

PRIMED_BYTES: Final = 4_200_000
"""Past ``wal_autocheckpoint`` (1000 pages): a WAL that never grows while it is written commits a third faster."""

migrations("sqlite")  # read now: a process that is forked in its first call must not meet imports halfway

FORK_SECONDS: Final = 15.0
"""How long a fork waits for who is in the middle of SQLite; longer than a statement waits for another process."""

_stores: Final[weakref.WeakSet[SqliteStore]] = weakref.WeakSet()
_forking: Final = threading.local()
_inherited: Final[list[tuple[LedgerFiles, sqlite3.Connection]]] = []
"""Connections that could not be closed before a fork: a child must not touch them, not even to close them."""


def _before_fork() -> None:
    """Close every connection, so that SQLite knows of no open file in the child.

    It keeps locks by process in its memory, and a child inherits that memory but no lock: a child that opened the
    ledger would hold nothing, and the last of its parent's processes to close would delete the WAL under it.
    """
    _forking.closed = [store for store in sorted(_stores, key=id) if store._close_to_fork()]  # noqa: SLF001 - one room


def _after_fork_in_parent() -> None:
    for store in _forking.closed:
        store._in_use.release()  # noqa: SLF001 - the same room
        store._lock.release()  # noqa: SLF001 - the same room
        store._wake_next()  # noqa: SLF001 - the same room


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._begin_in_child(closed=store in _forking.closed)  # noqa: SLF001 - the same room


fork.hooks(before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)

_RENEW: Final = f"""
insert into owners ({", ".join(columns.LEASE_COLUMNS)}) values ({marks(columns.LEASE_COLUMNS)})
    on conflict (owner) do update
   set renewed_us = excluded.renewed_us, until_us = excluded.until_us, until_boot_us = excluded.until_boot_us,
       ttl_us = excluded.ttl_us, beats = beats + 1
"""  # noqa: S608
_PUT_FACT: Final = "insert into facts (namespace, name, value) values (?, ?, ?) on conflict do nothing"
_CHECKPOINT: Final = "pragma wal_checkpoint(passive)"
_IMMUTABLE: Final = "?immutable=1"
_CHANGE_FACT: Final = "update facts set value = ? where namespace = ? and name = ? and value = ?"

_EVERYBODY_S: Final = (sqlite3.OperationalError,)
"""A locked, full or failing file is the matter of everybody who waits to write; other errors are of one request."""


class _Request(Sleeper):
    """Changes that wait to be written, and how that ended; ``number`` is what is still to be flushed, or 0."""

    __slots__ = ("_commit", "_error", "changes", "ended", "number", "synced")

    def __init__(self, changes: Sequence[Change], synced: bool) -> None:
        super().__init__()
        self.changes = changes
        self.synced = synced
        self.ended = False
        self.number = 0
        self._commit = SAVED
        self._error: StoreError | None = None

    def end(self, commit: Commit = SAVED, *, number: int = 0, error: StoreError | None = None) -> None:
        self._commit, self._error, self.number, self.ended = commit, error, number, True
        self.wake()

    def outcome(self) -> Commit:
        if self._error is not None:
            raise self._error
        return self._commit


class SqliteStore(SqlForgets[sqlite3.Connection]):
    """A ledger in one file (0600), opened at first use and again in a forked child."""

    keeps_time = False
    _steers = True

    def __init__(
        self,
        path: Path,
        *,
        migrate: str = "auto",
        durability: str = "normal",
        create: bool = True,
        mountinfo: Path = MOUNTINFO,
    ) -> None:
        self.path = path = Path(os.path.realpath(path))  # one name for one file, wherever the process goes
        self.url = f"sqlite:///{path}"
        self.seal = Seal(self)
        self._migrate = migrate == "auto"
        self._any_schema = False
        self._always_sync = durability == "full"
        self._never_sync = durability == "off"  # for tests: survives its process, not a power cut
        self._create = create
        self._mountinfo = mountinfo
        self._lock = fork.new_lock()
        self._in_use = fork.new_sign()
        self._queue: deque[_Request] = deque()
        self._chains = Chains()
        self._flushing = Flushing(path)
        self._files = LedgerFiles(path)
        self._connection: sqlite3.Connection | None = None
        self._usable = True
        self._done: list[str] = []
        _stores.add(self)

    def _close_to_fork(self) -> bool:
        """Close the connection, and let nobody open it before ``_lock`` is released; False if it stays in use."""
        if is_inside(self._lock) or not self._lock.acquire(timeout=FORK_SECONDS):
            return False
        try:
            self._close()
        except (sqlite3.Error, StoreUnavailable):
            self._lock.release()
            return False
        self._in_use.acquire()
        return True

    def _begin_in_child(self, *, closed: bool) -> None:
        """Start with nothing open and nobody waiting, whatever the parent was doing."""
        self._queue = deque()
        self._flushing.begin()
        self._usable = closed
        if self._connection is not None:
            _inherited.append((self._files, self._connection))
            self._connection, self._files = None, LedgerFiles(self.path)

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """Save all changes in one transaction, or none of them; see ``Store.commit``.

        A caller who finds the connection free writes for itself at once. Those who come meanwhile queue up and sleep,
        and the next of them writes for all. What is to be synced is flushed then, while others write: one flush for a
        crowd.
        """
        once(self._lock, self)
        if self.seal.active:
            changes = [self.seal.closed(change) for change in changes]
        request = _Request(changes, (synced or self._always_sync) and not self._never_sync)
        return self._commit_synced(request) if request.synced else self._commit(request)

    def _commit_synced(self, request: _Request) -> Commit:
        self._flushing.comes()
        try:
            commit = self._commit(request)
            if request.number:
                self._flushing.flush(request.number)
            return commit
        finally:
            self._flushing.goes()

    def _commit(self, request: _Request) -> Commit:
        def write(connection: sqlite3.Connection) -> None:
            if not request.ended:
                self._write_all(connection)

        try:
            self._queue.append(request)
            while not request.ended:
                if self._in_use.locked():
                    request.sleep()
                else:
                    self._with(write)
        except BaseException as error:
            # Whoever was told that it failed must not find it done by the next writer: no half-claimed call.
            with self._lock, self._in_use, contextlib.suppress(ValueError):
                self._queue.remove(request)
            self._wake_next()
            if not (request.ended and isinstance(error, Exception)):  # else somebody had written it already
                raise
        return request.outcome()

    def _write_all(self, connection: sqlite3.Connection) -> None:
        self._begin(connection)
        batch = self._queue.copy()  # they stay in it: if this is interrupted, whoever waits next writes for the others
        self._write_batch(connection, [request for request in batch if self._is_of_use(request)])
        while self._queue and self._queue[0].ended:
            self._queue.popleft()

    def _is_of_use(self, request: _Request) -> bool:
        """Whether it can be kept as it asks to be: a flush may have failed since it came."""
        if request.synced and not request.ended:
            try:
                self._flushing.check()
            except StoreUnavailable as error:
                request.end(error=error)
        return not request.ended

    def _write_batch(self, connection: sqlite3.Connection, batch: Sequence[_Request]) -> None:
        if not batch:
            return
        try:
            _write(connection, batch, self._chains, self._flushing, self._files, str(self.path))
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if len(batch) > 1 and not isinstance(error, _EVERYBODY_S):
                for request in batch:  # what is wrong with one of them is no matter of the others
                    self._write_batch(connection, [request])
                return
            for request in batch:
                request.end(error=self._error(error))

    def _error(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DataError):
            return self._unavailable(error)
        unfit = StoreError(f"the ledger {self.path} cannot hold a value of this record ({error}); nothing was started")
        unfit.__cause__ = error
        return unfit

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailable:
        if _is_of_flush(error):
            return self._flushing.failed(error)
        return StoreUnavailable(_explain(self.path, error))

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Leave nothing of who was interrupted, by a second Ctrl-C even while it was rolled back.

        And write a long log into the ledger before anything is added to it: no claim follows if its flush fails.
        """
        if connection.in_transaction:
            connection.execute("rollback")
        if self._flushing.is_long:
            self._checkpoint(connection)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Any other failure leaves the log as it was, and what is in it as safe: it is only longer at the next try."""
        self._files.check()
        try:
            connection.execute(_CHECKPOINT).fetchall()
        except sqlite3.Error as error:
            if _is_of_flush(error):
                self._flushing.failed(error)

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected``; see ``Store.put_fact``."""

        def put(connection: sqlite3.Connection) -> bool:
            self._begin(connection)
            self._flushing.check()
            self._files.check()
            connection.execute("pragma synchronous = full")
            if expected is None:
                saved = connection.execute(_PUT_FACT, (namespace, name, value))
            else:
                saved = connection.execute(_CHANGE_FACT, (value, namespace, name, expected))
            return saved.rowcount == 1

        return self._with(put)

    def renew(self, lease: LeaseRecord) -> None:
        """Save a lease under its owner; see ``Store.renew``. Every third of a lease it also looks for its files.

        After a flush that failed, too: it says that this process lives, as it does, and no disk has to know it. Without
        it others would take over what still runs.
        """

        def save(connection: sqlite3.Connection) -> None:
            self._files.check()
            self._begin(connection)
            connection.execute("pragma synchronous = normal")
            connection.execute(_RENEW, columns.lease_values(lease))

        self._with(save)

    # -- reading -------------------------------------------------------------------------------------------

    def booked_by_calls(self, namespace: str | None = None) -> list[Booked]:
        """Each budget of which anything was used, and what calls say of it; see ``Store.booked_by_calls``."""
        return self._with(lambda connection: budgets.booked_by_calls(connection, namespace))

    def chains(self, after: tuple[str, str] | None, *, limit: int) -> list[tuple[str, str]]:
        """The namespaces and runs that have audit rows, in order, from ``after`` on."""
        return self._fetch(audit.CHAINS.format(behind=audit.BEHIND if after else ""), (*(after or ()), limit))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read in it is of one moment; for a store that nobody else uses meanwhile."""
        self._with(lambda connection: connection.execute("begin"))
        try:
            yield
        finally:
            self._with(lambda connection: connection.execute("rollback"))

    # -- forgetting ----------------------------------------------------------------------------------------

    def _rows(self, connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
        return connection.execute(query, values).fetchall()

    def _do(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> int:
        return connection.execute(statement, values).rowcount

    def _hold(self, connection: sqlite3.Connection, runs: Runs) -> None:
        """Who writes has the whole file."""

    def _append(self, connection: sqlite3.Connection, row: AuditRow) -> None:
        self._chains.append(connection, row)

    def spare_bytes(self) -> int:
        """The room of the free pages in the file."""
        ((pages,),), ((size,),) = self._fetch("pragma freelist_count", ()), self._fetch("pragma page_size", ())
        return int(pages) * int(size)

    def compact(self) -> None:
        """Write the file anew without its free pages; writers wait meanwhile."""

        def write_anew(connection: sqlite3.Connection) -> None:
            self._files.check()
            connection.execute("vacuum")
            connection.execute("pragma wal_checkpoint(truncate)")  # the whole file went through the WAL

        self._with(write_anew)

    def migrate(self, *, check: bool = False) -> list[str]:
        """See ``Store.migrate``: opening the file does it, too, unless it was told to check."""
        self.close()
        before, self._migrate = self._migrate, not check
        try:
            return self._with(lambda _: self._done)
        finally:
            self._migrate = before

    def back_up(self, file: Path, *, overwrite: bool = False, progress: Progress = lambda *_: None) -> Backup:
        """Write a verified copy of this moment to ``file``, also of a ledger of another version.

        Others read and write meanwhile; those who use this store wait.
        """
        self.close()
        self._any_schema = True
        try:
            return self._with(
                lambda connection: copy_ledger(connection, self.path, file, overwrite=overwrite, progress=progress)
            )
        finally:
            self.close()
            self._any_schema = False

    def describe(self) -> dict[str, str | int]:
        """Facts for ``sagaspan doctor``."""

        def look(connection: sqlite3.Connection) -> dict[str, str | int]:
            facts: dict[str, str | int] = {
                "url": self.url,
                "schema": current_version(connection, str(self.path)),
            }
            for table in ("runs", "calls", "audit"):
                (facts[table],) = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
            (facts["quick_check"],) = connection.execute("pragma quick_check").fetchone()
            return facts

        return self._with(look)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with once(self._lock, self), self._in_use:
            self._close()
            self._files.forget()
        self._wake_next()

    def _close(self) -> None:
        self._flushing.close()
        self._files.close()
        self._connection = None

    # -- the connection ------------------------------------------------------------------------------------

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        return self._with(lambda connection: _fetch(connection, query, values))

    def _written(self, job: Callable[[sqlite3.Connection], R]) -> R:
        """One transaction that deletes; it need not be synced: what comes back after a power cut is deleted again."""

        def written(connection: sqlite3.Connection) -> R:
            self._begin(connection)
            self._files.check()
            connection.execute("pragma synchronous = normal")
            try:
                connection.execute("begin immediate")
                done = job(connection)
                connection.execute("commit")
            except BaseException:
                self._chains.forget()
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
            return done

        return self._with(written)

    def _with(self, job: Callable[[sqlite3.Connection], R]) -> R:
        """``job`` with the connection, which nobody else uses meanwhile.

        Its lock is taken by the interpreter itself, in one step with the ``with`` that gives it back: behind a
        context manager that is written in Python, a Ctrl-C between the two would leave it taken.
        """
        try:
            with once(self._lock, self), self._in_use:
                try:
                    return job(self._connection or self._connect())
                except sqlite3.Error as error:
                    raise self._unavailable(error) from error
        finally:
            self._wake_next()

    def _connect(self) -> sqlite3.Connection:
        self._connection = connection = self._open()
        return connection

    def __str__(self) -> str:
        return f"the ledger {self.path}"

    def _wake_next(self) -> None:
        """The connection is free: let who waits longest write."""
        if self._queue:
            with contextlib.suppress(IndexError):  # somebody has taken it meanwhile
                self._queue[0].wake()

    def _address(self) -> str:
        """The file as SQLite opens it: one that is only read, and lies where nothing can be written, as it is."""
        beside = Path(f"{self.path}-wal")
        immutable = not self._create and not os.access(self.path.parent, os.W_OK) and not beside.exists()
        return f"{self.path.as_uri()}{_IMMUTABLE}" if immutable else self.path.as_uri()

    def _open(self) -> sqlite3.Connection:
        if not self._usable:
            raise StoreUnavailable(
                f"this process was forked while its parent was in the middle of the ledger {self.path}, and cannot use "
                "it; fork while nothing is being written, or start processes with spawn"
            )
        self._files.refuse_another()
        refuse_network_files(self.path, self._mountinfo)
        self._prepare_file()
        address = self._address()
        self._files.open(patience=BUSY_SECONDS)
        connection = sqlite3.connect(
            address,
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        try:
            version = current_version(connection, str(self.path))  # before anything is written to what may not be ours
            _write_ahead(connection)
            self._files.hold(connection, has_log=not address.endswith(_IMMUTABLE))
            if not (version and self._any_schema):
                self._done = migrate(connection, str(self.path), apply=self._migrate)
            if self._flushing.open():
                connection.execute("pragma wal_autocheckpoint = 0")
            if self._create and not self._never_sync:
                self._prime(connection)
        except BaseException:
            self._flushing.close()
            self._files.close()
            connection.close()
            raise
        self._chains.forget()
        return connection

    def _prepare_file(self) -> None:
        try:
            if self.path.is_file():
                return
            if not self._create:
                raise StoreUnavailable(
                    f"there is no ledger at {self.path} yet; run an agent under a guard first, name it with --store, "
                    "or make it: sagaspan migrate"
                )
            if self.path.parent.name == HOME_NAME:
                make_home(self.path.parent)
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite gives WAL and SHM the same mode
        except OSError as error:
            raise StoreUnavailable(
                f"the ledger {self.path} cannot be made ({error.strerror}); name a path you can write with store="
            ) from error

    def _prime(self, connection: sqlite3.Connection) -> None:
        """See that the log has grown, and that all of it is in the ledger.

        Whoever wrote it may have died of a flush that failed, and nothing is to be claimed behind what that has lost.
        """
        wal = Path(f"{self.path}-wal")
        if not wal.exists() or wal.stat().st_size < PRIMED_BYTES:
            connection.execute("begin immediate")
            connection.execute("create table priming (filler blob)")
            connection.execute("insert into priming values (zeroblob(?))", (PRIMED_BYTES,))
            connection.execute("drop table priming")
            connection.execute("commit")
        self._checkpoint(connection)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite does not wait for the lock that it takes: two who open a new ledger at once would fail."""
    deadline = clock.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or clock.monotonic() >= deadline:
                raise
            clock.sleep(0.01)
        else:
            return


def _fetch(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
        return _fetch_damaged(connection, query, values)


def _fetch_damaged(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """As ``fetchall`` where a text is not UTF-8: one damaged row must not hide all others."""
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.text_factory = str


def _write(
    connection: sqlite3.Connection, batch: Sequence[_Request], chains: Chains, flushing: Flushing, files: LedgerFiles,
    where: str,
) -> None:  # fmt: skip
    """Write a batch in one transaction; each request in it is still all or nothing.

    What is not synced is also not written to files that were replaced: it would overwrite commits of others there.
    """
    execute = connection.execute
    synced = True in [request.synced for request in batch]
    flushed_later = synced and flushing.is_crowded
    level = "full" if synced and not flushed_later else "normal"
    results: list[Commit] = []
    execute(f"pragma synchronous = {level}")
    try:
        execute("begin immediate")
        refuse_if_migrated(connection, where)
        if len(batch) == 1:
            results = [save_all(connection, batch[0].changes, chains)]
        else:
            results = [_save_apart(connection, request, chains) for request in batch]
        if any(results):
            files.check(synced=synced)
            execute("commit")
            if synced:
                files.check()
        else:
            execute("rollback")
        _end(batch, results, flushing, flushed_later)
    except BaseException as error:
        chains.forget()
        if connection.in_transaction:
            execute("rollback")
        elif not isinstance(error, Exception) and len(results) == len(batch):
            # Interrupted when it was saved: nobody is to save it again.
            _end(batch, results, flushing, flushed_later)
        raise


def _end(batch: Sequence[_Request], results: Sequence[Commit], flushing: Flushing, flushed_later: bool) -> None:
    """Tell whose changes they were how it went, and who was not told yet."""
    number = flushing.written() if flushed_later else 0
    for request, commit in zip(batch, results, strict=True):
        if not request.ended:
            request.end(commit, number=number)


def _save_apart(connection: sqlite3.Connection, request: _Request, chains: Chains) -> Commit:
    """One request of several: what is refused of it does not touch the others."""
    connection.execute("savepoint request")
    commit = save_all(connection, request.changes, chains)
    if not commit:
        connection.execute("rollback to request")
    connection.execute("release request")
    return commit


def _is_of_flush(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC


def _explain(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return (
            f"the ledger {path} stayed locked for {BUSY_SECONDS:.0f} s by another process; nothing was started, "
            f"try again"
        )
    if "readonly" in text:
        return (
            f"the ledger {path} is read-only; nothing was started, give this user write access to it and its folder, "
            "or name another store"
        )
    if "unable to open" in text:
        return f"the ledger {path} cannot be opened; nothing was started, give this user access to it and its folder"
    if "disk I/O" in text:
        return (
            f"the disk of the ledger {path} failed ({text}): it is damaged, or a limit on file sizes was reached; "
            "nothing was started"
        )
    if "not a database" in text or "malformed" in text:
        return (
            f"{path} is not a readable SQLite ledger ({text}); it was left as it is, name another or restore a backup"
        )
    if "full" in text:
        return f"the disk of the ledger {path} is full; nothing was started, make room and try again"
    return f"the ledger {path} cannot be used ({text}); nothing was started"
