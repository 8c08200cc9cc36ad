"""Bills, bounds and what an amount can buy: exact, and never the wrong way round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagaspan import ConfigurationError
from sagaspan.llm.demand import Demand
from sagaspan.llm.tariff import Kind, Tariff, complete, dearest
from sagaspan.llm.usage import Usage

GPT = Tariff(rates=complete({
    Kind.INPUT: ((0, 2_500_000_000),), Kind.CACHE_READ: ((0, 1_250_000_000),), Kind.OUTPUT: ((0, 10_000_000_000),),
    Kind.WEB_SEARCH: ((0, 10_000_000_000_000),),
}), max_output=16_384, context_window=128_000)  # fmt: skip
LONG = Tariff(rates=complete({
    Kind.INPUT: ((0, 3_000_000_000), (200_000, 6_000_000_000)),
    Kind.OUTPUT: ((0, 15_000_000_000), (200_000, 22_500_000_000)),
}))  # fmt: skip


@pytest.mark.parametrize(
    ("tariff", "usage", "nano"),
    [
        (GPT, Usage(input_tokens=1000, output_tokens=500), 2_500_000 + 5_000_000),
        (GPT, Usage(input_tokens=1000, cache_read_tokens=800), 500_000 + 1_000_000),
        (GPT, Usage(input_tokens=1000, cache_write_tokens=1000), 2_500_000),
        (GPT, Usage(output_tokens=500, reasoning_tokens=400), 5_000_000),
        (GPT, Usage(web_searches=3), 30_000_000),
        (GPT, Usage(), 0),
        (LONG, Usage(input_tokens=200_000, output_tokens=10), 600_000_000 + 150_000),
        (LONG, Usage(input_tokens=200_001, output_tokens=10), 1_200_006_000 + 225_000),
    ],
)
def test_a_bill_is_exact(tariff: Tariff, usage: Usage, nano: int) -> None:
    """Each token in one line, at the rate of the whole prompt's length."""
    assert tariff.bill(usage) == nano


def test_a_bill_is_rounded_up_once() -> None:
    """A fraction of a nano-dollar counts as one; several fractions are added first."""
    cheap = Tariff(rates=complete({Kind.INPUT: ((0, 1),), Kind.OUTPUT: ((0, 1),)}))
    assert cheap.bill(Usage(input_tokens=1, output_tokens=1)) == 1
    assert cheap.bill(Usage(input_tokens=500_000, output_tokens=500_001)) == 2


def test_a_region_of_choice_costs_more() -> None:
    """The uplift is on everything, and rounded up as well."""
    dear = Tariff(rates=GPT.rates, percent=110)
    assert dear.bill(Usage(input_tokens=1000)) == 2_750_000
    assert dear.bound(Demand(input_tokens=1000, output_tokens=0)) == 2_750_000


def test_what_overlaps_is_billed_as_the_dearer() -> None:
    """Cached images are reported as images and as cached: the whole is billed once, the cheapest part last."""
    tariff = Tariff(rates=complete({
        Kind.INPUT: ((0, 4),), Kind.INPUT_IMAGE: ((0, 8),), Kind.CACHE_READ: ((0, 1),), Kind.INPUT_AUDIO: ((0, 32),),
    }))  # fmt: skip
    usage = Usage(input_tokens=10, input_image_tokens=6, cache_read_tokens=8)
    assert tariff.bill(Usage(input_tokens=10)) == 1
    million = 1_000_000
    usage = Usage(input_tokens=10 * million, input_image_tokens=6 * million, cache_read_tokens=8 * million)
    assert tariff.bill(usage) == 6 * 8 + 4 * 1


