"""Conversations with a checkpointer: runs ``THREAD/n``, paused and resumed with the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from sagaspan import Guard, RunClosed, StoreUnavailable
from tests.adapters.langchain.scripts import ForgetfulSaver, ScriptedModel, ask, calls_of, model, on, states, steps_of

World = list[Any]


class Declined(Exception):
    """The bank says no."""


class Desk:
    """Tools with effects, one that asks a person, and one that fails on demand."""

    def __init__(self, world: World) -> None:
        self.declines = False

        @tool
        def book(city: str) -> str:
            """Book."""
            world.append(("book", city))
            return f"B-{city}"

        @tool
        def look(city: str) -> str:
            """Look something up: undeclared, so an equal call is a new call."""
            world.append(("look", city))
            return f"{len(world)}"

        @tool
        def confirm(question: str) -> str:
            """Ask a person."""
            answer = interrupt(question)
            world.append(("confirmed", answer))
            return str(answer)

        @tool
        def charge(amount: float) -> str:
            """Charge."""
            if self.declines:
                raise Declined("no")
            world.append(("charge", amount))
            return "paid"

        self.tools = [book, look, confirm, charge]
        self.policies = {"book": {"compensate": lambda result: world.append(("cancel", result))}}

    def agent(self, *steps: Any, **options: Any) -> Any:
        return create_agent(model(*steps), self.tools, checkpointer=InMemorySaver(), **options)


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


ASKING = (("book", {"city": "A"}), ("confirm", {"question": "sure?"}), ("charge", {"amount": 1.0}))


def test_an_interrupt_pauses_the_run_and_resume_goes_on_in_it(guard: Guard, desk: Desk, world: World) -> None:
    """A run that waits for a person is paused; the answer continues the same run and repeats nothing."""
    agent = guard.wrap(desk.agent(*ASKING), desk.policies)
    output = agent.invoke(ask(), on("t"))
    assert output["__interrupt__"][0].value == "sure?"
    assert states(guard) == {"t/1": "paused"}
    assert world == [("book", "A")]
    agent.invoke(Command(resume="yes"), on("t"))
    assert states(guard) == {"t/1": "completed"}
    assert world == [("book", "A"), ("confirmed", "yes"), ("charge", 1.0)]
    assert steps_of(guard, "t/1") == [("book", "done"), ("confirm", "done"), ("charge", "done")]


async def test_the_same_holds_for_awaited_agents(guard: Guard, desk: Desk, world: World) -> None:
    """Pause and resume work alike for ``ainvoke`` and ``astream``."""
    agent = guard.wrap(desk.agent(*ASKING), desk.policies)
    await agent.ainvoke(ask(), on("t"))
    assert states(guard) == {"t/1": "paused"}
    async for _ in agent.astream(Command(resume="yes"), on("t")):
        pass
    assert states(guard) == {"t/1": "completed"}
    assert world == [("book", "A"), ("confirmed", "yes"), ("charge", 1.0)]


@pytest.mark.parametrize("mode", ["values", "messages", "custom"])
def test_a_pause_is_seen_in_every_stream_mode(guard: Guard, desk: Desk, mode: Any) -> None:
    """Whether a run pauses does not depend on what its stream shows."""
    for _ in guard.wrap(desk.agent(*ASKING), desk.policies).stream(ask(), on("t"), stream_mode=mode):
        pass
    assert states(guard) == {"t/1": "paused"}


def test_a_failure_after_the_pause_undoes_what_came_before_it(guard: Guard, desk: Desk, world: World) -> None:
    """The steps of all incarnations of a run are undone together."""
    desk.declines = True
    agent = guard.wrap(desk.agent(*ASKING), desk.policies)
    agent.invoke(ask(), on("t"))
    with pytest.raises(Declined):
        agent.invoke(Command(resume="yes"), on("t"))
    assert world[-1] == ("cancel", "B-A")
    with pytest.raises(RunClosed):
        agent.invoke(None, on("t"))
    assert world.count(("cancel", "B-A")) == 1


def test_a_second_turn_is_a_run_of_its_own(guard: Guard, desk: Desk, world: World) -> None:
    """New input opens the next run of the thread; its failure leaves the first turn's work alone."""
    agent = guard.wrap(desk.agent(("book", {"city": "A"}), ("charge", {"amount": 1.0})), desk.policies)
    agent.invoke(ask(), on("t"))
    desk.declines = True
    with pytest.raises(Declined):
        agent.invoke(ask("again"), on("t"))
    assert states(guard) == {"t/1": "completed", "t/2": "compensated"}
    assert world == [("book", "A"), ("charge", 1.0), ("book", "A"), ("cancel", "B-A")]
    assert guard.runs.list()[0].conversation == "t"


