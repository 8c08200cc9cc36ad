"""Which of the equal calls of a run each one is, and which of its nested runs: so that a resume finds them again."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sagaspan import _fork as fork
from sagaspan._call import Call
from sagaspan._tool import Tool
from sagaspan.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sagaspan._making import Equal

_Equal = tuple[str, str, str | None]


class Numbers:
    """The counts of one run in this process."""

    def __init__(self) -> None:
        self._occurrences: dict[_Equal, int] = {}
        self._free: dict[_Equal, list[int]] = {}
        self._tools: dict[tuple[str, str, bool], tuple[Tool, Any]] = {}
        self._children: dict[tuple[str, str | None], int] = {}
        self._lock = fork.new_lock()

    def occurrence(self, tool: str, digest: str, sent_with: str | None = None) -> int:
        """How many equal calls that happened, or may have, this incarnation made before this one.

        Those in the body of the deferred call ``sent_with`` count by themselves.
        """
        with self._lock:
            if free := self._free.get((tool, digest, sent_with)):
                return heapq.heappop(free)
            number = self._occurrences.get((tool, digest, sent_with), -1) + 1
            self._occurrences[tool, digest, sent_with] = number
        return number

    def over(self, tool: str, digest: str, number: int) -> None:
        """No call will be the one of this number; those before it that nobody made yet are the next equal ones."""
        equal = tool, digest, None
        with self._lock:
            counted, free = self._occurrences.get(equal, -1), self._free.setdefault(equal, [])
            if number in free:
                free.remove(number)
                heapq.heapify(free)
            for skipped in range(counted + 1, number):
                heapq.heappush(free, skipped)
            self._occurrences[equal] = max(counted, number)

    def again(self, asked: Collection[Equal]) -> None:
        """The next calls that equal these are these."""
        with self._lock:
            for equal, number in asked:
                free = self._free.setdefault(equal, [])
                if number not in free:
                    heapq.heappush(free, number)

    def same(self, equal: _Equal, number: int) -> int:
        """``number``, which is that of the call that is made: the next equal one is another."""
        with self._lock:
            free = self._free.get(equal, [])
            if number in free:
                free.remove(number)
                heapq.heapify(free)
        return number

    def free(self, call: Call) -> None:
        """Give the number of ``call`` to the next equal one."""
        with self._lock:
            equal = call.tool.name, call.key.fingerprint, call.sent_with
            heapq.heappush(self._free.setdefault(equal, []), call.occurrence)

    def child(self, name: str, sent_with: str | None) -> int:
        """The number of the next run of that name, among those that the body of ``sent_with`` makes."""
        with self._lock:
            number = self._children.get((name, sent_with), 0) + 1
            self._children[name, sent_with] = number
        return number

    def check_same(self, tool: Tool, digest: str, told: Mapping[str, Any]) -> None:
        """Refuse an equal write of something else under the same name, or of another object by the same method.

        One of the two would silently not happen. ``told`` has the object, if ``tool`` is a method.
        """
        receiver = None if tool.receiver is None else told[tool.receiver]
        # A tool may have a synchronous and an asynchronous body; those are one tool.
        known, first = self._tools.setdefault((tool.name, digest, tool.is_async), (tool, receiver))
        if not _same_object(first, receiver):
            raise ConfigurationError(
                f"tool {tool.name!r} did not run: this method was called with equal arguments on another "
                f"{type(receiver).__name__} in this run, and a write is done once by its name and arguments. Tell the "
                f"two apart: key=lambda {', '.join((tool.receiver or '', *tool.parameters))}: ..., with the id of the "
                "object in it"
            )
        if not known.is_same(tool):
            raise ConfigurationError(
                f"tool {tool.name!r} did not run: another tool of this name was called with equal arguments in this "
                "run, and a write is done once by its name and arguments. Give the two different names, or a key=; if "
                "a factory makes one tool anew, let it make what that closes over once"
            )


def _same_object(one: object, other: object) -> bool:
    """Whether two objects are one, or their class says that they are equal."""
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - somebody's own comparison, which answers with something else
        return False
