"""Connections to MariaDB and MySQL: how they are made, what must hold of a server, and what its errors mean."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql import MySQLError
from pymysql.constants import CLIENT, CR, ER

from sagaspan._checks import masked
from sagaspan.exceptions import ConfigurationError
from sagaspan.stores import _fate as fate
from sagaspan.stores._dialects import MARIADB_COLLATION
from sagaspan.stores._fate import WAIT_SECONDS, Fate, said
from sagaspan.stores._mariadb_changes import literal

if TYPE_CHECKING:
    from pymysql.connections import Connection

DriverError: Final = MySQLError
ANSWER_SECONDS: Final = 60
"""How long to wait for an answer; it is longer than the server waits for a lock."""
NOW_US: Final = "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))"
MYSQL_COLLATION: Final = "utf8mb4_0900_bin"
AGAIN: Final = (ER.LOCK_DEADLOCK,)
"""Rolled back by the server, for certain."""
_UNFIT: Final = (ER.DATA_TOO_LONG, ER.WARN_DATA_OUT_OF_RANGE, ER.TRUNCATED_WRONG_VALUE_FOR_FIELD, ER.BAD_NULL_ERROR,
                 ER.NET_PACKET_TOO_LARGE, 1118, 1690, 3819, 4025)  # fmt: skip
"""A value that no column holds: too long, too large, or refused by a check."""
_WHY: Final[tuple[tuple[tuple[int, ...], str], ...]] = (
    ((ER.LOCK_WAIT_TIMEOUT,), fate.LOCKED),
    ((ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR), fate.GONE),
    ((ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR,
      ER.SPECIFIC_ACCESS_DENIED_ERROR), fate.FORBIDDEN),
    ((ER.DISK_FULL, ER.RECORD_FILE_FULL), fate.FULL),
    ((ER.OPTION_PREVENTS_STATEMENT, 1792, 1836), fate.READ_ONLY),
)  # fmt: skip
_GONE: Final = (0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_SERVER_LOST_EXTENDED, ER.SERVER_SHUTDOWN,
                ER.QUERY_INTERRUPTED, 1152, 1158, 1159, 1160, 1161, 1927, 1969, 3024, 3169, 4031)  # fmt: skip
_SQL_MODE: Final = "ANSI_QUOTES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
_AS_ELSEWHERE: Final = (
    "sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, completion_type = 0, "
    "unique_checks = 1"
)
"""Whatever a server sets for all: a limit would hide rows from whoever reads, and a commit ends nothing but itself."""
_OF_MARIADB: Final = ", check_constraint_checks = 1, max_statement_time = 0"
_FACTS: Final = (
    "select @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog, @@global.read_only, "
    f"@@max_allowed_packet, version(), {NOW_US}"
)
_TLS: Final = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")
_OPTIONS: Final = ("unix_socket", "connect_timeout", *_TLS)
_warned: Final[set[str]] = set()

_log = logging.getLogger("sagaspan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a URL says: where the server is, who asks, and which database."""

    host: str
    port: int
    user: str | None
    password: str = field(repr=False)
    database: str
    options: dict[str, Any]

    @classmethod
    def of(cls, url: str) -> Address:
        """The address in ``url``; raises ``ConfigurationError``."""
        parts = urlsplit(url)
        database = unquote(parts.path.removeprefix("/"))
        if not re.fullmatch(r"[A-Za-z0-9_$-]{1,64}", database):
            raise ConfigurationError(
                f"the store {masked(url)!r} names no database; write mysql://USER@HOST/DATABASE, its name in letters, "
                "digits, _, $ and -"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in _OPTIONS:
                raise ConfigurationError(
                    f"the store {masked(url)!r} has the option {name!r}; it can have {', '.join(_OPTIONS)}"
                )
        try:
            port = parts.port or 3306
            timeout = int(options.pop("connect_timeout", "10"))
        except ValueError as error:
            raise ConfigurationError(f"the store {masked(url)!r} cannot be read ({error})") from error
        flags = {name: options[name].lower() in ("1", "true", "yes") for name in options if "_verify_" in name}
        return cls(
            host=parts.hostname or "localhost", port=port, user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password or ""), database=database,
            options={**options, **flags, "connect_timeout": timeout},
        )  # fmt: skip

    def make_database(self) -> None:
        """Make the database, if there is none."""
        connection = self._connect(None, seconds=ANSWER_SECONDS)
        try:
            execute(connection, f"create database if not exists `{self.database}`", ())
        finally:
            close(connection)

    def connect(self, *, is_patient: bool = False) -> tuple[Connection[Any], Facts]:
        """A connection on which everything is as the store needs it, and what the server says of itself.

        ``is_patient``: however long an answer takes.
        """
        connection = self._connect(self.database, seconds=None if is_patient else ANSWER_SECONDS)
        others = _OF_MARIADB if is_mariadb(connection) else ""
        waits = f"innodb_lock_wait_timeout = {WAIT_SECONDS:.0f}, lock_wait_timeout = {WAIT_SECONDS:.0f}"
        try:
            execute(connection, f"set names utf8mb4 collate {collation_of(connection)}", ())
            execute(connection, "set session transaction isolation level read committed", ())
            execute(connection, f"set session {waits}, {_AS_ELSEWHERE}{others}", ())
            return connection, facts_of(connection)
        except BaseException:
            close(connection)
            raise

    def _connect(self, database: str | None, *, seconds: int | None) -> Connection[Any]:
        connection: Connection[Any] = pymysql.connect(
            host=self.host, port=self.port, user=self.user, password=self.password,
            database=database, read_timeout=seconds, charset="utf8mb4", autocommit=True, sql_mode=_SQL_MODE,
            client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS, defer_connect=True, **self.options,
        )  # fmt: skip
        tcp = None
        if "unix_socket" not in self.options:
            tcp = _socket(self.host, self.port, self.options["connect_timeout"])
        connection.connect(tcp)
        return connection


