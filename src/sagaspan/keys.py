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
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import rfc8785

BUSINESS_SCOPE: Final = "key"


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
    return rfc8785.dumps(data)


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
    text = json.dumps([namespace, scope, tool, key, generation])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def idempotency_headers(key: str) -> dict[str, str]:
    """The headers common payment APIs read the key from."""
    return {"Idempotency-Key": key, "PayPal-Request-Id": key}
