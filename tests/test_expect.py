"""``expect``: a call is undone only if that overwrites nothing but what the call itself did (rule book (b) 12)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import CompensationFailed, ConfigurationError, Guard, RunClosed
from sagaspan.ledger import looking
from sagaspan.testing import World
from tests.conftest import Caller, Worker


class Declined(Exception):
    """What a service says no with."""


class Settings:
    """A place with values that ``put`` changes, and puts back only if nobody else has changed them since."""

    def __init__(self, guard: Guard, caller: Caller, *, by_name: bool = False) -> None:
        self.guard, self.caller = guard, caller
        self.values: dict[str, Any] = {"a": 1, "b": 1}
        self.asked: list[str] = []
        self.fails = 0
        undo: Any = caller.body(self.back)
        if by_name:
            guard.tool("back")(undo)
            undo = "back"
        self.put = caller.tool(guard, "put", compensate=undo, expect=caller.body(self.still))(self._put)

    def _put(self, name: str, value: Any) -> Any:
        before, self.values[name] = self.values[name], value
        return before

    def back(self, name: str, result: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionResetError("no answer")
        self.values[name] = result

    def still(self, name: str, value: Any) -> bool:
        self.asked.append(name)
        return bool(self.values[name] == value)

    async def fail(self, then: Callable[[], None] = lambda: None) -> None:
        """A run that changes both values and fails, after ``then``."""
        async with self.caller.run(self.guard, id="r"):
            await self.caller.call(self.put, "a", 2)
            await self.caller.call(self.put, "b", 2)
            then()
            raise Declined


@pytest.fixture(params=[False, True], ids=["function", "by-name"])
def settings(guard: Guard, caller: Caller, request: pytest.FixtureRequest) -> Settings:
    return Settings(guard, caller, by_name=request.param)


def states(guard: Guard) -> list[str]:
    """The states of the run's forward calls."""
    run = guard.runs.get("r")
    assert run is not None
    return [str(call.state) for call in run.calls if call.phase == "forward"]


def test_a_world_as_it_was_left_is_undone(guard: Guard, caller: Caller, settings: Settings) -> None:
    """Asked once a step, right before it is undone."""
    with pytest.raises(Declined):
        caller.play(settings.fail)
    assert (settings.values, settings.asked) == ({"a": 1, "b": 1}, ["b", "a"])
    assert guard.runs.get("r").status == "compensated"


def test_what_somebody_changed_since_is_not_overwritten(guard: Guard, caller: Caller, settings: Settings) -> None:
    """The step needs a person, with the reason; the older ones are undone."""
    with pytest.raises(CompensationFailed, match="put"):
        caller.play(lambda: settings.fail(lambda: settings.values.update(b=3)))
    assert settings.values == {"a": 1, "b": 3}
    assert states(guard) == ["compensated", "compensation_failed"]
    run = guard.runs.get("r")
    assert run.status == "partially_compensated"
    assert "'still' says False, not True: what the call left has changed since" in run.calls[1].error
    assert len([call for call in run.calls if call.phase == "compensation"]) == 1


def test_recovery_does_not_ask_again(guard: Guard, caller: Caller, settings: Settings) -> None:
    """That does not pass by itself; nor after an earlier attempt to undo it, which would be due again."""
    with pytest.raises(CompensationFailed):
        caller.play(lambda: settings.fail(lambda: settings.values.update(b=3)))
    assert settings.asked == ["b", "a"]
    for _ in range(2):
        assert not guard.recover()
    settings.values["b"], settings.fails = 2, 3
    with pytest.raises(CompensationFailed):
        caller.play(_undo, guard, caller)
    settings.values["b"] = 3
    with pytest.raises(CompensationFailed):
        caller.play(_undo, guard, caller)
    assert "an earlier attempt may have undone it" in guard.runs.get("r").calls[1].error
    assert settings.asked == ["b", "a", "b", "b"]
    assert not guard.recover()
    assert settings.asked == ["b", "a", "b", "b"]


def test_a_person_can_ask_again_or_decide(guard: Guard, caller: Caller, settings: Settings) -> None:
    """Once the world is as it was the step is undone, and the reason is gone; or it is said to be undone by hand."""
    with pytest.raises(CompensationFailed):
        caller.play(lambda: settings.fail(lambda: settings.values.update(b=3)))
    settings.values["b"] = 2
    caller.play(_undo, guard, caller)
    assert settings.values == {"a": 1, "b": 1}
    assert [call.error for call in guard.runs.get("r").calls] == [None] * 4
    assert guard.runs.get("r").status == "compensated"


