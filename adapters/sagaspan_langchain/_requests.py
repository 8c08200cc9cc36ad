"""What a request to a model can cost at most: its model, who serves it, and upper bounds of what it uses."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from langchain_core.language_models.base import BaseLanguageModel
from langchain_core.messages import BaseMessage

from sagaspan.llm.demand import Demand
from sagaspan.llm.demands import chat_demand, messages_demand
from sagaspan.llm.models import provider_of
from sagaspan_langchain import _compat

_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample", "num_predict")
_CHOICES: Final = ("n", "best_of")
_PASSED_ON: Final = ("tools", "functions", "response_format", "thinking", "service_tier", "modalities")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``model`` and ``provider`` as the price table may know them, and what is asked for.

    ``may_limit``: the user set no limit of the answer, and ``limited`` can.
    """

    model: str
    provider: str | None
    demand: Demand
    may_limit: bool


def request_of(
    model: BaseLanguageModel[Any],
    messages: Sequence[BaseMessage],
    stop: Any,
    options: Mapping[str, Any],
    *,
    requests: int = 1,
) -> Request:
    """What ``model`` is about to send, for so many ``requests`` at once."""
    facts = _compat.facts_of(model, stop, options)
    name = _compat.name_of(model, facts)
    provider = facts.get("ls_provider")
    settings = {name: _setting(model, options, name) for name in (*_LIMITS, *_PASSED_ON, *_CHOICES)}
    arguments = {
        **{name: value for name, value in settings.items() if value is not None and name not in _LIMITS},
        "messages": [_content(message) for message in messages],
    }
    read = messages_demand if provider_of(provider or "") == "anthropic" else chat_demand
    given = (facts.get("ls_max_tokens"), *(settings[name] for name in _LIMITS))
    limits = [limit for limit in given if type(limit) is int and limit > 0]
    if limits:
        arguments["max_tokens"] = max(limits)
    by_default = not any(options.get(name) for name in _LIMITS) and limits == [_default_limit(model)] * len(limits)
    may_limit = by_default and _limit_field(type(model)) is not None and settings["thinking"] is None
    each = _choices(settings)
    demand = replace(read(arguments), choices=each * requests)
    return Request(model=name, provider=provider, demand=demand, may_limit=may_limit)


def limited(model: BaseLanguageModel[Any], most: int | None) -> BaseLanguageModel[Any]:
    """``model``, or a copy of it whose answers have at ``most`` so many tokens."""
    field = _limit_field(type(model))
    return model if most is None or field is None else model.model_copy(update={field: most})


@functools.cache
def _limit_field(kind: type[BaseLanguageModel[Any]]) -> str | None:
    """The field of a class of models that limits an answer; None if it has none."""
    return next((name for name in _LIMITS if name in kind.model_fields), None)


def _default_limit(model: BaseLanguageModel[Any]) -> int | None:
    """The limit that a class sets itself where its API needs one: the most that its model gives."""
    profile = getattr(model, "profile", None)
    return profile.get("max_output_tokens") if isinstance(profile, Mapping) else None


def _choices(settings: Mapping[str, Any]) -> int:
    """How many answers are made of one request; of the best of some, all are billed."""
    given = (settings.get(name) for name in _CHOICES)
    return max((one for one in given if type(one) is int and one > 0), default=1)


def _setting(model: BaseLanguageModel[Any], options: Mapping[str, Any], name: str) -> Any:
    """What a request has for ``name``: of the call itself, else of the model."""
    beside = getattr(model, "model_kwargs", None)
    given = (options.get(name), getattr(model, name, None), beside.get(name) if isinstance(beside, Mapping) else None)
    return next((found for found in given if found is not None), None)


def _content(message: BaseMessage) -> dict[str, Any]:
    """What of a message is sent, and so is counted."""
    extra = {name: value for name, value in message.additional_kwargs.items() if value}
    calls = [{"name": call["name"], "args": call["args"]} for call in getattr(message, "tool_calls", ())]
    return {"role": message.type, "content": message.content, "name": message.name, "tool_calls": calls, **extra}
