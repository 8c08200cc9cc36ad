"""One coroutine body for both callers, and layers of one's own around it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sagaspan import Call, CallNext, Guard, Result, compose
from sagaspan._backends import ASYNCIO, SYNC, run_sync
from tests.conftest import Caller


def test_run_sync_refuses_foreign_awaits() -> None:
    """A coroutine that waits for anything else than its backend is told so, and is closed."""
    closed = []

    async def foreign() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(1)

    with pytest.raises(RuntimeError, match=r"awaited something other than call.io\(\) or call.sleep\(\)"):
        run_sync(foreign())
    assert closed == [1]


def test_run_sync_passes_values_and_errors() -> None:
    """What the coroutine returns or raises comes out."""

    async def body(error: Exception | None) -> int:
        if error:
            raise error
        await SYNC.sleep(0)
        return await SYNC.io(int, "7")

    assert run_sync(body(None)) == 7
    with pytest.raises(KeyError):
        run_sync(body(KeyError()))


async def test_steps_end_before_a_cancellation_is_raised() -> None:
    """``io`` raises a cancellation only after its step; ``shielded`` hands it back with the value."""
    import time

    ended = []

    def step() -> int:
        time.sleep(0.1)
        ended.append(1)
        return 7

    task = asyncio.create_task(ASYNCIO.io(step))
    shielded = asyncio.create_task(ASYNCIO.shielded(step))
    await asyncio.sleep(0.02)
    for _ in range(3):
        task.cancel()
        shielded.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    finished = await shielded
    assert (finished.value, type(finished.interrupted), ended) == (7, asyncio.CancelledError, [1, 1])


def _layer(name: str, log: list[str]) -> Any:
    async def layer(call: Call, call_next: CallNext) -> Result:
        log.append(f"{name}>{call.tool.name}{dict(call.arguments)}")
        await call.sleep(0)
        assert await call.io(lambda: 3) == 3
        result = await call_next(call)
        log.append(f"<{name} {result.state} {result.outcome} {result.value}")
        return result

    return layer


def test_layers_of_ones_own(store_url: str, caller: Caller) -> None:
    """The first layer is the outermost; they see every call, executed or replayed, in both kinds of caller."""
    log: list[str] = []
    with Guard(store_url, middleware=[_layer("a", log), _layer("b", log)]) as guard:
        act = caller.tool(guard, "act", effect="write")(lambda n: n + 1)

        async def job() -> None:
            async with caller.run(guard):
                await caller.call(act, 1)
                await caller.call(act, 1)

        caller.play(job)
    assert log == [
        line
        for outcome in ("executed", "replayed")
        for line in ("a>act{'n': 1}", "b>act{'n': 1}", f"<b done {outcome} 2", f"<a done {outcome} 2")
    ]


def test_a_layer_sees_failures_as_results(store_url: str, caller: Caller) -> None:
    """What the body raised is in the result; what a layer raises refuses the call before its claim."""
    seen: list[Any] = []

    async def watch(call: Call, call_next: CallNext) -> Result:
        if call.arguments["n"] == 2:
            raise PermissionError("not today")
        result = await call_next(call)
        seen.append((result.state, type(result.error), result.executed))
        return result

    with Guard(store_url, middleware=[watch]) as guard:

        @caller.tool(guard)
        def act(n: int) -> None:
            raise KeyError(n)

        async def job() -> None:
            async with caller.run(guard) as run:
                with pytest.raises(KeyError):
                    await caller.call(act, 1)
                with pytest.raises(PermissionError):
                    await caller.call(act, 2)
                assert len(run.calls) == 1

        caller.play(job)
    assert seen == [("failed", KeyError, True)]


def test_a_foreign_await_in_a_layer(store_url: str) -> None:
    """A layer that awaits the loop serves async callers; a sync call through it is refused with the remedy."""

    async def sleepy(call: Call, call_next: CallNext) -> Result:
        await asyncio.sleep(0)
        return await call_next(call)

    with Guard(store_url, middleware=[sleepy]) as guard:
        sync = guard.tool("sync")(lambda: pytest.fail("ran"))
        asynchronous = guard.tool("asynchronous")(Caller("async").body(lambda: 7))
        assert asyncio.run(asynchronous()) == 7
        with pytest.raises(RuntimeError, match="or call the tool with await"):
            sync()


def test_compose_of_nothing_is_the_endpoint() -> None:
    """Without layers the endpoint itself is called."""

    async def endpoint(call: Call) -> Result:
        raise NotImplementedError

    assert compose([], endpoint) is endpoint


def test_the_signature_is_kept(guard: Guard) -> None:
    """A guarded function keeps name, docstring, signature and kind."""
    import inspect

    def pay(amount: float, *rest: int, card: str = "c1", **more: str) -> str:
        """Pay."""
        return f"{amount} {rest} {card} {more}"

    guarded = guard.tool(pay)
    assert inspect.signature(guarded) == inspect.signature(pay)
    assert (guarded.__name__, guarded.__doc__) == ("pay", "Pay.")
    assert not inspect.iscoroutinefunction(guarded)
    assert inspect.iscoroutinefunction(guard.tool("apay")(Caller("async").body(lambda: 1)))
    assert guarded(1.5, 2, 3, card="c2", note="x") == "1.5 (2, 3) c2 {'note': 'x'}"


def test_a_tool_of_every_kind_of_callable(guard: Guard) -> None:
    """Static methods, partials and objects with ``__call__`` are tools; their parameters are found."""
    import functools

    class Shop:
        @staticmethod
        def sell(item: str) -> str:
            return f"sold {item}"

        async def __call__(self, item: str) -> str:
            return f"called {item}"

    with guard.run() as run:
        assert guard.tool("static")(Shop.sell)("x") == "sold x"
        assert guard.tool("partial")(functools.partial(Shop.sell, item="y"))() == "sold y"
        assert [call.args for call in run.calls] == [{"item": "x"}, {"item": "y"}]
    assert asyncio.run(guard.tool("object")(Shop())("z")) == "called z"


async def test_the_guard_in_async_with(store_url: str) -> None:
    """``async with Guard(...)`` closes at the end; its twins serve loops."""
    async with Guard(store_url) as guard:
        act = guard.tool("act", compensate=lambda: None)(Caller("async").body(lambda: 1))
        async with guard.run(id="a") as run:
            await act()
            await run.acommit()
        await run.aabort()
    assert Guard(store_url).runs.get("a").status == "failed"