def test_the_next_turn_after_a_rollback_works(guard: Guard, desk: Desk, world: World) -> None:
    """A thread whose turn was undone takes new input."""
    desk.declines = True
    agent = guard.wrap(desk.agent(("book", {"city": "A"}), ("charge", {"amount": 1.0})), desk.policies)
    with pytest.raises(Declined):
        agent.invoke(ask(), on("t"))
    desk.declines = False
    agent.invoke(ask("again"), on("u"))
    assert states(guard) == {"t/1": "compensated", "u/1": "completed"}


def test_an_equal_call_after_the_pause_is_a_new_call(guard: Guard, desk: Desk, world: World) -> None:
    """LangGraph goes on after the calls it has answered, so an equal undeclared call is another one, not a replay."""
    look = ("look", {"city": "A"})
    agent = guard.wrap(desk.agent(look, ("confirm", {"question": "?"}), look), desk.policies)
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert world == [("look", "A"), ("confirmed", "yes"), ("look", "A")]
    assert [call.tool for call in calls_of(guard, "t/1")] == ["look", "confirm", "look"]


def test_call_ids_that_a_provider_uses_again_do_not_confuse_the_turns(guard: Guard, desk: Desk, world: World) -> None:
    """Equal ids in two turns are two calls."""
    agent = create_agent(model(("book", {"city": "A"}), ids="reused"), desk.tools, checkpointer=InMemorySaver())
    guarded = guard.wrap(agent, desk.policies)
    guarded.invoke(ask(), on("t"))
    guarded.invoke(ask(), on("t"))
    assert world == [("book", "A"), ("book", "A")]


def test_finished_siblings_of_an_interrupted_call_are_not_run_again(guard: Guard, desk: Desk, world: World) -> None:
    """A pause in one of several parallel calls repeats none of the others on resume."""
    steps = [("book", {"city": "A"}), ("confirm", {"question": "?"}), ("look", {"city": "B"})]
    agent = guard.wrap(desk.agent(steps), desk.policies)
    agent.invoke(ask(), on("t"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert sorted(world) == [("book", "A"), ("confirmed", "yes"), ("look", "B")]


def test_static_breakpoints_pause_too(guard: Guard, desk: Desk, world: World) -> None:
    """``interrupt_before`` pauses the run; ``None`` goes on in it."""
    agent = guard.wrap(desk.agent(("book", {"city": "A"}), interrupt_before=["tools"]), desk.policies)
    agent.invoke(ask(), on("t"))
    assert states(guard) == {"t/1": "paused"}
    agent.invoke(None, on("t"))
    assert states(guard) == {"t/1": "completed"}
    assert world == [("book", "A")]


def test_human_in_the_loop_middleware_pauses_the_run(guard: Guard, desk: Desk, world: World) -> None:
    """LangChain's own approval middleware and the guard work together."""
    approval = HumanInTheLoopMiddleware(interrupt_on={"book": True})
    agent = guard.wrap(desk.agent(("book", {"city": "A"}), middleware=[approval]), desk.policies)
    agent.invoke(ask(), on("t"))
    assert states(guard) == {"t/1": "paused"}
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), on("t"))
    assert states(guard) == {"t/1": "completed"}
    assert world == [("book", "A")]


