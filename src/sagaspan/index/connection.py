"""The only two ways the DuckDB file is opened: to write, by sync; to read, locked down, by everything else.

A user's SQL is code. The reading connection can therefore neither write nor reach anything but this file: no
other files, no network, no extensions, no settings, a bound on memory, a deadline. Every connection is closed
on the way out, because one that leaks keeps the file locked for as long as the process lives. DuckDB enforces that
bound and the deadline between batches of rows, and not within one value: ``sagaspan sql`` asks in a child process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sagaspan.exceptions import ConfigurationError, SchemaOutdated, StoreUnavailable
from sagaspan.index.errors import QueryError
from sagaspan.index.rows import Table
from sagaspan.index.sql import SCHEMA_VERSION, create_scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

    from duckdb import DuckDBPyConnection

_OFFLINE: Final[dict[str, str | bool]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
_EXTERNAL: Final = "enable_external_access"
_LOCKED_DOWN: Final[dict[str, str | bool | int]] = {
    **_OFFLINE,
    _EXTERNAL: False,
    "memory_limit": "2GB",
    "threads": os.cpu_count() or 1,
    "temp_directory": "",  # what does not fit in memory fails; it must not be written somewhere
}

_NOT_DAMAGE: Final = ("No space left", "Could not write file", "Out of Memory", "Permission denied", "Cannot open file")

# Connections of one process to one file share its settings, and these cannot be set once they are locked.
_setting_up = threading.Lock()


@contextmanager
def writing(path: Path, progress: Callable[[int, int], None] | None = None) -> Iterator[DuckDBPyConnection]:
    """Open the index to write, made if there is none, carried over if it is of an older schema.

    Needs the exclusive lock. ``progress`` is told (bytes done, bytes there) of what is carried over.
    """
    duckdb = _duckdb()
    with _translated(duckdb, path):
        connection = _open_current(duckdb, path, progress)
        try:
            yield connection
        finally:
            connection.close()


@contextmanager
def reading(path: Path, writes: Path | None = None) -> Iterator[DuckDBPyConnection]:
    """Open the index read-only and locked down. Needs the shared lock. ``writes`` is the one file it may touch."""
    duckdb = _duckdb()
    if not path.exists():
        raise StoreUnavailable(f"there is no index at {path} yet: sync first")
    with _translated(duckdb, path):
        with _setting_up:
            connection = duckdb.connect(str(path), read_only=True, config=_config(writes))
        try:
            if _version(connection) != SCHEMA_VERSION:
                _refuse_newer(connection, path)
                raise StoreUnavailable(f"the index at {path} was made by an older sagaspan: sync first")
            with _setting_up:
                _lock_settings(connection, writes)
            yield connection
        finally:
            connection.close()


def _config(writes: Path | None) -> dict[str, Any]:
    """The settings of a reading connection; the file it may write must be named before the others are closed to it."""
    return {name: value for name, value in _LOCKED_DOWN.items() if writes is None or name != _EXTERNAL}


def _lock_settings(connection: DuckDBPyConnection, writes: Path | None) -> None:
    row = connection.execute("select current_setting('lock_configuration')").fetchone()
    if row is not None and row[0]:
        return  # another thread has this file open: the settings are the database's, and are as they must be
    # Our times are UTC without a zone; now() must not turn them into the reader's zone in a comparison.
    connection.execute("set global timezone = 'UTC'")
    if writes is not None:
        connection.execute(f"set global allowed_paths = [{_quoted(writes)}]")
        connection.execute(f"set global {_EXTERNAL} = false")
    connection.execute("set lock_configuration = true")


def run_query(
    connection: DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object],
    *,
    timeout: float,
    deadline: float,
    max_rows: int | None,
) -> Table:
    """Run a user's SQL until ``deadline``, ``timeout`` seconds after it was asked. Raises ``QueryError``."""
    with _bounded(connection, timeout, deadline):
        _check_single(connection, sql)
        return _fetch(connection.execute(sql, parameters), max_rows)


