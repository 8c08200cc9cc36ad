"""Freezing and pausing as users ask for it: ``guard.freeze``, ``guard.runs.pause`` and what the command line does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from sagaspan import _owner as owner
from sagaspan._clock import now_us
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger import freezes
from sagaspan.ledger.records import FreezeRecord, moment
from sagaspan.ledger.store import Store
from sagaspan.ledger.tool_names import ToolNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A scope that takes no new calls: who froze it, when and why."""

    namespace: str
    scope: str
    reason: str
    by: str
    since: dt.datetime


def freeze(store: Store, namespace: str, scope: str, *, reason: str, actor: str | None) -> Frozen:
    """Freeze ``scope``; raises ``ConfigurationError``, ``ResolutionError`` or ``StoreError``."""
    if not str(reason or "").strip():
        raise ConfigurationError(f"reason={reason!r} is empty; write why, for whoever finds it frozen")
    record = FreezeRecord(
        namespace=namespace, scope=_spelt(store, namespace, freezes.check_freezable(scope)), reason=reason,
        actor=actor or owner.os_user(), at_us=now_us(),
    )  # fmt: skip
    freezes.freeze(store, record)
    return _view(record)


def unfreeze(store: Store, namespace: str, scope: str, *, actor: str | None) -> Frozen:
    """Let ``scope`` go on; raises ``ConfigurationError``, ``ResolutionError`` or ``StoreError``."""
    scope = _spelt(store, namespace, freezes.check_freezable(scope))
    return _view(freezes.unfreeze(store, namespace, scope, actor=actor or owner.os_user(), at_us=now_us()))


def _spelt(store: Store, namespace: str, scope: str) -> str:
    """Return ``scope`` as it is frozen already, maybe under another name of the tool."""
    return ToolNames(store, namespace).spelt_in(scope, [record.scope for record in store.freezes_of(namespace)])


def frozen(store: Store, namespace: str | None) -> Sequence[Frozen]:
    """What is frozen in a namespace (None: in all), oldest first."""
    return [_view(record) for record in store.freezes_of(namespace)]


def _view(record: FreezeRecord) -> Frozen:
    return Frozen(
        namespace=record.namespace, scope=record.scope, reason=record.reason, by=record.actor,
        since=moment(record.at_us),
    )  # fmt: skip