def test_two_agents_of_one_thread_resume_their_own_runs(guard: Guard, desk: Desk, world: World) -> None:
    """The last run of a thread that an agent goes on with is its own last one."""
    asking = guard.wrap(desk.agent(*ASKING, name="asking"), desk.policies)
    looking = guard.wrap(desk.agent(("look", {"city": "A"}), name="looking"), desk.policies)
    asking.invoke(ask(), on("t"))
    looking.invoke(ask(), on("t"))
    asking.invoke(Command(resume="yes"), on("t"))
    assert states(guard) == {"t/1": "completed", "t/2": "completed"}
    assert len(calls_of(guard, "t/1")) == 3


def test_a_paused_agent_pauses_the_run_it_joined(guard: Guard, desk: Desk, world: World) -> None:
    """Leaving ``with guard.run`` while the agent waits pauses that run; the next block goes on in it."""
    agent = guard.wrap(desk.agent(*ASKING), desk.policies)
    with guard.run("job", id="job"):
        agent.invoke(ask(), on("t"))
    assert states(guard) == {"job": "paused"}
    with guard.run("job", id="job"):
        agent.invoke(Command(resume="yes"), on("t"))
    assert states(guard) == {"job": "completed"}
    assert world == [("book", "A"), ("confirmed", "yes"), ("charge", 1.0)]


def test_a_pause_that_ends_in_the_same_block_completes(guard: Guard, desk: Desk, world: World) -> None:
    """An agent that was asked and answered within one block leaves a completed run."""
    agent = guard.wrap(desk.agent(*ASKING), desk.policies)
    with guard.run("job", id="job"):
        agent.invoke(ask(), on("t"))
        agent.invoke(Command(resume="yes"), on("t"))
    assert states(guard) == {"job": "completed"}


def test_a_lost_checkpoint_repeats_nothing(guard: Guard, world: World) -> None:
    """A call that was done but whose answer the checkpoint lost is answered from the ledger when the thread goes on.

    The provider uses the ids of the first turn again in the second, where the checkpoint is lost.
    """
    saver = ForgetfulSaver()

    @tool
    def look(city: str) -> str:
        """Look: undeclared, so only the ledger can know that this very call was done."""
        world.append(city)
        saver.down = len(world) == 4
        return city

    look_at_a = ("look", {"city": "A"})
    agent = guard.wrap(create_agent(model(look_at_a, look_at_a, ids="reused"), [look], checkpointer=saver))
    agent.invoke(ask(), on("t"))
    stream = agent.stream(ask(), on("t"), durability="sync")
    for _ in range(4):
        next(stream)
    stream.close()
    assert states(guard) == {"t/1": "completed", "t/2": "held"}
    saver.down = False
    agent.invoke(None, on("t"))
    assert world == ["A", "A", "A", "A"]
    assert states(guard) == {"t/1": "completed", "t/2": "completed"}
    assert len(calls_of(guard, "t/2")) == 2


def test_several_resumes_in_one_block_count_each_answered_call_once(guard: Guard, desk: Desk, world: World) -> None:
    """The n-th equal call of a run is recorded as the n-th, however often the graph paused before it."""
    look, confirm = ("look", {"city": "A"}), ("confirm", {"question": "?"})
    agent = guard.wrap(desk.agent(look, confirm, look, confirm, look), desk.policies)
    with guard.run("job", id="job"):
        agent.invoke(ask(), on("t"))
    with guard.run("job", id="job"):
        agent.invoke(Command(resume="a"), on("t"))
        agent.invoke(Command(resume="b"), on("t"))
    keys = [call.key.partition(".")[2] for call in calls_of(guard, "job") if call.tool == "look"]
    assert keys == ["", "1", "2"]


def test_an_agent_that_only_reads_goes_on_while_the_store_is_down(tmp_path: Path, world: World) -> None:
    """With ``fail_open=True`` its reads run in an unrecorded run; a write and going on with a turn are errors."""
    (tmp_path / "file").write_text("")
    guard = Guard(f"sqlite:///{tmp_path}/file/ledger.db", fail_open=True)
    desk = Desk(world)
    policies = {**desk.policies, "look": {"effect": "read"}}
    reading = guard.wrap(desk.agent(("look", {"city": "A"})), policies)
    for run in range(1, 3):
        assert reading.invoke(ask(), on("t"))["messages"][-1].content == "done"
        assert len(world) == run
    with pytest.raises(StoreUnavailable):
        reading.invoke(Command(resume="yes"), on("t"))
    with pytest.raises(StoreUnavailable):
        guard.wrap(desk.agent(("book", {"city": "A"})), policies).invoke(ask(), on("u"))
    assert world == [("look", "A"), ("look", "A")]


