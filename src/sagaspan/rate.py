"""Rates: ``"10/minute"`` as the two numbers of GCRA, and its one step (rule book (c) 8, (g) 5).

The generic cell rate algorithm keeps one number for all callers, the *theoretical arrival time*: when the bucket would
be full again. A call moves it on by one emission interval; a call that would move it further ahead than the burst
allows waits. No window, no list of times, no clean-up, and the wait is known exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sagaspan._declared import DeclaredModel
from sagaspan.exceptions import ConfigurationError

Period = Literal["second", "minute", "hour", "day"]

_LENGTHS_NS: Final[dict[str, int]] = {
    "second": 10**9, "minute": 60 * 10**9, "hour": 3600 * 10**9, "day": 86_400 * 10**9,
}  # fmt: skip
_RATE: Final = re.compile(r"([0-9]{1,9}) *(?:/|per ) *(second|minute|hour|day)(?:,? +burst +([0-9]{1,9}))?")
MAX_COUNT: Final = 1_000_000


class Rate(DeclaredModel):
    """So many calls a period, as text: ``Rate("10/minute")``, ``Rate("600/hour burst 5")``.

    After a pause up to ``burst`` calls go at once (default: ``count``); after that one every ``interval_ns``. So at
    most ``burst + count`` calls fall into any one period, and ``count`` a period in the long run; ``burst 1`` spaces
    them evenly.

    Raises ``ConfigurationError`` if the text says no rate.
    """

    count: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    period: Period
    burst: Annotated[int, Field(ge=1, le=MAX_COUNT)]

    def __init__(self, text: str | None = None, /, **fields: Any) -> None:
        super().__init__(**(fields if text is None else {**_parse(text), **fields}))

    def __str__(self) -> str:
        rate = f"{self.count}/{self.period}"
        return rate if self.burst == self.count else f"{rate} burst {self.burst}"

    @property
    def interval_ns(self) -> int:
        """The emission interval: nanoseconds from one call to the next, rounded up."""
        return -(-_LENGTHS_NS[self.period] // self.count)


def _parse(text: object) -> dict[str, Any]:
    found = _RATE.fullmatch(text.strip()) if type(text) is str else None
    if found is None:
        raise ConfigurationError(
            f"{text!r:.60} is no rate: write '10/minute' (or second, hour, day), or '10/minute burst 3'"
        )
    count, period, burst = found.groups()
    return {"count": int(count), "period": period, "burst": int(burst or count)}


@dataclass(frozen=True, slots=True)
class RateStep:
    """What one step says: 0 to wait and the new arrival time to keep, or nanoseconds to wait and nothing to keep."""

    wait_ns: int
    arrival_ns: int

    @property
    def allowed(self) -> bool:
        """Whether the call goes."""
        return self.wait_ns == 0


def rate_step(rate: Rate, arrival_ns: int | None, now_ns: int) -> RateStep:
    """One call at ``now_ns`` after the kept ``arrival_ns`` (None: no call yet); nanoseconds since the epoch.

    A kept time further ahead than calls can have moved it comes from a clock that was set back, or from a rate that was
    changed since: it counts as the furthest that is possible, so that nobody waits longer than ``burst`` intervals.
    """
    full = rate.burst * rate.interval_ns
    arrival = min(max(arrival_ns or now_ns, now_ns), now_ns + full)
    wait = arrival + rate.interval_ns - (now_ns + full)
    return RateStep(wait, arrival) if wait > 0 else RateStep(0, arrival + rate.interval_ns)
