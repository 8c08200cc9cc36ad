"""A day in the shop, recorded: when each commit was written, when it was on disk, and when each effect happened.

The recording is made by a process of its own, which ends without closing anything. ``python -m tests.proofs.wal_record
FOLDER DAY DURABILITY BOOT``. Its disk takes a while for a flush, so that others write in the middle of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from sagaspan import Guard
from sagaspan import _owner as owner
from sagaspan.ledger.records import AuditRow, LeaseRecord
from sagaspan.ledger.store import Change, Commit, LockChange, Store
from sagaspan.ledger.transitions import CallEvent
from sagaspan.stores import sqlite
from sagaspan.stores.sqlite import SqliteStore
from tests.proofs.wal_file import FRAME_HEADER, HEADER, Wal, read
from tests.proofs.wal_shop import DAYS, Effect, Shop, World, live

ROOT: Final = Path(__file__).parents[2]
FLUSH_SECONDS: Final = 0.01
Boot = Literal["this", "earlier"]
"""Whether the process that died is provably dead, or was of another boot of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that ended: a write to the ledger, a flush of it, an answer, an effect, or a question to the world.

    ``frames``: how long the log was then. ``durable``: so many of them are on disk for certain since. ``answered``: the
    calls whose end somebody was told of.
    """

    frames: int
    durable: int = 0
    rows: tuple[AuditRow, ...] = ()
    answered: tuple[str, ...] = ()
    effect: Effect | None = None
    question: str | None = None
    writes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A day: the database as it was before, its log as it was at the end, and what happened in between."""

    day: str
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
        self._log = os.open(f"{path}-wal", os.O_RDONLY)
        self._yesterday = os.pread(self._log, HEADER, 0)[16:24]
        self._frames = 0
        self._lock = threading.RLock()

    def note(self, *, is_durable: bool = False, **what: Any) -> None:
        """Something ended; ``is_durable``: and all that is written until now is on disk."""
        with self._lock:
            frames = self.frames()
            if is_durable:
                what["durable"] = frames
            self.events.append(Event(frames=frames, **what))

    def frames(self) -> int:
        """How long the log is; one at a time, for two that count at once would count a frame twice."""
        with self._lock:
            header = os.pread(self._log, HEADER, 0)
            page, salts = int.from_bytes(header[8:12]), header[16:24]
            if salts != self._yesterday:
                while os.pread(self._log, 8, HEADER + self._frames * (FRAME_HEADER + page) + 8) == salts:
                    self._frames += 1
            return self._frames


class RecordingStore:
    """A SQLite store whose writes are noted; how they were synced is what SQLite was told, not what was asked for."""

    def __init__(self, store: SqliteStore, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self._level = ""
        self._synced = False
        self._whole = 0
        self._write, self._written, self._flush = sqlite._write, store._flushing.written, os.fdatasync
        sqlite._write = self._write_noted
        store._flushing.written = self._written_noted  # type: ignore[method-assign]
        os.fdatasync = self._flush_noted
        store._with(lambda connection: connection.set_trace_callback(self._hear))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, changes: Sequence[Change], *, synced: bool) -> Commit:
        """As the store's own."""
        commit = self._store.commit(changes, synced=synced)
        rows = _rows(changes) if commit else ()
        self._recorder.note(answered=tuple(row.call_id for row in rows if row.event == CallEvent.SUCCEED))
        return commit

    def renew(self, lease: LeaseRecord) -> None:
        """As the store's own."""
        self._store.renew(lease)
        self._recorder.note(writes=True)

    def _write_noted(self, connection: Any, batch: Sequence[Any], *others: Any) -> None:
        """While nobody else writes."""
        self._synced = False
        self._write(connection, batch, *others)
        rows = [row for request in batch if request.outcome() for row in _rows(request.changes)]
        self._recorder.note(writes=True, is_durable=self._synced, rows=tuple(rows))

    def _written_noted(self) -> int:
        """Before anybody knows of it: a flush that begins later is for this, too."""
        self._whole = self._recorder.frames()
        return self._written()

    def _flush_noted(self, file: int) -> None:
        """What was not whole when it began may have missed it."""
        whole = self._whole
        time.sleep(FLUSH_SECONDS)
        self._flush(file)
        self._recorder.note(durable=whole)

    def _hear(self, statement: str) -> None:
        words = statement.split()
        if words[:2] == ["pragma", "synchronous"]:
            self._level = words[-1]
        elif words == ["commit"]:
            self._synced = self._level == "full"


def _rows(changes: Sequence[Change]) -> tuple[AuditRow, ...]:
    return tuple(change.audit for change in changes if not isinstance(change, LockChange))


def record(durability: str, boot: Boot, folder: Path, day: str = "quiet") -> Recording:
    """Record a day in a process of its own, which leaves its files in ``folder``."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "SAGASPAN_LEASE_SECONDS": "30"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.proofs.wal_record", str(folder), day, durability, boot],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the day could not be recorded:\n{done.stderr}")
    database, before = (folder / "ledger.db").read_bytes(), (folder / "before.db").read_bytes()
    if database != before:
        raise SystemExit("the log was checkpointed in the middle of the day; make the day shorter")
    events = json.loads((folder / "events.json").read_text())
    return Recording(
        day=day, durability=durability, boot=boot, database=database, log=(folder / "ledger.db-wal").read_bytes(),
        events=tuple(map(_event, events)),
    )  # fmt: skip


def _event(data: dict[str, Any]) -> Event:
    effect = data.pop("effect")
    rows = tuple(AuditRow(**row) for row in data.pop("rows"))
    data["answered"] = tuple(data["answered"])
    return Event(**data, rows=rows, effect=None if effect is None else Effect(**effect))


def _record_here(folder: Path, day: str, durability: str, boot: Boot) -> list[Event]:
    path = folder / "ledger.db"
    if boot == "earlier":
        owner._boot_id = lambda: "an-earlier-boot"
    store = SqliteStore(path, durability=durability)
    store.describe()  # made, and its log primed
    shutil.copy(path, folder / "before.db")
    recorder = Recorder(path)
    world = World(seen=lambda effect: recorder.note(effect=effect), heard=lambda asked: recorder.note(question=asked))
    live(Shop(Guard(cast(Store, RecordingStore(store, recorder))), world), DAYS[day])
    return recorder.events


if __name__ == "__main__":
    _folder, _day, _durability, _boot = Path(sys.argv[1]), sys.argv[2], sys.argv[3], cast(Boot, sys.argv[4])
    _events = [asdict(event) for event in _record_here(_folder, _day, _durability, _boot)]
    (_folder / "events.json").write_text(json.dumps(_events))
    os._exit(0)  # nothing is closed: the log stays as it is
