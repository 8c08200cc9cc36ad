"""The ways to invoke a runnable, each made into one turn: entered before the first step, left after the last."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sagaspan_langchain._reach import Scope, scope_in_force
from sagaspan_langchain._turns import Opening, Turn

_END: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocations:
    """Makes the methods of a guarded class of those of its base.

    ``through_others``: one way to invoke the runnable goes through another, which then opens no turn of its own.
    """

    scope: Scope
    opening: Opening
    through_others: bool

    def _is_within(self) -> bool:
        return self.through_others and scope_in_force.get() is self.scope

    def once(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """``invoke``."""

        @functools.wraps(method)
        def invoke(target: Any, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002 - LangChain's word
            if self._is_within():
                return method(target, input, config, **options)
            turn = Turn.enter(self.scope, self.opening, target, input, config)
            failure: BaseException | None = None
            output = None
            try:
                output = turn.step(lambda: method(target, input, turn.config, **options))
            except BaseException as error:  # noqa: BLE001 - raised again once the run knows
                failure = error
            turn.leave(failure)
            return output

        return invoke

    def aonce(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """``ainvoke``."""

        @functools.wraps(method)
        async def ainvoke(target: Any, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002 - as above
            if self._is_within():
                return await method(target, input, config, **options)
            turn = await Turn.aenter(self.scope, self.opening, target, input, config)
            failure: BaseException | None = None
            output = None
            try:
                output = await turn.astep(lambda: method(target, input, turn.config, **options))
            except BaseException as error:  # noqa: BLE001 - raised again once the run knows
                failure = error
            await turn.aleave(failure)
            return output

        return ainvoke

    def pieces(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """``stream`` and ``transform``."""

        @functools.wraps(method)
        def stream(target: Any, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002 - as above
            if self._is_within():
                yield from method(target, input, config, **options)
                return
            turn = Turn.enter(self.scope, self.opening, target, input, config)
            chunks: Any = method(target, input, turn.config, **options)
            failure: BaseException | None = None
            try:
                while (chunk := turn.step(lambda: next(chunks, _END))) is not _END:
                    yield chunk
            except BaseException as error:  # noqa: BLE001 - raised again once the run knows
                failure = error
                turn.step(chunks.close)
            turn.leave(failure)

        return stream

    def apieces(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """``astream`` and ``atransform``."""

        @functools.wraps(method)
        async def astream(target: Any, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002 - as above
            if self._is_within():
                async for chunk in method(target, input, config, **options):
                    yield chunk
                return
            turn = await Turn.aenter(self.scope, self.opening, target, input, config)
            chunks: Any = method(target, input, turn.config, **options)
            failure: BaseException | None = None
            try:
                while (chunk := await turn.astep(lambda: anext(chunks, _END))) is not _END:
                    yield chunk
            except BaseException as error:  # noqa: BLE001 - raised again once the run knows
                failure = error
                await turn.astep(chunks.aclose)
            await turn.aleave(failure)

        return astream
