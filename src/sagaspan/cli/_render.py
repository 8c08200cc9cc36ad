"""Tables for people or JSON for machines; what comes from outside is made visible, never obeyed.

A tool's name, an argument or an error can hold terminal escapes, carriage returns or bidirectional marks that
would hide or forge a line: each of them is shown as ``\\u{..}``.
"""

from __future__ import annotations

import csv
import datetime as dt
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import IO, Any, Final

import click

from sagaspan._characters import folded, spelt
from sagaspan._characters import visible as _visible

_WHOLE: Final = frozenset(
    {"what", "id", "run", "trace", "call", "#", "state", "status", "next", "started", "took", "query"}
)
_WIDE: Final = 16
_SAMPLED: Final = 500
"""The first rows of a table, by which its columns are laid out on a terminal."""

_UNBOUNDED: Final = 100_000
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')

_STYLES: Final = {
    "done": "green", "completed": "green", "compensated": "yellow", "running": "cyan", "compensating": "cyan",
    "failed": "red", "unknown": "bold red", "needs_human": "bold red", "compensation_failed": "bold red",
    "partially_compensated": "bold red", "held": "magenta", "paused": "magenta", "ERROR": "red",
}  # fmt: skip

_titles: Callable[[], Mapping[str, str]] = dict


def show_titles(of: Callable[[], Mapping[str, str]]) -> None:
    """Show people these titles instead of the names of tools; ``of`` is asked once, when the first text is shown."""
    global _titles
    _titles = functools.cache(of)


def visible(value: object) -> str:
    """Return ``value`` as text in which nothing is obeyed, with the titles of tools instead of their names."""
    text, titles = _visible(value), _titles()
    if not titles:
        return text
    names = "|".join(map(re.escape, sorted(titles, key=len, reverse=True)))
    return re.sub(rf"(?<!\w)(?:{names})(?!\w)", lambda found: _visible(titles[found[0]]), text)


def emit_json(data: Any) -> None:
    """Print ``data`` (dataclasses, datetimes and enums among it) as one JSON document."""
    click.echo(dumped(data, indent=2))


def emit_line(data: Any) -> None:
    """Print ``data`` as JSON in one line, at once: for output that goes on."""
    click.echo(dumped(data))
    sys.stdout.flush()


def dumped(data: Any, indent: int | None = None) -> str:
    """``data`` (dataclasses, datetimes and enums among it) as JSON, in which nothing is obeyed by a terminal."""
    text = json.dumps(_plain(data), ensure_ascii=False, indent=indent, allow_nan=False)
    # Nothing in it is obeyed by a terminal either, or pads a line to the edge of the screen: it is an escape that
    # JSON has, and so is a lone surrogate. Raw, such characters stand only in strings.
    return _STRING.sub(lambda found: spelt(found[0], _escaped), text)


def emit_csv(rows: Iterable[Iterable[object]], out: IO[str]) -> None:
    """Write ``rows`` as CSV: as they are for another program, and made visible where ``out`` is a terminal."""
    writer = csv.writer(_Lines(out))
    on_terminal = out.isatty()
    for row in rows:
        writer.writerow([visible(cell) if on_terminal and isinstance(cell, str) else cell for cell in row])


class _Lines:
    """Ends rows as files here do. The writer itself ends them with both characters, for it quotes no others alone."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def write(self, row: str, /) -> int:
        return self._out.write(row.removesuffix("\r\n") + "\n")


def _escaped(character: str, count: int) -> str:
    return (f"\\u{ord(character):04x}" if character in " \x7f" else json.dumps(character)[1:-1]) * count


def emit_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Print a table, or, where that would be too wide to read, each row as a list of its columns.

    Before that, cells are folded closer, and the columns ``spare`` are left out one after the other.
    """
    rows = list(rows)
    shown = _shown_columns(columns, rows[:_SAMPLED] if console().is_terminal else rows, spare)
    if shown is None:
        _emit_lists(columns, rows, title)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for at, width in shown.items():
        table.add_column(columns[at], overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(_cell(row[at]), style=_STYLES.get(str(row[at]), "")) for at in shown))
    _print_table(table)


def _shown_columns(
    columns: Sequence[str], rows: Sequence[Sequence[object]], spare: Sequence[str]
) -> dict[int, int] | None:
    """The columns of a table as wide as it can be read here, each with its width; or None."""
    cells = [[column, *(_cell(row[at]) for row in rows)] for at, column in enumerate(columns)]
    longest = [max(map(len, texts)) for texts in cells]
    # What people copy stays in one piece; of other cells 16 characters, or at least their longest word.
    whole = [column in _WHOLE for column in columns]
    wide = [most if keep else min(most, _WIDE) for most, keep in zip(longest, whole, strict=True)]
    words = [max((min(len(word), _WIDE) for text in texts for word in text.split()), default=0) for texts in cells]
    close = [most if keep else word for most, word, keep in zip(longest, words, whole, strict=True)]
    room = console().width
    for left_out in range(len(spare) + 1):
        kept = [at for at, column in enumerate(columns) if column not in spare[:left_out]]
        for least in (wide, close):
            left = room - sum(least[at] + 2 for at in kept)
            if left >= 0:
                return _shared_out({at: least[at] for at in kept}, {at: longest[at] for at in kept}, left)
    return None


def _shared_out(widths: dict[int, int], wanted: dict[int, int], left: int) -> dict[int, int]:
    """``widths`` with the room that is ``left`` given to those who lack most of what is ``wanted``."""
    for _ in range(left):
        neediest = max(widths, key=lambda at: wanted[at] - widths[at])
        if wanted[neediest] <= widths[neediest]:
            break
        widths[neediest] += 1
    return widths


def _emit_lists(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None) -> None:
    if title:
        say(title, "italic")
    longest = max(map(len, columns))
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            emit_block(f"{name:<{longest}}  {_cell(value)}", _STYLES.get(str(value), ""))
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


def emit_block(text: str, style: str = "") -> None:
    """Print what holds words of others, folded for this terminal, so that none of them begins a line.

    Where nobody looks on a line stays one line, for who greps it.
    """
    at = console()
    say(folded(text, at.width) if at.is_terminal else text, style)


def console() -> Any:
    """The console of this output: plain text, a line a row however long, where nobody looks on."""
    from rich.console import Console

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=_UNBOUNDED)


def styled(value: object) -> Any:
    """A state as coloured text."""
    from rich.text import Text

    return Text(visible(value), style=_STYLES.get(str(value), ""))


def lately(moment: dt.datetime | None) -> str:
    """A time for a table: as short as it is clear where somebody looks on, else as ``when``."""
    if moment is None or not console().is_terminal:
        return when(moment)
    local, now = moment.astimezone(), dt.datetime.now().astimezone()
    if local.date() == now.date():
        return local.strftime("%H:%M:%S")
    return local.strftime("%m-%d %H:%M" if local.year == now.year else "%Y-%m-%d")


def plain_error(text: str | None) -> str | None:
    """An error as people read it in a table: its class without the module that has it."""
    return None if text is None else re.sub(r"^(\w+\.)+(?=\w+(: |$))", "", text)


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
