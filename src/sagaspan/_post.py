"""Sending one signed message: over TLS but for this machine, without redirects, and of what comes back so much."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from sagaspan.exceptions import ConfigurationError

if TYPE_CHECKING:
    from requests import Session

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


def post(url: str, body: bytes, headers: dict[str, str], *, seconds: float, trust_env: bool = False) -> Answer:
    """Send ``body``; raises ``Unsent`` if it did not get through in so many seconds, or too much came back.

    ``trust_env``: use the proxies and the ``.netrc`` of the environment, unless the receiver is on this machine.
    """
    from requests import RequestException  # only who sends pays for it

    from sagaspan._deadline import session_for

    over = False
    try:
        with session_for(seconds) as (session, deadline):
            session.trust_env = trust_env and not _is_loopback(url)
            # requests takes these from the environment only together with proxies and .netrc.
            session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
            try:
                answer = _answer(session, url, body, headers, seconds)
            finally:
                over = deadline.over
    except (RequestException, OSError, ValueError) as error:
        raise Unsent(_TOO_SLOW if over else type(error).__name__) from error
    if over:  # what was cut off may look whole
        raise Unsent(_TOO_SLOW)
    return answer


def _is_loopback(url: str) -> bool:
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


_TOO_SLOW: Final = "it answered too slowly"


def _answer(session: Session, url: str, body: bytes, headers: dict[str, str], seconds: float) -> Answer:
    # What is compressed can be any number of bytes.
    headers = {**headers, "accept-encoding": "identity"}
    with session.post(
        url, data=body, headers=headers, timeout=(min(CONNECT_SECONDS, seconds), seconds), allow_redirects=False,
        stream=True,
    ) as response:  # fmt: skip
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Unsent("it answered with compressed content, which nobody asked for")
        content = b""
        for part in response.iter_content(8192):
            content += part
            if len(content) > MAX_BYTES:
                raise Unsent(f"it answered with more than {MAX_BYTES} bytes")
        return Answer(response.status_code, dict(response.headers), content)
