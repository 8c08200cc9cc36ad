"""Messages that are signed as Standard Webhooks says: headers ``webhook-id``, ``-timestamp`` and ``-signature``.

The signature is HMAC-SHA256 over ``ID.TIMESTAMP.BODY``, in base64 after ``v1,``; there may be several, one a key. Any
library for Standard Webhooks verifies what is sent from here. (https://www.standardwebhooks.com)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final

from sagaspan import _strict_json as strict_json
from sagaspan.exceptions import ConfigurationError

SHORTEST: Final = 24
"""Bytes of a secret, as the standard asks."""

TOLERANCE_SECONDS: Final = 300.0
"""How old a message may be, or how far in the future by somebody's wrong clock."""

_ID, _TIMESTAMP, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_PREFIX: Final = "whsec_"


class Refused(Exception):
    """A message that is not what it says, or too late."""


def key_of(secret: str) -> bytes:
    """The key of a secret: ``whsec_`` and base64, or any text of at least 24 bytes. Raises ``ConfigurationError``."""
    if not isinstance(secret, str):
        raise ConfigurationError(f"secret takes a text, not a {type(secret).__name__}")
    try:
        base = secret.removeprefix(_PREFIX)
        key = base64.b64decode(base, validate=True) if base != secret else secret.encode()
    except ValueError as error:
        raise ConfigurationError("a secret that begins with whsec_ goes on in base64; this one does not") from error
    if len(key) < SHORTEST:
        raise ConfigurationError(
            f"a secret of {len(key)} bytes can be guessed; use {SHORTEST} random ones or more, such as those of: "
            "openssl rand -hex 32"
        )
    return key


def signed(message: str, body: bytes, key: bytes, now: float) -> dict[str, str]:
    """The headers with which ``body`` is sent as the message of this id at ``now`` (seconds since the epoch)."""
    timestamp = str(int(now))
    return {
        "content-type": "application/json", _ID: message, _TIMESTAMP: timestamp,
        _SIGNATURE: _signature(message, timestamp, body, key),
    }  # fmt: skip


def verified(headers: Mapping[str, str], body: bytes, key: bytes, now: float) -> tuple[str, dict[str, Any]]:
    """The id and the data of a message that was signed with ``key`` at most five minutes ago; raises ``Refused``."""
    given = {name.lower(): value for name, value in headers.items()}
    message, timestamp, signatures = (given.get(name, "") for name in (_ID, _TIMESTAMP, _SIGNATURE))
    if not message or not timestamp.isascii() or not timestamp.isdecimal():
        raise Refused("it is not signed")
    expected = _signature(message, timestamp, body, key).encode()
    # Every one is compared, whole: how long that takes says nothing.
    matches = [hmac.compare_digest(one.encode("utf-8", "replace"), expected) for one in signatures.split(" ")]
    if not any(matches):
        raise Refused("its signature is wrong")
    if len(timestamp) > 12 or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise Refused("it is more than five minutes old, or a clock is wrong")
    try:
        data = strict_json.loads(body)
    except ValueError as error:
        raise Refused(f"it is no JSON that can be relied on ({type(error).__name__})") from error
    if not isinstance(data, dict):
        raise Refused("it is no JSON object")
    return message, data


def _signature(message: str, timestamp: str, body: bytes, key: bytes) -> str:
    text = f"{message}.{timestamp}.".encode("utf-8", "replace") + body
    return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
