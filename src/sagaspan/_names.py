"""The names of a tool: the one its author wrote and the one models see. Whatever names tools is matched here.

The first of a tool's names is the canonical one: calls are recorded, counted and traced under it.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterable
from typing import Final

_REFUSED_BY_MODELS: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST: Final = 64
_SLIP: Final = 0.82
"""How alike two names are that are taken for one."""
_WILD: Final = re.compile(r"\[[^]]+\]|[*?]")


def model_name(name: str) -> str:
    """Return ``name`` as the APIs of models take it: letters, digits, ``_`` and ``-``, at most 64 of them."""
    return _REFUSED_BY_MODELS.sub("_", name)[:_LONGEST]


def is_glob(text: str) -> bool:
    """Return whether ``text`` may be a glob."""
    return any(character in text for character in "*?[")


def matches(pattern: str, names: Collection[str]) -> bool:
    """Return whether ``pattern``, a name or a glob, fits a tool of these ``names``."""
    # The name itself first: a tool may be called pay[eu], which is a glob that does not fit it.
    return pattern in names or (is_glob(pattern) and any(fnmatch.fnmatchcase(name, pattern) for name in names))


def misspelt(pattern: str, names: Iterable[str]) -> list[str]:
    """Return up to three of ``names`` that ``pattern`` nearly is: it is a slip for one of them."""
    text = _WILD.sub("", pattern)
    heads = {(name[: len(text)] if is_glob(pattern) else name): name for name in names}
    return [heads[head] for head in difflib.get_close_matches(text, heads, n=3, cutoff=_SLIP)]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint for an error about ``name``, which fits none of ``names``."""
    known, text = sorted(set(names)), _WILD.sub("", name)
    near = difflib.get_close_matches(text, known, n=3)
    if not near and is_glob(name):  # it may be a part of a name
        near = [one for one in known if difflib.get_close_matches(text, [one[: len(text)]])][:3]
    return f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known) or 'none'}"
