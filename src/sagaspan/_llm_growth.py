"""An answer that grows while it comes: how far it has come, and how much of it is reserved (rule book (c) 6).

What a request may answer at most is reserved with its claim. What goes on past that is reserved piece by piece, in
steps that are large at first, so that few of them go far, and small where little is left.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sagaspan._call import Call
from sagaspan._headroom import LEAST_OUTPUT
from sagaspan.amounts import MAX_AMOUNT, Unit
from sagaspan.ledger.claims import Claim
from sagaspan.ledger.store import ReserveChange
from sagaspan.llm.demand import Demand
from sagaspan.llm.prices import Price, Prices
from sagaspan.llm.usage import MAX_COUNT, Usage, check_tokens

if TYPE_CHECKING:
    from sagaspan.ledger.ledger import Ledger

_MOST_OUTPUT: Final = 1_000_000
"""Output tokens that a model without a known limit is assumed to give at most."""
_LEAST_STEP: Final = 256
"""Output tokens by which a reservation is extended at least, as long as there is that much left."""


class Growth:
    """What one call may come to, and what it has come to. ``demand`` grows with what is reserved.

    ``came`` is the output, of all choices together, that came for sure.
    """

    def __init__(self, model: str, provider: str | None, prices: Prices, demand: Demand) -> None:
        self.demand = demand
        self.came = 0
        self._seen: tuple[int, int | None] = 0, None
        self._model = model
        self._provider = provider
        self._prices = prices
        self._covered: int | None = None
        self._at_first: int | None = None
        self._step: int | None = None
        self._is_over = False
        self._lock = threading.Lock()

    @property
    def most_output(self) -> int:
        """The most output tokens of a choice that it is counted with."""
        if self.demand.output_tokens is not None:
            return self.demand.output_tokens
        most = self._prices.affordable(self._model, self.demand, MAX_AMOUNT, self._provider)
        return _MOST_OUTPUT if most is None else min(most, _MOST_OUTPUT)  # what nobody prices, money hardly limits

    @property
    def covered(self) -> int:
        """The output tokens, of all choices together, that are reserved."""
        if self._covered is None:
            self._covered = self.most_output * self.demand.choices
        return self._covered

    @property
    def at_first(self) -> int:
        """What of it was reserved with the claim."""
        return self.covered if self._at_first is None else self._at_first

    @property
    def is_past(self) -> bool:
        """Whether more came for sure than was reserved with the claim."""
        return self.came > self.at_first

    def bound(self) -> Price:
        """What it costs at most, as far as it is reserved."""
        return self._bound(self.demand)

    def costs(self, bound: Price) -> Mapping[str, int]:
        """What it reserves, by unit."""
        return {Unit.USD: bound.nano_usd, Unit.TOKENS: self.demand.input_tokens + self.covered, Unit.CALLS: 1}

    def begin(self) -> None:
        """It is claimed: from here on it is extended."""
        self._at_first = self.covered

    def came_to(self, output_tokens: int) -> None:
        """Note how far it has come; raises ``ConfigurationError`` for what is no count."""
        check_tokens("output_tokens", output_tokens)
        self.came = max(self.came, output_tokens)

    def seen(self, output_tokens: int, input_tokens: int | None) -> None:
        """Note what it looks like where nobody counts: an estimate, which no budget is built on."""
        self._seen = output_tokens, input_tokens

    @property
    def is_estimated(self) -> bool:
        """Whether there is nothing but an estimate: something was seen, and no limit was asked for."""
        return self.demand.output_tokens is None and bool(self._seen[0] or self.came)

    def likely(self) -> Usage:
        """What it mostly comes to, as it looks."""
        output, taken_in = self._seen
        return Usage(
            input_tokens=self.demand.input_tokens if taken_in is None else taken_in,
            output_tokens=max(output, self.came),
        )

    def take_all(self) -> None:
        """Count with all that came, whether it was reserved or not."""
        self.demand, self._covered = self._grown(self.came), self.came

    def end(self) -> None:
        """Nothing is reserved for it from here on."""
        with self._lock:
            self._is_over = True

    async def extend(self, ledger: Ledger, call: Call, claim: Claim, output_tokens: int) -> ReserveChange | None:
        """Reserve for ``output_tokens`` and a step beyond; the reservation that did not fit, if none does."""
        step = max(self.covered // 2, _LEAST_STEP) if self._step is None else self._step
        while True:
            finished = await call.shielded(self._extend, ledger, call, claim, min(output_tokens + step, MAX_COUNT))
            if finished.interrupted is not None:
                raise finished.interrupted
            if finished.value is None or step < LEAST_OUTPUT:
                return finished.value
            step //= 4
            self._step = step  # there is little left: from here on in small steps

    def has_room(self) -> None:
        """There is room again: from here on in large steps."""
        self._step = None

    def _extend(self, ledger: Ledger, call: Call, claim: Claim, output_tokens: int) -> ReserveChange | None:
        with self._lock:
            if self._is_over:
                return None
            grown = self._grown(output_tokens)
            held, wanted = self.bound().nano_usd, self._bound(grown).nano_usd
            more: dict[str, int] = {Unit.USD: wanted - held, Unit.TOKENS: output_tokens - self.covered}
            refused = ledger.extend(call, claim, more)
            if refused is None:
                self.demand, self._covered = grown, output_tokens
            return refused

    def _grown(self, output_tokens: int) -> Demand:
        return replace(self.demand, output_tokens=-(-output_tokens // max(self.demand.choices, 1)))

    def _bound(self, demand: Demand) -> Price:
        return self._prices.bound(self._model, demand, self._provider)
