"""What budgets count, as exact integers: nano-USD, tokens, calls, microseconds of wall clock.

Binary fractions never enter a sum. A limit that has no exact integer is refused; a cost is rounded up, so that no
number of small calls is free. Whatever is not a plain amount (negative, NaN, infinite, beyond ``MAX_AMOUNT``, of
another type) is refused at the door with one sentence.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum
from typing import Final

from sagaspan.exceptions import ConfigurationError

NANO: Final = 10**9
"""Nano-USD in a US dollar."""
MICRO: Final = 10**6
"""Microseconds in a second."""
MAX_AMOUNT: Final = 10**18
"""The most of anything, a billion dollars in nano-USD: the sum of a few still fits the databases' 64-bit integers."""


class Unit(StrEnum):
    """What is counted; an amount of it is an integer of nano-USD, tokens, calls or microseconds."""

    USD = "USD"
    TOKENS = "tokens"
    CALLS = "calls"
    TIME = "time"


EXAMPLES: Final = "'2 USD', '100k tokens', '50 calls' or '10 min'"

_WORDS: Final[dict[str, tuple[Unit, int]]] = {
    "usd": (Unit.USD, NANO),
    **dict.fromkeys(("token", "tokens"), (Unit.TOKENS, 1)),
    **dict.fromkeys(("call", "calls"), (Unit.CALLS, 1)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), (Unit.TIME, MICRO)),
    **dict.fromkeys(("min", "minute", "minutes"), (Unit.TIME, 60 * MICRO)),
    **dict.fromkeys(("h", "hour", "hours"), (Unit.TIME, 3600 * MICRO)),
    **dict.fromkeys(("day", "days"), (Unit.TIME, 86_400 * MICRO)),
}
_SCALES: Final = {"": 1, "k": 1000, "K": 1000, "M": 1_000_000}
_AMOUNT: Final = re.compile(r"(\$?) *([0-9]{1,30})(?:\.([0-9]{1,30}))?([kKM]?) *([A-Za-z]*)")


def parse_amount(text: str) -> tuple[int, Unit]:
    """The amount that ``text`` says and its unit; raises ``ConfigurationError`` if it says none exactly."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{text!r:.80} is no amount: write a number and a unit, as in {EXAMPLES}")
    dollar, whole, fraction, scale, word = found.groups(default="")
    if dollar and word:
        raise ConfigurationError(f"{text!r} has two units; write '{whole} USD' or '${whole}'")
    known = _WORDS.get("usd" if dollar else word.lower())
    if known is None:
        raise ConfigurationError(f"{text!r} has no unit that is known here: write {EXAMPLES}")
    unit, per = known
    amount, rest = divmod(int(whole + fraction) * per * _SCALES[scale], 10 ** len(fraction))
    if rest:
        raise ConfigurationError(f"{text!r} is finer than {_FINEST[unit]}, the least that is counted")
    return _bounded(amount, text), unit


_FINEST: Final = {
    Unit.USD: "a nano-dollar",
    Unit.TOKENS: "a token",
    Unit.CALLS: "a call",
    Unit.TIME: "a microsecond",
}


def nano_usd(value: object, *, what: str = "the cost") -> int:
    """``value`` as nano-USD, rounded up: text (``"0.05 USD"``), or an int, float or Decimal of US dollars.

    Raises ``ConfigurationError`` naming ``what`` for anything else: a value of another type (also bool, subclasses and
    numpy's numbers), negative, NaN, infinite or more than a billion dollars.
    """
    if type(value) is str:
        try:
            amount, unit = parse_amount(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from error
        if unit is not Unit.USD:
            raise ConfigurationError(f"{what} is {value!r}, which is no money; write it as '0.05 USD'")
        return amount
    # Exact types: a subclass may compare and convert as it likes, and numpy's float is a subclass of float.
    if type(value) is int:
        dollars = Decimal(value) if -1 <= value <= MAX_AMOUNT else Decimal("NaN")
    elif type(value) is float:
        dollars = Decimal(repr(value))
    elif type(value) is Decimal:
        dollars = value
    else:
        raise ConfigurationError(
            f"{what} is a {type(value).__name__}; write it as '0.05 USD', or as an int, float or Decimal of US dollars"
        )
    if not (dollars.is_finite() and 0 <= dollars <= MAX_AMOUNT // NANO):
        raise ConfigurationError(f"{what} is {_shown(value)}; it must be 0 to {MAX_AMOUNT // NANO} US dollars")
    # A context of our own: the caller's may have any precision.
    scaled = Context(prec=60, rounding=ROUND_CEILING).multiply(dollars, Decimal(NANO))
    return int(scaled.to_integral_value(ROUND_CEILING))


def count_of(value: object, *, what: str) -> int:
    """``value`` if it is a plain int from 0 to ``MAX_AMOUNT``; raises ``ConfigurationError`` naming ``what``."""
    if type(value) is not int:
        raise ConfigurationError(f"{what} is a {type(value).__name__}; it must be a plain int")
    return _bounded(value, what)


def in_units(amount: int, unit: Unit) -> Decimal:
    """``amount`` as people count: US dollars, tokens, calls, seconds; exact."""
    per = _PER_SHOWN[unit]
    whole, rest = divmod(abs(amount), per)
    fraction = f"{rest:0{len(str(per)) - 1}d}".rstrip("0") if rest else ""
    sign = "-" if amount < 0 else ""
    return Decimal(f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}")


def show_amount(amount: int, unit: Unit) -> str:
    """``amount`` with its unit, as ``parse_amount`` reads it back: ``"2 USD"``, ``"100k tokens"``, ``"10 min"``."""
    for word, per in _SHOWN[unit]:
        if amount and amount % per == 0:
            return f"{amount // per}{word}"
    return f"{in_units(amount, unit):f}{_SHOWN[unit][-1][0]}"


_PER_SHOWN: Final = {Unit.USD: NANO, Unit.TOKENS: 1, Unit.CALLS: 1, Unit.TIME: MICRO}
_SHOWN: Final = {
    Unit.USD: ((" USD", NANO),),
    Unit.TOKENS: (("M tokens", 10**6), ("k tokens", 1000), (" tokens", 1)),
    Unit.CALLS: (("M calls", 10**6), ("k calls", 1000), (" calls", 1)),
    Unit.TIME: ((" h", 3600 * MICRO), (" min", 60 * MICRO), (" s", MICRO)),
}


def _bounded(amount: int, what: str) -> int:
    if not 0 <= amount <= MAX_AMOUNT:
        most = f"{MAX_AMOUNT // NANO} USD, or {MAX_AMOUNT} of another unit"
        raise ConfigurationError(f"{what} is out of range: it must be 0 to {most}")
    return amount


def _shown(value: object) -> str:
    if type(value) is int and value.bit_length() > 100:  # str() of a huge int raises
        return f"an int of {value.bit_length()} bits"
    return f"{value!r:.60}"
