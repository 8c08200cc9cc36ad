"""The tables of a PostgreSQL ledger, in a schema of their own, and the functions that save commits.

Many programs share a server, so nobody migrates it by the way: ``migrate`` does, when somebody asks for it. A
function carries a hash of its text in its name. Two versions of sagaspan that know the same tables use the same ledger,
each with its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from sagaspan.exceptions import SchemaOutdated, StoreUnavailable
from sagaspan.stores import _columns as columns
from sagaspan.stores._migrate import REMEDY, check, migrations, refuse_others
from sagaspan.stores._reading import names

if TYPE_CHECKING:
    import psycopg

FEED: Final = "hashtextextended(current_schema() || ' feed', 0)"
"""The lock that every writer shares until its rows can be seen."""

_BUDGET_OF: Final = " and ".join(
    f'{{table}}."{name}" = r."{name}"' for name in ("namespace", "scope", "unit", "window", "start_us")
)
_BUDGET_LOCK: Final = """hashtextextended(
      concat_ws(e'\\x1f', current_schema(), r.namespace, r.scope, r.unit, r."window", r.start_us), 1)"""
"""The lock of a budget of which there may be slices: who uses one of them shares it."""
_NO_CAP: Final = 2**61
"""What a budget without a cap is cut from."""

RUN: Final = "hashtextextended(current_schema() || e'\\x1f' || {namespace} || e'\\x1f' || {run}, 0)"
"""The lock of a run: of what is written in it, and of its chain."""

_NESTING: Final = "hashtextextended(current_schema() || e'\\x1f' || {namespace} || ' nesting', 0)"
"""The lock of what is nested in what in a namespace."""

_SAGA: Final = """(
            with recursive saga (id) as (
              select ({run}) collate "C"
               union all
              select runs.id from runs join saga on runs.parent_id = saga.id
               where runs.namespace = {namespace}
            )
            select id from saga)"""
_APPEND: Final = f"""select a.number, a.hash into v_number, v_hash from audit a
         where a.namespace = v_row->>'namespace' and a.run_id = v_row->>'run_id'
         order by a.seq desc limit 1;
        if not found then
          v_number := 0;
          v_hash := '{chr(92)}x{"00" * 32}';
        end if;
        v_seq := nextval('audit_seq_seq');
        v_number := v_number + 1;
        v_hash := sha256(
          v_hash || coalesce((v_row->>'content')::bytea, '{chr(92)}x{"00" * 32}')
          || convert_to('[' || v_seq || ',' || v_number || ',' || (v_row->>'tail'), 'UTF8'));
        insert into audit (seq, {names(columns.AUDIT_COLUMNS)}, number, content, hash)
        select v_seq, {names(columns.AUDIT_COLUMNS, "r")}, v_number, r.content, v_hash
          from jsonb_populate_record(null::audit, v_row) r;"""  # noqa: S608


def _sets(of: Sequence[str], source: str = "r") -> str:
    return ", ".join(f'"{name}" = {source}."{name}"' for name in of)


@cache
def functions() -> tuple[str, ...]:
    """The name of the function that saves a commit, and the statements that make it and those that go with it.

    ``NAME_all`` saves several; the others book in slices of a budget.
    """
    files = resources.files("sagaspan.stores")
    texts = [(files / f"_postgres_{name}.sql").read_text(encoding="utf-8") for name in ("commit", "commits", "slices")]
    tables = {
        "run": columns.RUN_COLUMNS, "approval": columns.APPROVAL_COLUMNS, "lock": columns.LOCK_COLUMNS,
        "usage": columns.USAGE_COLUMNS, "limit": columns.LIMIT_COLUMNS, "freeze": columns.FREEZE_COLUMNS,
        "loop": columns.LOOP_COLUMNS,
    }  # fmt: skip
    places = {
        "feed": FEED,
        "key": RUN.format(namespace="(l->>0)", run="(l->>1)"),
        "nesting": _NESTING.format(namespace="n"),
        "nesting_of_saga": _NESTING.format(namespace="(s->>0)"),
        "runs_of_saga": _SAGA.format(namespace="s->>0", run="s->>1"),
        "saga": _SAGA.format(namespace="v_record->>'namespace'", run="v_record->>'run_id'"),
        "append": _APPEND,
        "budget_of": _BUDGET_OF.format(table="b"),
        "slice_of": _BUDGET_OF.format(table="s"),
        "budget_lock": _BUDGET_LOCK,
        "no_cap": str(_NO_CAP),
        "calls": names(columns.CALL_COLUMNS),
        "call_values": ", ".join("v_seq" if name == "claim_seq" else f'r."{name}"' for name in columns.CALL_COLUMNS),
        "call_sets": _sets(columns.CALL_CHANGING),
        "run_sets": _sets(columns.RUN_CHANGING),
        "approval_sets": _sets(columns.APPROVAL_CHANGING),
        "lock_sets": _sets(columns.LOCK_CHANGING),
        "usage_sets": _sets(columns.USAGE_COLUMNS[1:], "excluded"),
        "limit_sets": _sets(columns.LIMIT_COLUMNS[4:], "excluded"),
        "loop_sets": _sets(columns.LOOP_COLUMNS[2:], "excluded"),
        "deliveries": names(columns.DELIVERY_COLUMNS),
        "delivery_values": names(columns.DELIVERY_COLUMNS, "r"),
    }
    for name, of in tables.items():
        places |= {f"{name}s": names(of), f"{name}_values": names(of, "r")}
    named = f"commit_{sha256(''.join(texts).format(name='', **places).encode()).hexdigest()[:12]}"
    *whole, slices = (text.format(name=named, **places) for text in texts)
    return named, *whole, *re.split(r"(?<=\$body\$);\n", slices)


def applied(connection: psycopg.Connection[Any], where: str) -> set[int]:
    """The numbers of the migrations applied to the schema in force; 0 among them if the function is missing."""
    found = connection.execute(
        "select to_regclass('migrations') is not null, to_regclass('calls') is not null, current_schema() is not null"
    ).fetchone()
    is_ledger, has_calls, _ = found or (False, False, False)
    if not is_ledger and has_calls:
        raise StoreUnavailable(f"{where} has tables of something else, not of sagaspan; name another schema")
    return {number for (number,) in connection.execute("select number from migrations")} if is_ledger else set()


def refuse_other_schemas(connection: psycopg.Connection[Any], where: str) -> None:
    """Raise ``SchemaOutdated`` unless the schema is that of this version; nothing is changed."""
    refuse_others(applied(connection, where), "postgres", where, "schema")
    if not _has_function(connection):
        raise SchemaOutdated(
            f"the ledger {where} has the tables of this sagaspan, but was not prepared for this version; {REMEDY} "
            "(programs that use it may go on meanwhile)"
        )


def _has_function(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute(
        "select 1 from pg_proc where proname = $1 and pronamespace = current_schema()::regnamespace", (functions()[0],)
    ).fetchone()
    return row is not None


def _make(connection: psycopg.Connection[Any], schema: str, where: str) -> None:
    from psycopg.errors import InsufficientPrivilege

    try:
        connection.execute(f'create schema "{schema}"')
    except InsufficientPrivilege as error:
        user = connection.info.user
        raise StoreUnavailable(
            f"this user may make no schema at {where}; name another, or let somebody who may give it one, in that "
            f'database: create schema "{schema}" authorization "{user}"'
        ) from error


def migrate(connection: psycopg.Connection[Any], schema: str, where: str) -> list[str]:
    """Bring the ledger to this version, in one transaction; what was done, nothing if it was there already."""
    done: list[str] = []
    known = migrations("postgres")
    with connection.transaction():
        connection.execute(f"select pg_advisory_xact_lock(hashtextextended('sagaspan migrates {schema}', 0))")
        # Not "if not exists": who was given a schema may have no right to make one.
        if connection.execute("select to_regnamespace(quote_ident($1))", (schema,)).fetchone() == (None,):
            _make(connection, schema, where)
        found = applied(connection, where)
        check(found, {migration.number for migration in known}, where, apply=True)
        if not found:
            connection.execute("create table migrations (number bigint primary key, name text not null)")
        for migration in known:
            if migration.number in found:
                continue
            for statement in migration.statements:
                connection.execute(statement)
            connection.execute("insert into migrations values ($1, $2)", (migration.number, migration.name))
            done.append(migration.title)
        if done:  # functions of versions that do not know these tables
            for (old,) in connection.execute(
                "select oid::regprocedure::text from pg_proc "
                "where proname like 'commit\\_%' and pronamespace = current_schema()::regnamespace"
            ).fetchall():
                connection.execute(f"drop function {old}")
        if not _has_function(connection):
            named, *statements = functions()
            for statement in statements:
                connection.execute(statement)
            done.append(named)
    return done
