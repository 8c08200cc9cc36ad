"""The price table that comes along: ``genai-prices``, as it was installed.

The library takes half a second to import, so it is imported with the first look-up. Only its bundled data is read,
never what a background update of somebody else's may have fetched: prices are those of the version in the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from importlib.metadata import version as installed
from typing import Any, Final, NamedTuple

from sagaspan._clock import now_us
from sagaspan.amounts import MICRO
from sagaspan.llm.models import output_limit, undated
from sagaspan.llm.tariff import PERCENT, Kind, Rates, Steps, Tariff, complete, dearest


class Terms(NamedTuple):
    """What moves the price of a call besides the model: asked for, or said by the answer."""

    batch: bool = False
    service_tier: str | None = None
    speed: str | None = None
    geo: str | None = None


_STANDARD: Final = (None, "", "auto", "default", "standard", "standard_only", "scale", "batch")
"""Tiers at the standard price: ``scale`` is paid in advance, and ``batch`` is a way of its own."""
_NEVER_DEARER: Final = ("batch", "flex")
"""Where the table does not have these, the standard price is their bound."""
_ANYWHERE: Final = (None, "", "global", "not_available")
_UPLIFT: Final = 110
"""Percent of the price where the region of the inference is chosen, as providers charge it."""

_KINDS: Final = {
    "input_mtok": Kind.INPUT, "input_video_mtok": Kind.INPUT, "output_mtok": Kind.OUTPUT,
    "output_image_mtok": Kind.OUTPUT, "output_video_mtok": Kind.OUTPUT, "cache_read_mtok": Kind.CACHE_READ,
    "cache_image_read_mtok": Kind.CACHE_READ, "cache_write_mtok": Kind.CACHE_WRITE,
    "cache_write_5m_mtok": Kind.CACHE_WRITE, "cache_write_1h_mtok": Kind.CACHE_WRITE_1H,
    "input_audio_mtok": Kind.INPUT_AUDIO, "cache_audio_read_mtok": Kind.CACHE_AUDIO_READ,
    "input_image_mtok": Kind.INPUT_IMAGE, "output_audio_mtok": Kind.OUTPUT_AUDIO,
    "output_reasoning_mtok": Kind.REASONING, "web_searches_kcount": Kind.WEB_SEARCH,
    "storage_searches_kcount": Kind.FILE_SEARCH, "requests_kcount": Kind.REQUEST,
}  # fmt: skip
"""The table's names for a price, and what it is a price of; of two for the same, the dearer one counts."""


class Quote(NamedTuple):
    """A tariff, what it rests on, and why it has no rates, if so."""

    tariff: Tariff
    source: str
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the table, and the provider that was asked for it."""

    provider: Any
    model: Any

    def quote(self, terms: Terms, times: tuple[int, ...]) -> Quote:
        """The rates under ``terms``; of several ``times`` (microseconds since the epoch) the dearest."""
        context = _context(terms, self.provider.id)
        prices = self._prices(context, times)
        missing = self._unknown_terms(context) or self._unknown_unit(prices)
        tariff = Tariff(
            rates={} if missing else complete(dearest(_rates(one) for one in prices)),
            context_window=self.model.context_window,
            max_output=output_limit(self.model.id) if self.provider.id in ("openai", "azure") else None,
            percent=PERCENT if terms.geo in _ANYWHERE else _UPLIFT,
        )
        return Quote(tariff, f"{version()} {self.provider.id}/{self.model.id}", missing)

    def standard(self, at_us: int) -> Rates:
        """The rates of an ordinary call."""
        return complete(dearest(_rates(one) for one in self._prices({}, (at_us,))))

    @property
    def _variants(self) -> list[Any]:
        # Those of a model that another provider's row stands in for are that provider's.
        own = any(self.model is model for model in self.provider.models)
        return list(self.model.price_variants or ()) if own else []

    def _prices(self, context: dict[str, str], times: tuple[int, ...]) -> list[dict[str, Any]]:
        context = context if self._variants else {}
        moments = times if isinstance(self.model.prices, list) or context else times[:1]
        found = (self.model.get_prices(datetime.fromtimestamp(at // MICRO, UTC), context or None) for at in moments)
        return [{name: price for name, price in vars(one).items() if price is not None} for one in found]

    def _unknown_terms(self, context: dict[str, str]) -> str | None:
        known = [variant.when for variant in self._variants]
        for name, value in context.items():
            if value not in _NEVER_DEARER and {name: value} not in known:
                return f"no price is known for {self.model.id!r} with {name} {value!r}"
        return None

    def _unknown_unit(self, prices: list[dict[str, Any]]) -> str | None:
        named = {name for one in prices for name in one}
        if odd := sorted(named - set(_KINDS)):
            return f"{self.model.id!r} is billed by what its answers do not count ({odd[0]})"
        return None if named or self.model.id.endswith(":free") else f"the table has no price for {self.model.id!r}"


def _context(terms: Terms, provider: str) -> dict[str, str]:
    """``terms`` in the table's words."""
    context = {}
    if terms.batch or terms.service_tier == "batch":
        context["processing"] = "batch"
    # Anthropic's priority is capacity that was paid for; its tokens cost what they cost.
    if terms.service_tier not in _STANDARD and not (provider == "anthropic" and terms.service_tier == "priority"):
        context["service_tier"] = str(terms.service_tier)
    if terms.speed not in (None, "", "standard"):
        context["speed"] = str(terms.speed)
    return context


