"""Canonical JSON, fingerprints and idempotency keys (rule book (a) 1 and 3).

A call is recorded under a key that is unique in a scope:

=========  ======================  ===========================================
source     scope                   key
=========  ======================  ===========================================
business   the whole namespace     what the policy's ``key`` makes of the arguments
content    the run (and reopening) sha256 of tool and canonical arguments, and the occurrence
content    a deferred call         the same, for what its body calls: it may run in another process than the rest
unique     the session             random: a call outside a run is nobody's repeat
=========  ======================  ===========================================
"""

from __future__ import annotations

import encodings.utf_16_be  # noqa: F401 - by rfc8785, at the first call; a fork must not meet an import halfway
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring as quoted
from json.encoder import encode_basestring_ascii as quoted_in_ascii
from typing import Any, Final

import rfc8785

BUSINESS_SCOPE: Final = "key"
_SAFE: Final = 2**53 - 1


class KeySource(StrEnum):
    """Where a key comes from."""

    BUSINESS = "business"
    CONTENT = "content"
    UNIQUE = "unique"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """A key, the scope it is unique in, and the fingerprint of the arguments it must always come with."""

    source: KeySource
    scope: str
    value: str
    fingerprint: str


def canonical(data: Any) -> bytes:
    """RFC 8785 canonical JSON of plain JSON data (``codecs.to_json`` makes values plain)."""
    return _canonical(data).encode()


def _canonical(data: Any) -> str:
    """What most arguments are made of is written here, in a quarter of the time; ``rfc8785`` writes all the rest."""
    kind = type(data)
    if kind is str and data.isascii():
        return quoted(data)
    if kind is dict and all(type(name) is str and name.isascii() for name in data):
        return "{" + ",".join([f"{quoted(name)}:{_canonical(data[name])}" for name in sorted(data)]) + "}"
    if kind is list:
        return "[" + ",".join([_canonical(item) for item in data]) + "]"
    if kind is int and -_SAFE <= data <= _SAFE:
        return repr(data)
    if kind is float and 1e-4 <= data < 1e16:  # where Python and ECMAScript write the same, but for ".0"
        return repr(data).removesuffix(".0")
    return rfc8785.dumps(data).decode()


def fingerprint(data: Any) -> str:
    """sha256 (hex) of the canonical JSON of plain JSON data."""
    return hashlib.sha256(canonical(data)).hexdigest()


def content_key(digest: str, number: int) -> str:
    """The key of the call with this ``digest`` that is this ``number`` of its equals in a run."""
    return digest if number == 0 else f"{digest}.{number}"


def number_in(key: str) -> int:
    """Which of its equals the call of a ``content_key`` is."""
    return int(key.partition(".")[2] or 0)


def run_scope(run_id: str, generation: int) -> str:
    """The scope of a run's content keys; a reopened run starts a new one."""
    return f"run:{run_id}" if generation == 0 else f"run#{generation}:{run_id}"


def sent_scope(call_id: str) -> str:
    """The scope of the content keys of what is called in the body of a deferred call."""
    return f"sent:{call_id}"


def idempotency_key(namespace: str, scope: str, tool: str, key: str, generation: int) -> str:
    """What the downstream service is told: stable over attempts, processes and loss of the record.

    160 bits in 40 hex characters: some payment APIs take no more than 45.
    """
    names = ", ".join([quoted_in_ascii(name) for name in (namespace, scope, tool, key)])
    text = f"[{names}, {generation}]"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def idempotency_headers(key: str) -> dict[str, str]:
    """The headers common payment APIs read the key from."""
    return {"Idempotency-Key": key, "PayPal-Request-Id": key}
