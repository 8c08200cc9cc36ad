"""Prices: the user's rows first, then those that ``genai-prices`` brings along; never the network.

A model without a price is a typed outcome, not a number out of the air: its ``Price`` says what is ``missing``, and
its amount is that of the dearest rates known for anything. Who enforces a hard budget of money refuses then; who only
records it flags it. So no unknown model is ever cheaper than a known one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from sagaspan._clock import now_us
from sagaspan._declared import DeclaredModel
from sagaspan.amounts import nano_usd
from sagaspan.exceptions import ConfigurationError
from sagaspan.llm import catalogue
from sagaspan.llm.catalogue import Quote, Terms
from sagaspan.llm.demand import Demand
from sagaspan.llm.models import readings, undated
from sagaspan.llm.tariff import MILLION, Kind, Steps, Tariff, complete, dearest
from sagaspan.llm.usage import Usage
from sagaspan.policy import read_policy_file


def _as_nano(value: Any) -> int | None:
    try:
        return None if value is None else nano_usd(value, what="the price")
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


Usd = Annotated[int | None, BeforeValidator(_as_nano)]
"""US dollars as text, int, float or Decimal; kept as nano-USD."""


class _Rates(DeclaredModel):
    """US dollars for a million tokens, except ``web_search`` and ``file_search`` (a thousand) and ``request`` (one)."""

    input: Usd = None
    output: Usd = None
    cache_read: Usd = None
    cache_write: Usd = None
    cache_write_1h: Usd = None
    input_audio: Usd = None
    cache_audio_read: Usd = None
    input_image: Usd = None
    output_audio: Usd = None
    reasoning: Usd = None
    web_search: Usd = None
    file_search: Usd = None
    request: Usd = None

    def given(self) -> dict[Kind, int]:
        """Nano-USD for a million of each kind that has a price."""
        prices = {kind: getattr(self, kind.value) for kind in Kind}
        return {kind: price * _TIMES.get(kind, 1) for kind, price in prices.items() if price is not None}


_TIMES: Final = {Kind.WEB_SEARCH: 1000, Kind.FILE_SEARCH: 1000, Kind.REQUEST: MILLION}


class LongPrompt(_Rates):
    """The prices that hold for the whole call when its input has more than ``above`` tokens."""

    above: Annotated[int, Field(ge=1)]


def _as_long_prompt(value: Any) -> Any:
    return LongPrompt(**value) if isinstance(value, Mapping) else value


class ModelPrice(_Rates):
    """A row of the user's price table, whatever the service tier: ``{"input": 2.5, "output": 10, "cache_read": 1.25}``.

    What a row leaves out is billed as the like (cached as plain input, reasoning as output), or is unknown.
    ``context_window`` and ``max_output`` are tokens. Raises ``ConfigurationError`` for hostile prices.
    """

    input: Usd = Field()
    context_window: Annotated[int, Field(ge=1)] | None = None
    max_output: Annotated[int, Field(ge=1)] | None = None
    long_prompt: Annotated[LongPrompt | None, BeforeValidator(_as_long_prompt)] = None

    def tariff(self) -> Tariff:
        """The row as rates."""
        rates: dict[Kind, Steps] = {kind: ((0, rate),) for kind, rate in self.given().items()}
        if self.long_prompt is not None:
            for kind, rate in self.long_prompt.given().items():
                rates[kind] = (rates.get(kind, ((0, rate),))[0], (self.long_prompt.above, rate))
        return Tariff(rates=complete(rates), context_window=self.context_window, max_output=self.max_output)

    @property
    def version(self) -> str:
        """Eight characters that change with the row."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


_REMEMBERED: Final = 10_000
"""Names of models whose row is known; a name can come from outside."""

ASSUMED: Final = ", assumed"
"""How the ``source`` of a price ends that nobody knows."""