def _socket(host: str, port: int, seconds: float) -> socket.socket:
    """A connection that notices within half a minute that the other end is gone."""
    try:
        made = socket.create_connection((host, port), seconds)
    except OSError as error:
        said = f"can't connect to {host}:{port} ({error})"
        raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, said) from error
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    made.settimeout(None)
    return made


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether it is MariaDB, and not MySQL."""
    return "MariaDB" in _server_of(connection)


def _server_of(connection: Connection[Any]) -> str:
    return str(connection.get_server_info())  # type: ignore[no-untyped-call] # the stubs forgot it


def collation_of(connection: Connection[Any]) -> str:
    """By which text is compared byte by byte, spaces at the end too."""
    return MARIADB_COLLATION if is_mariadb(connection) else MYSQL_COLLATION


def version_of(connection: Connection[Any]) -> str:
    """The name of the server and its version."""
    version = re.sub(r"^5\.5\.5-", "", _server_of(connection))
    return version if is_mariadb(connection) else f"MySQL {version} (untested)"


def warn_of_mysql(connection: Connection[Any], where: str) -> None:
    """Say once a process that nobody has run these statements on a MySQL server."""
    if not is_mariadb(connection) and where not in _warned:
        _warned.add(where)
        _log.warning(
            "the ledger %s is on %s: sagaspan is tested on MariaDB, not on MySQL; try what you rely on there first",
            where, version_of(connection),
        )  # fmt: skip


class Facts(NamedTuple):
    """What a server says of itself."""

    flush: int
    """``innodb_flush_log_at_trx_commit``."""
    sync_binlog: int | None
    """None: there is no binary log."""
    is_read_only: bool
    max_packet: int
    version: str
    now_us: int


def facts_of(connection: Connection[Any]) -> Facts:
    """Ask a server what it is, how it is set, and the time."""
    ((flush, binlog, sync_binlog, read_only, packet, version, now_us),) = fetch(connection, _FACTS, ())
    return Facts(
        int(flush), int(sync_binlog) if int(binlog) else None, str(read_only) not in ("0", "OFF"), int(packet),
        str(version), int(now_us),
    )  # fmt: skip


def settings_of(facts: Facts) -> dict[str, str | int]:
    """What decides whether a commit outlives a power cut; nobody runs on other settings than these may be."""
    binlog = "off" if facts.sync_binlog is None else f"on, sync_binlog {facts.sync_binlog}"
    return {"innodb_flush_log_at_trx_commit": facts.flush, "binary log": binlog}


def wrong_with(facts: Facts, *, must_sync: bool) -> str | None:
    """Why no ledger can be on this server, and what to do; None if it can."""
    kind, needed = ("MariaDB", (10, 6)) if "MariaDB" in facts.version else ("MySQL", (8, 0, 17))
    if tuple(map(int, re.findall(r"\d+", facts.version)[:3])) < needed:
        return f"is {kind} {facts.version}, older than {'.'.join(map(str, needed))}; name another one"
    if facts.is_read_only:
        return "is on a server that is read-only (a replica?); name another one"
    if must_sync and facts.flush not in (1, 3):
        return (
            f"is on a server that does not sync its commits (innodb_flush_log_at_trx_commit = {facts.flush}): after a "
            "power cut a call could run twice; set it to 1"
        )
    if must_sync and facts.sync_binlog not in (None, 1):
        return (
            f"is on a server whose binary log is not synced (sync_binlog = {facts.sync_binlog}): what is not in it is "
            "rolled back after a power cut, and a call could run twice; set it to 1"
        )
    return None


@lru_cache(maxsize=512)
def _parts(query: str) -> list[str]:
    return query.split("?")


def _bound(query: str, values: Sequence[Any]) -> Any:
    """Portable SQL with its values, as bytes; raises ``ValueError`` for a text with half a character."""
    first, *others = _parts(query)
    return "".join((first, *(literal(value) + part for value, part in zip(values, others, strict=True)))).encode()


def fetch(connection: Connection[Any], query: str, values: Sequence[Any]) -> list[Any]:
    """The rows of one statement; ``?`` stands for a value."""
    with connection.cursor() as cursor:
        cursor.execute(_bound(query, values))
        return list(cursor.fetchall())


def execute(connection: Connection[Any], statement: str, values: Sequence[Any]) -> int:
    """Run one statement; how many rows it found or made."""
    with connection.cursor() as cursor:
        return int(cursor.execute(_bound(statement, values)))


def told(connection: Connection[Any], statements: str, values: Sequence[Any]) -> list[Any]:
    """Run statements that are sent as one text; the rows of the last."""
    with connection.cursor() as cursor:
        cursor.execute(_bound(statements, values))
        while cursor.nextset():
            pass
        return list(cursor.fetchall())


def close(connection: Connection[Any]) -> None:
    """Close it, whatever state it is in."""
    with contextlib.suppress(MySQLError):
        connection.close()


def works(connection: Connection[Any]) -> bool:
    """Whether the server still answers."""
    try:
        connection.ping(reconnect=False)
    except MySQLError:
        return False
    return True


def fate_of(connection: Connection[Any], error: MySQLError) -> Fate:
    """See ``Driver``."""
    if is_lost(connection, error):
        return fate.Lost(error)
    return fate.Again(error) if error.args[0] in AGAIN else fate.Refused(error)


def is_unfit(error: Exception) -> bool:
    """See ``Driver``."""
    return isinstance(error, pymysql.DataError) or error.args[0] in _UNFIT


def is_lost(connection: Connection[Any], error: MySQLError) -> bool:
    """Whether it may have ended with the connection, and not with an answer."""
    number = error.args[0] if error.args else 0
    return not isinstance(number, int) or number in _GONE or not connection.open


def error_of(number: int, text: str) -> MySQLError:
    """The driver's error for one that the server only told of."""
    return pymysql.OperationalError(number, text)


def explained(where: str, error: Exception) -> str:
    """See ``Driver``."""
    number = error.args[0] if error.args else 0
    why = next((why for numbers, why in _WHY if number in numbers), fate.UNUSABLE)
    return why.format(where=where, said=said(error))
