"""Where waiting happens: one coroutine body serves synchronous and asynchronous callers.

Layers are ``async def`` and wait only through their call's backend. A synchronous backend finishes every step before
it returns, so the coroutine never suspends and one ``send(None)`` runs it to its end (the idea of gel-python's
``iter_coroutine``). The asynchronous one hands blocking steps to threads, with the context copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from sagaspan import _clock as clock
from sagaspan import _reaper as reaper
from sagaspan._threads import threads

P = ParamSpec("P")
T = TypeVar("T")

Body = Callable[[], Any]
"""A tool body with its arguments bound: returns its value, or an awaitable of it."""

CANCEL_SECONDS: Final = 1.0
"""How long a body that was cancelled may take to end; one that takes longer is given up, and only watched."""


class Watch(Protocol):
    """What is told of a body that its caller waits for no more."""

    def given_up(self) -> None:
        """It has not ended, or does at this moment; ``ended`` follows."""

    def ended(self, body: Future[Any] | asyncio.Future[Any]) -> None:
        """It has ended. May block: it is never called on an event loop."""


class _Unwatched:
    def given_up(self) -> None:
        """Nobody cares."""

    def ended(self, body: Future[Any] | asyncio.Future[Any]) -> None:
        """Nobody cares."""
        if not body.cancelled():
            body.exception()  # asked for, so that asyncio does not complain about it


UNWATCHED: Final[Watch] = _Unwatched()


class Finished(NamedTuple, Generic[T]):
    """A step that ran to its end, and the cancellation that arrived while it did (to be raised by the caller)."""

    value: T
    interrupted: BaseException | None = None


class BodyTimeout(Exception):
    """The body did not end in time; it may still be running."""


class Backend(Protocol):
    """How one call waits. ``is_async`` tells which caller it serves."""

    is_async: bool

    async def io(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking ledger step to its end, whatever happens to the caller meanwhile."""

    async def shielded(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Finished[T]:
        """As ``io``, but a cancellation is handed back with the step's value instead of raised."""

    async def run_body(self, body: Body, *, is_async: bool, timeout: float | None, watch: Watch) -> Any:
        """Run a tool body; raises ``BodyTimeout`` if it does not end within ``timeout`` seconds.

        One that is asynchronous is cancelled then, and given up after ``CANCEL_SECONDS`` more.
        """

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""


class SyncBackend:
    """Every step finishes before it returns."""

    is_async = False

    async def io(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return step(*args, **kwargs)

    async def shielded(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Finished[T]:
        return Finished(step(*args, **kwargs))

    async def run_body(self, body: Body, *, is_async: bool, timeout: float | None, watch: Watch) -> Any:
        if is_async:
            return private_loop().run(body, timeout, watch)
        if timeout is None:
            return body()
        return _wait(_in_thread(body), timeout, watch)

    async def sleep(self, seconds: float) -> None:
        clock.sleep(seconds)


class _StepEnded(asyncio.Future[T]):
    """The end of a ledger step, which nothing stops: a task that is cancelled while it waits learns of it afterwards.

    Half the price of ``asyncio.shield`` around ``run_in_executor``, on the way of every asynchronous call.
    """

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002 - the signature of a future
        """No: the task keeps its cancellation until the step has ended."""
        return False


class AsyncioBackend:
    """Ledger steps run on threads of their own, tool bodies on the loop or each on its thread."""

    is_async = True

    async def io(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        finished = await self.shielded(step, *args, **kwargs)
        if finished.interrupted is not None:
            raise finished.interrupted
        return finished.value

    async def shielded(self, step: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Finished[T]:
        reaper.refuse()
        loop = asyncio.get_running_loop()
        step_ended: _StepEnded[T] = _StepEnded(loop=loop)
        context = contextvars.copy_context()

        def run() -> None:
            try:
                tell = partial(step_ended.set_result, context.run(step, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - handed over whole, to be raised where the caller waits
                tell = partial(step_ended.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed by now: nobody waits any more
                loop.call_soon_threadsafe(tell)

        threads().submit(run)
        interrupted = None
        try:
            await step_ended
        except asyncio.CancelledError as error:
            interrupted = error
        return Finished(step_ended.result(), interrupted)

    async def to_the_end(self, coroutine: Coroutine[Any, Any, T]) -> Finished[T]:
        """Run ``coroutine`` to its end, whatever happens to the caller meanwhile."""
        return await _to_the_end(asyncio.ensure_future(coroutine))

    async def run_body(self, body: Body, *, is_async: bool, timeout: float | None, watch: Watch) -> Any:
        if is_async:
            return await body() if timeout is None else await _await_within(body, timeout, watch)
        thread = _in_thread(body)
        future = _bridge(thread)
        try:
            # Shielded: cancelling us does not stop the thread, and its late result is evidence.
            await asyncio.wait_for(asyncio.shield(future), timeout)
        except TimeoutError as error:
            if not thread.done():
                _give_up(thread, watch)
                raise BodyTimeout from error
        except asyncio.CancelledError:
            _give_up(thread, watch)
            raise
        return thread.result()

    async def sleep(self, seconds: float) -> None:
        await clock.asleep(seconds)


SYNC = SyncBackend()
ASYNCIO = AsyncioBackend()


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine whose every wait goes through ``SyncBackend``; raises ``RuntimeError`` if it suspends."""
    try:
        reaper.refuse()
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        coroutine.close()
    raise RuntimeError(
        "a middleware awaited something other than call.io() or call.sleep() in a synchronous call; "
        "use those, or call the tool with await"
    )


def stops_everything(error: BaseException) -> bool:
    """Whether ``error`` asks the program to stop, rather than being how one body ended."""
    if not isinstance(error, asyncio.CancelledError):
        return not isinstance(error, Exception)
    with contextlib.suppress(RuntimeError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return False


async def _to_the_end(future: asyncio.Future[T]) -> Finished[T]:
    interrupted: BaseException | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            interrupted = error
        except Exception:  # noqa: BLE001 - raised again by result() below, with the interruption in mind
            break
    return Finished(future.result(), interrupted)


async def _await_within(body: Body, timeout: float, watch: Watch) -> Any:
    """In a task of its own: a body that swallows its cancellation must not keep its caller."""
    task = asyncio.ensure_future(body())
    try:
        await asyncio.wait([task], timeout=timeout)
        timed_out = not task.done()
        if timed_out:
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_SECONDS)
    except asyncio.CancelledError:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # of a second cancellation: it is given up at once
            await asyncio.wait([task], timeout=CANCEL_SECONDS)
        if not task.done():
            _give_up(task, watch)
            raise
        return task.result()
    return _value_of(task, timed_out, watch)


def _value_of(body: Future[Any] | asyncio.Future[Any], timed_out: bool, watch: Watch) -> Any:
    """What a body returned or raised; raises ``BodyTimeout`` for one that did neither, or only when cancelled."""
    if not body.done():
        _give_up(body, watch)
        raise BodyTimeout
    if timed_out and body.cancelled():
        raise BodyTimeout
    return body.result()


def _give_up(body: Future[Any] | asyncio.Future[Any], watch: Watch) -> None:
    """Nobody waits for ``body`` any more; what it still says is evidence."""
    watch.given_up()
    # The end may be told on an event loop, where nothing is recorded.
    body.add_done_callback(lambda body: threads().submit(partial(watch.ended, body)))


def _in_thread(body: Body) -> Future[Any]:
    """One thread a body, not a pool: a body that hangs must not hold a place that others wait for."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()
    threading.Thread(target=_fulfil, args=(future, context, body), name="sagaspan-tool", daemon=True).start()
    return future


def _fulfil(future: Future[Any], context: contextvars.Context, body: Body) -> None:
    try:
        future.set_result(context.run(body))
    except BaseException as error:  # noqa: BLE001 - handed over whole, to be raised where the caller waits
        future.set_exception(error)


def _wait(future: Future[Any], timeout: float | None, watch: Watch) -> Any:
    try:
        wait([future], timeout)
    except BaseException:  # interrupted: the body goes on, and its late result is evidence
        _give_up(future, watch)
        raise
    return _value_of(future, False, watch)


def _bridge(thread: Future[Any]) -> asyncio.Future[None]:
    """A future of this loop that ends with ``thread``; a loop that is closed by then is not told."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_end, ended)

    thread.add_done_callback(tell)
    return ended


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


class PrivateLoop:
    """One event loop on one daemon thread, for asynchronous compensations and bodies in synchronous calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="sagaspan-loop", daemon=True).start()

    def run(self, body: Body, timeout: float | None, watch: Watch) -> Any:
        """Run ``body`` there and wait for it; raises ``BodyTimeout`` as ``Backend.run_body``."""
        task: list[asyncio.Task[Any] | None] = []

        async def job() -> Any:
            task.append(asyncio.current_task())
            return await body()

        future = asyncio.run_coroutine_threadsafe(job(), self._loop)
        heard = threading.Event()

        def cancel() -> None:
            heard.set()
            for one in task:
                if one is not None:
                    one.cancel()

        try:
            wait([future], timeout)
            timed_out = not future.done()
            if timed_out:
                self._loop.call_soon_threadsafe(cancel)
                wait([future], CANCEL_SECONDS)
        except BaseException:  # interrupted: the body goes on, and its late result is evidence
            _give_up(future, watch)
            raise
        if timed_out and not heard.is_set():  # a body blocks the loop: those after it must not wait for that
            _forget_loop(self)
        return _value_of(future, timed_out, watch)


_loops: Final[dict[int, PrivateLoop]] = {}


def private_loop() -> PrivateLoop:
    """This process's private loop (a forked child gets its own: threads do not survive a fork)."""
    loop = _loops.get(os.getpid())
    return loop or _loops.setdefault(os.getpid(), PrivateLoop())


def _forget_loop(loop: PrivateLoop) -> None:
    if _loops.get(os.getpid()) is loop:
        del _loops[os.getpid()]
