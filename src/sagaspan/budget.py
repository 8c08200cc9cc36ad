"""Budgets: an amount of something, for a run or a window of time, with the marks at which to speak up.

``"2 USD"``, ``"100k tokens"``, ``"50 calls"``, ``"10 min"`` (wall clock); ``"20 USD/day"``, ``"/hour"``, ``"/month"``;
or a list of them. Windows are of UTC: an hour, a day, a month begin for everybody at once (rule book (c)).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field

from sagaspan._declared import DeclaredModel
from sagaspan.amounts import EXAMPLES, MAX_AMOUNT, MICRO, Unit, parse_amount, show_amount
from sagaspan.exceptions import ConfigurationError

SOFT_LIMITS: Final = (50, 80, 95)
"""Percent of a budget at which an event says so."""


class Window(StrEnum):
    """How long a budget lasts before it begins anew."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


def window_start(window: Window | None, at_us: int) -> int:
    """When the window that ``at_us`` lies in began (both in microseconds since the epoch); 0 for no window."""
    if window is None:
        return 0
    if window is not Window.MONTH:
        return at_us - at_us % _LENGTHS[window]
    return _month_of(at_us // _LENGTHS[Window.HOUR])


def window_end(window: Window | None, at_us: int) -> int | None:
    """When that window ends and the budget is whole again; None if it never is."""
    if window is None:
        return None
    start = window_start(window, at_us)
    if window is not Window.MONTH:
        return start + _LENGTHS[window]
    at = datetime.fromtimestamp(start // MICRO, UTC)
    return _month(at.year + at.month // 12, at.month % 12 + 1)


@lru_cache
def _month_of(hour: int) -> int:
    """When the month of this hour since the epoch began: asked by every call that is counted by the month."""
    at = datetime.fromtimestamp(hour * 3600, UTC)
    return _month(at.year, at.month)


def _month(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * MICRO


_LENGTHS: Final = {Window.HOUR: 3600 * MICRO, Window.DAY: 86_400 * MICRO}


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Percent = Annotated[int, Field(ge=1, le=100)]


class Budget(DeclaredModel):
    """A limit, written as text: ``Budget("20 USD/day", soft=(80,), hard=False)``.

    ==========  ==================================================================================
    ``limit``   the amount, an integer of nano-USD, tokens, calls or microseconds
    ``unit``    what is counted
    ``window``  None: as long as its scope is (a run, or for ever); else ``hour``, ``day``, ``month`` of UTC
    ``soft``    percents at which an event is recorded (50, 80, 95)
    ``hard``    True: what does not fit is refused before it runs; False: it is recorded only
    ==========  ==================================================================================

    Raises ``ConfigurationError`` if the text says no amount, or an option does not fit.
    """

    limit: Annotated[int, Field(ge=0, le=MAX_AMOUNT)]
    unit: Unit
    window: Window | None = None
    soft: Annotated[
        tuple[Percent, ...], BeforeValidator(_as_tuple), Field(description="percents from 1 to 100, such as (80, 95)")
    ] = SOFT_LIMITS
    hard: Annotated[bool, Field(description="True or False")] = True

    def __init__(self, text: str | None = None, /, **fields: Any) -> None:
        super().__init__(**(fields if text is None else {**fields, **_parse(text, fields)}))
        if self.unit is Unit.TIME and self.window is not None:
            raise ConfigurationError(f"{str(self)!r}: wall clock is limited from a run's start, so it has no window")

    def __str__(self) -> str:
        shown = show_amount(self.limit, self.unit)
        return shown if self.window is None else f"{shown}/{self.window.value}"

    def soft_limits_crossed(self, before: int, after: int) -> tuple[int, ...]:
        """The percents of ``soft`` that lie above ``before`` and not above ``after`` (amounts used), in order."""
        percents = _in_order(self.soft)
        return tuple([percent for percent in percents if before * 100 < percent * self.limit <= after * 100])


@lru_cache
def _in_order(percents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(percents)))


def told_at(budget: Budget) -> dict[int, int]:
    """The percents at which somebody is told, each with the amount used from which on it is so much, in order.

    Of a budget that refuses nothing all of it is among them: nothing else would say so.
    """
    percents = {*budget.soft} if budget.hard else {*budget.soft, 100}
    return {percent: -(-percent * budget.limit // 100) for percent in sorted(percents)}


def kind_of(budget: Budget) -> tuple[Unit, Window | None]:
    """What is counted, over what: budgets of one scope and kind are counted together."""
    return budget.unit, budget.window


Budgets: TypeAlias = str | Budget | Mapping[str, Any] | Sequence[str | Budget | Mapping[str, Any]]
"""One budget or several: text (commas separate), a ``Budget``, a table with ``limit``, or a list of these."""


def budgets_of(value: Budgets | None, *, where: str = "budget") -> tuple[Budget, ...]:
    """The budgets that ``value`` says; raises ``ConfigurationError`` naming ``where``."""
    if value is None:
        return ()
    items = value if isinstance(value, list | tuple) else (value,)
    budgets = tuple(budget for item in items for budget in _each(item, where))
    for index, budget in enumerate(budgets):
        if any(kind_of(budget) == kind_of(other) for other in budgets[:index]):
            raise ConfigurationError(f"{where}: two budgets for the same, the second is {str(budget)!r}; keep one")
    return budgets


def _each(item: object, where: str) -> list[Budget]:
    if isinstance(item, Budget):
        return [item]
    try:
        if type(item) is str:
            return [Budget(part) for part in item.split(",")]
        if isinstance(item, Mapping):
            return [_from_table(item)]
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    raise ConfigurationError(
        f"{where}: {item!r:.60} is a {type(item).__name__}; a budget is text with its unit, as in {EXAMPLES}"
    )


def _from_table(table: Mapping[str, Any]) -> Budget:
    fields = dict(table)
    text = fields.pop("limit", None)
    if type(text) is not str:
        raise ConfigurationError(
            f"a table of a budget needs its limit as text: {{ limit = '20 USD/day' }}, not {text!r:.60}"
        )
    return Budget(text, **fields)


_PER: Final = re.compile(r"(.*?)(?:/| per ) *([A-Za-z]+)", re.DOTALL)
_RATE_WORDS: Final = ("second", "minute")


def _parse(text: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    twice = [name for name in ("limit", "unit", "window") if name in fields]
    if twice:
        raise ConfigurationError(f"the text {text!r:.60} of a budget says its {twice[0]}; leave {twice[0]}= out")
    if type(text) is not str:
        raise ConfigurationError(
            f"{text!r:.60} is a {type(text).__name__}; a budget is text with its unit, as in {EXAMPLES}"
        )
    split = _PER.fullmatch(text.strip())
    amount_text, word = split.groups() if split else (text, None)
    word = word and word.lower()
    if word in _RATE_WORDS:
        raise ConfigurationError(f"{text!r:.80}: a budget lasts an hour or more; for less use rate='10/minute'")
    if word is not None and word not in list(Window):
        raise ConfigurationError(f"{text!r:.80}: a budget lasts an hour, a day or a month, as in '20 USD/day'")
    amount, unit = parse_amount(amount_text)
    return {"limit": amount, "unit": unit, "window": Window(word) if word else None}
