"""How the statements of a commit are sent as one text, and what came of them.

MariaDB runs them as a block that ends itself: with its first error everything is rolled back, and the answer says where
that was. MySQL has no blocks outside of stored programs; there the statements follow each other in one text, the server
stops at the first error, and what was done is rolled back by the next word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pymysql
from pymysql.constants import ER

from sagaspan.stores import _mariadb_connection as server
from sagaspan.stores._fate import Again, Lost, Migrated
from sagaspan.stores._mariadb_changes import MIGRATED, Statement

if TYPE_CHECKING:
    from pymysql.connections import Connection

_NOWHERE: Final = -1
_AT_COMMIT: Final = -2
_BEGIN: Final = f"""begin not atomic
declare exit handler for sqlexception begin
get diagnostics condition 1 @errno = mysql_errno, @said = message_text;
rollback;
select @at, @errno, @said;
end;
set @at = {_NOWHERE};
start transaction"""
_ROOM: Final = 1024


class Ended(NamedTuple):
    """Which change was refused (None: none was), and what is used of the budgets at the end."""

    refused: int | None = None
    used: tuple[int, ...] = ()


def run_script(connection: Connection[Any], script: Sequence[Statement], used: str) -> Ended:
    """Run all of ``script`` in a transaction, or nothing of it; ``used`` is evaluated at its end.

    Raises ``Again`` if the server gave up for the sake of another, ``Lost`` if nobody knows whether it is committed,
    and ``Migrated`` if the ledger is not of this version any more.
    """
    if server.is_mariadb(connection):
        return _as_block(connection, script, used)
    return _one_by_one(connection, script, used)


def _as_block(connection: Connection[Any], script: Sequence[Statement], used: str) -> Ended:
    lines = [_BEGIN]
    before: tuple[int, tuple[int, ...]] = (_NOWHERE, ())
    for number, statement in enumerate(script):
        if before != statement[1:]:  # else nothing may come between a statement and what looks at its rows
            lines.append(f"set @at = {number if statement.refuses else _NOWHERE}")
            before = statement[1:]
        lines.append(statement.sql)
    lines += [f"set @at = {_NOWHERE}, @used = {used}", f"set @at = {_AT_COMMIT}", "commit",
              f"select {_NOWHERE}, 0, @used", "end"]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_whole(connection, lines))
        where, errno, said = cursor.fetchone() or (_AT_COMMIT, 0, "no answer")
        while cursor.nextset():
            pass
    return _ended(script, int(where), int(errno), str(said))


def _one_by_one(connection: Connection[Any], script: Sequence[Statement], used: str) -> Ended:
    lines = ["start transaction", *(statement.sql for statement in script), f"set @used = {used}", "commit",
             "select @used"]  # fmt: skip
    over = 0
    with connection.cursor() as cursor:
        try:
            cursor.execute(_whole(connection, lines))
            for over in range(1, len(lines)):  # noqa: B007 - how many are, when one is an error
                cursor.nextset()
            return _ended(script, _NOWHERE, 0, str((cursor.fetchone() or ("",))[0]))
        except pymysql.MySQLError as error:
            if server.is_lost(connection, error):
                raise
            connection.rollback()
            where = over - 1 if over <= len(script) else _AT_COMMIT if lines[over] == "commit" else _NOWHERE
            return _ended(script, where, error.args[0], str(error.args[-1]))


def _whole(connection: Connection[Any], lines: Sequence[str]) -> Any:
    text = ";\n".join(lines).encode()
    if len(text) + _ROOM > connection.max_allowed_packet:
        is_room_for = f"{len(text)} bytes, and the server's max_allowed_packet is {connection.max_allowed_packet}"
        raise server.error_of(ER.NET_PACKET_TOO_LARGE, is_room_for)
    return text


def _ended(script: Sequence[Statement], where: int, errno: int, said: str) -> Ended:
    if not errno and where != _AT_COMMIT:
        return Ended(used=tuple(int(number) for number in said.split(",") if number))
    if where >= 0 and errno in script[where].refuses:
        if script[where].place == MIGRATED:
            raise Migrated
        return Ended(refused=script[where].place)
    error = server.error_of(errno, said)
    if errno in server.AGAIN:
        raise Again(error)
    raise Lost(error) if where == _AT_COMMIT else error
