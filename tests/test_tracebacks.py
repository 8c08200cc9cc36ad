"""A traceback shows the agent's line and the tool's; of this package only what is its own fault."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sagaspan import ConfigurationError, Guard
from sagaspan._call import Call, Result
from tests.conftest import Caller


def files_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_a_tool_error_shows_the_caller_and_the_tool(guard: Guard, caller: Caller) -> None:
    """And none of the layers in between."""

    def fails() -> None:
        raise ValueError("declined")

    tool = caller.tool(guard, "fails", effect="write")(fails)

    async def asks() -> None:
        await caller.call(tool)

    with pytest.raises(ValueError, match="declined") as raised:
        caller.play(asks)
    names = files_of(raised.value)
    assert names[-1] == "fails"
    assert not {"guarded_sync", "guarded_async", "run_sync", "step", "_deliver"} & set(names)


def test_a_refusal_shows_the_caller_only(guard: Guard) -> None:
    """Where it was refused is said in words."""
    tool = guard.tool("pay")(lambda **anything: None)
    with pytest.raises(ConfigurationError) as raised:
        tool(amount=object())
    assert files_of(raised.value) == ["test_a_refusal_shows_the_caller_only"]


def test_a_layer_of_the_user_is_shown(store_url: str) -> None:
    """It is not of this package."""

    async def layer(call: Call, call_next: Callable[[Call], Awaitable[Result]], /) -> Result:
        raise LookupError

    tool = Guard(store_url, middleware=[layer]).tool("fine")(lambda: None)
    with pytest.raises(LookupError) as raised:
        tool()
    assert files_of(raised.value)[1:] == ["layer"]


@pytest.mark.parametrize("why", ["asked for", "our fault"])
def test_all_frames_are_kept(guard: Guard, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Where somebody asks for them, and of errors that are raised in here and are none of ours."""
    if why == "asked for":
        monkeypatch.setenv("SAGASPAN_TRACEBACKS", "full")
        tool: Any = guard.tool("fails")(lambda: 1 / 0)
    else:
        tool = guard.tool("fine")(lambda: None)
        monkeypatch.setattr("sagaspan._making.idempotency_key", None)
    with pytest.raises((ZeroDivisionError, TypeError)) as raised:
        tool()
    assert "call_sync" in files_of(raised.value)
