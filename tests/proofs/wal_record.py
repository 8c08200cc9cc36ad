"""A day in the shop, recorded: when each commit returned, how it was synced, and when each effect happened.

The recording is made by a process of its own, which ends without closing anything. ``python -m tests.proofs.wal_record
FOLDER DURABILITY BOOT``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from sagaspan import Guard
from sagaspan import _owner as owner
from sagaspan.ledger.records import AuditRow, LeaseRecord
from sagaspan.ledger.store import Change, Commit, LockChange, Store
from sagaspan.stores.sqlite import SqliteStore
from tests.proofs.wal_file import Wal, read
from tests.proofs.wal_shop import Effect, Shop, World, work

ROOT: Final = Path(__file__).parents[2]
Boot = Literal["this", "earlier"]
"""Whether the process that died is provably dead, or was of another boot of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that ended: a write to the ledger, an effect, or a question to the world outside.

    ``frames``: how long the log was then. ``synced``: whether this write was synced before it returned.
    """

    frames: int
    synced: bool = False
    rows: tuple[AuditRow, ...] = ()
    effect: Effect | None = None
    question: str | None = None
    writes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A day: the database as it was before, its log as it was at the end, and what happened in between."""

    durability: str
    boot: Boot
    database: bytes
    log: bytes
    events: tuple[Event, ...]

    @property
    def wal(self) -> Wal:
        """The log."""
        return read(self.log)

    def save(self, folder: Path, frames: int, *, more: int = 0, tail: bytes = b"") -> Path:
        """The ledger in ``folder`` as it is with so many frames, ``more`` bytes of the next one, and then ``tail``."""
        path = folder / "ledger.db"
        path.write_bytes(self.database)
        (folder / "ledger.db-wal").write_bytes(self.log[: self.wal.offset(frames) + more] + tail)
        (folder / "ledger.db-shm").unlink(missing_ok=True)
        return path


class Recorder:
    """Notes what happens on the ledger at ``path``; before its first write the log still is yesterday's."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._log = Path(f"{path}-wal")
        self._yesterday = self._log.read_bytes()[16:24]
        self._lock = threading.Lock()

    def note(self, **what: Any) -> None:
        """Something ended."""
        with self._lock:
            data = self._log.read_bytes()
            frames = 0 if data[16:24] == self._yesterday else len(read(data))
            self.events.append(Event(frames=frames, **what))


class RecordingStore:
    """A SQLite store whose writes are noted; how they were synced is what SQLite was told, not what was asked for."""

    def __init__(self, store: SqliteStore, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self._level = ""
        self._synced = False
        self._flush = store._flushing.flush
        store._flushing.flush = self._flushed  # type: ignore[method-assign]
        with store._connected() as connection:
            connection.set_trace_callback(self._hear)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """As the store's own."""
        self._synced = False
        commit = self._store.commit(changes, synced=synced)
        rows = tuple(change.audit for change in changes if not isinstance(change, LockChange))
        self._recorder.note(writes=True, synced=self._synced, rows=rows if commit else ())
        return commit

    def renew(self, lease: LeaseRecord) -> None:
        """As the store's own."""
        self._store.renew(lease)
        self._recorder.note(writes=True)

    def _flushed(self, number: int) -> None:
        self._flush(number)
        self._synced = True

    def _hear(self, statement: str) -> None:
        words = statement.split()
        if words[:2] == ["pragma", "synchronous"]:
            self._level = words[-1]
        elif words == ["commit"]:
            self._synced = self._level == "full"


def record(durability: str, boot: Boot, folder: Path) -> Recording:
    """Record a day in a process of its own, which leaves its files in ``folder``."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "SAGASPAN_LEASE_SECONDS": "30"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.wal_record", str(folder), durability, boot],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the day could not be recorded:\n{done.stderr}")
    database, before = (folder / "ledger.db").read_bytes(), (folder / "before.db").read_bytes()
    if database != before:
        raise SystemExit("the log was checkpointed in the middle of the day; make the day shorter")
    events = json.loads((folder / "events.json").read_text())
    return Recording(
        durability=durability, boot=boot, database=database, log=(folder / "ledger.db-wal").read_bytes(),
        events=tuple(map(_event, events)),
    )  # fmt: skip


def _event(data: dict[str, Any]) -> Event:
    effect = data.pop("effect")
    rows = tuple(AuditRow(**row) for row in data.pop("rows"))
    return Event(**data, rows=rows, effect=None if effect is None else Effect(**effect))


def _record_here(folder: Path, durability: str, boot: Boot) -> list[Event]:
    path = folder / "ledger.db"
    if boot == "earlier":
        owner._boot_id = lambda: "an-earlier-boot"
    store = SqliteStore(path, durability=durability)
    store.describe()  # made, and its log primed
    shutil.copy(path, folder / "before.db")
    recorder = Recorder(path)
    world = World(seen=lambda effect: recorder.note(effect=effect), heard=lambda asked: recorder.note(question=asked))
    work(Shop(Guard(cast(Store, RecordingStore(store, recorder))), world))
    return recorder.events


if __name__ == "__main__":
    _folder, _durability, _boot = Path(sys.argv[1]), sys.argv[2], cast(Boot, sys.argv[3])
    _events = [asdict(event) for event in _record_here(_folder, _durability, _boot)]
    (_folder / "events.json").write_text(json.dumps(_events))
    os._exit(0)  # nothing is closed: the log stays as it is
