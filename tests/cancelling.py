"""A coroutine that is cancelled at its n-th wait, so that a test meets every place where that can happen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Final

_MOST_WAITS: Final = 200


class _CancelledAt:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], wait: int) -> None:
        self._coroutine = coroutine
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, Any]:
        waiting = self._coroutine.__await__()
        told: BaseException | None = None
        for number in range(1, _MOST_WAITS):
            try:
                future = waiting.send(None) if told is None else waiting.throw(told)
            except StopIteration as end:
                return end.value
            if number == self._wait:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            told = None
            try:
                yield future
            except asyncio.CancelledError as cancelled:
                told = cancelled
        raise AssertionError("it waits for ever")


async def was_cancelled(coroutine: Coroutine[Any, Any, Any], wait: int) -> bool:
    """Whether ``coroutine`` waited that often, and was cancelled there."""

    async def run() -> None:
        await _CancelledAt(coroutine, wait)

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()
