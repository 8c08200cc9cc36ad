"""What a model's tokens cost, in exact integers: the bill of a ``Usage``, an upper bound, what an amount can buy.

A *rate* is an integer of nano-USD for a million (tokens, searches, requests). It may rise with the length of the
prompt: beyond a threshold the higher rate holds for every token of the call, as all providers do it. Sums are rounded
up, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from sagaspan.llm.demand import Demand
from sagaspan.llm.usage import Usage

MILLION: Final = 1_000_000
PERCENT: Final = 100


class Kind(StrEnum):
    """What providers bill one by one."""

    INPUT = "input"
    CACHE_READ = "cache_read"
    CACHE_WRITE = "cache_write"
    CACHE_WRITE_1H = "cache_write_1h"
    INPUT_AUDIO = "input_audio"
    CACHE_AUDIO_READ = "cache_audio_read"
    INPUT_IMAGE = "input_image"
    OUTPUT = "output"
    REASONING = "reasoning"
    OUTPUT_AUDIO = "output_audio"
    WEB_SEARCH = "web_search"
    FILE_SEARCH = "file_search"
    REQUEST = "request"


Steps: TypeAlias = tuple[tuple[int, int], ...]
"""A rate and where it holds: ``((0, rate), (above so many input tokens, rate), ...)``, in order."""
Rates: TypeAlias = Mapping[Kind, Steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """The rates of one model for one call; a kind without a rate costs nothing, so ask ``lacks`` first.

    ``context_window`` and ``max_output`` are the model's limits in tokens, None where they are not known.
    ``percent`` multiplies the whole.
    """

    rates: Rates
    context_window: int | None = None
    max_output: int | None = None
    percent: int = PERCENT

    def bill(self, usage: Usage) -> int:
        """Nano-USD that ``usage`` costs."""
        return self._nano(sum(count * self._rate(kind, usage.input_tokens) for kind, count in _lines(usage)))

    def bound(self, demand: Demand) -> int:
        """Nano-USD that a call within ``demand`` cannot exceed, whatever its tokens turn out to be.

        Where ``demand`` sets no limit to the output, the model's own does; without one, nothing is added for it.
        """
        output = demand.output_tokens if demand.output_tokens is not None else (self.output_limit or 0)
        return self._nano(self._input(demand) + demand.choices * output * self._dearest(_output_kinds(demand), demand))

    def unlimited(self, demand: Demand) -> str | None:
        """Why ``bound`` is none: a limit that ``demand`` leaves to the model, and that is not known."""
        if demand.output_tokens is None and self.output_limit is None:
            return "the request sets no limit to the output, and the model's is not known"
        if demand.fills_context and self.context_window is None:
            return "the request has input that cannot be counted, and the model's context is not known"
        return None

    def affordable(self, demand: Demand, nano_usd: int) -> int | None:
        """The most output tokens a choice for which ``bound`` stays within ``nano_usd`` and the known limits.

        0 if nothing can be bought; None if neither money nor a known limit ends it.
        """
        left = nano_usd * MILLION * PERCENT - self._input(demand) * self.percent
        each = demand.choices * self._dearest(_output_kinds(demand), demand) * self.percent
        bought = left // each if each else (None if left >= 0 else 0)
        limits = [limit for limit in (bought, demand.output_tokens, self.output_limit) if limit is not None]
        return max(0, min(limits)) if limits else None

    def lacks(self, asked: Usage | Demand) -> tuple[Kind, ...]:
        """The kinds that the bill of ``asked``, or its bound, counts and this tariff has no rate for."""
        lines = _lines(asked) if isinstance(asked, Usage) else _demanded(asked)
        return tuple(kind for kind, count in lines if count and kind is not Kind.REQUEST and kind not in self.rates)

    @property
    def output_limit(self) -> int | None:
        """The most tokens the model can answer with, as far as that is known."""
        return self.max_output if self.max_output is not None else self.context_window

    def _input(self, demand: Demand) -> int:
        text = (self._taken_in(demand) - demand.audio_tokens) * self._dearest(_input_kinds(demand), demand)
        audio = demand.audio_tokens * self._dearest((Kind.INPUT_AUDIO, Kind.CACHE_AUDIO_READ), demand)
        return text + audio + sum(count * self._dearest((kind,), demand) for kind, count in _extras(demand))

    def _rate(self, kind: Kind, input_tokens: int) -> int:
        """The rate that holds for a prompt of this length."""
        return [0, *(rate for above, rate in self.rates.get(kind, ()) if input_tokens > above or above == 0)][-1]

    def _dearest(self, kinds: Iterable[Kind], demand: Demand) -> int:
        """The highest rate of ``kinds`` that a prompt of at most this length can have."""
        reached = (
            rate
            for kind in kinds
            for above, rate in self.rates.get(kind, ())
            if self._taken_in(demand) > above or above == 0
        )
        return max(reached, default=0)

    def _taken_in(self, demand: Demand) -> int:
        return max(demand.input_tokens, (self.context_window or 0) if demand.fills_context or demand.open_ended else 0)

    def _nano(self, total: int) -> int:
        return -(-total * self.percent // (MILLION * PERCENT))


def complete(rates: Rates) -> dict[Kind, Steps]:
    """``rates`` with what a provider that names no rate bills as something else: cached as plain input, and so on."""
    found = dict(rates)
    for kind, instead in _INSTEAD:
        if kind not in found and instead in found:
            found[kind] = found[instead]
    return found


_INSTEAD: Final = (
    (Kind.CACHE_READ, Kind.INPUT),
    (Kind.CACHE_WRITE, Kind.INPUT),
    (Kind.CACHE_WRITE_1H, Kind.CACHE_WRITE),
    (Kind.INPUT_IMAGE, Kind.INPUT),
    (Kind.CACHE_AUDIO_READ, Kind.INPUT_AUDIO),
    (Kind.REASONING, Kind.OUTPUT),
)


def _input_kinds(demand: Demand) -> tuple[Kind, ...]:
    written = (Kind.CACHE_WRITE, Kind.CACHE_WRITE_1H) if demand.caches_1h else (Kind.CACHE_WRITE,)
    images = (Kind.INPUT_IMAGE,) if demand.images else ()
    return (Kind.INPUT, Kind.CACHE_READ, *images, *(written if demand.caches else ()))


def _output_kinds(demand: Demand) -> tuple[Kind, ...]:
    return (Kind.OUTPUT, Kind.REASONING, *((Kind.OUTPUT_AUDIO,) if demand.speaks else ()))


def _extras(demand: Demand) -> tuple[tuple[Kind, int], ...]:
    return (
        (Kind.WEB_SEARCH, demand.web_searches),
        (Kind.FILE_SEARCH, demand.file_searches),
        (Kind.REQUEST, 1),
    )


def _demanded(demand: Demand) -> Iterator[tuple[Kind, int]]:
    for kind in _input_kinds(demand):
        yield kind, demand.input_tokens - demand.audio_tokens
    for kind in _output_kinds(demand):
        yield kind, demand.output_tokens != 0
    yield Kind.INPUT_AUDIO, demand.audio_tokens
    yield from _extras(demand)


def _lines(usage: Usage) -> Iterator[tuple[Kind, int]]:
    """``usage`` as the lines of a bill, each token in one. Where parts overlap (cached images) the dearer line wins."""
    parts = (
        (Kind.INPUT_AUDIO, usage.input_audio_tokens - usage.cache_audio_read_tokens),
        (Kind.INPUT_IMAGE, usage.input_image_tokens),
        (Kind.CACHE_WRITE_1H, usage.cache_write_1h_tokens),
        (Kind.CACHE_WRITE, usage.cache_write_tokens - usage.cache_write_1h_tokens),
        (Kind.CACHE_AUDIO_READ, usage.cache_audio_read_tokens),
        (Kind.CACHE_READ, usage.cache_read_tokens - usage.cache_audio_read_tokens),
    )
    yield from _split(usage.input_tokens, parts, Kind.INPUT)
    made = ((Kind.OUTPUT_AUDIO, usage.output_audio_tokens), (Kind.REASONING, usage.reasoning_tokens))
    yield from _split(usage.output_tokens, made, Kind.OUTPUT)
    yield Kind.WEB_SEARCH, usage.web_searches
    yield Kind.FILE_SEARCH, usage.file_searches
    yield Kind.REQUEST, 1


def _split(whole: int, parts: Iterable[tuple[Kind, int]], rest: Kind) -> Iterator[tuple[Kind, int]]:
    for kind, count in parts:
        taken = min(count, whole)
        whole -= taken
        yield kind, taken
    yield rest, whole


def dearest(rates: Iterable[Rates]) -> dict[Kind, Steps]:
    """For each kind and each length of prompt the highest of all ``rates``."""
    found: dict[Kind, Steps] = {}
    for one in rates:
        for kind, steps in one.items():
            found[kind] = _higher(found[kind], steps) if kind in found else steps
    return found


def _higher(one: Steps, other: Steps) -> Steps:
    starts = sorted({above for above, _ in (*one, *other)})
    return tuple((above, max(_from(one, above), _from(other, above))) for above in starts)


def _from(steps: Steps, start: int) -> int:
    return [rate for above, rate in steps if above <= start][-1]