async def _undo(guard: Guard, caller: Caller) -> None:
    await guard.acompensate("r") if caller.is_async else guard.compensate("r")


def test_undone_by_hand(guard: Guard, caller: Caller, settings: Settings) -> None:
    """The decision of a person ends it."""
    with pytest.raises(CompensationFailed):
        caller.play(lambda: settings.fail(lambda: settings.values.update(b=3)))
    guard.calls.resolve(guard.runs.get("r").calls[1].id, "compensated", note="merged by hand")
    assert states(guard) == ["compensated", "compensated"]


def test_a_dry_run_asks_nothing(guard: Guard, caller: Caller, settings: Settings) -> None:
    """It says what would be undone if the world is as it was left."""

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(settings.put, "a", 2)

    caller.play(job)
    assert [call.args["name"] for call in guard.compensate("r", dry_run=True).undone] == ["a"]
    assert settings.asked == []
    call = guard.runs.get("r").calls[0].id
    settings.values["a"] = 3
    with pytest.raises(CompensationFailed):
        guard.compensate("r", call=call)
    assert settings.values["a"] == 3


@pytest.mark.parametrize("answer", [None, 1, "True", RuntimeError("no connection"), TimeoutError()])
def test_anything_else_is_no_yes(guard: Guard, caller: Caller, answer: Any) -> None:
    """An error, nothing, a truthy value: only ``True`` permits the undo."""
    undone: list[int] = []

    def still() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    tool = caller.tool(guard, "act", compensate=lambda: undone.append(1), expect=caller.body(still))(lambda: 1)

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(tool)
            raise Declined

    with pytest.raises(CompensationFailed):
        caller.play(job)
    assert (undone, states(guard)) == ([], ["compensation_failed"])
    said = "could not say" if isinstance(answer, Exception) else f"says {answer!r}, not True"
    assert said in guard.runs.get("r").calls[0].error


