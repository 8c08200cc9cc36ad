"""WAL truncated at every frame: whatever a power cut leaves of the ledger, no effect is without its claim.

    uv run --all-extras python -m tests.proofs.wal               # every world of eight recorded days (the full form)
    uv run --all-extras python -m tests.proofs.wal --every 8     # every eighth of them is lived to its end

A process works through a day on SQLite, and it is written down when each commit was written and when it was on disk,
and when each effect happened. On a quiet day one thing follows the other (calls, retries, doubts, rollbacks, nesting,
an event loop); on a busy one a crowd of threads and of tasks claims and settles at once, and shares its flushes. A
power cut at any moment can leave every prefix of the log from what was on disk on. For every frame boundary, for places
inside frames, and for a gap with all that was written behind it, the ledger is opened as it then would be. For every
world that a cut can leave (so much of the ledger, so many effects) another process recovers and does the day again: in
the same boot, or three hours later in the next one.

It fails unless each of these holds. The ledger opens without an error and is a prefix of what was committed, whole and
in order, and its chains verify. Every effect has its claim. A call that had been answered is in doubt again only if
nothing was synced since, and with ``durability="full"`` never. In the end each effect came once, and what was undone
was undone in reverse.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sagaspan import Guard
from sagaspan.ledger.records import AuditRow
from sagaspan.ledger.transitions import CallEvent
from sagaspan.stores.sqlite import SqliteStore
from sagaspan.testing import assert_history, assert_settled, frozen_clock
from tests.proofs.wal_file import FRAME_HEADER
from tests.proofs.wal_record import Boot, Recording, record
from tests.proofs.wal_shop import DAYS, QUIET, Day, Effect, Shop, World, undoings, work

DURABILITIES: Final = ("normal", "full")
BOOTS: Final[tuple[Boot, ...]] = ("this", "earlier")
INSIDE: Final = (1, 24, 24 + 2048)
"""Bytes of a torn frame: a bit of its header, its header, and half of its page."""

_AUDIT: Final = tuple(field.name for field in fields(AuditRow))
_MEMORY: Final = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a power cut leaves: ``frames`` of the log, and the world as it was after the first ``events``."""

    frames: int
    events: int


def cuts(recording: Recording) -> list[Cut]:
    """Every pair that a cut can leave: of the moments that differ in nothing but the time, the last one."""
    last: dict[tuple[int, int], int] = {}
    floor = length = happened = 0
    for number, coming in enumerate((*recording.events, None)):
        # In the middle of a write the log has any part of it.
        reach = coming.frames if coming is not None and coming.writes else length
        for frames in range(floor, reach + 1):
            last[frames, happened] = number
        if coming is not None:
            length, happened = coming.frames, happened + (coming.effect is not None)
            floor = max(floor, coming.durable)
    return [Cut(frames=frames, events=number) for (frames, _), number in last.items()]


def committed(recording: Recording, frames: int) -> list[AuditRow]:
    """What the ledger of so many frames must say, in order."""
    whole = recording.wal.whole(frames)
    return [row for event in recording.events if event.writes and event.frames <= whole for row in event.rows]


def unclaimed(recording: Recording, cut: Cut) -> list[Effect]:
    """The effects before ``cut`` of whose call the ledger knows nothing."""
    claimed = {row.call_id for row in committed(recording, cut.frames) if row.event.endswith("claim")}
    effects = (event.effect for event in recording.events[: cut.events])
    return [effect for effect in effects if effect is not None and effect.call_id not in claimed]


def forgotten(recording: Recording, cut: Cut) -> set[str]:
    """The calls that had been answered before ``cut``, and of whose end the ledger does not know any more."""
    known = committed(recording, cut.frames)
    settled = {row.call_id for row in known if row.event == CallEvent.SUCCEED}
    return {call_id for event in recording.events[: cut.events] for call_id in event.answered if call_id not in settled}


