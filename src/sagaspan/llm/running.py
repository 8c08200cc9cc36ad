"""How many tokens an answer has come to while it still comes, counted from below.

A provider that keeps to the limit of its request must never look as if it did not: its answer would be cut for
nothing. So what is counted are bounds that no tokenizer goes below, however an answer was cut into pieces on its way:

- A token reaches over no end of a word. Blanks and signs belong to their neighbours or to each other: a whole rule of
  dashes, or forty blanks, may be one.
- Of scripts that are written without blanks a token takes 24 letters at most, of anything 128 characters.
- A piece is one token at least, as providers send them, but only one for 24 of its letters, or for two of a script
  without blanks: a proxy may send letter by letter.

``likely`` is no bound: what such a text mostly comes to, for where nobody reports it and no budget hangs on it.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

from sagaspan.llm.messages import answered
from sagaspan.llm.streams import texts_of

_WORD: Final = re.compile(r"[^\W_]+(?:'[A-Za-z]+)*")
"""What no token reaches beyond, in the patterns that tokenizers split a text by; ``don't`` may be one."""
_REST: Final = re.compile(r"'?[^\W_]")
_DENSE: Final = "\u0e00"
"""From here on lie the scripts that are written without blanks."""
_LONGEST: Final = 128
_SURELY: Final = 24
"""Letters that are a token at least: of a piece, or of a script without blanks, one of whose letters weighs twelve."""
_WEIGHT: Final = 12
_LIKELY: Final = 4


class Running:
    """The count so far; ``add`` is cheap, and keeps no text."""

    __slots__ = ("_dense", "_in_word", "_letters", "_pieces", "_wide", "_words")

    def __init__(self) -> None:
        self._pieces = self._letters = self._words = self._dense = self._wide = 0
        self._in_word = False

    def add(self, event: Any) -> None:
        """Count what ``event`` brought: a chunk of an SDK or of LangChain, or a dict of its shape."""
        letters = self._letters
        for text in texts_of(event):
            self.add_text(text)
        self._pieces += self._letters > letters

    def add_text(self, text: str) -> None:
        """Count what came, apart from its coming in a piece."""
        if not text:
            return
        self._letters += len(text)
        if not text.isascii():
            self._wide += sum(not letter.isascii() for letter in text)
            self._dense += sum(letter >= _DENSE and letter.isalnum() for letter in text)
            # Some tokenizers take accents and vowel signs for letters, some for punctuation.
            text = "".join(letter for letter in text if not unicodedata.category(letter).startswith("M"))
        self._words += len(_WORD.findall(text))
        if self._in_word and _REST.match(text):  # the rest of the word before, which was counted
            self._words -= 1
        self._in_word = text[-1:].isalnum() or text[-1:] == "'" or (not text and self._in_word)

    @property
    def tokens(self) -> int:
        """Output tokens of all choices together, at least."""
        sure = (self._letters + self._dense * (_WEIGHT - 1)) // _SURELY
        return max(self._words, min(self._pieces, sure), self._dense // _SURELY, self._letters // _LONGEST)

    @property
    def likely(self) -> int:
        """What a text like that mostly comes to: a token for four letters, or for one that is not ASCII."""
        return -(-(self._letters + self._wide * (_LIKELY - 1)) // _LIKELY)


def likely_output(response: Any) -> int:
    """What a whole answer, as an object of an SDK or a dict, mostly comes to; 0 if it says nothing that can be read."""
    running = Running()
    for message in answered(response):
        for part in message.get("parts", ()):
            for text in (part.get("content"), part.get("name"), part.get("arguments")):
                running.add_text(text if isinstance(text, str) else "" if text is None else str(text))
    return running.likely
