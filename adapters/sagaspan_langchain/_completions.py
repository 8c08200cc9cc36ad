"""Models of texts (``BaseLLM``) read as models of chat: a prompt is a message, and its completion the answer to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation, LLMResult

from sagaspan import semconv
from sagaspan.llm.responses import read_usage

_USAGES: Final = ("usage_metadata", "token_usage", "usage")
_OLLAMA: Final = ("prompt_eval_count", "eval_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a method of a model is given and gives back, and how these are those of a chat.

    ``requests``: how many answers it brings where one is asked of each.
    """

    operation: str = semconv.OPERATION_COMPLETE
    messages: Callable[[Any], Sequence[BaseMessage]]
    result: Callable[[Any], ChatResult]
    chunk: Callable[[Any], Any]
    requests: Callable[[Any], int] = lambda _: 1


def _result(result: LLMResult) -> ChatResult:
    answers = [one for of_prompt in result.generations for one in of_prompt]
    told = dict(result.llm_output or {})
    if "token_usage" not in told:
        # Beside the completions instead: each prompt was a request of its own, of which its first answer tells.
        each = [_usage(of_prompt[0].generation_info) for of_prompt in result.generations if of_prompt]
        if each and None not in each:
            counts = [usage for usage in each if usage is not None]
            told["token_usage"] = {name: sum(usage[name] for usage in counts) for name in counts[0]}
    return ChatResult(generations=[_generation(one) for one in answers], llm_output=told)


def _generation(one: Generation) -> ChatGeneration:
    return ChatGeneration(message=AIMessage(one.text), generation_info=one.generation_info)


def _chunk(chunk: Generation) -> ChatGenerationChunk:
    used = _usage(chunk.generation_info)
    usage: Any = None if used is None else {**used, "total_tokens": sum(used.values())}
    message = AIMessageChunk(content=chunk.text, usage_metadata=usage)
    return ChatGenerationChunk(message=message, generation_info=chunk.generation_info)


def _usage(info: Mapping[str, Any] | None) -> dict[str, int] | None:
    """The counts beside a completion; None if it has none."""
    for name in _USAGES:
        found = read_usage((info or {}).get(name))
        if found is not None:
            return {"input_tokens": found.input_tokens, "output_tokens": found.output_tokens}
    given, made = ((info or {}).get(name) for name in _OLLAMA)
    return {"input_tokens": given, "output_tokens": made} if type(given) is int and type(made) is int else None


def _text(text: str) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


CHAT: Final = Exchange(
    operation=semconv.OPERATION_CHAT, messages=lambda given: given, result=lambda one: one, chunk=lambda one: one
)
PROMPTS: Final = Exchange(
    messages=lambda prompts: [HumanMessage(prompt) for prompt in prompts], result=_result, chunk=_chunk, requests=len
)
PROMPT: Final = Exchange(messages=lambda prompt: [HumanMessage(prompt)], result=_text, chunk=_chunk)