def synced_since(recording: Recording, cut: Cut, call_id: str) -> bool:
    """Whether anything was synced between the end of a call and ``cut``."""
    ended = next(
        event.frames for event in recording.events
        if any((row.call_id, row.event) == (call_id, CallEvent.SUCCEED) for row in event.rows)
    )  # fmt: skip
    return any(event.durable >= ended for event in recording.events[: cut.events])


# -- what is left of the ledger ------------------------------------------------------------------------------------


def check_prefix(recording: Recording, frames: int, folder: Path) -> None:
    """The ledger of so many frames opens and says exactly what was committed until then; so does a torn one."""
    wanted, frame = committed(recording, frames), recording.wal.page + FRAME_HEADER
    with Guard(SqliteStore(recording.save(folder, frames))) as guard:
        assert_history(guard)
    inside = INSIDE if frames < len(recording.wal) else ()
    torn = [
        (0, b""),
        *((more, b"") for more in inside),
        (0, bytes(frame)),
        (inside[-1] if inside else 0, bytes(3 * frame)),
        (0, bytes(frame) + recording.log[recording.wal.offset(frames + 1) :]),
    ]
    for more, tail in torn:
        path = recording.save(folder, frames, more=more, tail=tail)
        store = SqliteStore(path, durability="off")  # opened, and nothing written
        assert store.describe()["quick_check"] == "ok"
        store.close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found = connection.execute(f"select {', '.join(_AUDIT)} from audit order by seq")
            rows = [AuditRow(**dict(zip(_AUDIT, row, strict=True))) for row in found]
        assert rows == wanted, f"{frames} frames, {more} bytes of the next and {len(tail)} others"


# -- the day after -------------------------------------------------------------------------------------------------


def live_on(recording: Recording, cut: Cut, folder: Path) -> None:
    """Recover from ``cut`` and do the day again; raises ``AssertionError`` if anything came twice, or never."""
    past = recording.events[: cut.events]
    effects = [event.effect for event in past if event.effect is not None]
    asked = Counter(event.question for event in past if event.question is not None)
    day = DAYS[recording.day]
    store = SqliteStore(recording.save(folder, cut.frames), durability="off")  # nobody cuts the power again
    later = frozen_clock(datetime.now(UTC) + timedelta(hours=3)) if recording.boot == "earlier" else None
    with later or contextlib.nullcontext(), Guard(store) as guard:
        for effect in effects:
            assert store.get_call(effect.call_id) is not None, f"{effect} happened without a claim"
        world = World(effects=list(effects), asked=asked)
        shop = Shop(guard, world)
        guard.recover()
        work(shop, day)
        guard.recover()
        assert_settled(guard)
        ends = {run.id: run.status for run in guard.runs.list() if run.id in day.ends}
        assert ends == day.ends, ends
        check_world(world.effects, day)


def check_world(effects: Sequence[Effect], day: Day = QUIET) -> None:
    """Each effect came once; what was undone came after what it undoes, and in reverse."""
    undone = list(undoings(effects))
    happened = Counter((one.what, one.order) for one in effects if one not in undone)
    assert happened == day.happens, f"{dict(happened - day.happens)} too often, {dict(day.happens - happened)} missing"
    seen = list(dict.fromkeys((one.what, one.order) for one in undone))
    for order, wanted in day.undone.items():
        mine = [one for one in seen if one[1].partition(".")[0] == order]
        assert mine == wanted, f"undone of {order}: {mine}"
    names = [(one.what, one.order) for one in effects]
    forward = {"release": "reserve", "refund": "charge"}
    for what, order in seen:
        assert names.index((what, order)) > names.index((forward[what], order)), f"{what} came before its action"


# -- the command ---------------------------------------------------------------------------------------------------

Key = tuple[str, str, str]

_recordings: dict[Key, Recording] = {}


def _one(task: tuple[str, Key, Any]) -> str:
    """One piece of work in a process of the pool; returns what is wrong, or nothing."""
    kind, key, what = task
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        try:
            if kind == "prefix":
                check_prefix(_recordings[key], what, Path(folder))
            else:
                live_on(_recordings[key], what, Path(folder))
        except Exception as error:  # an AssertionError, or an error that nobody expects: both are a violation
            return f"{kind} {'/'.join(key)} {what}: {type(error).__name__}: {error}"
    return ""


