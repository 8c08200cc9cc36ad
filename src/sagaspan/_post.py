"""Sending one signed message: over TLS but for this machine, without redirects, and of what comes back so much."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from sagaspan._clock import monotonic
from sagaspan.exceptions import ConfigurationError

MAX_BYTES: Final = 256 * 1024
CONNECT_SECONDS: Final = 5.0
_HERE: Final = ("127.0.0.1", "::1", "localhost")


class Unsent(Exception):
    """The message did not get through, or what came back cannot be relied on."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def check_url(url: object, where: str) -> str:
    """``url`` if messages may be sent there; raises ``ConfigurationError``."""
    if not isinstance(url, str):
        raise ConfigurationError(f"{where} takes a URL, not a {type(url).__name__}")
    if not url.isprintable() or " " in url:  # urlsplit drops line ends, and what is sent would be another URL
        raise ConfigurationError(f"{where}: {url!r} is no URL (it has a blank, a line end or a control character)")
    try:
        parts = urlsplit(url)
        host, scheme, _ = parts.hostname, parts.scheme, parts.port
    except ValueError as error:
        raise ConfigurationError(f"{where}: {url!r} is no URL ({error})") from error
    if not host or scheme not in ("https", "http"):
        raise ConfigurationError(f"{where}: {url!r} is no URL such as https://example.com/approvals")
    if scheme == "http" and host not in _HERE:
        raise ConfigurationError(f"{where}: what is sent to {host} could be read on the way; use https://")
    return url


def post(url: str, body: bytes, headers: dict[str, str], *, seconds: float) -> Answer:
    """Send ``body``; raises ``Unsent`` if it did not get through in so many seconds, or too much came back."""
    import requests  # only who sends pays for it

    deadline = monotonic() + seconds
    try:
        with requests.post(
            url, data=body, headers=headers, timeout=(min(CONNECT_SECONDS, seconds), seconds), allow_redirects=False,
            stream=True,
        ) as response:  # fmt: skip
            content = b""
            for part in response.iter_content(8192):
                content += part
                if len(content) > MAX_BYTES or monotonic() > deadline:
                    raise Unsent(f"it answered with more than {MAX_BYTES} bytes, or too slowly")
            return Answer(response.status_code, dict(response.headers), content)
    except (requests.RequestException, OSError, ValueError) as error:
        raise Unsent(type(error).__name__) from error
