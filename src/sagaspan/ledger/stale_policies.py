"""Policy files that were changed and cannot be put in force, told in the ledger: other processes say so to people.

One fact for each file of a machine, since each machine has its own copy: whoever finds it broken writes it, and whoever
finds it mended takes it back. What a process said that has ended holds no more: nothing goes by the older content then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sagaspan import _owner as owner
from sagaspan._clock import now_us
from sagaspan.ledger.approvals import DAY_SECONDS
from sagaspan.ledger.store import Store

_STALE: Final = "stale policy:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StalePolicy:
    """``version`` of the file at ``path`` is in force in the process ``owner``, because of ``problem``."""

    path: str
    version: str
    problem: str
    owner: str
    at_us: int


def tell(store: Store, namespace: str, path: Path, version: str, problem: str) -> None:
    """Put on record that an older content of a file is in force here; raises ``StoreError``."""
    said = StalePolicy(
        path=os.path.realpath(path), version=version, problem=problem, owner=owner.this_process(), at_us=now_us()
    )
    _put(store, namespace, _name(path), json.dumps(asdict(said)))


def take_back(store: Store, namespace: str, path: Path) -> None:
    """The file is in force again; raises ``StoreError``."""
    _put(store, namespace, _name(path), "")


def stale_policies(store: Store, namespace: str) -> Iterator[StalePolicy]:
    """What is stale in a namespace, as far as those who said so may still go by it; raises ``StoreError``."""
    for name, value in store.facts(namespace).items():
        if name.startswith(_STALE) and value:
            said = StalePolicy(**json.loads(value))
            if _may_hold(said):
                yield said


def _may_hold(said: StalePolicy) -> bool:
    """Of a process elsewhere nobody knows: it is said for a day."""
    proof = owner.Proof.ALIVE if owner.is_self(said.owner) else owner.proof(said.owner, "")
    if proof is owner.Proof.NONE:
        return now_us() - said.at_us < DAY_SECONDS * 1e6
    return proof is owner.Proof.ALIVE


def _name(path: Path) -> str:
    machine = owner.this_process().partition(":")[0]
    return f"{_STALE}{machine}:{os.path.realpath(path)}"


def _put(store: Store, namespace: str, name: str, value: str) -> None:
    while True:
        known = store.facts(namespace).get(name)
        if known == value or (known is None and not value):
            return
        if store.put_fact(namespace, name, value, expected=known):
            return
