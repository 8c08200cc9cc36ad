"""Scopes that budgets live in: ``run:ID``, ``agent:NAME``, ``user:ID``, ``tenant:ID``, ``tool:NAME``, ``model:NAME``.

A budget is declared for one scope or for a glob of names (``"user:*"``: each user has their own).

``run:ID/NAME`` counts one tool in one run. What is counted there is never counted in the run ``ID/NAME``: the slash in
the id of that run is ``%2F``, unless its last part is one that runs are given (``OUTER/name#1``, ``THREAD/2``); then no
tool is written like that. Whoever declares or sets a budget may write ids as they are.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from sagaspan.amounts import Unit
from sagaspan.budget import Budget, Budgets, Window, budgets_of, kind_of
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


def scope_of_run(run_id: str) -> str:
    """Return the scope in which the calls of a run are counted."""
    if "/" not in run_id and "%" not in run_id:
        return f"run:{run_id}"
    text = run_id.replace("%", "%25")
    return f"run:{text if _GIVEN.fullmatch(text.rpartition('/')[2]) else text.replace('/', '%2F')}"


def scope_of_tool_in_run(run_id: str, tool: str) -> str:
    """Return the scope in which the calls of one tool in one run are counted."""
    name = re.sub(r"[%/#@]|\A[0-9](?=[0-9]*\Z)", lambda found: f"%{ord(found[0]):02X}", tool)
    return f"{scope_of_run(run_id)}/{name}"


def run_and_tool(scope: str) -> tuple[str, str | None]:
    """Return the id of the run that is counted in ``scope``, and the name of the tool, if only that is."""
    text = scope.removeprefix("run:")
    outer, slash, name = text.rpartition("/")
    if slash and not _GIVEN.fullmatch(name):
        return unquote(outer), unquote(name)
    return unquote(text), None


def spellings(scope: str) -> tuple[str, ...]:
    """Return how people may write ``scope``: as it is counted, and with the ids as they are."""
    return (scope, unquote(scope)) if scope.startswith("run:") and "%" in scope else (scope,)


_GIVEN: Final = re.compile(r"[^/]*[#@][^/]*|[0-9]+")


def _is_plain(name: str) -> bool:
    # A scope is shown in tables and is part of a database's key: no control character, line break or lone surrogate.
    return name.isprintable() or not any(unicodedata.category(character) in _REFUSED for character in name)


_REFUSED: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


class Placed(NamedTuple):
    """A budget of a scope, the ``pattern`` it was declared or set for, and how specific that is (``EXACT``: the scope
    itself)."""

    budget: Budget
    pattern: str
    rank: int


EXACT: Final = 2 * MAX_LENGTH + 1


def rank_of(pattern: str) -> int:
    """How specific a glob is: by the characters that it names, then by those that it only counts (``?``)."""
    return 2 * len(_WILD.sub("", pattern)) + len(_WILD.findall(pattern)) - pattern.count("*")


_WILD: Final = re.compile(r"\[[^]]+\]|[*?]")


def tightness(placed: Placed) -> tuple[bool, int]:
    """The smaller, the less it lets by."""
    return not placed.budget.hard, placed.budget.limit


class BudgetBook:
    """Budgets of scopes and globs. All that fit a scope hold; of those of one unit and window the most specific does:
    the scope itself, else the glob that names the most of it, and of two that name as much the tighter one.

    ``checked`` False: of the ledger, which were checked when somebody set them; what it has must not stop every call.
    """

    def __init__(self, budgets: Mapping[str, Budgets] | None, *, source: str = "budgets", checked: bool = True) -> None:
        self.source = source
        self._exact: dict[str, tuple[Placed, ...]] = {}
        self._globs: dict[str, tuple[Placed, ...]] = {}
        if budgets is not None and not isinstance(budgets, Mapping):
            raise ConfigurationError(f"{source} is a mapping of scopes to budgets, not a {type(budgets).__name__}")
        for name, value in (budgets or {}).items():
            found = budgets_of(value, where=f"{source}, {name!r}")
            if checked:
                _check_fitting(_checked(name, source), found, source)
                if not found:
                    raise ConfigurationError(
                        f"{source}, {name!r}: no budget, which exempts nobody from one of a glob; leave it out, or "
                        "write one with hard = false, which refuses nothing"
                    )
            self._exact[name] = tuple(Placed(budget, name, EXACT) for budget in found)
            if any(character in name for character in "*?["):
                self._globs[name] = tuple(Placed(budget, name, rank_of(name)) for budget in found)
        self.kinds = frozenset(name.partition(":")[0] for name in self._exact)

    def of(self, *scopes: str, endings: tuple[str, ...] = ("",)) -> tuple[Placed, ...]:
        """The budgets of a scope, which is given for each name of its tool; empty if none is declared for it.

        ``endings``: only of globs that end so. ``run:*`` fits ``run:R/TOOL`` too, and means all that a run does.
        """
        names = tuple(dict.fromkeys(name for scope in scopes for name in spellings(scope)))
        globs = (
            own
            for glob, own in self._globs.items()
            if glob.endswith(endings) and any(fnmatch.fnmatchcase(name, glob) for name in names)
        )
        fitting = [*(self._exact.get(name, ()) for name in names), *globs]
        best: dict[tuple[Unit, Window | None], Placed] = {}
        for placed in (placed for own in fitting for placed in own):
            kind = kind_of(placed.budget)
            held = best.setdefault(kind, placed)
            if (-placed.rank, tightness(placed)) < (-held.rank, tightness(held)):
                best[kind] = placed
        return tuple(best.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._exact)

    def __len__(self) -> int:
        return len(self._exact)


def combined(over: Mapping[str, Any] | None, under: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Two tables of budgets as one: of the same scope, unit and window that of ``over`` holds."""
    if not over or not isinstance(under, Mapping):
        return under or over or {}
    tables = {**under, **over}
    for name in over.keys() & under.keys():
        found = budgets_of(over[name], where=f"budgets, {name!r}")
        said = {kind_of(budget) for budget in found}
        under_it = budgets_of(under[name], where=f"budgets, {name!r}")
        tables[name] = [*found, *(budget for budget in under_it if kind_of(budget) not in said)]
    return tables


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
