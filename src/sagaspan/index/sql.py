"""The SQL files of this package, with the names of ``semconv`` filled in.

No value of a user ever gets in here.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

from sagaspan import semconv

SCHEMA_VERSION: Final = 1
# Bytes; DuckDB's buffers grow with it, so only a batch that needs more gets more.
MAXIMUM_LINE: Final = 16 * 1024 * 1024

_ATTRIBUTE: Final = (
    '{"key": "VARCHAR", "value": {"stringValue": "VARCHAR", "intValue": "VARCHAR", "doubleValue": "VARCHAR", '
    '"boolValue": "VARCHAR", "bytesValue": "VARCHAR", "arrayValue": "JSON", "kvlistValue": "JSON"}}'
)


def create_statements() -> tuple[str, ...]:
    """What makes an empty file an index."""
    return (*_split(_read("schema.sql")), *_split(_read("views.sql")))


def ingest_statement(name: str, *, maximum_line: int = MAXIMUM_LINE) -> str:
    """The statement called ``name`` in ``ingest.sql``; lines up to ``maximum_line`` bytes are read."""
    return _named()[name].replace(f"maximum_object_size = {MAXIMUM_LINE}", f"maximum_object_size = {maximum_line}")


@cache
def _named() -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+)\n", _read("ingest.sql"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _read(name: str) -> str:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return Template(text).substitute(_names())


@cache
def _names() -> dict[str, str]:
    names = {name: value for name, value in vars(semconv).items() if isinstance(value, str) and name.isupper()}
    costs = ", ".join(f"finite(a['{alias}'])" for alias in semconv.COST_ALIASES)
    return names | {"COSTS": costs, "ATTRIBUTE": _ATTRIBUTE, "MAXIMUM_LINE": str(MAXIMUM_LINE)}


def _split(script: str) -> list[str]:
    without_comments = re.sub(r"^--.*\n", "", script, flags=re.MULTILINE)
    return [statement.strip() for statement in without_comments.split(";\n") if statement.strip()]
