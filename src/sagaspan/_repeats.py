"""What the code of a framework's tasks asked for in this incarnation: once more it is the same, not something new.

A framework runs the code of a task again as a whole: when it failed and is retried, or when its question is answered.
The calls that the code makes then are those of before, as far as there were such. What was done is answered from the
record, and no repeat is a step of a loop; what goes beyond that is new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from sagaspan import _fork as fork
from sagaspan._context import execution_here

Equal: TypeAlias = tuple[str, str, str | None]
"""The tool, what it is asked for, and the deferred call in whose body."""


@dataclass(slots=True, eq=False)
class Asked:
    """What the code of ``task`` asked for, in the body of the call ``parent`` if in one.

    ``number``: which of its equals. ``is_answered``: whether it is on record as done.
    """

    equal: Equal
    task: str
    parent: str | None
    number: int = 0
    is_answered: bool = False
    again_in: str = ""


class Repeats:
    """The books of one run in this process. A task is named as ``execution_here`` does: those around it, then ``|``."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []
        self._open: dict[Equal, list[Asked]] = {}
        self._tasks: set[str] = set()
        self._lock = fork.new_lock()

    def begins(self, task: str) -> None:
        """The code of ``task`` begins; what it asked for when it ran before, it may ask for again."""
        if task not in self._tasks:
            return
        with self._lock:
            for one in self._asked:
                if _is_within(one.task, task):
                    one.again_in = task
                    opened = self._open.setdefault(one.equal, [])
                    if one not in opened:
                        opened.append(one)

    def ask(self, equal: Equal, task: str, parent: str | None) -> tuple[Asked, bool]:
        """What the code of ``task`` asks for now, and whether it did so when it ran before."""
        with self._lock:
            found = self._repeated(equal, task, parent)
            if found is not None:
                self._open[equal].remove(found)
                return found, True
            asked = Asked(equal, task, parent)
            self._asked.append(asked)
            while task and task not in self._tasks:
                self._tasks.add(task)
                task = task.rpartition("|")[0]
        return asked, False

    def _repeated(self, equal: Equal, task: str, parent: str | None) -> Asked | None:
        """The first like it; of the very same task before one that has other ids, as what is begun anew within it."""
        like = [
            one
            for one in self._open.get(equal, ())
            if one.parent == parent and _is_within(task, one.again_in) and _names(one.task) == _names(task)
        ]
        return next((one for one in like if one.task == task), like[0] if like else None)

    def unask(self, asked: Asked, *, again: bool) -> None:
        """It was not asked for after all, but will be."""
        with self._lock:
            if again:
                self._open.setdefault(asked.equal, []).insert(0, asked)
            elif asked in self._asked:
                self._asked.remove(asked)

    def over(self, is_over: Callable[[str], bool]) -> None:
        """What tasks asked for that are over, the code of no other asks for again."""
        with self._lock:
            self._asked = [one for one in self._asked if not is_over(one.task)]
            for opened in self._open.values():
                opened[:] = [one for one in opened if not is_over(one.task)]


@dataclass(slots=True, kw_only=True)
class Asking:
    """A call that the code of ``task`` is making, in the body of the call ``parent`` if in one.

    ``is_same``: run again it is the same call whatever became of it, not a new one where nobody knows.
    """

    repeats: Repeats
    task: str
    parent: str | None
    is_same: bool
    asked: Asked | None = None
    again: bool = False

    @classmethod
    def here(cls, repeats: Repeats, parent: str | None, *, is_same: bool = False) -> Self | None:
        """One that the code that runs here is making; None outside of a task."""
        execution = execution_here.get()
        task = None if execution is None else execution()
        return None if task is None else cls(repeats=repeats, task=task, parent=parent, is_same=is_same)

    def number(self, equal: Equal, *, is_read: bool = False) -> int | None:
        """Which of its equals it is once more; None if it counts: it is new, or a read that is made anew."""
        self.asked, self.again = self.repeats.ask(equal, self.task, self.parent)
        is_known = self.again and (self.is_same or (self.asked.is_answered and not is_read))
        return self.asked.number if is_known else None

    def counts(self, number: int) -> None:
        """It is this one of its equals."""
        if self.asked is not None:
            self.asked.number = number


def _is_within(task: str, other: str) -> bool:
    return task == other or task.startswith(f"{other}|")


def _names(task: str) -> list[str]:
    """The names in a path of tasks, without their ids, and without the numbers of graphs that one task invokes."""
    return [part.partition(":")[0] for part in task.split("|") if not part.isdigit()]