def copy_to(
    connection: DuckDBPyConnection,
    sql: str,
    target: Path,
    *,
    timeout: float,
    deadline: float,
    max_rows: int | None = None,
) -> int:
    """Write what a user's SQL selects to ``target`` as Parquet; returns the rows. Raises ``QueryError``."""
    duckdb = _duckdb()
    with _bounded(connection, timeout, deadline):
        _check_single(connection, sql)
        statement = next(iter(connection.extract_statements(sql)), None)
        if statement is None or statement.type != duckdb.StatementType.SELECT:
            raise QueryError("only what a select gives can be written to a file")
        # The statement ends in a newline: a comment at its end must not hide the bracket.
        selection = f"(\n{statement.query.strip().rstrip(';')}\n)"
        if max_rows is not None:
            selection = f"(select * from {selection} limit {max_rows})"  # noqa: S608 - it may say what it likes: see above
        how = "format parquet, compression zstd, use_tmp_file false"  # no other name beside the one that it may write
        row = connection.execute(f"copy {selection} to {_quoted(target)} ({how})").fetchone()
        return 0 if row is None else int(row[0])


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


@contextmanager
def _bounded(connection: DuckDBPyConnection, timeout: float, deadline: float) -> Iterator[None]:
    """Interrupt what runs in the block at ``deadline``, and say in a ``QueryError`` what is wrong with it."""
    duckdb = _duckdb()
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        connection.interrupt()

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except duckdb.InterruptException as error:
        if not expired.is_set():
            raise
        raise took_longer(timeout) from error
    except duckdb.OutOfMemoryException as error:
        raise needs_more_memory() from error
    except (duckdb.InternalException, duckdb.FatalException, duckdb.SerializationException):
        raise
    except duckdb.Error as error:
        raise QueryError(_explain(connection, error)) from error
    finally:
        timer.cancel()


def took_longer(timeout: float) -> QueryError:
    """The error of a query that its deadline ended."""
    return QueryError(
        f"the query took longer than {timeout:g} s and was stopped; narrow it with a condition on "
        "start_time or a limit, or allow it more time"
    )


def needs_more_memory() -> QueryError:
    """The error of a query that its memory limit ended."""
    return QueryError(
        "the query needs more memory than it may have and was stopped; narrow it with a condition on start_time "
        "or a limit, or write the rows to a file with --output FILE.parquet"
    )


def _check_single(connection: DuckDBPyConnection, sql: str) -> None:
    """DuckDB runs several statements and gives the result of the last one: the others would be lost in silence."""
    number = len(connection.extract_statements(sql))
    if number > 1:
        raise QueryError(f"there are {number} statements, and one answer has room for one: run them one at a time")


def _fetch(result: DuckDBPyConnection | None, max_rows: int | None) -> Table:
    if result is None or not result.description:
        raise QueryError("there is no statement to run; write one, such as: select * from traces limit 10")
    columns = tuple(str(column[0]) for column in result.description)
    types = tuple(str(column[1]) for column in result.description)
    if max_rows is None:
        return Table(columns=columns, types=types, rows=result.fetchall())
    rows = result.fetchmany(max_rows + 1)
    return Table(columns=columns, types=types, rows=rows[:max_rows], truncated=len(rows) > max_rows)