Rows = Mapping[str, ModelPrice | Mapping[str, Any]]
"""Name or glob of a model, with or without its provider in front, and its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An amount, and what it rests on.

    ``source`` is for the record: the table, its version and its row. ``missing`` is None if every price is known, else
    the sentence that says which is not; the amount then assumes the dearest rate known for any model. ``open_ended``
    says why a bound may be exceeded all the same; None: it cannot.
    """

    nano_usd: int
    source: str
    missing: str | None = None
    open_ended: str | None = None


class Prices:
    """What calls cost. ``rows`` are the user's: they win over the table that comes along, exact names over globs."""

    def __init__(self, rows: Rows | None = None, *, source: str = "prices") -> None:
        if rows is not None and not isinstance(rows, Mapping):
            raise ConfigurationError(f"{source} is a mapping of models to prices, not a {type(rows).__name__}")
        self._rows = {_row_name(name, source): _row(name, row, source) for name, row in (rows or {}).items()}
        self._quotes = {
            name: Quote(row.tariff(), f"prices {name} {row.version}") for name, row in self._rows.items()
        }  # fmt: skip
        self._found: dict[tuple[str, str | None], Quote | None] = {}

    def price_of(
        self, model: str, usage: Usage, provider: str | None = None, *, batch: bool = False, at_us: int | None = None
    ) -> Price:
        """What ``usage`` of ``model`` cost at ``at_us`` (microseconds since the epoch; now), rounded up.

        The user's row for ``model`` counts; else the price of the model that the provider says served the call, if it
        has one; else that of ``model``.
        """
        quote = self._settling(model, usage, provider, batch=batch, times=_at(at_us))
        tariff, missing = _filled(quote, usage, model)
        return Price(nano_usd=tariff.bill(usage), source=_source(quote, missing), missing=missing)

    def bound(self, model: str, demand: Demand, provider: str | None = None, *, at_us: int | None = None) -> Price:
        """What a call within ``demand`` costs at most, if it ends within a day."""
        quote = self._bounding(model, demand, provider, at_us)
        tariff, missing = _filled(quote, demand, model)
        return Price(
            nano_usd=tariff.bound(demand),
            source=_source(quote, missing),
            missing=missing,
            open_ended=demand.open_ended or tariff.unlimited(demand),
        )

    def affordable(
        self, model: str, demand: Demand, nano_usd: int, provider: str | None = None, *, at_us: int | None = None
    ) -> int | None:
        """The most output tokens a choice that ``nano_usd`` can pay for, within what ``demand`` and the model allow.

        0 if it pays for nothing; None if nothing limits it (output is free and the model's limit not known).
        """
        tariff, _ = _filled(self._bounding(model, demand, provider, at_us), demand, model)
        return tariff.affordable(demand, nano_usd)

    def provider_of(self, model: str) -> str | None:
        """Return the provider that the name of ``model`` tells, in OpenTelemetry's words; None for a row of the user's.

        A program whose models all have rows of its own never loads the table, which takes half a second.
        """
        return catalogue.provider_by_name(model) if self._row_for(model, None) is None else None

    def _settling(
        self, model: str, usage: Usage, provider: str | None, *, batch: bool, times: tuple[int, ...]
    ) -> Quote:
        terms = Terms(batch, usage.service_tier, usage.speed, usage.geo)
        quote = self._row_for(model, provider)
        if quote is None and usage.model:
            quote = self._row_for(usage.model, provider) or self._find(usage.model, provider, terms, times)
        if quote is None or quote.missing:
            quote = self._find(model, provider, terms, times)
        return quote

    def _bounding(self, model: str, demand: Demand, provider: str | None, at_us: int | None) -> Quote:
        terms = Terms(demand.batch, demand.service_tier, demand.speed, demand.geo)
        return self._row_for(model, provider) or self._find(model, provider, terms, _day_from(_at(at_us)))

    def _row_for(self, model: str, provider: str | None) -> Quote | None:
        if not self._rows:
            return None
        try:
            return self._found[model, provider]
        except KeyError:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            quote = self._found[model, provider] = self._look_for(model, provider)
            return quote

    def _look_for(self, model: str, provider: str | None) -> Quote | None:
        asked, means = model.strip().lower(), list(readings(model, provider))
        names = [f"{provider}/{asked}".lower()] if provider else []
        names += [f"{who}/{name}".lower() for who, name in means if who]
        names += [asked, *(name.lower() for _, name in means)]
        globs = [name for name in self._rows if any(character in name for character in "*?[")]
        exact = (name for name in names if name in self._rows)
        matching = (glob for glob in globs for name in names if fnmatch.fnmatchcase(name, glob))
        row = next(exact, None) or next(matching, None)
        return None if row is None else self._quotes[row]

    def _find(self, model: str, provider: str | None, terms: Terms, times: tuple[int, ...]) -> Quote:
        for who, name in readings(model, provider):
            entry = catalogue.find(who, name)
            if entry is not None:
                return entry.quote(terms, times)
        for who, name in readings(model, provider):
            base = undated(name)
            quote = (self._row_for(base, who) or _family(who, base, terms, times)) if base else None
            if quote is not None:
                return quote
        by = f" of {provider!r:.80}" if provider else ""
        return Quote(Tariff(rates={}), catalogue.version(), f"no price is known for the model {model!r:.80}{by}")


