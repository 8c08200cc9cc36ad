"""A verified copy of a SQLite ledger, of one moment, while others write to it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sagaspan.exceptions import ConfigurationError, StoreError
from sagaspan.stores._migrate import current_version

_PAGES: Final = 2000
"""How many pages are copied between two reports of progress."""

Progress = Callable[[int, int], None]
"""Receives the number of pages copied and the number of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that was written and verified: its size, its schema, and how many rows it has."""

    file: str
    bytes: int
    schema: int
    runs: int
    calls: int
    audit: int


def copy_ledger(
    connection: sqlite3.Connection, ledger: Path, file: Path, *, overwrite: bool, progress: Progress
) -> Backup:
    """Copy the ledger to ``file`` (0600), complete or not at all.

    Raises ``ConfigurationError`` for a file that must not be written, and ``StoreError`` if the copy fails.
    """
    file = Path(os.path.realpath(file))
    _check_target(ledger, file, overwrite=overwrite)
    try:
        number, name = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.", suffix=".partial")  # 0600
    except OSError as error:
        raise ConfigurationError(
            f"the backup {file} cannot be written ({error.strerror}); name a folder you can write to"
        ) from error
    try:
        os.close(number)
        try:
            schema, rows = _copy(connection, name, str(ledger), progress)
            _publish(name, file, overwrite=overwrite)
        except FileExistsError as error:
            raise _exists(file) from error
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"the backup {file} failed ({error}); nothing was written there") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{name}{suffix}").unlink(missing_ok=True)
    return Backup(file=str(file), bytes=file.stat().st_size, schema=schema, runs=rows["runs"], calls=rows["calls"],
                  audit=rows["audit"])  # fmt: skip


def _check_target(ledger: Path, file: Path, *, overwrite: bool) -> None:
    own = {Path(f"{ledger}{suffix}") for suffix in ("", "-wal", "-shm", ".secret")}
    if file in own or (file.exists() and file.samefile(ledger)):
        raise ConfigurationError(f"{file} is a file of the ledger itself; nothing was written, name another file")
    if file.exists() and not overwrite:
        raise _exists(file)
    for side in (Path(f"{file}-wal"), Path(f"{file}-shm")):
        if side.exists():  # SQLite would apply such a log to the backup
            raise ConfigurationError(
                f"{side} is beside the backup: a process has {file} open, or its last one was killed; nothing was "
                "written, name another file"
            )


def _exists(file: Path) -> ConfigurationError:
    return ConfigurationError(f"{file} exists; nothing was written. Name another file, or add --overwrite")


def _copy(connection: sqlite3.Connection, name: str, ledger: str, progress: Progress) -> tuple[int, dict[str, int]]:
    """Copy all pages to the file ``name`` and compare; return the schema and the number of rows of each table."""
    with contextlib.closing(sqlite3.connect(name, isolation_level=None)) as copy:
        connection.execute("begin")  # one moment, however long it takes: writers continue meanwhile
        try:
            schema, rows, head = current_version(connection, ledger), _rows(connection), _head(connection)
            connection.backup(copy, pages=_PAGES, progress=lambda _, left, pages: progress(pages - left, pages))
        finally:
            connection.execute("rollback")
        copy.execute("pragma journal_mode = delete")  # one file, without side files
        problems = [text for (text,) in copy.execute("pragma integrity_check")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError(f"the ledger is damaged: {problems[0]}")
        if (_rows(copy), _head(copy)) != (rows, head):
            raise sqlite3.DatabaseError("the copy does not have the rows of the ledger")
    return schema, rows


def _rows(connection: sqlite3.Connection) -> dict[str, int]:
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    return {name: connection.execute(f'select count(*) from "{name}"').fetchone()[0] for name in tables}  # noqa: S608


def _head(connection: sqlite3.Connection) -> Any:
    """Return the newest audit row."""
    return connection.execute("select * from audit order by seq desc limit 1").fetchone()


def _publish(name: str, file: Path, *, overwrite: bool) -> None:
    """Put the finished copy in its place, on disk."""
    _flush(name)
    if overwrite:
        Path(name).replace(file)
    else:
        os.link(name, file)  # never over a file that was made meanwhile
    _flush(str(file.parent))


def _flush(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