# -- a provider that fails -------------------------------------------------------------------------------------


class Flaky(ScriptedModel):
    """Follows its script, but its provider is away for one request."""

    away_at: int = 1

    def _generate(self, messages: list[Any], *args: Any, **options: Any) -> Any:
        asked = self.away_at
        if sum(isinstance(message, AIMessage) for message in messages) == asked:
            self.away_at = -1
            raise ConnectionResetError("the provider is away")
        return super()._generate(messages, *args, **options)


def _flaky(desk: Desk, **options: Any) -> Any:
    script = [[("book", {"city": "A"})], [("charge", {"amount": 1.0})]]
    return create_agent(Flaky(script=script), desk.tools, **options)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_provider_that_fails_interrupts_a_turn_that_can_go_on(
    guard: Guard, desk: Desk, world: World, way: str
) -> None:
    """Under a checkpointer nothing is undone: ``None`` goes on at the request that failed, in the same run."""
    agent = guard.wrap(_flaky(desk, checkpointer=InMemorySaver()), desk.policies)
    with pytest.raises(ConnectionResetError) as caught:
        agent.invoke(ask(), on("t")) if way == "invoke" else await agent.ainvoke(ask(), on("t"))
    assert type(caught.value) is ConnectionResetError
    assert (world, states(guard)) == ([("book", "A")], {"t/1": "held"})
    agent.invoke(None, on("t")) if way == "invoke" else await agent.ainvoke(None, on("t"))
    assert (world, states(guard)) == ([("book", "A"), ("charge", 1.0)], {"t/1": "completed"})


def test_new_input_after_that_is_another_turn(guard: Guard, desk: Desk, world: World) -> None:
    """As after every other turn: the held one stays as it is, nothing of it is undone until somebody says so."""
    agent = guard.wrap(_flaky(desk, checkpointer=InMemorySaver()), desk.policies)
    with pytest.raises(ConnectionResetError):
        agent.invoke(ask(), on("t"))
    agent.invoke(ask("something else"), on("t"))
    assert (world, states(guard)) == (
        [("book", "A"), ("book", "A"), ("charge", 1.0)],
        {"t/2": "completed", "t/1": "held"},
    )
    guard.compensate("t/1")
    assert states(guard) == {"t/2": "completed", "t/1": "compensated"}


def test_without_a_checkpointer_it_is_an_error_like_others(guard: Guard, desk: Desk, world: World) -> None:
    """Nobody can go on where it stopped, so what was done is undone."""
    with pytest.raises(ConnectionResetError):
        guard.wrap(_flaky(desk), desk.policies).invoke(ask(), on("t"))
    assert (world, states(guard)) == ([("book", "A"), ("cancel", "B-A")], {"t/1": "compensated"})


def test_whoever_wants_it_undone_says_so(guard: Guard, desk: Desk, world: World) -> None:
    """``on_interrupt="compensate"`` holds for a provider that fails too."""
    agent = guard.wrap(_flaky(desk, checkpointer=InMemorySaver()), desk.policies, on_interrupt="compensate")
    with pytest.raises(ConnectionResetError):
        agent.invoke(ask(), on("t"))
    assert (world, states(guard)) == ([("book", "A"), ("cancel", "B-A")], {"t/1": "compensated"})


def test_a_tool_that_fails_is_not_the_provider(guard: Guard, desk: Desk, world: World) -> None:
    """An error of a tool undoes the turn, also where a checkpointer could go on."""
    desk.declines = True
    agent = guard.wrap(desk.agent(("book", {"city": "A"}), ("charge", {"amount": 1.0})), desk.policies)
    with pytest.raises(Declined):
        agent.invoke(ask(), on("t"))
    assert states(guard) == {"t/1": "compensated"}
