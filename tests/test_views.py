"""What the ledger tells web apps: ``guard.runs``, ``guard.calls``, ``run.calls``."""

from __future__ import annotations

import datetime as dt

import pytest

from sagaspan import ConfigurationError, Guard


def test_runs(guard: Guard) -> None:
    """Runs are listed newest first, by state, and read with their calls."""
    act = guard.tool("act")(lambda n: n)
    for number in range(5):
        with guard.run("trip", id=f"r{number}", user="u", tenant="t", tags={"k": {1, 2}}, input={"n": number}) as run:
            act(number)
            run.output = (number,)
            if number == 3:
                run.abort("enough")
    assert [info.id for info in guard.runs.list(limit=3)] == ["r4", "r3", "r2"]
    assert [info.id for info in guard.runs.list(limit=2, offset=3)] == ["r1", "r0"]
    assert [info.id for info in guard.runs.list(status=["failed"])] == ["r3"]
    assert [info.id for info in guard.runs.list(status="failed")] == ["r3"]
    with pytest.raises(ConfigurationError, match="'lost' is not one of 'running', 'paused'"):
        guard.runs.list(status=["lost"])
    info = guard.runs.get("r1")
    assert info is not None
    assert (info.name, info.user, info.tenant, info.tags, info.input, info.output) == (
        "trip", "u", "t", {"k": {1, 2}}, {"n": 1}, (1,),
    )  # fmt: skip
    assert info.started <= info.ended <= dt.datetime.now(dt.UTC)
    (call,) = info.calls
    assert (call.args, call.result, call.run_id, call.attempts) == ({"n": 1}, 1, "r1", 1)
    assert guard.runs.get("r") is None
    assert guard.runs.get("nothing") is None


def test_calls(guard: Guard) -> None:
    """Open calls are those that are not settled; any call is read by its id."""

    @guard.tool(effect="write")
    def act(n: int) -> int:
        if n == 2:
            raise ConnectionResetError("gone")
        return n

    with pytest.raises(ConnectionResetError), guard.run(id="a"):
        act(1)
        act(2)
    (call,) = guard.calls.list()
    assert (call.state, call.args, call.error) == ("unknown", {"n": 2}, "ConnectionResetError: gone")
    assert guard.calls.get(call.id) == call
    assert guard.calls.get("nothing") is None


def test_the_current_run_and_call(guard: Guard, store_url: str) -> None:
    """``current_run`` is the innermost run of this guard, ``current_call`` the call whose body is running."""
    with Guard(store_url) as other:
        look = guard.tool("look")(lambda: (guard.current_run(), guard.current_call().tool.name, other.current_run()))
        assert guard.current_run() is None
        with guard.run() as outer:
            with guard.run("inner") as inner:
                assert look() == (inner, "look", None)
            assert guard.current_run() is outer
    assert guard.current_run() is guard.current_call() is None
