"""What models cost and what text counts, for whoever wants to know it without a guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from sagaspan._checks import check_name, described
from sagaspan.exceptions import ConfigurationError
from sagaspan.llm.demand import Demand
from sagaspan.llm.demands import chat_demand, messages_demand, responses_demand, text_tokens
from sagaspan.llm.prices import Prices, Rows, load_prices
from sagaspan.llm.usage import Usage


def calculate_cost(
    model: str,
    input_tokens: int = 0,
    output_tokens: int = 0,
    *,
    provider: str | None = None,
    prices: Prices | Rows | str | Path | None = None,
    **counts: Any,
) -> Decimal:
    """What a call of ``model`` with so many tokens costs, in US dollars: from the table that comes along, offline.

    Args:
        model: its name, with the provider in front or not.
        input_tokens: all that goes in, cached tokens too.
        output_tokens: all that comes out, reasoning too.
        provider: who serves it, where the name does not say so.
        prices: rows of your own, or a policy file with them, or ``guard.prices``; they win over the table.
        **counts: what of it has a price of its own: ``cache_read_tokens``, ``web_searches`` and so on (of ``Usage``).

    Raises ``ConfigurationError`` for a model without a price, saying which row to write, and for counts that are none.
    """
    check_name("model", model)
    try:
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, **counts)
    except TypeError as error:
        raise ConfigurationError(f"calculate_cost: {error}") from None
    price = load_prices(prices).price_of(model, usage, provider)
    if price.missing is not None:
        raise ConfigurationError(price.missing)
    return Decimal(price.nano_usd).scaleb(-9)


def estimate_tokens(content: str | Sequence[Any] | Mapping[str, Any]) -> int:
    """The most input tokens that ``content`` can be, of whatever model, without a tokenizer and offline.

    ``content`` is a text, messages of a chat, or all arguments of ``chat.completions.create``, ``responses.create``,
    ``embeddings.create`` or Anthropic's ``messages.create``. A token is one byte at least, so of English this is about
    four times the truth: a bound to reserve, never a bill. Raises ``ConfigurationError`` for anything else.
    """
    if isinstance(content, str):
        return text_tokens(content)
    if isinstance(content, list | tuple):
        return chat_demand({"messages": content}).input_tokens
    if isinstance(content, Mapping):
        return _demand_of(content).input_tokens
    raise ConfigurationError(
        f"estimate_tokens takes a text, messages or the arguments of a call, not {described(content)}"
    )


def _demand_of(arguments: Mapping[str, Any]) -> Demand:
    """The demand of the call that these are the arguments of, told by what only its API takes."""
    if "messages" in arguments:
        return messages_demand(arguments) if "system" in arguments else chat_demand(arguments)
    if "input" in arguments or "instructions" in arguments:
        return responses_demand(arguments)
    raise ConfigurationError(
        f"estimate_tokens: arguments of a call have messages, or input; these have {', '.join(arguments) or 'nothing'}"
    )
