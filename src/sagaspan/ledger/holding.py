"""Which of the budgets that somebody said of one scope hold.

All of different units and windows do. Of those of one unit and window, what operators set replaces what programs say of
the same scope, or of a glob that fits more. What a program says more specifically goes on to hold beside a broad limit
that was set, and so does what several parts of a program say (the guard, a run of it): then the tightest counts, so
that no part of it silently lets by what another one refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sagaspan.budget import Budget, kind_of
from sagaspan.scopes import EXACT, Placed, rank_of, tightness

_EVERY_RUN = "run:*"


def holding(set_: Sequence[Placed], *said: Sequence[Placed]) -> tuple[Budget, ...]:
    """What holds of a scope of which operators ``set_`` this, and each of several sources ``said`` that."""
    over = {kind_of(placed.budget): placed for placed in set_}
    found = dict(over)
    for placed in (placed for source in said for placed in source):
        kind = kind_of(placed.budget)
        if kind in over and over[kind].rank >= placed.rank:
            continue
        if kind not in found or tightness(placed) < tightness(found[kind]):
            found[kind] = placed
    return tuple(placed.budget for placed in found.values())


def placed_at(scope: str, budgets: Iterable[Budget], of_every_run: Sequence[Budget] = ()) -> tuple[Placed, ...]:
    """``budgets`` that were given to ``scope`` itself, but for those that every run is given."""
    return tuple(
        Placed(budget, _EVERY_RUN, rank_of(_EVERY_RUN)) if budget in of_every_run else Placed(budget, scope, EXACT)
        for budget in budgets
    )


def merged(over: Sequence[Budget], under: Sequence[Budget]) -> tuple[Budget, ...]:
    """``over`` with those of ``under`` that it says nothing of."""
    said = {kind_of(budget) for budget in over}
    return (*over, *(budget for budget in under if kind_of(budget) not in said))
