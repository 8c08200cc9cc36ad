"""The gauge ``sagaspan.status.items``: what needs a person, counted in the ledger whenever metrics are read.

The ledger is counted, not what this process did: the number is right after the process that failed has ended, and every
process that reads one ledger says the same of it. Where several do, take the ``max`` by ledger, kind and state.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sagaspan import semconv
from sagaspan.exceptions import SagaspanError
from sagaspan.ledger.watching import open_stores

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("sagaspan")

STATES: Final = {
    "approval": ("pending",),
    "call": ("compensating", "compensation_failed", "done", "needs_human", "running", "unknown"),
    "freeze": ("frozen",),
    "notification": ("undelivered",),
    "policy": ("stale",),
    "run": ("compensating", "held", "partially_compensated", "paused", "running"),
}
"""The states of each kind of item. All are observed, most as 0: an alert ends only when its series says so."""

Count = tuple[int, "Mapping[str, str]"]
"""How many items there are, and the attributes that say which."""


def count_items(store: Any) -> list[Count]:
    """Count what needs a person in one ledger, by kind and state; raises ``StoreUnavailable``."""
    from sagaspan.status.items import list_items

    found = Counter((item.kind, str(item.state)) for item in list_items(store))
    known = [(kind, state) for kind, states in STATES.items() for state in states]
    ledger = name_ledger(store.url)
    return [
        (found[kind, state], {
            semconv.LEDGER: ledger, semconv.STATUS_KIND: kind, semconv.STATUS_STATE: state,
        })
        for kind, state in sorted({*known, *found})
    ]  # fmt: skip


def name_ledger(url: str) -> str:
    """Return where a ledger is, the same for every process that opens it: no user, no password, no options.

    A file is named by its absolute path, a database of a server by its host, port and name.
    """
    place = urlsplit(url)
    if place.scheme == "sqlite":
        return f"sqlite:///{Path(place.path.removeprefix('/')).expanduser().absolute()}"
    port = f":{place.port}" if place.port else ""
    return f"{place.scheme}://{place.hostname or ''}{port}{place.path}"


def count_open_ledgers() -> Iterable[Count]:
    """Count the items of every ledger that this process has open; one that is down is left out, and logged."""
    for store in open_stores():
        try:
            yield from count_items(store)
        except SagaspanError as error:
            _log.warning("what needs a person cannot be counted in %s: %s", name_ledger(store.url), error)
