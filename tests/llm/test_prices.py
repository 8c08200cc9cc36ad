"""Prices: the table that comes along, the user's rows, and what is known of neither."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from genai_prices.data import providers
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, PriceVariant, Provider
from hypothesis import given, settings
from hypothesis import strategies as st

from sagaspan import ConfigurationError
from sagaspan.llm import catalogue
from sagaspan.llm.catalogue import Entry, Terms, dearest_rates, find
from sagaspan.llm.demand import Demand
from sagaspan.llm.prices import Prices, load_prices
from sagaspan.llm.usage import Usage

THOUSAND = Usage(input_tokens=1000, output_tokens=100)
NOW = time.time_ns() // 1000
ENTRIES = [(provider, model) for provider in providers for model in provider.models]


def _usd(amount: str) -> int:
    return int(Decimal(amount) * 10**9)


@pytest.mark.parametrize(
    ("model", "provider", "usd"),
    [
        ("gpt-4o", None, "0.0035"),
        ("openai/gpt-4o", None, "0.0035"),
        ("azure/gpt-4o", None, "0.0035"),
        ("gpt-4o-2024-08-06", "openai", "0.0035"),
        ("gpt-4o-2024-05-13", None, "0.0065"),
        ("GPT-4o-Mini", None, "0.00021"),
        ("gpt-3.5-turbo-16k-0613", None, "0.0034"),
        ("gpt-4.1-nano", None, "0.00014"),
        ("o1", None, "0.021"),
        ("ft:gpt-4o-mini-2024-07-18:org::id", None, "0.00042"),
        ("claude-sonnet-4-20250514", None, "0.0045"),
        ("anthropic/claude-sonnet-4", None, "0.0045"),
        ("bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0", None, "0.0045"),
        ("gemini/gemini-2.5-pro", None, "0.00225"),
    ],
)
def test_known_models_however_they_are_written(model: str, provider: str | None, usd: str) -> None:
    """Prefixes, dates and case do not matter; what is named alike and costs otherwise is kept apart."""
    price = Prices().price_of(model, THOUSAND, provider)
    assert price.missing is None
    assert price.nano_usd == _usd(usd)
    assert price.source.startswith(f"genai-prices {genai_prices.__version__} ")


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-4ever", None), ("gpt-99", None), ("claude-99", None), ("ft:gpt-9:org::id", None), ("llama3:8b", None),
        ("ollama/llama3", None), ("my-proxy/gpt-4o", None), ("gpt-4o", "my-gateway"), ("", None), ("whisper-1", None),
        ("nonsense-embedding", None), ("gpt-4o-turbo-nano", None), ("../gpt-4o", None), ("x" * 10_000, None),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_model_without_a_price_is_dearer_than_any_that_has_one(model: str, provider: str | None) -> None:
    """It says what is missing and what to do, and counts as the dearest: nothing is priced by the look of its name."""
    prices = Prices()
    for price in (
        prices.price_of(model, THOUSAND, provider),
        prices.bound(model, Demand(input_tokens=1000, output_tokens=100), provider),
    ):
        assert price.missing is not None
        assert "give it a row: [prices]" in price.missing
        assert "input = IN, output = OUT" in price.missing  # no figures, which somebody would copy
        assert price.source.endswith(", assumed")
        for known in ("o1-pro", "gpt-4.5-preview", "claude-opus-4-1", "gpt-4-32k"):
            assert price.nano_usd >= prices.price_of(known, THOUSAND).nano_usd
    reasoned = Usage(input_tokens=1000, cache_read_tokens=900, output_tokens=100, reasoning_tokens=100)
    assert prices.price_of(model, reasoned, provider).nano_usd >= prices.price_of("o1-pro", reasoned).nano_usd


def test_a_snapshot_that_is_too_new_costs_as_its_family() -> None:
    """A date that the table does not know: the dearest snapshot of that very model, never another model's price."""
    prices = Prices()
    assert prices.price_of("gpt-4o-2029-01-01", THOUSAND).nano_usd == _usd("0.0065")
    assert prices.price_of("gpt-4o-mini-2029-01-01", THOUSAND).nano_usd == _usd("0.00021")
    assert prices.price_of("gpt-4ever-2029-01-01", THOUSAND).missing is not None


