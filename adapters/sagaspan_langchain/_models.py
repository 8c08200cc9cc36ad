"""Models under a guard, of chat or of texts: every request is reserved before it is sent, and settled with its answer.

A guarded model is an object of a subclass of its own class that shares its state. Only the methods that send a request
(``_generate``, ``_stream`` and their likes) go through the guard. So what LangChain answers from its cache costs
nothing, and its callbacks, streaming, structured output, retries and fallbacks work as they do: each attempt is a call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final

from langchain_core.language_models import LLM, BaseChatModel, BaseLLM
from langchain_core.language_models.base import BaseLanguageModel

from sagaspan import Guard, SagaspanError
from sagaspan.adapters import LlmCall
from sagaspan_langchain import _compat
from sagaspan_langchain import _errors as errors
from sagaspan_langchain import _foreign as foreign
from sagaspan_langchain import _suspended as suspended
from sagaspan_langchain._answers import Answer, input_of, settle
from sagaspan_langchain._completions import CHAT, PROMPT, PROMPTS, Exchange
from sagaspan_langchain._marks import guard_of, subclass, twin
from sagaspan_langchain._requests import limited, request_of

Model = BaseLanguageModel[Any]


def guarded_model(guard: Guard, model: Model) -> Model:
    """``model`` with every request metered; one that is guarded already stays as it is."""
    if guard_of(model) is not None:
        return model
    guarded: Model = twin(model, _class_of(guard, type(model)))
    return guarded


@functools.lru_cache(1000)
def _class_of(guard: Guard, base: type[Model]) -> type[Model]:
    members: dict[str, Any] = {}
    owners, wrappers = ((BaseChatModel,), _OF_CHAT) if issubclass(base, BaseChatModel) else ((BaseLLM, LLM), _OF_TEXTS)
    for name, (wrap, exchange) in wrappers.items():
        method = getattr(base, name, None)
        # What LangChain's own class does by calling another of these is not counted twice.
        if method is not None and all(method is not getattr(owner, name, None) for owner in owners):
            members[name] = wrap(guard, method, exchange)
    made: type[Model] = subclass(guard, base, members)
    return made


def _unguarded(model: Model, call: LlmCall) -> Model:
    """``model`` as its own class has it, for one of these methods may call another; with the limit of ``call``."""
    base: Any = type(model).__base__
    return limited(twin(model, base), call.output_limit)


def _begun(
    guard: Guard, model: Model, given: Any, stop: Any, run_manager: Any, options: Mapping[str, Any], exchange: Exchange
) -> LlmCall:
    request = request_of(model, exchange.messages(given), stop, options, requests=exchange.requests(given))
    return guard.llm_call(
        request.model, demand=request.demand, provider=request.provider, limit_output=request.may_limit,
        operation=exchange.operation, span=foreign.span_of_model(run_manager),
    )  # fmt: skip


def _tell(call: LlmCall, given: Any, exchange: Exchange) -> None:
    call.messages(input=input_of(exchange.messages(given)) if call.tells else None)


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    """A refusal of the guard leaves so that nothing swallows it; what the provider raised is marked as that."""
    try:
        yield
    except SagaspanError as error:
        raise errors.leaving(error) from error.__cause__
    except Exception as error:
        suspended.mark(error)
        raise


# -- one answer ------------------------------------------------------------------------------------------------


def _generate_of(guard: Guard, method: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    # LangChain reads the signature to decide what to hand over.
    @functools.wraps(method)
    def _generate(self: Model, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        with _told_apart(), _begun(guard, self, messages, stop, run_manager, options, exchange) as call:
            _tell(call, messages, exchange)
            result = _called(method, _unguarded(self, call), messages, stop, run_manager, options)
            settle(call, exchange.result(result))
            return result

    return _generate


def _agenerate_of(guard: Guard, method: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    @functools.wraps(method)
    async def _agenerate(self: Model, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        with _told_apart():
            async with _begun(guard, self, messages, stop, run_manager, options, exchange) as call:
                _tell(call, messages, exchange)
                result = await _called(method, _unguarded(self, call), messages, stop, run_manager, options)
                settle(call, exchange.result(result))
                return result

    return _agenerate


# -- an answer that comes piece by piece -----------------------------------------------------------------------


def _stream_of(guard: Guard, method: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    @functools.wraps(method)
    def _stream(self: Model, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Iterator[Any]:
        call = _begun(guard, self, messages, stop, run_manager, options, exchange)
        answer = Answer(call)
        with _told_apart():
            with call:
                _tell(call, messages, exchange)
                with answer.read_to_its_end():
                    for chunk in _called(method, _unguarded(self, call), messages, stop, run_manager, options):
                        answer.add(exchange.chunk(chunk))
                        yield chunk
                        call.cover(answer.came)
            answer.raise_interruption()

    return _stream


def _astream_of(guard: Guard, method: Callable[..., Any], exchange: Exchange) -> Callable[..., Any]:
    @functools.wraps(method)
    async def _astream(
        self: Model, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        call = _begun(guard, self, messages, stop, run_manager, options, exchange)
        answer = Answer(call)
        with _told_apart():
            async with call:
                _tell(call, messages, exchange)
                with answer.read_to_its_end():
                    async for chunk in _called(method, _unguarded(self, call), messages, stop, run_manager, options):
                        answer.add(exchange.chunk(chunk))
                        yield chunk
                        await call.acover(answer.came)
            answer.raise_interruption()

    return _astream


def _called(method: Callable[..., Any], model: Model, messages: Any, stop: Any, run_manager: Any, options: Any) -> Any:
    if run_manager is None or not _compat.takes(method, "run_manager"):
        return method(model, messages, stop=stop, **options)
    return method(model, messages, stop=stop, run_manager=run_manager, **options)


_Wrap = Callable[[Guard, Callable[..., Any], Exchange], Callable[..., Any]]
_OF_CHAT: Final[Mapping[str, tuple[_Wrap, Exchange]]] = {
    "_generate": (_generate_of, CHAT),
    "_agenerate": (_agenerate_of, CHAT),
    "_stream": (_stream_of, CHAT),
    "_astream": (_astream_of, CHAT),
    "_stream_chat_model_events": (_stream_of, CHAT),
    "_astream_chat_model_events": (_astream_of, CHAT),
}
_OF_TEXTS: Final[Mapping[str, tuple[_Wrap, Exchange]]] = {
    "_generate": (_generate_of, PROMPTS),
    "_agenerate": (_agenerate_of, PROMPTS),
    "_call": (_generate_of, PROMPT),
    "_acall": (_agenerate_of, PROMPT),
    "_stream": (_stream_of, PROMPT),
    "_astream": (_astream_of, PROMPT),
}
