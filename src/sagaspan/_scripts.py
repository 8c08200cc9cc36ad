"""What is not what it looks like: scripts mixed in a word, letters and marks that stand for others, foreign digits.

The quotes, dashes and dots of printed text are what they are.

By the names and decompositions of Unicode that Python brings along, at the level that Unicode calls highly restrictive:
Latin with Chinese, Japanese or Korean is no mixture. A word that is wholly of another script can still look like a
Latin one (``сосо``), so those scripts are named too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from sagaspan._characters import is_hidden, script_of

_WITH_LATIN: Final = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO", "HANGUL"})
_COMMON: Final = frozenset({"MODIFIER", "MICRO", "MASCULINE", "FEMININE", "IDEOGRAPHIC", "DOUBLE-STRUCK"})
_ALIKE: Final = frozenset({"<font>", "<wide>", "<narrow>", "<compat>", "<small>", "<vertical>"})
_DIGITS: Final = "ASCII"
# Latin letters of phonetics and other notations: no language is written in them, and many look like a to z.
_NOTATION: Final = ((0x250, 0x2AF), (0x1D00, 0x1DBF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xAB30, 0xAB6F))

# What looks like the ASCII mark at the left and decomposes to nothing (the confusables of Unicode, but for letters of
# other scripts, which are named as such, and the quotes and dashes of printed text).
_MARKS: Final = frozenset[str]().union(
    *{
        '"': "\u02ba\u02dd\u02ee\u02f6\u201f\u2033\u2036\u301d\u301e\u301f\u3003",
        "'": "\u02b9\u02bc\u02bd\u02c8\u02ca\u02cb\u201b\u2032\u2035",
        ",": "\u00b8\u060d\u066b\u201a\u02cf",
        ":": "\u02d0\u02f8\u205a\u2236\u0589\u05c3\u1803",
        ".": "\u06d4\u0701\u0702\ua60e",
        "/": "\u1735\u2041\u2044\u2215\u2571\u27cb\u29f8\u3033\u31d3",
        "\\": "\u2216\u27cd\u29f5\u29f9\u31d4",
        "-": "\u02d7\u2010\u2011\u2043\u2212\u2796",
        "|": "\u01c0\u05c0\u2223\u23fd\u2758",
        "!": "\u01c3\u2d51",
        "<>": "\u02c2\u02c3\u1438\u1433\u276e\u276f",
        "()": "\u2768\u2769\u276a\u276b\u2772\u2773\ufd3e\ufd3f",
        "{}": "\u2774\u2775",
        "*": "\u066d\u204e\u2217",
        "~": "\u2053\u223c",
        "^": "\u02c4",
        "=": "\u2e40\u30a0\ua78a",
        "%": "\u066a",
    }.values()
)
_OF_CJK: Final = frozenset("\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff5e")
"""Wide marks that are the ordinary ones beside Chinese, Japanese or Korean."""


def mixed_scripts(text: str) -> tuple[str, ...]:
    """The scripts of the first word of ``text`` that has letters, or digits, of more than one."""
    # Most texts are in one script, and long ones are not looked through word by word for that.
    one_script = text.isascii() or (len({_script(one) for one in set(text)} - {None}) < 2 and len(_of_digits(text)) < 2)
    for word in () if one_script else text.split():
        letters = {script for one in set(word) if (script := _script(one)) is not None}
        for scripts in (letters, _of_digits(word)):
            if len(scripts) > 1 and not scripts <= _WITH_LATIN:
                return tuple(sorted(map(_title, scripts)))
    return ()


def other_scripts(text: str) -> tuple[str, ...]:
    """The scripts other than Latin that ``text`` has letters or digits of."""
    if text.isascii():
        return ()
    found = {_script(one) for one in set(text)} | _of_digits(text)
    return tuple(sorted(_title(script) for script in found if script not in (None, "LATIN", _DIGITS)))


def pretenders(text: str) -> tuple[str, ...]:
    """The characters of ``text`` that stand for others, or are letters of no language, each with its name."""
    found: AbstractSet[str] = set() if text.isascii() else set(text)
    named = [one for one in sorted(found) if _pretends(one)]
    scripts = {_script(one) for one in found} if named else set()
    return tuple(unicodedata.name(one).lower() for one in named if one.isalnum() or not _is_at_home(one, scripts))


def _is_at_home(mark: str, scripts: AbstractSet[str | None]) -> bool:
    """Whether it is an ordinary mark beside letters of these scripts."""
    return script_of(mark) in scripts or (mark in _OF_CJK and not scripts.isdisjoint(_WITH_LATIN - {"LATIN"}))


@lru_cache(maxsize=4096)
def _pretends(character: str) -> bool:
    if character.isascii() or is_hidden(character):
        return False
    if character in _MARKS or any(first <= ord(character) <= last for first, last in _NOTATION):
        return True
    kind, _, rest = unicodedata.decomposition(character).partition(" ")
    plain = unicodedata.normalize("NFKC", character)
    stands_for_one = plain.isascii() and (plain.isalnum() if character.isalnum() else len(plain) == 1)
    return stands_for_one and (kind in _ALIKE or not rest)


@lru_cache(maxsize=4096)
def _script(character: str) -> str | None:
    if not character.isalpha() or script_of(character) in _COMMON:
        return None
    plain = unicodedata.normalize("NFKC", character)
    return script_of(plain if len(plain) == 1 else character)


def _of_digits(text: str) -> set[str]:
    found = {one for one in set(text) if one.isdecimal()}
    return {_DIGITS if unicodedata.normalize("NFKC", one).isascii() else script_of(one) for one in found}


def _title(script: str) -> str:
    return script if script in ("CJK", _DIGITS) else script.title()
