"""The one run or call of an id or a unique prefix, or the sentence that says why there is none; and of which namespace.

Most stores have one namespace: it is named only where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sagaspan.cli._options import NotFound, Settings
from sagaspan.ledger.records import CallInfo, CallRecord, RunInfo, RunRecord

SHOWN: Final = 10
"""How many matches of an ambiguous prefix are listed."""

Rows = Sequence[tuple[object, ...]]
Match = tuple[str, str, str, str | None]
"""Kind, id, what it is, and its namespace, if it has one."""


def the_run(store: Any, prefix: str, namespace: str | None = None) -> RunRecord:
    """The run of this id or unique prefix; raises ``NotFound``."""
    found: list[RunRecord] = store.match_runs(prefix, namespace=namespace, limit=SHOWN + 1)
    if not found:
        where = "" if namespace is None else f" in the namespace {namespace!r}"
        raise NotFound(f"there is no run {prefix!r}{where}; see: sagaspan runs list")
    if len(found) > 1:
        raise ambiguous(prefix, "runs", [run_match(run) for run in found])
    return found[0]


def the_call(store: Any, prefix: str, namespace: str | None = None) -> CallRecord:
    """The call of this id, key or unique prefix; raises ``NotFound``."""
    found: list[CallRecord] = store.match_calls(prefix, namespace=namespace, limit=SHOWN + 1)
    if not found:
        raise NotFound(f"there is no call {prefix!r}; see: sagaspan calls list")
    if len(found) > 1:
        raise ambiguous(prefix, "calls", [call_match(call) for call in found])
    return found[0]


def run_match(run: RunRecord) -> Match:
    """A run in a list of matches."""
    return ("run", run.id, f"{run.name} {run.state}", run.namespace)


def call_match(call: CallRecord) -> Match:
    """A call in a list of matches."""
    return ("call", call.id, f"{call.tool} {call.state}", call.namespace)


def ambiguous(prefix: str, what: str, matches: Sequence[Match]) -> NotFound:
    """The error of a prefix that several things start with; of more than ``SHOWN`` the first are listed."""
    several = len({namespace for *_, namespace in matches}) > 1
    listed = [
        (kind, id_, f"{text}, namespace {namespace}" if several and namespace else text)
        for kind, id_, text, namespace in matches[:SHOWN]
    ]
    if len({id_ for _, id_, *_ in matches}) == 1:
        return NotFound(f"{prefix!r} is in several namespaces; add --namespace", listed)
    if len(matches) > SHOWN:
        some = f"more than {SHOWN} {what}, of which {SHOWN} are listed"
    else:
        some = f"{len(matches)} {what}"
    return NotFound(f"{prefix!r} is the start of {some}; give more of it", listed)


def namespace_of(found: RunInfo | CallInfo, settings: Settings) -> str | None:
    """The namespace of a run or call, if the store has several."""
    return found.namespace if len(settings.open_store().namespaces()) > 1 else None


def with_namespaces(
    store: Any, wanted: str | None, columns: Sequence[str], rows: Rows, namespaces: Sequence[str]
) -> tuple[Sequence[str], Rows]:
    """A table with a column of the rows' ``namespaces``, if the store has several and none is ``wanted`` alone."""
    if wanted is not None or len(store.namespaces()) < 2:
        return columns, rows
    return ("namespace", *columns), [(name, *row) for name, row in zip(namespaces, rows, strict=True)]
