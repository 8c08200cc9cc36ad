"""What a run's calls were asked and answered of late, and what it was refused for going in circles (rule book (f)).

The records of its calls say most of it, and are read back when a run is resumed. What they do not say (calls that
``check_loop`` counted, answers that were given once more, refusals, the branch of a call that another one equals) is on
record beside them, so that a loop does not begin anew with every process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from sagaspan import _fork as fork
from sagaspan import loops
from sagaspan.keys import KeySource, run_scope
from sagaspan.ledger.records import CallRecord, CallState, LoopRecord, Phase, RunRecord
from sagaspan.ledger.store import LoopChange, Store

_KNOWN = (CallState.DONE, CallState.FAILED, CallState.UNKNOWN, CallState.NEEDS_HUMAN)

_BRANCH = "#"

Entry: TypeAlias = tuple[int, str] | tuple[int, str, str] | tuple[int, str, None, str]
"""When (microseconds since the epoch), and the id of a call that was answered again; or tool and arguments, counted; or
the id of a call, and the branch that it was made in."""


class Signals:
    """The ring of one run. Threads may lose a signal to each other, never more than that."""

    def __init__(self) -> None:
        self.ring: loops.Ring = ()
        self.refusals = 0
        self.lock = fork.new_lock()
        self._entries: tuple[Entry, ...] = ()
        self._version = 0
        self._told: set[str] = set()
        self._again: Counter[str] = Counter()
        self._to_repeat: Counter[tuple[str, str]] = Counter()
        self._objects: dict[int, tuple[object, int]] = {}
        self._objects_seen = 0

    def load(self, store: Store, run: RunRecord, counts: Callable[[str], bool]) -> None:
        """Begin with the calls of earlier incarnations of ``run`` and with what else is on record.

        A reopened run begins anew. ``counts``: whether the calls of a tool do (``Signal.counts``).
        """
        calls, known = store.calls_of(run.namespace, run.id), store.loop_of(run.namespace, run.id)
        scope = run_scope(run.id, run.generation) if run.generation else None
        # Calls of models are no signals: no two of them are equal, so they would only hide what is.
        if known is not None:
            self._take(known, run.generation)
        branches = {entry[1]: entry[3] for entry in self._entries if len(entry) == 4}
        told = {
            call.id: signal_of(call, in_branch(_asked(call), branches.get(call.id)), counts=counts(call.tool))
            for call in calls
            if call.phase is Phase.FORWARD
            and call.state in _KNOWN
            and call.key_source != KeySource.UNIQUE
            and scope in (None, call.scope)
        }
        found = [(signal.started_us, signal) for signal in told.values()]
        if known is not None:
            found += [(entry[0], signal) for entry in self._entries if (signal := _signal(entry, told)) is not None]
        self._again = Counter(entry[1] for entry in self._entries if len(entry) == 2)
        self._to_repeat = Counter(entry[1:] for entry in self._entries if len(entry) == 3)
        found.sort(key=lambda one: one[0])
        self.ring = tuple(signal for _, signal in found[-loops.RING :])

    def add(self, record: CallRecord, asked: str, *, counts: bool) -> None:
        """Remember how a call ended that ``asked`` for something."""
        self.ring = loops.after(self.ring, signal_of(record, asked, counts=counts))

    def is_asked_in_another(self, tool: str, args: str) -> bool:
        """Whether a call of the ring asked ``tool`` for the same as ``args`` in another branch, or in this one."""
        asked = args.partition(_BRANCH)[0]
        return any(one.tool == tool and one.args.partition(_BRANCH)[0] == asked for one in self.ring)

    def number_of(self, thing: object) -> int:
        """A number for the object of a method, the same as long as it is one of the last that were asked for."""
        with self.lock:
            known = self._objects.pop(id(thing), None)
            if known is None:
                self._objects_seen += 1
                if len(self._objects) >= loops.RING:
                    self._objects.pop(next(iter(self._objects)))
            # It is kept alive: the next object could get the id of one that is gone.
            self._objects[id(thing)] = known = known or (thing, self._objects_seen)
        return known[1]

    def keep(self, store: Store, run: RunRecord, entry: Entry | None) -> bool:
        """Put one more ``entry`` (None: a refusal) on record; false if another process did, which is known here then.

        Raises ``StoreError``.
        """
        entries = self._entries if entry is None else (*self._entries[-(loops.RING - 1) :], entry)
        record = LoopRecord(
            namespace=run.namespace, run_id=run.id, generation=run.generation, entries=json.dumps(entries),
            refusals=self.refusals + (entry is None), version=self._version + 1,
        )  # fmt: skip
        if store.commit([LoopChange(record, self._version)], synced=False):
            self._take(record, run.generation)
            return True
        theirs = store.loop_of(run.namespace, run.id)
        if theirs is not None:
            ours = set(self._entries)
            self._take(theirs, run.generation)
            for other in self._entries:
                if other not in ours and (signal := _signal(other, {})) is not None:
                    self.ring = loops.after(self.ring, signal)
        return False

    def _take(self, record: LoopRecord, generation: int) -> None:
        self._version = record.version
        if record.generation == generation:
            self._entries = tuple(tuple(entry) for entry in json.loads(record.entries))
            self.refusals = record.refusals

    def answered_again(self, call_id: str) -> int:
        """How often earlier incarnations were given the answer of a call once more."""
        return self._again[call_id]

    def is_repeated(self, tool: str, args: str) -> bool:
        """Whether a counted call is one that an earlier incarnation made, which its agent now comes by once more."""
        left = self._to_repeat[tool, args]
        if left:
            self._to_repeat[tool, args] = left - 1
        return left > 0

    def first_time(self, signature: str) -> bool:
        """Whether nobody was told of this loop before."""
        if signature in self._told:
            return False
        self._told.add(signature)
        return True

    def may_repeat(self, args: str) -> bool:
        """Whether a call with arguments of the hash ``args`` could go on with a loop at all."""
        ring = self.ring
        return bool(ring) and (ring[-1].error is not None or args in map(loops.ARGS, ring))


def in_branch(asked: str, branch: str | None) -> str:
    """What is ``asked`` for, apart from the same asked in another branch."""
    return asked if branch is None else f"{asked}{_BRANCH}{branch}"


def signal_of(record: CallRecord, asked: str, *, counts: bool = True) -> loops.Signal:
    """A recorded call as a signal."""
    result = None if record.result is None else str(hash(record.result))
    ended = record.ended_us or record.started_us
    return loops.Signal(record.tool, asked, result, record.error_type, record.started_us, ended, counts)


def _asked(record: CallRecord) -> str:
    return record.key if record.key_source == KeySource.BUSINESS else record.fingerprint


def entry_of(at_us: int, record: str, call: str, branch: str | None) -> Entry:
    """What to keep of a ``call`` that ``record`` answers: that it was given again, or of its own one the branch."""
    return (at_us, record) if branch is None or record != call else (at_us, record, None, branch)


def counted(tool: str, args: str, at_us: int) -> loops.Signal:
    """A call that somebody else makes, whose result nobody says."""
    return loops.Signal(tool, args, None, None, at_us, at_us)


def _signal(entry: Entry, calls: dict[str, loops.Signal]) -> loops.Signal | None:
    if len(entry) == 3:
        return counted(entry[1], entry[2], entry[0])
    return calls.get(entry[1]) if len(entry) == 2 else None
