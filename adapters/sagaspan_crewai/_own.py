"""What is put into one object alone: a copy of it has what was there before.

A guarded body is bound to its object. In a copy (``model_copy``, ``copy.copy``, what CrewAI makes of models) it would
do the work of the original: pay from its account, ask its model. Pydantic copies the dictionary of an object, and
nothing else of it, so that is what knows which of its values stay behind.
"""

from __future__ import annotations

import copy
from typing import Any, Final

_NOTHING: Final = object()


def put(thing: Any, name: str, value: Any) -> None:
    """Let ``thing.name`` be ``value``, but of none of its copies."""
    if not isinstance(vars(thing), _Kept):
        object.__setattr__(thing, "__dict__", _Kept(vars(thing)))
    vars(thing).put(name, value)


class _Kept(dict[str, Any]):
    """The attributes of an object."""

    def __init__(self, held: dict[str, Any]) -> None:
        super().__init__(held)
        self._own: dict[str, tuple[Any, Any]] = {}

    def put(self, name: str, value: Any) -> None:
        self._own[name] = value, self.get(name, _NOTHING)
        self[name] = value

    def _shared(self) -> dict[str, Any]:
        shared = dict(self)
        for name, (value, before) in self._own.items():
            if shared.get(name) is not value:  # the user's, who set it since
                continue
            if before is _NOTHING:
                del shared[name]
            else:
                shared[name] = before
        return shared

    def __copy__(self) -> dict[str, Any]:
        return self._shared()

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self._shared(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._shared(),)
