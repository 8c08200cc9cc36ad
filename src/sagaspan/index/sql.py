"""The SQL files of this package, with the names of ``semconv`` filled in.

No value of a user ever gets in here.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from sagaspan import exceptions, semconv

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION: Final = 7
# Bytes; DuckDB's buffers grow with it, so only a batch that needs more gets more.
MAXIMUM_LINE: Final = 16 * 1024 * 1024

_QUOTE: Final = "'"
SCRIPTS: Final = ("schema.sql", "macros.sql", "views.sql", "columns.sql")
LLM_OPERATIONS: Final = (
    semconv.OPERATION_CHAT,
    semconv.OPERATION_GENERATE,
    semconv.OPERATION_COMPLETE,
    semconv.OPERATION_EMBEDDINGS,
)
_ATTRIBUTE: Final = (
    '{"key": "VARCHAR", "value": {"stringValue": "VARCHAR", "intValue": "VARCHAR", "doubleValue": "VARCHAR", '
    '"boolValue": "VARCHAR", "bytesValue": "VARCHAR", "arrayValue": "JSON", "kvlistValue": "JSON"}}'
)


def create_scripts() -> tuple[str, ...]:
    """What makes an empty file an index."""
    return tuple(_read(name) for name in SCRIPTS)


def ingest_statement(name: str, *, maximum_line: int = MAXIMUM_LINE) -> str:
    """The statement called ``name`` in ``ingest.sql``; lines up to ``maximum_line`` bytes are read."""
    parts = _parts("ingest.sql")
    statement = parts[name].replace("{derived}", parts["derived"])
    return statement.replace(f"maximum_object_size = {MAXIMUM_LINE}", f"maximum_object_size = {maximum_line}")


def total_statement(name: str) -> str:
    """The statement called ``name`` in ``totals.sql``."""
    return _parts("totals.sql")[name]


def prune_statement(name: str) -> str:
    """The statement called ``name`` in ``prune.sql``."""
    return _parts("prune.sql")[name]


@cache
def named_queries() -> dict[str, tuple[str, str]]:
    """The library of queries: what each answers, and its statement."""
    found = {}
    for name, text in _parts("named.sql").items():
        what, _, statement = text.partition("\n")
        found[name] = (what.removeprefix("-- "), statement.strip().rstrip(";"))
    return found


@cache
def _parts(name: str) -> dict[str, str]:
    parts = re.split(r"^-- name: ([\w-]+)\n", _read(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _read(name: str) -> str:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return Template(text).substitute(_names())


@cache
def _names() -> dict[str, str]:
    names = {name: value for name, value in vars(semconv).items() if isinstance(value, str) and name.isupper()}
    aliases = {name.removesuffix("_ALIASES"): known for name, known in vars(semconv).items() if "_ALIASES" in name}
    firsts = {
        f"{prefix}_{name}": _first_of(column, known)
        for name, known in aliases.items()
        for prefix, column in (("FIRST", "a"), ("ANY", "attributes"))
    }
    costs = ", ".join(f"finite(a['{alias}'])" for alias in semconv.COST_ALIASES)
    refusals = ", ".join(f"'{refused}'" for refused in refusal_types())
    operations = ", ".join(f"'{operation}'" for operation in LLM_OPERATIONS)
    more = {
        "LLM_OPERATIONS": operations,
        "COSTS": costs,
        "ATTRIBUTE": _ATTRIBUTE,
        "MAXIMUM_LINE": str(MAXIMUM_LINE),
        "REFUSALS": refusals,
    }
    return names | firsts | more


def captured(which: str) -> str:
    """The expression of what a span was given (``input``) or gave (``output``), where that is captured."""
    known = {
        "input": (*semconv.ARGUMENTS_ALIASES, *semconv.INPUT_ALIASES),
        "output": (*semconv.RESULT_ALIASES, *semconv.OUTPUT_ALIASES),
    }
    return _first_of("attributes", list(dict.fromkeys(known[which])))


def _first_of(column: str, keys: Sequence[str]) -> str:
    return f"coalesce({', '.join(f'{column}[{_QUOTE}{key}{_QUOTE}]' for key in keys)})"


def refusal_types() -> tuple[str, ...]:
    """``error.type`` of everything that says a tool did not run, in snake case, as our spans have it."""
    found = [exceptions.Refused, exceptions.RunError]
    for kind in found:
        found += kind.__subclasses__()
    named = {kind for kind in found if kind.__module__ == exceptions.__name__}
    return tuple(sorted(re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in named))
