"""What a codec does to a ledger: the content of records is encrypted on its way in, and read on its way out.

Content is what users' tools say: arguments, results, inputs, outputs, the texts of errors and notes. What the ledger
works with stays as it is: names, ids, states, times, and the few words of its own that decisions are made by, so that
a process without the codec decides the same. What was written before there was a codec stays readable.

A random key of each namespace is in the ledger, encrypted with the codec. Keys and fingerprints of arguments are keyed
with it: who has only the ledger cannot try all values. To read it is also the proof that this is the codec that the
ledger was encrypted with, and before that nothing is written.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sagaspan._checks import masked
from sagaspan._fork import new_lock
from sagaspan.codecs import ENCRYPTED, Codec, Sealed, is_encrypted
from sagaspan.exceptions import ConfigurationError, StoreUnavailable
from sagaspan.keys import canonical
from sagaspan.ledger.records import ApprovalRecord, AuditRow, CallRecord, RunRecord
from sagaspan.ledger.resolution import WORDS

if TYPE_CHECKING:
    from sagaspan._compensation import Handler
    from sagaspan._probe import Probe
    from sagaspan.ledger.store import Change

OF_CODEC: Final = "codec"
"""The name of the fact that is the encrypted key."""

_KEYED: Final = "keyed:"
_KEY: Final = "sagaspan key "
_CHANGING: Final = {
    CallRecord: ("result", "result_lost", "error_message"), RunRecord: ("output", "error"), AuditRow: ("detail",),
    ApprovalRecord: ("reason",),
}  # fmt: skip
_WRITTEN_ONCE: Final = {
    CallRecord: ("arguments",), RunRecord: ("input",), AuditRow: (), ApprovalRecord: ("subject",),
}  # fmt: skip
_OF_CALLS: Final = ("idempotency_key", "call")
_OF_RESULTS: Final = ("result", "compensation_data")

Content = CallRecord | RunRecord | AuditRow | ApprovalRecord
C = TypeVar("C", CallRecord, RunRecord, AuditRow, ApprovalRecord)


class Facts(Protocol):
    """What a ledger knows of a namespace, beside its records."""

    url: str

    def facts(self, namespace: str) -> dict[str, str]:
        """Its facts by name."""

    def put_fact(self, namespace: str, name: str, value: str, *, expected: str | None) -> bool:
        """Save a fact if it still is ``expected`` (None: not there); on disk when this returns."""


class Encryption:
    """The codec of one namespace of a ledger."""

    def __init__(self, codec: Codec, namespace: str, facts: Facts) -> None:
        self.codec = codec
        self._namespace = namespace
        self._facts = facts
        self._key: bytes | None = None
        self._lock = new_lock()

    # -- the key -----------------------------------------------------------------------------------------------

    @property
    def is_proved(self) -> bool:
        """Whether this is known to be the codec of the ledger, so that nothing has to be asked of that any more."""
        return self._key is not None

    def prove(self) -> bytes:
        """The key of the namespace; raises ``ConfigurationError`` if this codec does not read it, ``StoreError``."""
        key = self._key
        if key is None:
            with self._lock:
                key = self._key = self._load()
        return key

    def digest(self, data: Any) -> str:
        """The keyed fingerprint of plain JSON data; raises as ``prove``."""
        return _KEYED + hmac.new(self.prove(), canonical(data), "sha256").hexdigest()

    def _load(self) -> bytes:
        while True:
            known = self._facts.facts(self._namespace).get(OF_CODEC)
            if known is None:
                self._facts.put_fact(self._namespace, OF_CODEC, self._new_key(), expected=None)
                continue
            text = self._opened(known)
            if isinstance(text, Sealed) or not text.startswith(_KEY):
                raise ConfigurationError(
                    f"the codec of this guard does not read what the namespace {self._namespace!r} of the ledger "
                    f"{masked(self._facts.url)} was encrypted with, so nothing is written; give it the key that it had "
                    "before"
                )
            # Under the newest key from now on, so that an older one can be dropped one day.
            self._facts.put_fact(self._namespace, OF_CODEC, self._sealed(text), expected=known)
            return bytes.fromhex(text.removeprefix(_KEY))

    def _new_key(self) -> str:
        text = _KEY + secrets.token_hex(32)
        sealed = self._sealed(text)
        if self._opened(sealed) != text:
            raise ConfigurationError(
                f"the codec {type(self.codec).__qualname__} does not decode what it has encoded, so nothing that is "
                "recorded with it could be read again; decode(encode(data)) must be data"
            )
        return sealed

    # -- in and out --------------------------------------------------------------------------------------------

    def closed(self, change: Change) -> Change:
        """``change`` with its content encrypted; raises ``ConfigurationError``, ``StoreUnavailable``."""
        self.prove()
        told: Any = change
        record = self._closed(told.record, is_new=told.expected_version == 0)
        # What the audit trail says of an approval is ours, and who verifies it must be able to read it.
        audit = told.audit if told.audit.approval_id is not None else self._closed(told.audit, is_new=True)
        encrypted: Change = replace(told, record=record, audit=audit)
        return encrypted

    def _closed(self, record: Content, *, is_new: bool) -> Content:
        names = _CHANGING[type(record)] + (_WRITTEN_ONCE[type(record)] if is_new else ())
        texts = {name: getattr(record, name) for name in names}
        changes: dict[str, Any] = {name: self._sealed(text) for name, text in texts.items() if _is_content(text)}
        return replace(record, **changes) if changes else record

    def opened(self, record: C) -> C:
        """``record`` with its content readable; what this codec does not read is ``Sealed``."""
        names = _CHANGING[type(record)] + _WRITTEN_ONCE[type(record)]
        texts = {name: getattr(record, name) for name in names}
        changes: dict[str, Any] = {name: self._opened(text) for name, text in texts.items() if is_encrypted(text)}
        return replace(record, **changes) if changes else record

    def _sealed(self, text: str) -> str:
        try:
            data = base64.b64encode(self.codec.encode(text.encode("utf-8", "backslashreplace")))
        except Exception as error:
            raise StoreUnavailable(
                f"the codec {type(self.codec).__qualname__} did not encrypt what is to be recorded "
                f"({type(error).__name__}), so it was not written"
            ) from error
        return ENCRYPTED + data.decode()

    def _opened(self, text: str) -> str:
        try:
            return self.codec.decode(base64.b64decode(text.removeprefix(ENCRYPTED), validate=True)).decode()
        except Exception:  # noqa: BLE001 - another key, a damaged text, a service that is down: whatever it says of it
            return Sealed(text)


def _is_content(text: str | None) -> bool:
    """Whether a text is to be encrypted: it is there, says something of a user's, and could be read before."""
    return text is not None and text not in WORDS and not isinstance(text, Sealed)


# -- without the codec -----------------------------------------------------------------------------------------


def check_fingerprint(fingerprint: str, what: str) -> None:
    """Refuse to go on without a codec with ``what`` was recorded under one; raises ``ConfigurationError``.

    Its arguments would have other fingerprints, so what was done would look new.
    """
    if fingerprint.startswith(_KEYED):
        raise ConfigurationError(
            f"{what} was recorded under a codec, and this guard has none, so nothing ran; give it the same "
            "Guard(codec=...)"
        )


def is_locked(text: str | None) -> bool:
    """Whether a text is encrypted and there is no codec here at all; another process may have it."""
    return is_encrypted(text) and not isinstance(text, Sealed)


def hides(record: CallRecord, handler: Handler | Probe, about: Collection[str] = _OF_RESULTS) -> bool:
    """Whether ``handler`` needs what of ``record`` is encrypted, while there is no codec here.

    ``about`` are the names under which it can ask for the result.
    """
    arguments, result = is_locked(record.arguments), is_locked(record.result)
    if not (arguments or result):
        return False
    asked = handler.declared
    of_arguments = handler.takes_all or bool(asked - {*_OF_CALLS, *about})
    return "call" in asked or (arguments and of_arguments) or (result and bool(asked & set(about)))
