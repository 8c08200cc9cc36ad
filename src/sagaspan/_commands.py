"""Command lines of ``sagaspan`` that are shown to be typed next.

Ids come from requests: ``order-17$(reboot)`` may be one. A shell that is given such a line runs ``sagaspan`` with
exactly that id, and nothing else. Every command line that holds a value is made here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from sagaspan._characters import visible

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:/@+=")


class CommandLine(str):
    """A command line that still knows its parts, so that options can be added to it."""

    verb: str
    words: tuple[str, ...]
    options: Mapping[str, str | Literal[True]]

    def __new__(cls, verb: str, words: tuple[str, ...], options: Mapping[str, str | Literal[True]]) -> Self:
        """Join the parts; options come first if a word begins with a dash, which is a word only behind ``--``."""
        shown = [quoted(word) for word in words]
        named = [
            f"--{name}" + (f"{'=' if value.startswith('-') else ' '}{quoted(value)}" if isinstance(value, str) else "")
            for name, value in options.items()
        ]
        after = [*named, "--", *shown] if any(word.startswith("-") for word in words) else [*shown, *named]
        line = super().__new__(cls, " ".join(["sagaspan", *verb.split(), *after]))
        line.verb, line.words, line.options = verb, words, options
        return line

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it with its parts."""
        return CommandLine, (self.verb, self.words, self.options)

    def adding(self, **options: object) -> CommandLine:
        """Return the line with these options as well; those that are None are left out."""
        given = {name: value if value is True else str(value) for name, value in options.items() if value is not None}
        return CommandLine(self.verb, self.words, {**self.options, **given})


def command(verb: str, *words: str, **options: object) -> CommandLine:
    """Return ``sagaspan VERB WORDS --OPTION VALUE``; an option that is True is a flag, one that is None is left out."""
    return CommandLine(verb, words, {}).adding(**options)


def resolve_command(call_id: str) -> CommandLine:
    """Return the command by which a person says what became of a call."""
    return command("calls resolve", call_id, "OUTCOME", note="WHY")


def result_command(call_id: str) -> CommandLine:
    """Return the command by which a person says what a done call returned."""
    return command("calls resolve", call_id, "happened", result="JSON", note="WHY")


def quoted(word: str) -> str:
    """Return ``word`` as every POSIX shell reads it, without characters that a terminal obeys or hides."""
    if visible(word) == word:
        return shlex.quote(word)
    text = word.rstrip("\n")  # a command substitution drops them
    spelt = "".join(
        one if one in _PLAIN else "".join(f"\\{byte:03o}" for byte in one.encode("utf-8", "surrogatepass"))
        for one in text
    )
    return f"\"$(printf '{spelt}')\"" + (shlex.quote(word[len(text) :]) if text != word else "")
