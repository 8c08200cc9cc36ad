"""Asking a server of the loopback over HTTP, once or until it has an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

T = TypeVar("T")

PATIENCE: Final = 300.0  # seconds; a machine that is busy fails no test
_opener: Final = build_opener(ProxyHandler({}))


def get(url: str, **parameters: str) -> Any:
    """The JSON at ``url``; text where it is none."""
    full = f"{url}?{urlencode(parameters)}" if parameters else url
    with _opener.open(full, timeout=30) as answer:
        text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def post(url: str, said: dict[str, Any]) -> Any:
    """The JSON that ``url`` answers to ``said``."""
    headers = {"content-type": "application/json"}
    with _opener.open(Request(url, json.dumps(said).encode(), headers), timeout=30) as answer:
        return json.loads(answer.read())


def eventually(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """What ``look`` finds as soon as it is something. Raises ``AssertionError`` if it never is."""
    until = time.monotonic() + patience
    while True:
        try:
            seen, error = look(), None
        except (OSError, URLError) as refused:
            seen, error = None, refused
        if seen:
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {patience:.0f} s ({error or seen!r})")
        time.sleep(0.2)