def test_embeddings() -> None:
    """Priced where the table has a row; an answer that claims output is not explained by that row."""
    prices = Prices()
    usage = Usage(input_tokens=1_000_000)
    assert prices.price_of("text-embedding-3-small", usage).nano_usd == _usd("0.02")
    assert prices.bound("text-embedding-3-large", Demand(input_tokens=10, output_tokens=0)).missing is None
    assert "output" in str(prices.price_of("text-embedding-3-small", THOUSAND).missing)


def test_what_is_billed_apart() -> None:
    """Caches, audio and searches have prices of their own; without one they are not known, and not free."""
    prices = Prices()
    usage = Usage(input_tokens=1000, cache_read_tokens=100, cache_write_tokens=800, cache_write_1h_tokens=300)
    sonnet = prices.price_of("claude-sonnet-4-20250514", usage)
    assert sonnet.nano_usd == 100 * 3000 + 100 * 300 + 500 * 3750 + 300 * 6000
    searched = prices.price_of("claude-sonnet-4-20250514", Usage(web_searches=2))
    assert searched.nano_usd == _usd("0.02")
    spoken = Usage(input_tokens=1000, input_audio_tokens=1000, output_tokens=100, output_audio_tokens=100)
    assert prices.price_of("gpt-4o-realtime-preview", spoken).nano_usd == 1000 * 40_000 + 100 * 80_000
    unknown = prices.price_of("gpt-4o", spoken)
    assert "input_audio and output_audio" in str(unknown.missing)
    assert unknown.nano_usd >= prices.price_of("gpt-4o-realtime-preview", spoken).nano_usd