def _rates(prices: Mapping[str, Any]) -> Rates:
    return dearest({_KINDS[name]: _steps(name, price)} for name, price in prices.items() if name in _KINDS)


def _steps(name: str, price: Any) -> Steps:
    per = 1_000_000 if name.endswith("_mtok") else 1000
    tiers = (
        [(0, price)] if isinstance(price, Decimal) else [(0, price.base), *((t.start, t.price) for t in price.tiers)]
    )
    return tuple((above, _nano_per_million(usd, per)) for above, usd in tiers)


def _nano_per_million(usd: Decimal, per: int) -> int:
    numerator, denominator = usd.as_integer_ratio()
    return -(-numerator * 10**15 // (denominator * per))


def find(provider: str | None, name: str) -> Entry | None:
    """The model that ``provider`` (one of the table's, or None: whose name it is) calls ``name``."""
    return _find(provider, name.lower())


@lru_cache(maxsize=1024)
def _find(provider: str | None, name: str) -> Entry | None:
    everybody = _providers()
    for one in everybody:
        if one.id == provider or (provider is None and one.model_match is not None and one.model_match.is_match(name)):
            model = one.find_model(name, all_providers=everybody)
            return Entry(one, model) if model is not None else None
    return None


_CONVENTIONAL: Final = {
    "aws": "aws.bedrock", "azure": "azure.ai.openai", "google": "gcp.gemini", "mistral": "mistral_ai", "x-ai": "x_ai",
}  # fmt: skip
"""OpenTelemetry's word for a provider, where the table has another."""


def provider_by_name(model: str) -> str | None:
    """Return the provider of a model whose name says it, in OpenTelemetry's words; None if it does not."""
    entry = find(None, model)
    return None if entry is None else _CONVENTIONAL.get(entry.provider.id, entry.provider.id)


def family(provider: str | None, base: str) -> list[Entry]:
    """The model ``base`` and its dated snapshots, as far as the table has them apart."""
    first = find(provider, base)
    if first is None:
        return []
    dated = (model for model in first.provider.models if undated(model.id) == first.model.id)
    return [first, *(Entry(first.provider, model) for model in dated)]


@cache
def dearest_rates() -> Rates:
    """For each kind the highest rate of any model in the table, today."""
    now = now_us()
    return dearest(Entry(provider, model).standard(now) for provider in _providers() for model in provider.models)


@cache
def version() -> str:
    """The table and its version."""
    return f"genai-prices {installed('genai-prices')}"


@cache
def _providers() -> list[Any]:
    from genai_prices.data import providers

    return providers
