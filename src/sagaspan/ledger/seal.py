"""What goes through every store: redacted fields are taken out of what is written, and texts are cleaned of them.

Arguments were redacted when their call was made, because keys and fingerprints are made of them. Results come from many
sides (a body, a late one, a probe, a person), so they are redacted here, on their one way into the ledger.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sagaspan import _live as live
from sagaspan import _secret as secret
from sagaspan import codecs
from sagaspan._checks import masked
from sagaspan._fork import new_lock
from sagaspan.exceptions import ConfigurationError
from sagaspan.keys import canonical
from sagaspan.ledger.encryption import OF_CODEC, C, Encryption, Facts
from sagaspan.ledger.records import ApprovalRecord, AuditRow, CallRecord, Phase, RunRecord
from sagaspan.redaction import ANYWHERE, Redaction, redaction_of, without

if TYPE_CHECKING:
    from sagaspan.ledger.store import Change

_OF_SECRET: Final = "secret"  # noqa: S105 - the name of a fact
_REDACT: Final = "redact:"
_DIGITS: Final = 32
_WORD: Final = re.compile(r"[^\s\"'(){}\[\]<>,;:=]+")


class Seal:
    """What one store does to records on their way in, and out again.

    ``active``: something is done on the way in. ``encryption``: by namespace, where there is a codec.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.active = False
        self.encryption: dict[str, Encryption] = {}
        self._redactions: dict[tuple[str, str], Redaction] = {}
        self._noted: set[tuple[str, str]] = set()
        self._keys: dict[str, bytes] = {}
        self._lock = new_lock()

    # -- what is redacted --------------------------------------------------------------------------------------

    def redact(self, namespace: str, tool: str, redaction: Redaction) -> None:
        """Take these fields out of the calls of ``tool``, beside those that were named before."""
        self._redactions[namespace, tool] = redaction.beside(self._redactions.get((namespace, tool)))
        self._noted.discard((namespace, tool))
        self.active = True

    def redaction(self, namespace: str, tool: str) -> Redaction | None:
        """What is redacted of ``tool``, if anything is."""
        return self._redactions.get((namespace, tool))

    def note(self, namespace: str, tool: str) -> None:
        """Write down what is redacted of ``tool``, for processes that do not have it. Raises ``StoreError``."""
        if (namespace, tool) in self._noted:
            return
        mine = [".".join(path) for path in self._redactions[namespace, tool].paths]
        while True:
            known = self._facts.facts(namespace).get(f"{_REDACT}{tool}")
            wanted = json.dumps(sorted({*mine, *(json.loads(known) if known else ())}))
            if known == wanted or self._facts.put_fact(namespace, f"{_REDACT}{tool}", wanted, expected=known):
                self._noted.add((namespace, tool))
                return

    def learn(self, namespace: str, tool: str) -> None:
        """Redact what another process wrote down of ``tool``.

        Raises ``ConfigurationError`` if that process encrypts what is recorded and this one cannot, or ``StoreError``.
        """
        facts = self._facts.facts(namespace)
        if OF_CODEC in facts and namespace not in self.encryption:
            raise ConfigurationError(
                f"what is recorded in the namespace {namespace!r} is encrypted, and there is no codec here, so this "
                "would be written in clear; use the guard that has it (--app MODULE:GUARD)"
            )
        known = facts.get(f"{_REDACT}{tool}")
        if known is not None:
            paths = json.loads(known)
            redaction = redaction_of(paths, [path.split(".")[0] for path in paths], where=f"tool {tool!r}")
            if redaction is not None:
                self.redact(namespace, tool, redaction)

    def hide(self, namespace: str, tool: str) -> codecs.Hide:
        """What puts a keyed hash in the place of a value of ``tool``: equal for equal values of one field."""
        return functools.partial(self._hidden, namespace, tool)

    def _hidden(self, namespace: str, tool: str, data: Any, place: str) -> dict[str, str]:
        self.active = True
        text = canonical([namespace, tool, place, data])
        return codecs.redacted(secret.keyed_hash(self.key(namespace), text)[:_DIGITS])

    def cleaned(self, value: Any, secrets: Sequence[str]) -> Any:
        """Return what a body returned with a stand-in for each part that holds one of the ``secrets`` of its call."""
        if not secrets:
            return value
        try:
            plain = codecs.to_json(value, hide=codecs.blank)
        except codecs.Unencodable:
            return value
        clean = without(plain, live.finder(secrets))
        return value if clean == plain else codecs.decode(codecs.dump(clean))

    def _finder(self, record: CallRecord, redaction: Redaction) -> Callable[[str], bool]:
        """Return what says whether a text holds a redacted argument of ``record``, of which only hashes are known.

        It finds a whole text and a whole word; where this process works with the value right now, any part of a text.
        """
        digests = frozenset(_digests(record.arguments))
        if not digests:
            return lambda _: False
        places = {".".join(path) for path in redaction.paths} | {
            path[1] for path in redaction.paths if path[0] == ANYWHERE
        }
        hide = self.hide(record.namespace, record.tool)

        @functools.cache
        def is_redacted(text: str) -> bool:
            values = (text, codecs.to_json(json.loads(text))) if re.fullmatch(r"-?[1-9]\d*(\.\d+)?", text) else (text,)
            return len(text) >= live.SHORTEST and any(
                hide(value, place)["value"] in digests for place in places for value in values
            )

        finds = live.finder([text for text in live.looked_for() if is_redacted(text)])
        return lambda text: finds(text) or is_redacted(text) or any(map(is_redacted, _WORD.findall(text)))

    def hashed(self, namespace: str, what: str, text: str) -> str:
        """The keyed hash of a key or the name of a lock."""
        return secret.keyed_hash(self.key(namespace), canonical([namespace, what, text]))

    # -- the key -----------------------------------------------------------------------------------------------

    def key(self, namespace: str) -> bytes:
        """The key of the keyed hashes, the same for all processes; raises ``ConfigurationError`` or ``StoreError``."""
        key = self._keys.get(namespace)
        if key is None:
            with self._lock:
                key = self._keys[namespace] = self._load_key(namespace)
        return key

    def where_key_is(self, namespace: str) -> tuple[str, bool]:
        """Where the key is that this process would use, and whether something is written with it; makes nothing.

        Raises ``ConfigurationError`` for none where there was one, or another, or ``StoreError``.
        """
        key, known = self._found_key(namespace)
        path = secret.path_for(self._facts.url)
        if key is None:
            return f"made in {path} when it is first needed", False
        return secret.VARIABLE if secret.from_environment() else str(path), known is not None

    def _load_key(self, namespace: str) -> bytes:
        key, known = self._found_key(namespace)
        key = key or secret.make_for(self._facts.url)
        if known is None and not self._facts.put_fact(namespace, _OF_SECRET, _mark(key), expected=None):
            self._found_key(namespace)
        return key

    def _found_key(self, namespace: str) -> tuple[bytes | None, str | None]:
        """The key that is here, and the mark of the one that the ledger was written with."""
        known = self._facts.facts(namespace).get(_OF_SECRET)
        path = secret.path_for(self._facts.url)
        key = secret.from_environment() or secret.read(path)
        if key is None and known is not None:
            raise ConfigurationError(
                f"the secret with which the ledger {masked(self._facts.url)} was written is not in {path}; restore it, "
                f"copy it from a host that has it, or name it with {secret.VARIABLE}, the same for all hosts and users "
                "of a ledger. Another one would let calls that were done be done again"
            )
        if key is not None and known not in (None, _mark(key)):
            raise ConfigurationError(
                f"the ledger {masked(self._facts.url)} was written with another secret than that of "
                f"{secret.VARIABLE if secret.from_environment() else path}; with this one, calls that were done would "
                "be done again. Give every process the same one"
            )
        return key, known

    # -- what is encrypted -------------------------------------------------------------------------------------

    def encrypt(self, namespace: str, codec: codecs.Codec) -> None:
        """Encrypt the content of what is recorded from now on, and read what is encrypted with ``codec``."""
        known = self.encryption.get(namespace)
        if known is None or known.codec is not codec:
            self.encryption[namespace] = Encryption(codec, namespace, self._facts)
        self.active = True

    def opened(self, record: C) -> C:
        """``record`` as it was before it was encrypted, if there is a codec for it."""
        encryption = self.encryption.get(record.namespace)
        return record if encryption is None else encryption.opened(record)

    # -- on the way in -----------------------------------------------------------------------------------------

    def closed(self, change: Change) -> Change:
        """``change`` as it may be written."""
        told: Any = change  # a lock, a limit and a barrier say nothing that a tool did
        audit = getattr(told, "audit", None)
        if not isinstance(audit, AuditRow):
            return change
        record = getattr(told, "record", None)
        if not isinstance(record, CallRecord | RunRecord | ApprovalRecord):
            return change  # what an operator said, and a note
        if isinstance(record, CallRecord):
            record = self._closed_call(record, is_new=told.expected_version == 0)
        elif isinstance(record, RunRecord) and record.error is not None:
            record = replace(record, error=live.scrubbed(record.error))
        if audit.detail is not None:
            audit = replace(audit, detail=live.scrubbed(audit.detail))
        closed: Change = replace(told, record=record, audit=audit)
        encryption = self.encryption.get(record.namespace)
        return closed if encryption is None else encryption.closed(closed)

    def _closed_call(self, record: CallRecord, *, is_new: bool) -> CallRecord:
        changes: dict[str, Any] = {}
        redaction = self._redactions.get((record.namespace, record.tool))
        if redaction is not None:
            hide = self.hide(record.namespace, record.tool)
            if record.result is not None:
                result = _through(record.result, functools.partial(redaction.result, hide=hide))
                finds = self._finder(record, redaction)
                changes["result"] = _through(result, lambda data: without(data, finds))
            if is_new and record.phase is Phase.COMPENSATION:
                changes["arguments"] = _through(record.arguments, functools.partial(redaction.arguments, hide=hide))
        if record.phase is Phase.COMPENSATION and record.result is not None:
            # No redacted argument of the call is among its own: it is what this process works with.
            changes["result"] = _through(changes.get("result", record.result), live.scrubbed_data)
        if record.error_message is not None:
            changes["error_message"] = live.scrubbed(record.error_message)
        if record.result_lost is not None:
            changes["result_lost"] = live.scrubbed(record.result_lost)
        return replace(record, **changes) if changes else record


def _digests(text: str) -> Iterator[str]:
    """Yield the keyed hashes that stand for redacted values in an encoded text; one that cannot be read has none."""
    with contextlib.suppress(ValueError):
        found = [json.loads(text)]
        while found:
            data = found.pop()
            if isinstance(data, dict):
                if data.get(codecs.TAG) == codecs.REDACTED and data["value"]:
                    yield data["value"]
                found += data.values()
            elif isinstance(data, list):
                found += data


def _mark(key: bytes) -> str:
    """By what the ledger knows the key again."""
    return secret.keyed_hash(key, b"the secret of this ledger")[:_DIGITS]


def _through(text: str, change: Any) -> str:
    """An encoded text with its plain data changed; one that cannot be read stays as it is."""
    try:
        return codecs.dump(change(json.loads(text)))
    except ValueError:
        return text