def test_what_has_no_rate_is_told() -> None:
    """A tariff knows what it cannot bill; reasoning and caches are billed as the like."""
    assert GPT.lacks(Usage(input_tokens=5, output_tokens=5, reasoning_tokens=5, cache_write_tokens=1)) == ()
    assert GPT.lacks(Usage(input_tokens=5, input_audio_tokens=5)) == (Kind.INPUT_AUDIO,)
    assert GPT.lacks(Usage(file_searches=1)) == (Kind.FILE_SEARCH,)
    assert GPT.lacks(Demand(input_tokens=5, output_tokens=5)) == ()
    assert GPT.lacks(Demand(input_tokens=5, output_tokens=5, speaks=True)) == (Kind.OUTPUT_AUDIO,)
    embeddings = Tariff(rates=complete({Kind.INPUT: ((0, 1),)}))
    assert embeddings.lacks(Demand(input_tokens=5, output_tokens=0)) == ()
    assert Kind.OUTPUT in embeddings.lacks(Demand(input_tokens=5))


steps = st.builds(
    lambda base, more: ((0, base), *sorted(dict(more).items())),
    st.integers(0, 10**12),
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**12)), max_size=2),
)
tariffs = st.builds(
    lambda given, percent, most, window: Tariff(
        rates=complete(given), percent=percent, max_output=most, context_window=window
    ),
    st.dictionaries(st.sampled_from(Kind), steps) | st.fixed_dictionaries(dict.fromkeys(Kind, steps)),
    st.sampled_from([100, 110]),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**6),
)
demands = st.builds(
    lambda text, audio, **more: Demand(input_tokens=text + audio, audio_tokens=audio, **more),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    output_tokens=st.integers(0, 10**6),
    choices=st.integers(0, 5),
    web_searches=st.integers(0, 5),
    file_searches=st.integers(0, 5),
    images=st.booleans(),
    caches=st.booleans(),
    caches_1h=st.booleans(),
    speaks=st.booleans(),
)


@st.composite
def within(draw: Any, demand: Demand) -> Usage:
    """Any usage of a call that keeps within ``demand``."""

    def some(most: int) -> int:
        return draw(st.integers(0, most))

    audio = some(demand.audio_tokens)
    text = some(demand.input_tokens - demand.audio_tokens)
    audio_read = some(audio)
    read = some(text)
    written = some(text - read) if demand.caches else 0
    output = some(demand.output_tokens * demand.choices) if demand.output_tokens else 0
    reasoning = some(output)
    return Usage(
        input_tokens=text + audio, input_audio_tokens=audio, cache_audio_read_tokens=audio_read,
        cache_read_tokens=read + audio_read, cache_write_tokens=written,
        cache_write_1h_tokens=some(written) if demand.caches_1h else 0,
        input_image_tokens=some(text) if demand.images else 0,
        output_tokens=output, reasoning_tokens=reasoning,
        output_audio_tokens=some(output - reasoning) if demand.speaks else 0,
        web_searches=some(demand.web_searches), file_searches=some(demand.file_searches),
    )  # fmt: skip


@settings(max_examples=500)
@given(tariffs, demands, st.data())
def test_no_call_costs_more_than_its_bound(tariff: Tariff, demand: Demand, data: st.DataObject) -> None:
    """Whatever the tokens turn out to be, whatever the rates: the bill is within what was reserved."""
    usage = data.draw(within(demand))
    assert tariff.bill(usage) <= tariff.bound(demand)


@given(tariffs, demands, st.integers(0, 10**15))
def test_what_an_amount_buys_is_exact(tariff: Tariff, demand: Demand, nano: int) -> None:
    """The most output tokens: with them the bound is within the amount, with one more it is not, or a limit ends it."""
    bought = tariff.affordable(demand, nano)
    assert bought is not None
    cost = tariff.bound(_with(demand, bought))
    if tariff.bound(_with(demand, 0)) > nano:
        assert bought == 0
        return
    assert cost <= nano
    limits = [demand.output_tokens, tariff.output_limit]
    assert bought in limits or tariff.bound(_with(demand, bought + 1)) > nano


def _with(demand: Demand, output: int) -> Demand:
    return replace(demand, output_tokens=output)


