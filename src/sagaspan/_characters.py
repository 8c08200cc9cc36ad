"""Text as a terminal or a browser shows it, with nothing in it obeyed, hidden, or moved: the letters and the lines.

Controls, escapes, bidirectional and zero-width characters, blanks that are no space, fillers that look like nothing and
marks that change what stands before them are ``\\u{..}``; so is a run of blanks, ``\\u{20*48}``, because as many as it
takes to the edge of the screen would begin a line. Lines are folded here, not by the terminal: each row of a line but
the first begins with ``MARK``, so that no text can look like the next line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Final

WIDTH: Final = 76
"""How many columns a row takes at most, wide characters counted twice: the terminals of most people have 80."""

MARK: Final = "  | "
_NARROWEST: Final = 16
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Me"})
# Of other categories, and drawn as nothing: joiners, fillers, variation selectors, empty cells and notes.
_BLANK: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\ufffc\U00013441\U00013442\U00016fe4"
    "\U0001d159"
)
_OVERLAY: Final = 1  # the combining class of strokes through a letter
_MOST_MARKS: Final = 3
_ODD: Final = re.compile(r"  +|[^ -~]+")
_ODD_OR_QUOTE: Final = re.compile(r'  +|[\\"]|[^ -~]+')
_PIECE: Final = re.compile(r"\\u\{[0-9a-f*]+\}|\\.|.", re.DOTALL)

Escape = Callable[[str, int], str]
"""How a character that stands so many times in a row is spelt."""


def visible(value: object) -> str:
    """``value`` as text in which every such character is shown, not obeyed."""
    return spelt(str(value), _escape)


def quoted(text: str) -> str:
    """A text in quotes: a backslash or a quote in it is escaped, so that what looks like an escape is one."""
    return f'"{spelt(text, _escape, _ODD_OR_QUOTE)}"'


def word(value: object) -> str:
    """A name as it is if it is one word, else in quotes: none can look like two, or like our own words beside it."""
    text = str(value)
    return text if text and visible(text) == text and not any(one in ' ,;"\\' for one in text) else quoted(text)


def spelt(text: str, escape: Escape, odd: re.Pattern[str] = _ODD) -> str:
    """``text`` with each character that is obeyed or drawn as nothing, or as another one, spelt by ``escape``."""
    return odd.sub(lambda found: "".join(_parts(found, escape)), text)


def _parts(found: re.Match[str], escape: Escape) -> Iterator[str]:
    run = found[0]
    if run in ("\\", '"'):
        yield f"\\{run}"
    elif run[0] == " ":
        yield escape(" ", len(run))
    else:
        yield from _drawn(run, found.string[found.start() - 1] if found.start() else "", escape)


def _drawn(run: str, letter: str, escape: Escape) -> Iterator[str]:
    """The characters of ``run``; a mark is drawn on a letter of its kind only, and few of them on one."""
    marks = 0
    for one, same in groupby(run):
        count = len(list(same))
        if unicodedata.category(one) in ("Mn", "Mc"):
            marks += count
            yield one * count if marks <= _MOST_MARKS and _stands_on(one, letter) else escape(one, count)
        else:
            letter, marks = one, 0
            yield escape(one, count) if is_hidden(one) else one * count


def _stands_on(mark: str, letter: str) -> bool:
    if not letter.isalpha() or is_hidden(letter) or mark in _BLANK:
        return False
    place = unicodedata.combining(mark)
    return place != _OVERLAY if place else script_of(mark) == script_of(letter)


@lru_cache(maxsize=4096)
def is_hidden(character: str) -> bool:
    """Whether ``character`` is obeyed, or drawn as nothing, by a terminal or a browser."""
    category = unicodedata.category(character)
    return category in _HIDDEN or character in _BLANK or (category == "Zs" and character != " ")


@lru_cache(maxsize=4096)
def script_of(character: str) -> str:
    """What its name begins with: ``LATIN``, ``CYRILLIC``, ``ARABIC-INDIC``."""
    return unicodedata.name(character, "").partition(" ")[0]


def _escape(character: str, count: int) -> str:
    return f"\\u{{{ord(character):x}{f'*{count}' if count > 1 else ''}}}"


# -- lines ---------------------------------------------------------------------------------------------------------


def fold(line: str, width: int = WIDTH) -> list[str]:
    """One line as rows of at most ``width`` columns; the others than the first begin with ``MARK``.

    A row ends before a blank where it can, and never within an escape. Without the marks they are the line again.
    """
    width = max(width, _NARROWEST)
    rows: list[str] = []
    row, used, room = "", 0, width
    for piece in _PIECE.findall(line) if cells(line) > width else (line,):
        size = cells(piece)
        if used + size > room and row:
            at = len(row) - 1 if row.endswith(" ") else row.rfind(" ", room // 2)
            rows.append(row[:at] if at > 0 else row)
            row = row[at:] if at > 0 else ""
            used, room = cells(row), width - len(MARK)
        row, used = row + piece, used + size
    return [head + one for head, one in zip(["", *[MARK] * len(rows)], [*rows, row], strict=True)]


def folded(text: str, width: int = WIDTH) -> str:
    """``text`` with each of its lines folded; one that was folded for a wider screen is folded anew."""
    lines = text.replace(f"\n{MARK}", "").split("\n")
    return "\n".join(row for line in lines for row in fold(line, min(width, WIDTH)))


def clip(text: str, width: int) -> str:
    """The beginning of ``text`` in so many columns; no escape is cut."""
    if cells(text) <= width:
        return text
    kept = ""
    for piece in _PIECE.findall(text):
        if cells(kept + piece) > width - 2:
            break
        kept += piece
    return f"{kept}…"


def cells(text: str) -> int:
    """How many columns ``text`` takes at most; where terminals differ, as the widest of them."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@lru_cache(maxsize=4096)
def _cells(character: str) -> int:
    if character.isascii():
        return 1
    wide = unicodedata.east_asian_width(character) in "WFA" or unicodedata.category(character) == "So"
    return 2 if wide or character > "\uffff" else 1
