"""How the arguments of calls are recorded: as plain data, without what is redacted, and as digests nobody can guess."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any

from sagaspan import codecs
from sagaspan._backends import Backend
from sagaspan._call import Call
from sagaspan._tool import Tool
from sagaspan.exceptions import ConfigurationError, StoreUnavailable
from sagaspan.keys import fingerprint
from sagaspan.ledger.approvals import subject_of
from sagaspan.ledger.fail_open import Outage, may_run_unrecorded
from sagaspan.ledger.records import ApprovalRecord
from sagaspan.ledger.seal import Seal
from sagaspan.redaction import leaves


class Spelling:
    """How one guard spells calls for its store. ``outage`` says whether that is down; None: that stops everything."""

    def __init__(self, seal: Seal, namespace: str, codec: codecs.Codec | None, outage: Outage | None) -> None:
        self._seal = seal
        self._namespace = namespace
        self.codec = codec
        self.outage = outage

    def plain_of(self, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON data, as they are recorded."""
        if tool.redaction is None:
            with contextlib.suppress(codecs.SecretFound):
                return plain_data(tool, arguments)
        return self.redacted(tool, arguments)[0]

    def redacted(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The arguments as JSON data without what is redacted, and the texts of that."""
        found: list[str] = []
        try:
            keyed = self._keyed_hide(tool)
        except StoreUnavailable as error:
            if self.outage is None or not may_run_unrecorded(tool):
                raise
            self.outage.began(error)
            keyed = codecs.blank

        def hide(data: Any, place: str) -> dict[str, str]:
            if tool.policy.defer:
                raise ConfigurationError(
                    f"tool {tool.name!r} is deferred and was not scheduled: {place!r} is a secret, which is never "
                    "recorded, so it could not be sent from its record"
                )
            found.extend(leaves(data))
            return keyed(data, place)

        plain = plain_data(tool, arguments, hide)
        if tool.redaction is not None:
            plain = tool.redaction.arguments(plain, hide)
        return plain, tuple(found)

    def _keyed_hide(self, tool: Tool) -> codecs.Hide:
        seal = self._seal
        if tool.redaction is not None:
            seal.note(self._namespace, tool.name)
        seal.key(self._namespace)
        return seal.hide(self._namespace, tool.name)

    def is_about(self, call: Call, approval: ApprovalRecord) -> bool:
        """Whether ``approval`` is of the arguments that the body of ``call`` gets, as they are now."""
        plain = self.plain_of(call.tool, call.arguments)
        subject = subject_of(namespace=approval.namespace, scope=approval.scope, tool=call.tool.name, arguments=plain)
        return self.digest(subject) == approval.digest and codecs.dump(plain) == call.encoded

    def lock_names(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the locks that a call takes; those made of an argument with redacted fields as hashes."""
        names = tool.locks_of(arguments)
        if not tool.reads_redacted("lock"):
            return names
        return tuple(self.hashed("lock", name) for name in names)

    def hashed(self, what: str, text: str) -> str:
        """``text``, a name made of something redacted, as one that nobody can guess."""
        return self._seal.hashed(self._namespace, what, text)

    def digest(self, data: Any) -> str:
        """The fingerprint of plain JSON data; under a codec one that nobody can guess who lacks it."""
        return fingerprint(data) if self.codec is None else self._seal.encryption[self._namespace].digest(data)

    def digest_of_call(self, tool: Tool, data: Any) -> str:
        """As ``digest``, under a codec; that of a read that goes on without a store is one that nobody can guess."""
        down = self.outage is not None and self.outage.goes_on and may_run_unrecorded(tool)
        if down and not self._seal.encryption[self._namespace].is_proved:
            return fingerprint([secrets.token_hex(32), data])
        return self.digest(data)

    async def prove_codec(self, backend: Backend) -> None:
        """See once that the codec is that of the ledger; raises ``ConfigurationError`` or ``StoreUnavailable``."""
        encryption = self._seal.encryption[self._namespace]
        if encryption.is_proved or (self.outage is not None and self.outage.goes_on):
            return
        try:
            await backend.io(encryption.prove)
        except StoreUnavailable as error:
            if self.outage is None:
                raise
            self.outage.began(error)


def plain_data(tool: Tool, arguments: Mapping[str, Any], hide: codecs.Hide | None = None) -> dict[str, Any]:
    """The arguments as JSON data, those without encoding by their kind if a business key stands for them.

    Raises ``SecretFound`` for a pydantic secret if nobody says how to ``hide`` it.
    """
    plain = {}
    for name, value in arguments.items():
        try:
            plain[name] = codecs.to_json(value, name, hide)
        except codecs.SecretFound:
            raise
        except codecs.Unencodable as problem:
            if tool.policy.defer:
                raise ConfigurationError(
                    f"tool {tool.name!r} is deferred and was not scheduled: its argument {problem}, so it could not be "
                    "sent from its record. Pass plain data"
                ) from problem
            if tool.policy.key is None:
                raise ConfigurationError(
                    f"tool {tool.name!r} did not run: its argument {problem}. Pass plain data, or declare key= to "
                    "say what makes a call the same"
                ) from problem
            plain[name] = codecs.unrecorded(problem)
    return plain


def check_comes_back(tool: Tool, arguments: Mapping[str, Any], encoded: str) -> None:
    """Refuse arguments that the body would get as something else when it is sent from its record."""
    recorded = codecs.decode(encoded)
    for name, value in arguments.items():
        where = codecs.differs(value, recorded[name], name)
        if where is not None:
            raise ConfigurationError(
                f"tool {tool.name!r} is deferred and was not scheduled: its argument {where} is a "
                f"{type(value).__qualname__}, which its record gives back as something else. Pass plain data"
            )