def _explain(connection: DuckDBPyConnection, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    sentence = lines[0].rstrip("!.")
    if "pytz" in sentence:
        return "a column is a time with a zone, which is not supported here: cast it, as in now()::timestamp"
    if any(word in sentence for word in ("disabled", "read-only", "locked", "Permission Error")):
        return f"{sentence}. This connection only reads the index: no other files, settings or extensions"
    hint = next((f". {line.rstrip('?!.')}?" for line in lines[1:] if line.startswith("Did you mean")), "")
    return f"{sentence}{hint}. Known tables and views: {', '.join(_relations(connection))}"


def _relations(connection: DuckDBPyConnection) -> list[str]:
    with contextlib.suppress(Exception):  # the names are a help in an error; they must not become another one
        found = connection.execute(
            "select case table_schema when 'main' then '' else table_schema || '.' end || table_name as name "
            "from information_schema.tables where table_schema <> 'totals' order by table_schema <> 'main', name"
        )
        return [str(name) for (name,) in found.fetchall()]
    return []


def _open_current(duckdb: ModuleType, path: Path, progress: Callable[[int, int], None] | None) -> DuckDBPyConnection:
    connection: DuckDBPyConnection = duckdb.connect(str(path), config=dict(_OFFLINE))
    try:
        path.chmod(0o600)
        if _version(connection) == SCHEMA_VERSION:
            return connection
        if _is_empty(connection):
            _create(connection)
            return connection
        _refuse_newer(connection, path)
        connection.execute("checkpoint")  # a log that is left beside it would be taken for one of its successor
    except BaseException:
        connection.close()
        raise
    connection.close()
    _supersede(duckdb, path, progress)
    return _open_current(duckdb, path, progress)


def _supersede(duckdb: ModuleType, path: Path, progress: Callable[[int, int], None] | None) -> None:
    """Put an index of this schema in the place of an older one, with what that holds.

    It is built beside it and is the index when it is whole: killed before, the older one is still there.
    """
    from sagaspan.index.upgrade import carry_over

    fresh = path.with_name(f".{path.name}.new")
    _delete(fresh)
    try:
        with contextlib.closing(duckdb.connect(str(fresh), config=dict(_OFFLINE))) as connection:
            fresh.chmod(0o600)
            _create(connection)
            carry_over(connection, path, progress)
            connection.execute("checkpoint")
        fresh.replace(path)
    except BaseException:
        _delete(fresh)
        raise


def _delete(path: Path) -> None:
    for stale in (path, path.with_name(f"{path.name}.wal")):
        stale.unlink(missing_ok=True)


def _is_empty(connection: DuckDBPyConnection) -> bool:
    found = connection.execute("select count(*) from duckdb_tables()").fetchone()
    return found is not None and found[0] == 0


def _create(connection: DuckDBPyConnection) -> None:
    # One transaction: a crash in between leaves an empty file, which the next sync fills.
    connection.execute("begin")
    for script in create_scripts():
        connection.execute(script)
    connection.execute("insert into meta values ('schema_version', ?)", [str(SCHEMA_VERSION)])
    connection.execute("commit")


def _version(connection: DuckDBPyConnection) -> int | None:
    duckdb = _duckdb()
    try:
        row = connection.execute("select value from meta where key = 'schema_version'").fetchone()
    except duckdb.CatalogException:
        return None
    return int(row[0]) if row is not None and str(row[0]).isdecimal() else None


def _refuse_newer(connection: DuckDBPyConnection, path: Path) -> None:
    version = _version(connection)
    if version is None:
        raise StoreUnavailable(f"{path} is a DuckDB file, but not an index of sagaspan: move it away and run again")
    if version > SCHEMA_VERSION:
        raise SchemaOutdated(
            f"the index at {path} was made by a newer sagaspan (schema {version}, this one knows "
            f"{SCHEMA_VERSION}): upgrade sagaspan, or delete that file and run again: it is made anew from the "
            "trace files that are still there"
        )


@contextmanager
def _translated(duckdb: ModuleType, path: Path) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        _raise_unavailable(error, path)


def _raise_unavailable(error: Exception, path: Path) -> NoReturn:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "Could not set lock" in text:
        raise StoreUnavailable(f"{path} is open in another program: close it and run again ({text})") from error
    if any(word in text for word in _NOT_DAMAGE):
        raise StoreUnavailable(f"the index at {path} cannot be used: {text}") from error
    raise StoreUnavailable(
        f"the index at {path} is damaged ({text}): delete it and run again; it is made anew from the trace "
        "files that are still there"
    ) from error


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError("reading traces needs DuckDB: pip install duckdb") from error
    return duckdb
