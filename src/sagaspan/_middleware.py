"""The whole extension API: a layer takes a call and the next step, and returns a result."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from sagaspan._call import Call, Result
from sagaspan._checks import described
from sagaspan.exceptions import ConfigurationError, Refused, ToolRan
from sagaspan.ledger.records import CallState, call_info

CallNext = Callable[[Call], Awaitable[Result]]
"""The rest of the onion."""


class Middleware(Protocol):
    """One layer: enrich a copy of the call on the way in, look at the result on the way out.

    It waits only through ``call.io`` and ``call.sleep``, so that it serves synchronous calls too, and leaves no
    context variable set across ``call_next``.
    """

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result: ...


def users_layers(middleware: Any) -> tuple[Middleware, ...]:
    """The layers of a user, whose calls and results are checked; raises ``ConfigurationError`` for what is none."""
    if callable(middleware):
        raise ConfigurationError("middleware takes a list of layers, not one layer; write middleware=[layer]")
    if not isinstance(middleware, Sequence) or isinstance(middleware, str):
        raise ConfigurationError(f"middleware takes a list of layers, not {described(middleware)}")
    return tuple(map(_checked, middleware))


_LAYER: Final = "write `async def layer(call, call_next): return await call_next(call)` around what it does"
_RAN: Final[dict[str, ToolRan]] = {CallState.DONE: "yes", CallState.FAILED: "no"}


def _checked(layer: Any) -> Middleware:
    name = getattr(layer, "__name__", type(layer).__name__)
    if inspect.isclass(layer):
        raise ConfigurationError(f"the layer {name} is a class; put an instance of it into middleware: {name}()")
    if not callable(layer):
        raise ConfigurationError(f"middleware holds {described(layer)}, which is no layer; {_LAYER}")
    try:
        inspect.signature(layer).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(f"the layer {name} cannot be called with (call, call_next): {error}") from error
    except ValueError:  # no signature to be read: its first call shows
        pass
    return _Checked(layer, name)


class _Checked:
    """A user's layer: what it passes on and gives back is looked at where it does so, not where that would break."""

    def __init__(self, layer: Callable[[Call, CallNext], Any], name: str) -> None:
        self._layer = layer
        self._name = name

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        rest = _Rest(call_next, self._name)
        try:
            answer = self._layer(call, rest)
            result = await answer if inspect.isawaitable(answer) else answer
        except RuntimeError as error:
            if str(error) != "no running event loop":
                raise
            raise self._wrong(call, rest, "waits with asyncio; wait with call.sleep(...) or call.io(...)") from error
        if isinstance(result, Result):
            return result
        raise self._wrong(call, rest, f"gave back {described(result)} instead of the Result; {_LAYER}")

    def _wrong(self, call: Call, rest: _Rest, what: str) -> ConfigurationError:
        ran = {"yes": "ran", "no": "did not run", "unknown": "may have run"}[rest.ran]
        about = None if rest.result is None else call_info(rest.result.record)
        sentence = f"tool {call.tool.name!r} {ran}: the layer {self._name} {what}"
        return ConfigurationError(sentence, call=about, tool_ran=rest.ran)


class _Rest:
    """The rest of the onion as a user's layer sees it; it remembers what is known of the tool since."""

    def __init__(self, call_next: CallNext, layer: str) -> None:
        self._call_next = call_next
        self._layer = layer
        self.ran: ToolRan = "no"
        self.result: Result | None = None

    async def __call__(self, call: Call | None = None, /) -> Result:
        if not isinstance(call, Call):
            raise ConfigurationError(
                f"the layer {self._layer} passed {described(call)} on instead of the call; write call_next(call)"
            )
        self.ran = "unknown"
        try:
            self.result = await self._call_next(call)
        except Refused:
            self.ran = "no"
            raise
        self.ran = _RAN.get(self.result.state, "unknown")
        return self.result


def compose(middleware: Sequence[Middleware], endpoint: CallNext) -> CallNext:
    """Fold layers around ``endpoint``; the first of them is the outermost."""
    app = endpoint
    for layer in reversed(middleware):
        app = _bind(layer, app)
    return app


def _bind(layer: Middleware, call_next: CallNext) -> CallNext:
    def step(call: Call) -> Awaitable[Result]:
        return layer(call, call_next)

    return step