def test_one_that_hangs_is_no_yes(guard: Guard, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a minute the step is left to a person."""
    ended = threading.Event()
    monkeypatch.setattr(looking.look, "__kwdefaults__", {"timeout": 0.05})
    tool = guard.tool("act", compensate=lambda: None, expect=lambda: ended.wait(60))(lambda: 1)
    with pytest.raises(CompensationFailed), guard.run(id="r"):
        tool()
        raise Declined
    ended.set()
    assert "took longer than" in guard.runs.get("r").calls[0].error


def test_what_it_can_ask_for(guard: Guard, caller: Caller) -> None:
    """As a compensation; but the key is that of the call, by which its service knows it."""
    seen: dict[str, Any] = {}

    def still(what: str, result: Any, compensation_data: Any, idempotency_key: str, call: Any) -> bool:
        seen.update(what=what, result=result, data=compensation_data, key=idempotency_key, call=call.id)
        return True

    tool = caller.tool(guard, "act", compensate=lambda: None, expect=caller.body(still))(
        lambda what: {"compensation_data": what * 2}
    )

    async def job() -> None:
        async with caller.run(guard, id="r"):
            await caller.call(tool, "x")
            raise Declined

    with pytest.raises(Declined):
        caller.play(job)
    forward = guard.runs.get("r").calls[0]
    assert seen == {
        "what": "x", "result": {"compensation_data": "xx"}, "data": "xx", "key": forward.idempotency_key,
        "call": forward.id,
    }  # fmt: skip


def test_what_it_calls_is_no_step_of_the_run(guard: Guard) -> None:
    """It looks; nothing of it is undone or replayed."""
    look = guard.tool("look", effect="read")(lambda: 7)
    tool = guard.tool("act", compensate=lambda: None, expect=lambda: look() == 7)(lambda: 1)
    with pytest.raises(Declined), guard.run(id="r"):
        tool()
        raise Declined
    assert [call.tool for call in guard.runs.get("r").calls] == ["act", "<lambda>"]
    assert guard.runs.get("r").status == "compensated"


def test_a_guarded_tool_serves_as_an_expectation(guard: Guard) -> None:
    """Its function is called, not the guarded one."""
    look = guard.tool("look", effect="read")(lambda what: what == "x")
    tool = guard.tool("act", compensate=lambda: None, expect=look)(lambda what: 1)
    with pytest.raises(Declined), guard.run(id="r"):
        tool("x")
        raise Declined
    assert [call.tool for call in guard.runs.get("r").calls] == ["act", "<lambda>"]


def test_a_result_that_was_lost_cannot_be_compared(guard: Guard) -> None:
    """What it asks for and nobody has leaves the step to a person."""
    tool = guard.tool("act", compensate=lambda: None, expect=lambda result: True)(lambda: object())
    with pytest.raises(CompensationFailed), guard.run(id="r"):
        tool()
        raise Declined
    assert "asks for 'result', which nobody knows" in guard.runs.get("r").calls[0].error


def test_in_doubt_and_safe_it_is_asked_too(guard: Guard) -> None:
    """It must also say yes where the call did not happen: there is nothing to overwrite then."""
    world: list[str] = []

    def lost() -> None:
        raise TimeoutError

    fields = {"compensate": lambda result=None: world.append("undone"), "empty_safe": True}
    first = guard.tool("first", expect=lambda result=None: result is None, **fields)(lost)
    second = guard.tool("second", expect=lambda: False, **fields)(lost)
    with pytest.raises(CompensationFailed), guard.run(id="r"):
        for tool in (first, second):
            with pytest.raises(TimeoutError):
                tool()
        raise Declined
    assert (world, states(guard)) == (["undone"], ["compensated", "compensation_failed"])


# -- death -----------------------------------------------------------------------------------------------------------

PLACE = """
place = Path("place.txt")
def still(value):
    effect("asked")
    return place.read_text() == value
def back(result):
    if os.environ.get("DIE") == "before": die()
    place.write_text(result)
    if os.environ.get("DIE") == "after": die()
@guard.tool(compensate=back, expect=still)
def put(value):
    before = place.read_text()
    place.write_text(value)
    return before
class Declined(Exception): ...
"""
RUN = """
place.write_text("old")
try:
    with guard.run(id="r"):
        put("new")
        raise Declined
except (Declined, CompensationFailed): pass
"""


@pytest.mark.parametrize("died", ["before", "after"])
def test_killed_while_it_was_undone(worker: Worker, died: str) -> None:
    """Asked again: what was not undone yet is; what was looks like somebody else's change, so a person is asked."""
    assert worker.run(PLACE + RUN, DIE=died).returncode == -9
    after = worker.run(PLACE + "guard.recover()\nprint(guard.runs.get('r').status, place.read_text())")
    status = "compensated" if died == "before" else "partially_compensated"
    assert after.stdout.split() == [status, "old"], after.stderr
    assert worker.effects == ["asked", "asked"]


def test_what_died_in_its_undo_is_not_left_running() -> None:
    """A step that is not undone any more takes the attempt with it whose process died: nothing goes on."""
    answers = [True, False]

    def job(world: World) -> None:
        guard = Guard(world.store)
        put = guard.tool("put", compensate=lambda: None, expect=lambda: answers.pop(0))(lambda: 1)
        with guard.run(id="r"):
            put()
            raise Declined

    with World(job) as world:
        world.process(job, die_at="undo put: after claim")
        with pytest.raises(RunClosed, match="partially_compensated"):
            world.resume()
        assert [str(call.state) for call in world.calls.list(open=False)] == ["unknown", "compensation_failed"]


def test_without_the_expectation_it_waits_for_a_process_that_has_it(worker: Worker) -> None:
    """What was to be asked is not left out by a process whose code does not know it."""
    assert worker.run(PLACE + RUN, DIE="before").returncode == -9
    without = worker.run(PLACE.replace(", expect=still", "") + "print(*[run.id for run in guard.recover().queued])")
    assert without.stdout == "r\n", without.stderr
    assert worker.run(PLACE + "print(*[run.id for run in guard.recover().compensated])").stdout == "r\n"


# -- declarations ----------------------------------------------------------------------------------------------------


def test_it_is_checked_at_the_definition(guard: Guard) -> None:
    """It goes with a compensation and can be filled."""
    with pytest.raises(ConfigurationError, match="expect= but no compensate="):
        guard.tool("act", effect="write", expect=lambda: True)(lambda: None)
    with pytest.raises(ConfigurationError, match="nothing can fill the parameter 'nothing' of the expectation"):
        guard.tool("act", compensate=lambda: None, expect=lambda nothing: True)(lambda: None)
    with pytest.raises(ConfigurationError, match="the expectation '<lambda>' needs 'result'"):
        guard.tool("act", compensate=lambda: None, empty_safe=True, expect=lambda result: True)(lambda: None)
    with pytest.raises(ConfigurationError, match="field 'expect'"):
        guard.tool("act", compensate=lambda: None, expect="still")(lambda: None)
