"""Freezes: an operator stops a tool, an agent, a user, a model, a run or everything, at the next claim, everywhere.

They lie in the store under the version that every claim compares (``ledger.limits``), so no claim slips through and a
ledger without them pays nothing. What is undone goes on: a compensation is no claim of a tool.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

from sagaspan._call import Call
from sagaspan._commands import command
from sagaspan.exceptions import ConfigurationError, ResolutionError, ScopeFrozen
from sagaspan.ledger.records import NO_RUN, AuditRow, FreezeRecord, moment
from sagaspan.ledger.store import FreezeChange, Store
from sagaspan.rendering import cut
from sagaspan.scopes import check_scope

ALL: Final = "all"
RUN: Final = "run:"
FREEZE: Final = "freeze"
UNFREEZE: Final = "unfreeze"
_WILD: Final = re.compile(r"([*?[])")
_TAMED: Final = re.compile(r"\[([*?[])\]")


def scope_of_run(id_: str) -> str:
    """The scope of exactly this run, though its id may look like a glob."""
    return RUN + _WILD.sub(r"[\1]", id_)


def run_of(scope: str) -> str | None:
    """The run that ``scope`` means, None if it is another scope, or a glob of runs."""
    id_ = _TAMED.sub(r"\1", scope.removeprefix(RUN))
    return id_ if scope.startswith(RUN) and scope == scope_of_run(id_) else None


def check_freezable(text: object) -> str:
    """``text`` if it can be frozen: ``"all"``, a scope, or a glob of scopes; raises ``ConfigurationError``."""
    if isinstance(text, str) and (text == ALL or (text.startswith(RUN) and text != RUN)):
        return text  # the id of a run may be longer than a scope that is counted
    try:
        return check_scope(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} (or 'all')") from error


def freeze(store: Store, record: FreezeRecord) -> None:
    """Freeze a scope; raises ``ResolutionError`` if it is frozen already."""
    change = FreezeChange(record, _row(record, FREEZE, record.actor, record.at_us, record.reason))
    if not store.commit([change], synced=True):
        known = next((one for one in store.freezes_of(record.namespace) if one.scope == record.scope), None)
        by = (
            "" if known is None else f" by {known.actor} since {moment(known.at_us):%Y-%m-%d %H:%M UTC}: {known.reason}"
        )
        raise ResolutionError(f"{record.scope!r} is frozen already{by}; nothing was changed", tool_ran="no")


def unfreeze(store: Store, namespace: str, scope: str, *, actor: str, at_us: int) -> FreezeRecord:
    """Let a scope go on, and say what had held it; raises ``ResolutionError`` if it is not frozen."""
    for record in store.freezes_of(namespace):
        if record.scope == scope:
            change = FreezeChange(record, _row(record, UNFREEZE, actor, at_us, None), lifts=True)
            if store.commit([change], synced=True):
                return record
    raise ResolutionError(f"{scope!r} is not frozen; see: sagaspan status", tool_ran="no")


def frozen_by(freezes: Sequence[FreezeRecord], scopes: Sequence[str]) -> FreezeRecord | None:
    """The freeze that holds for a call in these scopes."""
    for record in freezes:
        if record.scope == ALL or record.scope in scopes:
            return record
        if any(fnmatch.fnmatchcase(scope, record.scope) for scope in scopes):
            return record
    return None


def refusal(call: Call, record: FreezeRecord) -> ScopeFrozen:
    """The error of a call that ``record`` refuses: who, when, why, and how it goes on."""
    what, how = f"{record.scope!r} is frozen", command("unfreeze", record.scope)
    name = run_of(record.scope)
    if name is not None:
        what, how = f"the run {name!r} is paused", command("runs resume", name)
    return ScopeFrozen(
        f"tool {call.tool.name!r} did not run: {what} by {record.actor} since "
        f"{moment(record.at_us):%Y-%m-%d %H:%M:%S UTC}: {cut(record.reason)}. To let it go on: {how}",
        scope=record.scope, reason=record.reason, by=record.actor, since=moment(record.at_us),
    )  # fmt: skip


def _row(record: FreezeRecord, event: str, actor: str, at_us: int, detail: str | None) -> AuditRow:
    return AuditRow(
        at_us=at_us, namespace=record.namespace, run_id=NO_RUN, call_id=None, event=f"{event}.{record.scope}",
        from_state=None, to_state="frozen" if event == FREEZE else "lifted", actor=actor, detail=detail,
    )  # fmt: skip