def _selling(provider: str, **when: str) -> Any:
    """A model of ``provider`` that has a price of its own under these terms: which ones do changes with the table."""
    at = datetime.fromtimestamp(NOW // 1_000_000, UTC)
    return next(
        model
        for one, model in ENTRIES
        if one.id == provider
        and any(variant.when == when for variant in model.price_variants or ())
        and model.get_prices(at, when) != model.get_prices(at)
    )


def _theirs(provider: str, model: Any, usage: Usage, **context: str) -> int:
    seller = next(one for one in providers if one.id == provider)
    counts = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    price = model.calc_price(
        counts, seller, price_context=context, genai_request_timestamp=datetime.fromtimestamp(NOW // 1_000_000, UTC)
    )
    return -(-price.total_price * 10**9 // 1)


@pytest.mark.parametrize(
    ("provider", "when", "terms"),
    [
        ("openai", {"processing": "batch"}, {"batch": True}),
        ("openai", {"service_tier": "flex"}, {"service_tier": "flex"}),
        ("openai", {"service_tier": "priority"}, {"service_tier": "priority"}),
        ("anthropic", {"processing": "batch"}, {"service_tier": "batch"}),
    ],
)
def test_terms_move_the_price(provider: str, when: dict[str, str], terms: dict[str, Any]) -> None:
    """Batch and flex are cheaper, priority is dearer, where the table has a price for them."""
    model = _selling(provider, **when)
    prices, batch = Prices(), terms.get("batch", False)
    usage = replace(THOUSAND, **{name: value for name, value in terms.items() if name != "batch"})
    price = prices.price_of(model.id, usage, provider, batch=batch, at_us=NOW)
    assert price.missing is None
    assert price.nano_usd == _theirs(provider, model, usage, **when)
    assert price.nano_usd != prices.price_of(model.id, THOUSAND, provider, at_us=NOW).nano_usd
    demand = Demand(input_tokens=1000, output_tokens=100, **terms)
    bound = prices.bound(model.id, demand, provider, at_us=NOW)
    assert bound.nano_usd >= price.nano_usd


def test_speed_moves_the_price() -> None:
    """A faster answer of the same model has a price of its own, or none that is known."""
    model = ModelInfo(
        id="m", match=ClauseEquals("m"), prices=ModelPrice(input_mtok=Decimal(5)),
        price_variants=[PriceVariant(when={"speed": "fast"}, prices=ModelPrice(input_mtok=Decimal(30)))],
    )  # fmt: skip
    entry = Entry(Provider(id="anthropic", name="A", api_pattern="", models=[model]), model)
    usage = Usage(input_tokens=1000)
    assert entry.quote(Terms(speed="standard"), (NOW,)).tariff.bill(usage) == 5_000_000
    assert entry.quote(Terms(speed="fast"), (NOW,)).tariff.bill(usage) == 30_000_000
    assert "speed 'warp'" in str(entry.quote(Terms(speed="warp"), (NOW,)).missing)
    elsewhere = Entry(Provider(id="azure", name="Z", api_pattern="", models=[]), model)
    assert elsewhere.quote(Terms(speed="fast"), (NOW,)).missing is not None


def _quote(**prices: str) -> Any:
    model = ModelInfo(
        id="m", match=ClauseEquals("m"), prices=ModelPrice(**{name: Decimal(usd) for name, usd in prices.items()})
    )
    return Entry(Provider(id="google", name="G", api_pattern="", models=[model]), model).quote(Terms(), (NOW,))


def test_what_answers_do_not_count_apart_costs_the_dearer() -> None:
    """An answer that may be a picture is billed as one; what is billed by the hour has no price here at all."""
    pictures = _quote(input_mtok="1", output_mtok="12", output_image_mtok="120")
    assert pictures.tariff.bill(Usage(output_tokens=1000)) == 120_000_000
    by_the_hour = _quote(input_mtok="1", output_mtok="2", audio_hours="3")
    assert "audio_hours" in str(by_the_hour.missing)
    assert "no price for 'm'" in str(_quote().missing)


def test_terms_without_a_price() -> None:
    """Standard by any name is the standard; what can only be cheaper is bounded by it; what is new is not known."""
    prices = Prices()
    standard = prices.price_of("o1", THOUSAND).nano_usd
    for tier in ("auto", "default", "standard", "scale", "flex", "batch"):
        assert prices.price_of("o1", replace(THOUSAND, service_tier=tier)).nano_usd <= standard
    unknown = prices.price_of("o1", replace(THOUSAND, service_tier="ultrafast"))
    assert "service_tier 'ultrafast'" in str(unknown.missing)
    assert unknown.nano_usd > standard
    assert prices.price_of("gpt-4o", replace(THOUSAND, service_tier="priority"), "azure").missing is not None
    claude = "claude-sonnet-4-20250514"
    prepaid = replace(THOUSAND, service_tier="priority", speed="standard", geo="not_available")
    assert prices.price_of(claude, prepaid).nano_usd == _usd("0.0045")
    assert prices.price_of(claude, replace(THOUSAND, geo="us")).nano_usd == _usd("0.00495")


def test_long_prompts_cost_more() -> None:
    """Beyond the threshold the whole call has the higher price, and a bound that may reach it counts it."""
    prices = Prices()
    short, long = Usage(input_tokens=200_000, output_tokens=10), Usage(input_tokens=200_001, output_tokens=10)
    assert prices.price_of("gemini-2.5-pro", short).nano_usd == 200_000 * 1250 + 10 * 10_000
    assert prices.price_of("gemini-2.5-pro", long).nano_usd == 200_001 * 2500 + 10 * 15_000
    bound = prices.bound("gemini-2.5-pro", Demand(input_tokens=200_001, output_tokens=10))
    assert bound.nano_usd == 200_001 * 2500 + 10 * 15_000


def test_prices_by_the_hour_are_bounded_by_the_dearest() -> None:
    """Some providers are cheaper at night: a call is billed by its time, and reserved for any hour of the next day."""
    by_hour = [
        provider.id + "/" + model.id
        for provider in providers
        for model in provider.models
        if isinstance(model.prices, list)
        and any(type(price.constraint).__name__ == "TimeOfDateConstraint" for price in model.prices)
    ]
    prices = Prices()
    for name in by_hour:
        bills = [prices.price_of(name, THOUSAND, at_us=NOW + hour * 3_600_000_000).nano_usd for hour in range(24)]
        bounds = [
            prices.bound(name, Demand(input_tokens=1000, output_tokens=100), at_us=NOW + hour * 3_600_000_000).nano_usd
            for hour in range(24)
        ]
        assert min(bounds) >= max(bills)
    assert by_hour


def test_a_price_is_that_of_its_time() -> None:
    """A bill of a year ago is computed with the price of then."""
    changed = next(
        (provider.id, model, price.constraint.start_date)
        for provider, model in ENTRIES
        if isinstance(model.prices, list)
        for before, price in zip(model.prices, model.prices[1:], strict=False)
        if type(price.constraint).__name__ == "StartDateConstraint" and before.constraint is None
        and before.prices != price.prices and {"input_mtok"} <= set(vars(before.prices)) & set(vars(price.prices))
        and before.prices.input_mtok != price.prices.input_mtok
    )  # fmt: skip
    provider, model, start = changed
    day = int(datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()) * 1_000_000
    prices = Prices()
    million = Usage(input_tokens=1_000_000)
    then = prices.price_of(model.id, million, provider, at_us=day - 1)
    later = prices.price_of(model.id, million, provider, at_us=day)
    assert then.nano_usd != later.nano_usd
    demand = Demand(input_tokens=1_000_000, output_tokens=0)
    assert prices.bound(model.id, demand, provider, at_us=day - 1).nano_usd >= max(then.nano_usd, later.nano_usd)


# -- the whole table -----------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(
    st.integers(0, len(ENTRIES) - 1),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_every_bill_is_that_of_the_library(number: int, plain: int, output: int, read: int, written: int) -> None:
    """For every model of the table: its own arithmetic, rounded up; dearer only where it has no price for a kind."""
    provider, model = ENTRIES[number]
    quote = Entry(provider, model).quote(Terms(), (NOW,))
    at = datetime.fromtimestamp(NOW // 1_000_000, UTC)
    usage = Usage(
        input_tokens=plain + read + written, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written
    )
    if quote.missing or quote.tariff.lacks(usage):
        return
    theirs = model.calc_price(
        genai_prices.Usage(
            input_tokens=usage.input_tokens, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written
        ),
        provider,
        genai_request_timestamp=at,
    ).total_price
    named = vars(model.get_prices(at))
    dearer = {"output_image_mtok", "output_video_mtok", "input_video_mtok", "cache_image_read_mtok"} & set(named)
    ours = Decimal(quote.tariff.bill(usage))
    exact = theirs * 10**9
    assert ours >= exact
    # A price with more digits than nano-dollars a million tokens is rounded up too.
    assert dearer or ours - exact <= 1 + Decimal(usage.total_tokens) / 10**6


def test_the_table_is_read_without_a_gap() -> None:
    """Most of it has prices we can bill; what has none is told, and no known price is above what is assumed."""
    quotes = [Entry(provider, model).quote(Terms(), (NOW,)) for provider, model in ENTRIES]
    assert sum(quote.missing is None for quote in quotes) > 0.9 * len(quotes)
    top = dearest_rates()
    for quote in quotes:
        for kind, steps in quote.tariff.rates.items():
            assert max(rate for _, rate in steps) <= max(rate for _, rate in top[kind])


# -- the user's rows -----------------------------------------------------------------------------------------


def test_the_user_s_row_wins() -> None:
    """Exact names over globs, with or without the provider in front, over the table; whatever the tier."""
    prices = Prices({
        "gpt-4o": {"input": 1, "output": "2 USD"}, "azure/gpt-4o": {"input": Decimal("3"), "output": 4.5},
        "my-*": {"input": 5, "output": 5, "cache_read": 0.5}, "ollama/*": {"input": 0, "output": 0},
        "Gemini-2.5-Pro": {"input": 7, "output": 7},
    })  # fmt: skip
    assert prices.price_of("gpt-4o", THOUSAND).nano_usd == _usd("0.0012")
    assert prices.price_of("openai/gpt-4o", THOUSAND).nano_usd == _usd("0.0012")
    assert prices.price_of("gpt-4o", THOUSAND, "azure").nano_usd == _usd("0.00345")
    assert prices.price_of("my-deployment", THOUSAND, "azure").nano_usd == _usd("0.0055")
    assert prices.price_of("ollama/llama3", THOUSAND).nano_usd == 0
    assert prices.price_of("gemini-2.5-pro", THOUSAND).nano_usd == _usd("0.0077")
    assert prices.price_of("gpt-4o-mini", THOUSAND).nano_usd == _usd("0.00021")
    priority = Usage(input_tokens=1000, output_tokens=100, service_tier="priority")
    assert prices.price_of("gpt-4o", priority).nano_usd == _usd("0.0012")
    cached = Usage(input_tokens=1000, cache_read_tokens=1000)
    assert prices.price_of("my-model", cached).nano_usd == _usd("0.0005")
    assert prices.price_of("gpt-4o", cached).nano_usd == _usd("0.001")


def test_a_row_says_its_version() -> None:
    """What was paid by which row stays in the record; another price is another version."""
    one = Prices({"m": {"input": 1, "output": 2}}).price_of("m", THOUSAND)
    same = Prices({"m": {"output": 2.0, "input": "1 USD"}}).price_of("m", THOUSAND)
    other = Prices({"m": {"input": 1, "output": 3}}).price_of("m", THOUSAND)
    assert one.source == same.source
    assert one.source.startswith("prices m ")
    assert one.source != other.source


def test_a_row_can_have_limits_and_long_prompts() -> None:
    """What a table of prices of one's own needs."""
    prices = Prices({"m": {
        "input": 1, "output": 10, "max_output": 1000, "context_window": 100_000, "web_search": 10,
        "request": "0.01 USD",        "long_prompt": {"above": 1000, "input": 2},
    }})  # fmt: skip
    assert prices.price_of("m", Usage(input_tokens=1000)).nano_usd == _usd("0.011")
    assert prices.price_of("m", Usage(input_tokens=1001)).nano_usd == _usd("0.010") + 1001 * 2000
    assert prices.price_of("m", Usage(web_searches=1)).nano_usd == _usd("0.02")
    assert prices.affordable("m", Demand(input_tokens=1000), _usd("100")) == 1000
    assert prices.affordable("m", Demand(input_tokens=1000), _usd("0.011") + 7 * 10_000) == 7
    assert prices.bound("m", Demand(input_tokens=1000)).nano_usd == _usd("0.011") + 1000 * 10_000


def test_a_row_without_output_is_of_embeddings() -> None:
    """What a row leaves out is not free."""
    prices = Prices({"e": {"input": 0.02}})
    assert prices.bound("e", Demand(input_tokens=1000, output_tokens=0)).missing is None
    assert "output" in str(prices.bound("e", Demand(input_tokens=1000, output_tokens=5)).missing)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "mapping of models"),
        ({"m": 3}, "prices, model 'm': write"),
        ({"m": {"input": -1}}, "prices, model 'm': ModelPrice field 'input'"),
        ({"m": {"input": float("nan")}}, "field 'input'"),
        ({"m": {"input": True}}, "field 'input'"),
        ({"m": {"input": "free"}}, "field 'input'"),
        ({"m": {"input": "5 calls"}}, "field 'input'"),
        ({"m": {"output": 1}}, "field 'input'"),
        ({"m": {"input": 1, "ouput": 2}}, "did you mean output"),
        ({"m": {"input": 1, "max_output": 0}}, "max_output"),
        ({"m": {"input": 1, "long_prompt": {"input": 1}}}, "above"),
        ({"": {"input": 1}}, "no name of a model"),
        ({3: {"input": 1}}, "no name of a model"),
    ],
)
def test_a_wrong_row_is_refused_when_it_is_written_down(rows: Any, message: str) -> None:
    """The error names the table, the model and the field."""
    with pytest.raises(ConfigurationError, match=message):
        Prices(rows)


def test_rows_from_a_policy_file(tmp_path: Path) -> None:
    """The table stands beside the tools, and says where it stands when it is wrong."""
    file = tmp_path / "sagaspan.toml"
    file.write_text('[prices]\n"my-*" = { input = 2.5, output = "10 USD" }\n[prices."gpt-4o"]\ninput = 1\noutput = 1\n')
    prices = load_prices(str(file))
    assert prices.price_of("my-model", THOUSAND).nano_usd == _usd("0.0035")
    assert prices.price_of("gpt-4o", THOUSAND).nano_usd == _usd("0.0011")
    assert load_prices(prices) is prices
    assert load_prices({"m": {"input": 1}}).price_of("m", Usage(input_tokens=1)).nano_usd == 1000
    assert load_prices(None).price_of("gpt-4o", THOUSAND).missing is None
    file.write_text('[prices]\n"m" = { input = -1 }\n')
    with pytest.raises(ConfigurationError, match=r"sagaspan.toml, \[prices\], model 'm': ModelPrice field 'input'"):
        load_prices(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_prices(tmp_path / "none.toml")


def test_what_served_the_call_decides() -> None:
    """An alias, a deployment, a fallback is billed as the model that answered; a row for the name asked still wins."""
    prices = Prices()
    served = Usage(input_tokens=1000, output_tokens=100, model="gpt-4o-2024-05-13")
    assert prices.price_of("gpt-4o", served).nano_usd == _usd("0.0065")
    assert prices.price_of("my-deployment", served, "azure").nano_usd == _usd("0.0065")
    assert Prices({"my-deployment": {"input": 1, "output": 1}}).price_of("my-deployment", served).nano_usd == 1_100_000
    assert prices.price_of("gpt-4o", Usage(input_tokens=1000, model="nonsense")).nano_usd == 2_500_000
    assert prices.price_of("nonsense", Usage(input_tokens=1000, model="nonsense")).missing is not None


def test_bounds_tell_what_has_no_bound() -> None:
    """Known prices, and yet more may be spent: who reserves must know."""
    prices = Prices()
    assert prices.bound("gpt-4o", Demand(input_tokens=10, output_tokens=10)).open_ended is None
    searching = Demand(input_tokens=10, output_tokens=10, open_ended="the provider searches the web")
    assert prices.bound("gpt-4o", searching).open_ended == "the provider searches the web"
    assert "sets no limit" in str(Prices({"m": {"input": 1, "output": 1}}).bound("m", Demand()).open_ended)


def test_prices_need_no_network_and_no_import_before_they_are_asked() -> None:
    """Half a second of import is paid at the first look-up; nothing ever goes over the wire."""
    code = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("the network was used")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from sagaspan.llm.prices import Prices, load_prices
from sagaspan.llm.usage import Usage
prices = Prices({"mine": {"input": 1, "output": 1}})
prices.price_of("mine", Usage(input_tokens=1))
assert "genai_prices" not in sys.modules
assert prices.price_of("gpt-4o", Usage(input_tokens=1000)).nano_usd == 2_500_000
assert prices.price_of("unknown", Usage(input_tokens=1000)).missing
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_update_of_somebody_else_does_not_move_prices() -> None:
    """Another library in the process may fetch prices from the network; ours stay those of the record."""
    set_custom_snapshot(DataSnapshot(providers=[], from_auto_update=True))
    catalogue._providers.cache_clear()
    try:
        assert Prices().price_of("gpt-4o-mini", THOUSAND).missing is None
        assert catalogue._providers()
    finally:
        set_custom_snapshot(None)


def test_names_nobody_knows_fill_no_memory() -> None:
    """A model's name can come from anywhere: what is remembered of look-ups is bounded."""
    for number in range(3000):
        assert find("openai", f"made-up-{number}") is None
    assert catalogue._find.cache_info().currsize <= 1024
