"""The statements of a ledger's commits, sent as they are: prepared once a connection, and executed by name.

The driver's own ``execute`` makes a cursor, looks how to write each value and how to read each column: 25 us of a
commit whose values are one text and one boolean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from psycopg import generators, pq
from psycopg.errors import InvalidSqlStatementName, error_from_result

from sagaspan.stores import _postgres_schema as schema

if TYPE_CHECKING:
    import psycopg

_ONE: Final = ""
_ALL: Final = "_all"
_OK: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def statement(of: str = _ONE) -> str:
    """What saves a commit: ``$1`` its changes, ``$2`` whether it waits for the disk. ``of`` "_all": several."""
    return f"select {schema.functions()[0]}{of}($1::jsonb, $2::boolean)"


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Let ``save`` work on a new connection, to a ledger that is prepared for this version."""
    for of in _ONE, _ALL:
        _prepare(connection, of)


def _prepare(connection: psycopg.Connection[Any], of: str) -> None:
    connection.pgconn.send_prepare(f"sagaspan_commit{of}".encode(), statement(of).encode())
    _result(connection)


def save(connection: psycopg.Connection[Any], request: str, *, synced: bool) -> dict[str, Any]:
    """What the server answers; raises the errors of the driver."""
    answer: dict[str, Any] = _executed(connection, _ONE, request, synced)
    return answer


def save_all(connection: psycopg.Connection[Any], requests: Sequence[str], *, synced: bool) -> list[dict[str, Any]]:
    """What the server answers to each, which is saved or refused for itself, in one transaction.

    Nothing: they do not fit together, and none is saved.
    """
    answers: list[dict[str, Any]] = _executed(connection, _ALL, f"[{','.join(requests)}]", synced) or []
    return answers


def _executed(connection: psycopg.Connection[Any], of: str, request: str, synced: bool) -> Any:
    name, values = f"sagaspan_commit{of}".encode(), (request.encode(), b"t" if synced else b"f")
    try:
        connection.pgconn.send_query_prepared(name, values)
        result = _result(connection)
    except InvalidSqlStatementName:  # nothing was executed: a rollback lets the driver forget all that is prepared
        _prepare(connection, of)
        connection.pgconn.send_query_prepared(name, values)
        result = _result(connection)
    return json.loads(result.get_value(0, 0) or b"null")


def _result(connection: psycopg.Connection[Any]) -> pq.abc.PGresult:
    # The connection waits: so Ctrl-C reaches who waits for a server that hangs.
    result: pq.abc.PGresult = connection.wait(generators.execute(connection.pgconn))[0]
    if result.status not in _OK:
        raise error_from_result(result, encoding="utf-8")
    return result
