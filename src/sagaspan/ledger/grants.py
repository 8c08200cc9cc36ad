"""Signed tokens: a link, with which one person decides one request once, and a grant, to decide for somebody else.

Both are signed with the secret of the ledger, end, and name whom they are for: what is in them cannot be changed, and
nobody guesses one (128 random bits, and 256 of a signature). A grant is given by a person, so none is given with one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from sagaspan._names import matches
from sagaspan.exceptions import ResolutionError
from sagaspan.keys import canonical

_LINK: Final = "sgl1"
_GRANT: Final = "sgg1"
_NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The right of ``by`` to decide the request of this id and digest, once."""

    namespace: str
    request: str
    digest: str
    by: str
    roles: tuple[str, ...]
    nonce: str
    expires_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right of ``to`` to agree for ``by``: to calls of ``tools`` (a glob) whose arguments fit ``when`` (CEL)."""

    namespace: str
    by: str
    roles: tuple[str, ...]
    assurance: str | None
    to: str
    tools: str
    when: str | None
    nonce: str
    expires_us: int

    def covers(self, *names: str) -> bool:
        """Whether it is about calls of the tool of these ``names``."""
        return matches(self.tools, names)


T = TypeVar("T", Link, Grant)


def new_nonce() -> str:
    """128 bits that nobody guesses."""
    return secrets.token_hex(_NONCE_BYTES)


def nonce_id(nonce: str) -> str:
    """How a nonce is remembered: who reads the ledger has none of it."""
    return hashlib.sha256(nonce.encode()).hexdigest()


def token_of(granted: Link | Grant, key: bytes) -> str:
    """``granted`` as text that its holder shows."""
    kind = _LINK if isinstance(granted, Link) else _GRANT
    body = _text(canonical({**asdict(granted), "roles": list(granted.roles)}))
    return f"{kind}.{body}.{_signature(key, kind, body)}"


def link_of(token: str, key: bytes, now_us: int) -> Link:
    """The link that ``token`` is; raises ``ResolutionError`` for one that was forged, or is over."""
    return _read(token, _LINK, Link, key, now_us)


def grant_of(token: str, key: bytes, now_us: int) -> Grant:
    """The grant that ``token`` is; raises ``ResolutionError`` for one that was forged, or is over."""
    return _read(token, _GRANT, Grant, key, now_us)


def _read(token: str, kind: str, what: type[T], key: bytes, now_us: int) -> T:
    name = what.__name__.lower()
    parts = str(token).split(".") if str(token).isascii() else []
    if len(parts) != 3 or parts[0] != kind or not hmac.compare_digest(parts[2], _signature(key, kind, parts[1])):
        raise ResolutionError(f"this is no {name} that this ledger has given; nothing was decided", tool_ran="no")
    data: dict[str, Any] = json.loads(base64.urlsafe_b64decode(f"{parts[1]}=="))
    granted = what(**{**data, "roles": tuple(data["roles"])})
    if granted.expires_us <= now_us:
        raise ResolutionError(f"the {name} for {_whose(granted)!r} is over; nothing was decided", tool_ran="no")
    return granted


def _whose(granted: Link | Grant) -> str:
    return granted.by if isinstance(granted, Link) else granted.to


def _signature(key: bytes, kind: str, body: str) -> str:
    return _text(hmac.new(key, f"{kind}.{body}".encode(), hashlib.sha256).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
