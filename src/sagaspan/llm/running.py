"""How many tokens an answer has come to while it still comes, counted from below.

A provider that keeps to the limit of its request must never look as if it did not: its answer would be cut for
nothing. So a piece with text is one token at least, as providers send them, but only as far as its letters make that
likely (a proxy may send letter by letter); and eight letters are one token at least, however many come in a piece.
English has four to five letters a token; of other scripts a letter can be one.
"""

from __future__ import annotations

from typing import Any, Final

from sagaspan.llm.streams import texts_of

_LETTERS_AT_MOST: Final = 8
_LETTERS_LIKELY: Final = 4


class Running:
    """The count so far; ``add`` is cheap, and keeps no text."""

    __slots__ = ("_letters", "_likely", "_pieces")

    def __init__(self) -> None:
        self._pieces = 0
        self._letters = 0
        self._likely = 0

    def add(self, event: Any) -> None:
        """Count what ``event`` brought: a chunk of an SDK or of LangChain, or a dict of its shape."""
        letters = 0
        for text in texts_of(event):
            letters += len(text)
            self._likely += len(text) if text.isascii() else len(text) * _LETTERS_LIKELY
        if letters:
            self._pieces += 1
            self._letters += letters

    @property
    def tokens(self) -> int:
        """Output tokens of all choices together, at least."""
        return max(min(self._pieces, self._likely // _LETTERS_LIKELY), self._letters // _LETTERS_AT_MOST)
