"""Whether the freezes and limits in force are those that operators set, as the rows of the chain of no run say it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from sagaspan.ledger.freezes import FREEZE, UNFREEZE
from sagaspan.ledger.limits import LIMIT_SET, LIMIT_UNSET
from sagaspan.ledger.records import NO_RUN, AuditRow, ChainedRow, FreezeRecord, LimitRecord
from sagaspan.ledger.verifying import AuditFinding, Problem


class Standing:
    """What operators of one namespace have set: ``take`` the rows, then ``check`` what is in force.

    ``is_whole``: the ledger has rows of everything that they ever set.
    """

    def __init__(self, namespace: str, *, is_whole: bool) -> None:
        self._namespace = namespace
        self._is_whole = is_whole
        self._freezes: dict[str, FreezeRecord] = {}
        self._limits: dict[str, LimitRecord] = {}
        self._lifted: set[str] = set()
        self._unset: set[str] = set()

    def take(self, row: ChainedRow) -> None:
        """The next row of the chain of no run."""
        said = row.row
        kind, _, scope = said.event.partition(".")
        if kind == FREEZE:
            self._freezes[scope] = FreezeRecord(
                namespace=said.namespace, scope=scope, reason=said.detail or "", actor=said.actor, at_us=said.at_us
            )
        elif kind == UNFREEZE:
            self._freezes.pop(scope, None)
            self._lifted.add(scope)
        elif said.event in (LIMIT_SET, LIMIT_UNSET):
            limit = _limit_of(said)
            if limit is not None:
                self._take_limit(limit, is_set=said.event == LIMIT_SET)

    def _take_limit(self, limit: LimitRecord, *, is_set: bool) -> None:
        name = _name(limit)
        if is_set:
            self._limits[name] = limit
        else:
            self._limits.pop(name, None)
            self._unset.add(name)

    def check(self, freezes: Sequence[FreezeRecord], limits: Sequence[LimitRecord]) -> Iterator[AuditFinding]:
        """What is in force and nobody set, or is not what was set, or is not in force any more."""
        yield from self._compare("freeze", self._freezes, {one.scope: one for one in freezes}, self._lifted)
        yield from self._compare("limit", self._limits, {_name(one): one for one in limits}, self._unset)

    def _compare(
        self, kind: str, said: dict[str, FreezeRecord] | dict[str, LimitRecord],
        in_force: dict[str, FreezeRecord] | dict[str, LimitRecord], lifted: set[str],
    ) -> Iterator[AuditFinding]:  # fmt: skip
        for name in sorted({*said, *in_force}):
            if name not in in_force:
                yield self._find(f"{kind} {name}: it was set and not lifted, and is not in force")
            elif name not in said:
                if self._is_whole or name in lifted:
                    yield self._find(f"{kind} {name}: it is in force, and nobody set it")
            elif said[name] != in_force[name]:
                yield self._find(f"{kind} {name}: it is not what was set")

    def _find(self, what: str) -> AuditFinding:
        return AuditFinding(namespace=self._namespace, run=NO_RUN, number=None, problem=Problem.RECORD, what=what)


def _limit_of(row: AuditRow) -> LimitRecord | None:
    """The limit that a row says was set; None if it cannot be read: then its chain says so, or nobody set it so."""
    try:
        return LimitRecord(namespace=row.namespace, actor=row.actor, at_us=row.at_us, **json.loads(row.detail or ""))
    except (ValueError, TypeError):
        return None


def _name(limit: LimitRecord) -> str:
    return f"{limit.pattern} {limit.unit} {limit.window}".rstrip()