def _memory() -> str | None:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


@dataclass(kw_only=True)
class Figures:
    """The counts of one recorded day."""

    day: str
    durability: str
    boot: str
    frames: int
    commits: int
    worlds: int
    opened: int = 0
    lived: int = 0
    in_doubt_again: int = 0
    worst: int = 0
    violations: int = 0


def prove(
    *,
    every: int = 1,
    jobs: int = 1,
    days: Sequence[str] = tuple(DAYS),
    boots: Sequence[Boot] = BOOTS,
    say: Callable[..., None] = print,
) -> tuple[list[Figures], list[str]]:
    """Record the days and live through what cuts leave of them; the counts, and what was violated."""
    figures, wrong, tasks = [], [], []
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for day, durability, boot in itertools.product(days, DURABILITIES, boots):
            key = day, durability, boot
            recording = _recordings[key] = record(durability, boot, Path(folder) / "-".join(key), day)
            worlds = cuts(recording)
            figure = Figures(day=day, durability=durability, boot=boot, frames=len(recording.wal),
                             commits=sum(recording.wal.commits), worlds=len(worlds))  # fmt: skip
            figures.append(figure)
            wrong += check_documented(recording, worlds, figure)
            tasks += [("prefix", key, frames) for frames in range(0, len(recording.wal) + 1, max(1, every // 4))]
            tasks += [("lived", key, cut) for cut in worlds[len(figures) % every :: every]]
    say(f"{len(tasks)} ledgers to open, {jobs} at a time", flush=True)
    by_key = {(figure.day, figure.durability, figure.boot): figure for figure in figures}
    for number, (task, problem) in enumerate(zip(tasks, _done(tasks, jobs), strict=True), 1):
        figure = by_key[task[1]]
        figure.opened += task[0] == "prefix"
        figure.lived += task[0] == "lived"
        if problem:
            figure.violations += 1
            wrong.append(problem)
            say(problem, flush=True)
        if number % max(1, len(tasks) // 20) == 0:
            say(f"  {number} of {len(tasks)}", flush=True)
    return figures, wrong


def _done(tasks: Sequence[Any], jobs: int) -> Iterator[str]:
    if jobs == 1:
        yield from map(_one, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_one, tasks, chunksize=4)


def check_documented(recording: Recording, worlds: Sequence[Cut], figure: Figures) -> list[str]:
    """What docs/concepts.md says a power cut can do: the last results read as unknown, and with "full" none."""
    wrong = []
    for cut in worlds:
        wrong += [f"{effect} happened without a claim at {cut}" for effect in unclaimed(recording, cut)]
        calls = forgotten(recording, cut)
        figure.in_doubt_again += bool(calls)
        figure.worst = max(figure.worst, len(calls))
        if calls and recording.durability == "full":
            wrong.append(f"full durability forgot {calls} at {cut}")
        wrong += [f"{call} was forgotten at {cut} although a later claim was synced" for call in calls
                  if synced_since(recording, cut, call)]  # fmt: skip
    if recording.durability == "normal" and not figure.in_doubt_again:
        wrong.append("no cut put an answered call in doubt: the docs say that it may")
    figure.violations += len(wrong)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if nothing was violated."""
    parser = argparse.ArgumentParser(prog="tests.proofs.wal", description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="live only every so many of the worlds to their end")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at the same time")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    figures, wrong = prove(every=options.every, jobs=options.jobs)
    names = [field.name for field in fields(Figures)]
    print("\n" + "  ".join(f"{name:>14}" for name in names))
    for figure in figures:
        print("  ".join(f"{getattr(figure, name):>14}" for name in names))
    print(f"\n{len(wrong)} violations in {time.monotonic() - started:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps({"days": [asdict(figure) for figure in figures], "violations": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