def test_what_an_amount_buys() -> None:
    """Never all headroom where the model has a limit; nothing where not even the input is paid for."""
    demand = Demand(input_tokens=1000)
    assert GPT.affordable(demand, 2_500_000) == 0
    assert GPT.affordable(demand, 2_500_000 + 10_000 * 7) == 7
    assert GPT.affordable(demand, 10**15) == 16_384
    assert GPT.affordable(Demand(input_tokens=1000, choices=2), 2_500_000 + 10_000 * 7) == 3
    assert GPT.affordable(Demand(input_tokens=1000, output_tokens=50), 10**15) == 50
    free = Tariff(rates={Kind.INPUT: ((0, 0),), Kind.OUTPUT: ((0, 0),)})
    assert free.affordable(demand, 0) is None


def test_a_bound_counts_what_input_can_become() -> None:
    """Written to a cache it is dearer, and for an hour dearer still; as an image, if there may be any."""
    tariff = Tariff(rates=complete({
        Kind.INPUT: ((0, 3_000_000_000),), Kind.CACHE_WRITE: ((0, 3_750_000_000),),
        Kind.CACHE_WRITE_1H: ((0, 6_000_000_000),), Kind.INPUT_IMAGE: ((0, 9_000_000_000),),
    }))  # fmt: skip
    demand = Demand(input_tokens=1000, output_tokens=0)
    assert tariff.bound(demand) == 3_000_000
    assert tariff.bound(replace(demand, caches=True)) == 3_750_000
    assert tariff.bound(replace(demand, caches=True, caches_1h=True)) == 6_000_000
    assert tariff.bound(replace(demand, images=True)) == 9_000_000


def test_every_choice_is_an_answer_to_pay_for() -> None:
    """``n=3`` is three answers to one prompt."""
    assert GPT.bound(Demand(input_tokens=1000, output_tokens=100, choices=3)) == 2_500_000 + 3 * 1_000_000


def test_without_a_limit_the_model_s_own_is_the_bound() -> None:
    """The longest answer the model can give, or its whole context; if neither is known, the bound says so."""
    demand = Demand(input_tokens=1000)
    assert GPT.bound(demand) == 2_500_000 + 16_384 * 10_000
    assert GPT.unlimited(demand) is None
    context_only = Tariff(rates=GPT.rates, context_window=128_000)
    assert context_only.bound(demand) == 2_500_000 + 128_000 * 10_000
    assert "sets no limit" in str(LONG.unlimited(demand))


def test_what_cannot_be_counted_fills_the_context() -> None:
    """A file by reference is as long as what the model can take in, at the rate of so long a prompt."""
    demand = Demand(input_tokens=1000, output_tokens=0, fills_context=True)
    assert GPT.bound(demand) == 128_000 * 2_500
    assert "context is not known" in str(LONG.unlimited(demand))
    windowed = Tariff(rates=LONG.rates, context_window=1_000_000)
    assert windowed.bound(demand) == 1_000_000 * 6_000


@given(st.lists(st.dictionaries(st.sampled_from(Kind), steps), min_size=1, max_size=4), st.integers(0, 10**6))
def test_the_dearest_of_several_tariffs(rates: list[Any], length: int) -> None:
    """For every kind and every length of prompt the highest rate of all."""
    usage = Usage(input_tokens=length)
    highest = max(Tariff(rates={Kind.INPUT: one.get(Kind.INPUT, ((0, 0),))}).bill(usage) for one in rates)
    assert Tariff(rates={Kind.INPUT: dearest(rates).get(Kind.INPUT, ((0, 0),))}).bill(usage) == highest


@pytest.mark.parametrize("counts", [{"input_tokens": -1}, {"output_tokens": True}, {"output_tokens": 1.5},
                                    {"choices": -1}, {"input_tokens": 10**13}, {"audio_tokens": 1}])  # fmt: skip
def test_hostile_demands_are_refused(counts: dict[str, Any]) -> None:
    """Counts that a person states are plain ints from 0 on."""
    with pytest.raises(ConfigurationError):
        Demand(**counts)
