"""The redacted values that this process works with right now: no text of ours repeats one of them.

An exception may say ``card 4111... was declined``. While a call or the run it is in goes on, what is redacted of it is
looked for in every text that is recorded, logged or put on a span, as it is and as ``repr``, JSON or a URL write it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

from sagaspan import _fork as fork

SHORTEST: Final = 3
"""Shorter values are not looked for: they are in every text."""

SHORTEST_WITHIN: Final = 4
"""A shorter value is looked for in a result only as a whole word: it is by chance within many longer ones."""

_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")

STAND_IN: Final = "<redacted>"
_live: Final[Counter[str]] = Counter()
_lock = fork.new_lock()


def hold(values: Iterable[str]) -> list[str]:
    """Look for ``values`` from now on; returns what to ``drop`` later."""
    forms = [form for value in values for form in _forms(value)]
    with _lock:
        _live.update(forms)
    return forms


def keep() -> list[str]:
    """Look on for all that is looked for now; returns what to ``drop`` later."""
    with _lock:
        forms = list(_live)
        _live.update(forms)
    return forms


def drop(forms: Iterable[str]) -> None:
    """Look for them no more, as often as they were held."""
    with _lock:
        _live.subtract(forms)
        for form in [form for form, count in list(_live.items()) if count <= 0]:
            del _live[form]


@contextlib.contextmanager
def held(values: Iterable[str]) -> Iterator[None]:
    """Look for ``values`` within the block."""
    forms = hold(values)
    try:
        yield
    finally:
        drop(forms)


def scrubbed(text: str) -> str:
    """``text`` without any of them."""
    if not _live:
        return text
    with _lock:
        forms = sorted(_live, key=len, reverse=True)
    for form in forms:
        if form in text:
            text = text.replace(form, STAND_IN)
    return text


def scrubbed_data(data: Any) -> Any:
    """Plain JSON data without any of them: whole numbers and strings, and parts of strings."""
    if not _live:
        return data
    if isinstance(data, str):
        return scrubbed(data)
    if isinstance(data, list):
        return [scrubbed_data(item) for item in data]
    if isinstance(data, dict):
        return {scrubbed(name): scrubbed_data(item) for name, item in data.items()}
    if isinstance(data, int | float) and not isinstance(data, bool):
        return STAND_IN if repr(data) in _live else data
    return data


def finder(values: Iterable[str]) -> Callable[[str], bool]:
    """Return what says whether a text holds one of ``values``: a number as a whole, a short one as a word."""
    forms = {form for value in values for form in _forms(value)}
    return lambda text: any(form in text and _is_whole(form, text) for form in forms)


def _is_whole(form: str, text: str) -> bool:
    if _NUMBER.fullmatch(form):
        return re.search(rf"(?<!\d)(?<!\d\.){re.escape(form)}(?!\.?\d)", text) is not None
    return len(form) >= SHORTEST_WITHIN or re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text) is not None


def looked_for() -> list[str]:
    """Return all that is looked for now, in every form."""
    with _lock:
        return list(_live)


def _forms(value: str) -> set[str]:
    texts = {value, *_decoded(value)}
    forms = set(texts)
    for text in texts:
        forms |= {
            repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], quote(text),
            quote(text, safe=""), quote_plus(text), base64.b64encode(text.encode()).decode(),
        }  # fmt: skip
    return {form for form in forms if len(form) >= SHORTEST}


def _decoded(value: str) -> set[str]:
    """What bytes say that are recorded in base64."""
    try:
        data = base64.b64decode(value, validate=True)
        return {data.decode(), repr(data)[2:-1], data.hex()} if data else set()
    except ValueError:
        return set()
