"""Scopes that budgets live in: ``run:ID``, ``agent:NAME``, ``user:ID``, ``tenant:ID``, ``tool:NAME``, ``model:NAME``.

A budget is declared for one scope or for a glob of names (``"user:*"``: each user has their own).
"""

from __future__ import annotations

import difflib
import fnmatch
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final

from sagaspan.amounts import Unit
from sagaspan.budget import Budget, Budgets, budgets_of
from sagaspan.exceptions import ConfigurationError

KINDS: Final = ("run", "agent", "user", "tenant", "tool", "model")
MAX_LENGTH: Final = 255


def scope(kind: str, name: str) -> str:
    """The scope ``kind:name``; raises ``ConfigurationError`` for a name that no scope can have."""
    return check_scope(f"{kind}:{name}")


def check_scope(text: object) -> str:
    """``text`` if it is a scope; raises ``ConfigurationError``."""
    if not isinstance(text, str):
        raise ConfigurationError(f"a scope is text such as 'user:42', not a {type(text).__name__}")
    kind, colon, name = text.partition(":")
    if kind not in KINDS or not colon:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean '{near[0]}:{name or 'NAME'}'?" if near else f"write KIND:NAME, KIND is {', '.join(KINDS)}"
        raise ConfigurationError(f"{text[:80]!r} is no scope; {hint}")
    if name != name.strip():
        raise ConfigurationError(
            f"{text[:80]!r} is no scope: its name begins or ends with a space; write {f'{kind}:{name.strip()}'!r:.80}"
        )
    if not name or len(text) > MAX_LENGTH or not _is_plain(name):
        raise ConfigurationError(
            f"{text[:80]!r} is no scope: its name has 1 to {MAX_LENGTH} characters, without control characters"
        )
    return text


def _is_plain(name: str) -> bool:
    # A scope is shown in tables and is part of a database's key: no control character, line break or lone surrogate.
    return name.isprintable() or not any(unicodedata.category(character) in _REFUSED for character in name)


_REFUSED: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


class BudgetBook:
    """Budgets of scopes and globs; an exact scope wins over globs, of which the first match wins.

    ``checked`` False: of the ledger, which were checked when somebody set them; what it has must not stop every call.
    """

    def __init__(self, budgets: Mapping[str, Budgets] | None, *, source: str = "budgets", checked: bool = True) -> None:
        self.source = source
        self._exact: dict[str, tuple[Budget, ...]] = {}
        self._globs: dict[str, tuple[Budget, ...]] = {}
        if budgets is not None and not isinstance(budgets, Mapping):
            raise ConfigurationError(f"{source} is a mapping of scopes to budgets, not a {type(budgets).__name__}")
        for name, value in (budgets or {}).items():
            found = budgets_of(value, where=f"{source}, {name!r}")
            if checked:
                _check_fitting(_checked(name, source), found, source)
            shelf = self._globs if any(character in name for character in "*?[") else self._exact
            shelf[name] = found

    def of(self, scope: str) -> tuple[Budget, ...]:
        """The budgets of ``scope``; empty if none is declared for it."""
        exact = self._exact.get(scope)
        if exact is not None:
            return exact
        return next((found for glob, found in self._globs.items() if fnmatch.fnmatchcase(scope, glob)), ())

    def exactly(self, scope: str) -> tuple[Budget, ...]:
        """The budgets that name ``scope`` itself."""
        return self._exact.get(scope, ())

    def __iter__(self) -> Iterator[str]:
        return iter([*self._exact, *self._globs])

    def __len__(self) -> int:
        return len(self._exact) + len(self._globs)


def _checked(name: object, source: str) -> str:
    try:
        return check_scope(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def _check_fitting(name: str, budgets: tuple[Budget, ...], source: str) -> None:
    for budget in budgets:
        if budget.unit is Unit.TIME and not name.startswith("run:"):
            raise ConfigurationError(
                f"{source}, {name!r}: only a run has a wall clock; give {str(budget)!r} to the run"
            )
