"""Tables for people or JSON for machines; what comes from outside is made visible, never obeyed.

A tool's name, an argument or an error can hold terminal escapes, carriage returns or bidirectional marks that
would hide or forge a line: each of them is shown as ``\\u{..}``.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import click

_HIDDEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co"})
_WHOLE: Final = frozenset({"id", "run", "trace", "call", "#", "state", "status", "next"})
_STYLES: Final = {
    "done": "green", "completed": "green", "compensated": "yellow", "running": "cyan", "compensating": "cyan",
    "failed": "red", "unknown": "bold red", "needs_human": "bold red", "compensation_failed": "bold red",
    "partially_compensated": "bold red", "held": "magenta", "paused": "magenta", "ERROR": "red",
}  # fmt: skip


def visible(value: object) -> str:
    """``value`` as text in which every control, format or separator character is shown, not obeyed."""
    return "".join(
        f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _HIDDEN else character
        for character in str(value)
    )


def emit_json(data: Any) -> None:
    """Print ``data`` (dataclasses, datetimes and enums among it) as one JSON document."""
    click.echo(_dumped(data, indent=2))


def emit_line(data: Any) -> None:
    """Print ``data`` as JSON in one line, at once: for output that goes on."""
    click.echo(_dumped(data))
    sys.stdout.flush()


def _dumped(data: Any, indent: int | None = None) -> str:
    text = json.dumps(_plain(data), ensure_ascii=False, indent=indent, allow_nan=False)
    # A lone surrogate is no UTF-8: it stays the escape that JSON has for it.
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def emit_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table, or, where that would be too wide to read, each row as a list of its columns."""
    rows = list(rows)
    if _readable_width(columns, rows) > console().width:
        _emit_lists(columns, rows, title)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        # What people copy stays in one piece.
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for row in rows:
        table.add_row(*(Text(_cell(value), style=_STYLES.get(str(value), "")) for value in row))
    _print_table(table)


def _readable_width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """What a table needs: what people copy in one piece, and 16 characters of any other cell that has as many."""

    def width(at: int, column: str) -> int:
        longest = max((len(_cell(row[at])) for row in rows), default=0)
        return max(len(column), longest if column in _WHOLE else min(longest, 16)) + 2

    return sum(width(at, column) for at, column in enumerate(columns))


def _emit_lists(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None) -> None:
    if title:
        say(title, "italic")
    longest = max(map(len, columns))
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            say(f"{name:<{longest}}  {_cell(value)}", _STYLES.get(str(value), ""))
        say("")


def _print_table(table: Any) -> None:
    """Padding behind the last column is for nobody: it breaks ``diff`` and wraps in narrow logs."""
    target = console()
    if target.is_terminal:
        target.print(table)
        return
    with target.capture() as captured:
        target.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def say(text: str, style: str = "") -> None:
    """Print a line of our own words."""
    from rich.text import Text

    console().print(Text(text, style=style), soft_wrap=True)


def console() -> Any:
    """The console of this output: plain text of at least 100 columns where nobody looks on."""
    from rich.console import Console

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=max(plain.width, 120))


def styled(value: object) -> Any:
    """A state as coloured text."""
    from rich.text import Text

    return Text(visible(value), style=_STYLES.get(str(value), ""))


def when(moment: dt.datetime | None) -> str:
    """A time as people read it: local, to the second."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short(value: object, width: int = 60) -> str:
    """A value in one line of at most ``width`` characters."""
    text = value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)
    text = visible(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def _cell(value: object) -> str:
    return "" if value is None else visible(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    # 1E+999999999 in full is a gigabyte of zeros.
    return format(value, "f") if isinstance(value, Decimal) and abs(value.adjusted()) < 400 else str(value)
