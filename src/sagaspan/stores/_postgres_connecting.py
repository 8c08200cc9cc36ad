"""How a connection to PostgreSQL is made, what is asked of the server first, and what its errors mean to a caller.

The module is a ``Driver``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from sagaspan._checks import masked
from sagaspan.exceptions import ConfigurationError, StoreUnavailable
from sagaspan.stores import _fate as fate
from sagaspan.stores._fate import WAIT_SECONDS, Fate, said

try:
    import psycopg
    from psycopg import errors, pq
except ImportError as error:
    raise ConfigurationError("a ledger on PostgreSQL needs its driver: pip install 'sagaspan[postgres]'") from error

DriverError: Final = psycopg.Error
_ROLLED_BACK: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""What may be tried again: the server took it back, for certain."""
_UNFIT: Final = (psycopg.DataError, errors.ProgramLimitExceeded)
"""A value that no column, or no index, holds: a key or a name of more than some 2,600 bytes."""
_OTHER_VERSION: Final = (
    "the ledger {where} was migrated for another version of sagaspan, or is another one than before ({said}); "
    "nothing was started, see: sagaspan migrate --check"
)
_WHY: Final[tuple[tuple[Any, str], ...]] = (
    (errors.LockNotAvailable, fate.LOCKED),
    (errors.UndefinedFunction, _OTHER_VERSION),  # ``migrate`` takes those of versions that do not know the tables
    ((errors.UndefinedTable, errors.InvalidSchemaName), fate.GONE),
    (errors.InsufficientPrivilege, fate.FORBIDDEN),
    (errors.DiskFull, fate.FULL),
    (errors.ReadOnlySqlTransaction, fate.READ_ONLY),
)
MOST_SLICES: Final = 256
"""Into more no budget is cut: who needs the sum adds them up."""

_DURABILITY: Final = ("fsync", "full_page_writes", "synchronous_commit")
_SETTINGS: Final = """
select set_config('search_path', quote_ident($1), false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('lock_timeout', $2, false),
       set_config('standard_conforming_strings', 'on', false),
       set_config('synchronous_commit',
                  case current_setting('synchronous_commit') when 'off' then 'on'
                  else current_setting('synchronous_commit') end, false),
       (extract(epoch from clock_timestamp()) * 1000000)::bigint,
       current_setting('server_encoding'), current_setting('server_version_num')::int, pg_is_in_recovery(),
       pg_backend_pid()
"""
_POOLED: Final = (
    "is reached through a pooler (PgBouncer?) that may give a session to others between two transactions, and with it "
    "the settings and the prepared statements of the ledger; name the server itself, or let the pooler keep a session "
    "for as long as its client is there (pool_mode = session) and say so in the URL, ?pooler=session (nothing was "
    "started)"
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names: ``conninfo`` is what the driver connects to.

    ``is_pooled``: behind a pooler that keeps each session for its client, as the user says. ``slices``: into so many a
    hot budget is cut (0: into none).
    """

    conninfo: str
    schema: str
    is_pooled: bool = False
    slices: int = 0


def connect(target: Target, where: str) -> tuple[psycopg.Connection[Any], int]:
    """A connection as the store needs it, and the time there (microseconds since the epoch).

    Raises ``StoreUnavailable`` for a server that is none, or not fit.
    """
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(
            target.conninfo, autocommit=True, prepare_threshold=1, cursor_factory=psycopg.RawCursor
        )
        settings = (target.schema, f"{WAIT_SECONDS:.0f}s")
        found = connection.execute(_SETTINGS, settings).fetchone() or (0, "", 0, False, 0)
        now_us, encoding, version, is_standby, session = found[-5:]
    except psycopg.Error as error:
        raise StoreUnavailable(explained(where, error)) from error
    wrong = (
        f"is in {encoding}, not UTF8" if encoding != "UTF8"
        else f"is PostgreSQL {version // 10000}, older than 13" if version < 130000
        else "is a standby that cannot be written to" if is_standby
        else None
    )  # fmt: skip
    if wrong:
        connection.close()
        raise StoreUnavailable(f"the database {where} {wrong}; name another one (nothing was started)")
    if session != connection.info.backend_pid and not target.is_pooled:  # who answers is not who let us in
        connection.close()
        raise StoreUnavailable(f"the database {where} {_POOLED}")
    return connection, int(now_us)


def settings_of(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """What decides whether a commit outlives a power cut; ``wrong``: that none does, and what to do."""
    found = {
        name: str((connection.execute(f"show {name}").fetchone() or ("",))[0]) for name in _DURABILITY
    }  # fmt: skip
    off = [name for name in ("fsync", "full_page_writes") if found.get(name) == "off"]
    if off:
        found["wrong"] = (
            f"is on a server that does not sync its commits ({off[0]} = off): after a power cut a call could run "
            "twice, or the ledger be damaged; set it to on"
        )
    return found


@lru_cache(maxsize=512)
def numbered(query: str) -> str:
    """Portable SQL as the server reads it: ``?`` is ``$1`` and so on."""
    number = iter(range(1, query.count("?") + 1))
    return re.sub(r"\?", lambda _: f"${next(number)}", query)


def fetch(connection: psycopg.Connection[Any], query: str, values: Sequence[Any]) -> list[Any]:
    """See ``Driver``."""
    return connection.execute(numbered(query), values).fetchall()


def execute(connection: psycopg.Connection[Any], statement: str, values: Sequence[Any]) -> int:
    """See ``Driver``."""
    return connection.execute(numbered(statement), values).rowcount


def close(connection: psycopg.Connection[Any]) -> None:
    """See ``Driver``."""
    connection.close()


def works(connection: psycopg.Connection[Any]) -> bool:
    """See ``Driver``."""
    try:
        connection.execute("select 1")
    except psycopg.Error:
        return False
    return True


def fate_of(connection: psycopg.Connection[Any], error: psycopg.Error) -> Fate:
    """See ``Driver``."""
    if connection.closed or connection.info.transaction_status == pq.TransactionStatus.UNKNOWN:
        return fate.Lost(error)
    return fate.Again(error) if isinstance(error, _ROLLED_BACK) else fate.Refused(error)


def is_unfit(error: Exception) -> bool:
    """See ``Driver``."""
    return isinstance(error, _UNFIT)


def parsed(url: str) -> Target:
    """What a store's URL names. Raises ``ConfigurationError``."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    name = options.pop("schema", "sagaspan")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ConfigurationError(f"schema={name} is no name of small letters, digits and _; it is in the store's URL")
    pooler = options.pop("pooler", None)
    if pooler not in (None, "session"):
        raise ConfigurationError(f"pooler={pooler} in the store's URL is not supported; only ?pooler=session is")
    slices = options.pop("slices", "0")
    if not re.fullmatch(r"\d{1,3}", slices) or int(slices) > MOST_SLICES:
        raise ConfigurationError(
            f"slices={slices} in the store's URL is no number from 0 to {MOST_SLICES}; say as many as call at once"
        )
    defaults = {"connect_timeout": "10", "application_name": "sagaspan", "tcp_user_timeout": "30000",
                "keepalives_idle": "10", "client_encoding": "utf8"}  # fmt: skip
    conninfo = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(defaults | options, quote_via=quote)))
    try:
        psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"the store {masked(url)!r} cannot be read ({said(error)})") from error
    return Target(conninfo, name, is_pooled=pooler is not None, slices=int(slices))


def explained(where: str, error: Exception) -> str:
    """See ``Driver``."""
    why = next((why for kinds, why in _WHY if isinstance(error, kinds)), fate.UNUSABLE)
    return why.format(where=where, said=said(error))