def load_prices(prices: Prices | Rows | str | Path | None) -> Prices:
    """A table from rows, or from the ``[prices]`` of a policy file; raises ``ConfigurationError``."""
    if isinstance(prices, Prices):
        return prices
    if isinstance(prices, str | Path):
        path = Path(prices)
        return Prices(read_policy_file(path).get("prices"), source=f"{path}, [prices]")
    return Prices(prices)


def _family(who: str | None, base: str, terms: Terms, times: tuple[int, ...]) -> Quote | None:
    """A snapshot that the table does not know costs as much as the dearest of its family."""
    quotes = [entry.quote(terms, times) for entry in catalogue.family(who, base)]
    if not quotes:
        return None
    first = quotes[0]
    missing = next((quote.missing for quote in quotes if quote.missing), None)
    return Quote(replace(first.tariff, rates=dearest(quote.tariff.rates for quote in quotes)), first.source, missing)


def _filled(quote: Quote, asked: Usage | Demand, model: str) -> tuple[Tariff, str | None]:
    """The tariff with every rate that ``asked`` needs, and the sentence that says what had to be assumed for it."""
    tariff, _, missing = quote
    lacking = tariff.lacks(asked)
    if missing is None and not lacking:
        return tariff, None
    known = catalogue.dearest_rates()
    rates = known if missing else {**tariff.rates, **{kind: known[kind] for kind in lacking}}
    why = missing or f"no price is known for {' and '.join(lacking)} of {model!r:.80}"
    # No figures: who copies the line without looking would be billed by those of another model.
    row = f'[prices] "{model:.80}" = {{ input = IN, output = OUT }}, in US dollars per million tokens'
    return replace(tariff, rates=rates), f"{why}; give it a row: {row}"


def _source(quote: Quote, missing: str | None) -> str:
    return f"{quote.source}{ASSUMED}" if missing else quote.source


def _at(at_us: int | None) -> tuple[int, ...]:
    return (now_us() if at_us is None else at_us,)


def _day_from(times: tuple[int, ...]) -> tuple[int, ...]:
    # Some prices depend on the hour, and a provider may bill by the end of the call.
    return tuple(times[0] + hour * 3_600_000_000 for hour in range(25))


def _row_name(name: object, source: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"{source}: {name!r} is no name of a model")
    return name.strip().lower()


def _row(name: str, row: object, source: str) -> ModelPrice:
    if isinstance(row, ModelPrice):
        return row
    if not isinstance(row, Mapping):
        raise ConfigurationError(
            f"{source}, model {name!r}: write {{ input = 2.5, output = 10 }}, US dollars per million tokens, "
            f"not a {type(row).__name__}"
        )
    try:
        return ModelPrice(**row)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}, model {name!r}: {error}") from error
