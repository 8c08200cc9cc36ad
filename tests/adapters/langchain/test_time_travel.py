"""Whoever goes back to an earlier checkpoint goes on with the turn that made it, or is told why not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import EmptyInputError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from sagaspan import Guard, RunClosed, RunConflict
from tests.adapters.langchain.scripts import ForgetfulSaver, ScriptedModel, Step, ask, on, states

World = list[Any]


class Turns(ScriptedModel):
    """Follows another script in each turn of the conversation; the last of them from then on."""

    scripts: list[list[list[Step]]]

    def _generate(self, messages: list[Any], *args: Any, **options: Any) -> Any:
        turn = sum(isinstance(message, HumanMessage) for message in messages)
        self.script = self.scripts[min(turn, len(self.scripts)) - 1]
        return super()._generate(messages, *args, **options)


class Dying(Turns):
    """Its program is stopped once, in the turn ``at``, after it has paid."""

    at: int
    dies: list[bool]

    def _generate(self, messages: list[Any], *args: Any, **options: Any) -> Any:
        if self.dies and messages[-1].type == "tool" and sum(m.type == "human" for m in messages) == self.at:
            self.dies.pop()
            raise KeyboardInterrupt
        return super()._generate(messages, *args, **options)


PAY, ASK = ("pay", {"to": "A"}), ("confirm", {"question": "?"})
POLICIES: Any = {"pay": {"effect": "write"}}


def make(world: World, *turns: list[Step], saver: Any = None, **options: Any) -> Any:
    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return f"paid {to}"

    @tool
    def confirm(question: str) -> str:
        """Ask a person."""
        return str(interrupt(question))

    chat = options.pop("model", None) or Turns(script=[], scripts=[[[step] for step in steps] for steps in turns])
    return create_agent(chat, [pay, confirm], checkpointer=saver or InMemorySaver(), **options)


def before(agent: Any, node: str, thread: str = "t", turn: int = 1) -> Any:
    """The config of the first checkpoint of a turn from which ``node`` is next."""
    history = list(agent.get_state_history(on(thread)))[::-1]
    return next(
        state.config
        for state in history
        if state.next == (node,)
        and sum(isinstance(message, HumanMessage) for message in state.values["messages"]) == turn
    )


async def go(agent: Any, way: str, given: Any, config: Any) -> Any:
    return agent.invoke(given, config) if way == "invoke" else await agent.ainvoke(given, config)


WAYS = pytest.mark.parametrize("way", ["invoke", "ainvoke"])


def turns(guard: Guard) -> dict[str, str]:
    """The states of the runs, without that of what was called outside them: in a run that only replays, the model."""
    return {run: state for run, state in states(guard).items() if not run.startswith("session-")}


@WAYS
async def test_a_checkpoint_of_an_earlier_turn_is_that_turn_s(guard: Guard, world: World, way: str) -> None:
    """Its write is on record there, so it is not made again in the turn that is paused now."""
    agent = guard.wrap(make(world, [PAY], [ASK]), POLICIES)
    await go(agent, way, ask(), on("t"))
    await go(agent, way, ask(), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "completed", "t/2": "paused"})
    await go(agent, way, None, before(agent, "tools"))
    assert (world, turns(guard)) == (["A"], {"t/1": "completed", "t/2": "paused"})


@WAYS
async def test_an_answer_goes_to_the_turn_that_asked(guard: Guard, world: World, way: str) -> None:
    """A question of an earlier turn, answered by its checkpoint, goes on there; answered again it does nothing."""
    agent = guard.wrap(make(world, [PAY, ASK, ("pay", {"to": "B"})], [ASK, PAY]), POLICIES)
    await go(agent, way, ask(), on("t"))
    asked = agent.get_state(on("t")).config
    await go(agent, way, ask(), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "paused", "t/2": "paused"})
    await go(agent, way, Command(resume="yes"), asked)
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed", "t/2": "paused"})
    await go(agent, way, Command(resume="yes"), asked)
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed", "t/2": "paused"})


@WAYS
@pytest.mark.parametrize("node", ["model", "tools"])
async def test_a_paused_turn_begun_again_in_its_middle_repeats_nothing(
    guard: Guard, world: World, way: str, node: str
) -> None:
    """It asks again, in the same run, and its answer goes on from there."""
    agent = guard.wrap(make(world, [PAY, ASK, ("pay", {"to": "B"})]), POLICIES)
    await go(agent, way, ask(), on("t"))
    output = await go(agent, way, None, before(agent, node))
    assert "__interrupt__" in output
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed"})


@WAYS
@pytest.mark.parametrize("steps_back", [0, 1, 2, 3])
async def test_so_it_does_from_a_checkpoint_of_a_graph_within_it(
    guard: Guard, world: World, way: str, steps_back: int
) -> None:
    """Those say in which run they were made, too."""
    graph: Any = StateGraph(MessagesState)
    graph.add_node("works", make(world, [PAY, ASK, ("pay", {"to": "B"})], saver=True))
    graph.add_edge(START, "works")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), POLICIES)
    await go(agent, way, ask(), on("t"))
    (task,) = agent.get_state(on("t"), subgraphs=True).tasks
    within = {"thread_id": "t", "checkpoint_ns": task.state.config["configurable"]["checkpoint_ns"]}
    history = list(agent.get_state_history({"configurable": within}))
    await go(agent, way, None, history[steps_back].config)
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed"})


@WAYS
async def test_a_completed_turn_is_replayed_from_its_middle(guard: Guard, world: World, way: str) -> None:
    """What it did is answered."""
    agent = guard.wrap(make(world, [PAY, ("pay", {"to": "B"})]), POLICIES)
    await go(agent, way, ask(), on("t"))
    output = await go(agent, way, None, before(agent, "model"))
    assert [message.content for message in output["messages"]][-3:] == ["", "paid B", "done"]
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed"})


@WAYS
@pytest.mark.parametrize("turn", [1, 2])
async def test_a_turn_that_was_rolled_back_is_not_gone_on_with(guard: Guard, world: World, way: str, turn: int) -> None:
    """Neither from its end nor from an earlier checkpoint, nor while a later turn is paused; the error says how to."""
    agent = guard.wrap(make(world, [PAY, ASK], [ASK]), {"pay": {"compensate": lambda result: world.append("undone")}})
    await go(agent, way, ask(), on("t"))
    guard.compensate("t/1")
    if turn == 2:
        await go(agent, way, ask(), on("t"))
    for at in (before(agent, "model"), before(agent, "tools")):
        for given in (None, Command(resume="yes"), Command(update=ask("hurry"))):
            with pytest.raises(RunClosed, match=r"new input.*guard.run\('LangGraph', id='t/1', reopen=True\)"):
                await go(agent, way, given, at)
    assert world == ["A", "undone"]
    assert turns(guard)["t/1"] == "compensated"


@WAYS
async def test_what_the_error_says_works(guard: Guard, world: World, way: str) -> None:
    """A turn that is over is done again within a block that starts it over, and the next turn works as ever."""
    agent = guard.wrap(make(world, [PAY, ASK], [PAY]), {"pay": {"compensate": lambda result: world.append("undone")}})
    await go(agent, way, ask(), on("t"))
    guard.compensate("t/1")
    with guard.run("LangGraph", id="t/1", reopen=True):
        agent.invoke(None, before(agent, "tools"))
    assert (world, turns(guard)) == (["A", "undone", "A"], {"t/1": "paused"})
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "undone", "A"], {"t/1": "completed"})
    await go(agent, way, ask(), on("t"))
    assert (world, turns(guard)) == (["A", "undone", "A", "A"], {"t/1": "completed", "t/2": "completed"})


@WAYS
async def test_a_held_turn_is_gone_on_with_after_another(guard: Guard, world: World, way: str) -> None:
    """The request that failed is made again, in its own turn; nothing is repeated."""
    scripts = [[[PAY], [("pay", {"to": "B"})]], [[PAY]]]
    agent = guard.wrap(make(world, model=Dying(script=[], scripts=scripts, dies=[True], at=1)), POLICIES)
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(ask(), on("t"))
    stopped = agent.get_state(on("t")).config
    await go(agent, way, ask(), on("t"))
    assert (world, turns(guard)) == (["A", "A"], {"t/1": "held", "t/2": "completed"})
    await go(agent, way, None, stopped)
    assert (world, turns(guard)) == (["A", "A", "B"], {"t/1": "completed", "t/2": "completed"})


# -- forks -----------------------------------------------------------------------------------------------------


def forked(agent: Any, at: Any, to: str) -> Any:
    """The config of a checkpoint like that ``at``, whose model had paid somebody else."""
    message = agent.get_state(at).values["messages"][-1]
    call = {**message.tool_calls[0], "args": {"to": to}}
    return agent.update_state(at, {"messages": [message.model_copy(update={"tool_calls": [call]})]})


@WAYS
async def test_a_fork_of_a_completed_turn_says_how_to_go_on(guard: Guard, world: World, way: str) -> None:
    """What is not on its record is not done; reopened it is, once."""
    agent = guard.wrap(make(world, [PAY], [ASK]), POLICIES)
    await go(agent, way, ask(), on("t"))
    await go(agent, way, ask(), on("t"))
    fork = forked(agent, before(agent, "tools"), "B")
    with pytest.raises(RunClosed, match=r"guard.run\('LangGraph', id='t/1', reopen=True\)"):
        await go(agent, way, None, fork)
    assert (world, turns(guard)) == (["A"], {"t/1": "completed", "t/2": "paused"})
    with guard.run("LangGraph", id="t/1", reopen=True):
        agent.invoke(None, fork)
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed", "t/2": "paused"})


@WAYS
async def test_a_fork_of_a_paused_turn_is_that_turn(guard: Guard, world: World, way: str) -> None:
    """Whether its checkpoint is named or the latest one: what it did is not done again, what is new is."""
    agent = guard.wrap(make(world, [PAY, ASK], [ASK]), POLICIES)
    await go(agent, way, ask(), on("t"))
    asked = agent.get_state(on("t")).config
    await go(agent, way, ask(), on("t"))
    await go(agent, way, None, agent.update_state(asked, {"messages": []}, as_node="model"))
    await go(agent, way, None, forked(agent, before(agent, "tools"), "B"))
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "paused", "t/2": "paused"})
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed", "t/2": "paused"})


def test_two_changes_by_hand_are_still_of_the_turn(guard: Guard, world: World) -> None:
    """Each is made of the one before."""
    agent = guard.wrap(make(world, [PAY, ASK]), POLICIES)
    agent.invoke(ask(), on("t"))
    at = before(agent, "tools")
    for _ in range(2):
        at = forked(agent, at, "A")
    agent.invoke(None, at)
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})


@WAYS
async def test_a_copy_does_not_say_of_which_turn_it_is(guard: Guard, world: World, way: str) -> None:
    """Nothing runs, rather than in a turn that is guessed; the checkpoint that was copied goes on."""
    agent = guard.wrap(make(world, [PAY, ASK]), POLICIES)
    await go(agent, way, ask(), on("t"))
    at = before(agent, "tools")
    copy = agent.update_state(at, None, as_node="__copy__")
    for config in (copy, on("t"), agent.update_state(copy, {"messages": []}, as_node="model")):
        with pytest.raises(RunConflict, match=r"nobody can tell in which run .*'t'.*get_state_history"):
            await go(agent, way, None, config)
    await go(agent, way, None, at)
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})


@WAYS
async def test_nor_does_input_that_is_given_by_hand(guard: Guard, world: World, way: str) -> None:
    """What had paused is done again beside it, so it is no turn of its own."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return to

    graph: Any = StateGraph(MessagesState)
    graph.add_node("works", lambda state: pay.invoke({"to": "A"}) and interrupt("?") and None)
    graph.add_edge(START, "works")
    agent = guard.wrap(graph.compile(checkpointer=InMemorySaver()), POLICIES)
    await go(agent, way, ask(), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})
    agent.update_state(on("t"), ask(), as_node="__input__")
    with pytest.raises(RunConflict, match="made by hand"):
        await go(agent, way, None, on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})


@WAYS
async def test_new_input_on_an_earlier_checkpoint_is_the_next_turn(guard: Guard, world: World, way: str) -> None:
    """A fork of the conversation, whose work is its own."""
    agent = guard.wrap(make(world, [PAY], [PAY, ASK]), POLICIES)
    await go(agent, way, ask(), on("t"))
    first = agent.get_state(on("t")).config
    await go(agent, way, ask(), on("t"))
    await go(agent, way, ask("otherwise"), first)
    assert (world, turns(guard)) == (["A", "A", "A"], {"t/1": "completed", "t/2": "paused", "t/3": "paused"})


@WAYS
@pytest.mark.parametrize("is_saved", [True, False])
async def test_so_it_is_after_a_turn_that_was_interrupted(guard: Guard, world: World, way: str, is_saved: bool) -> None:
    """New input at the end of the conversation may begin that turn again; an earlier checkpoint never does."""
    saver, chat = ForgetfulSaver(), Dying(script=[], scripts=[[[PAY]]], dies=[True], at=2)
    agent = guard.wrap(make(world, saver=saver, model=chat), POLICIES)
    await go(agent, way, ask(), on("t"))
    at = before(agent, "model")
    saver.down = not is_saved
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(ask(), on("t"))
    saver.down = False
    assert (world, turns(guard)) == (["A", "A"], {"t/1": "completed", "t/2": "held"})
    await go(agent, way, ask(), at)
    assert (world, turns(guard)) == (["A", "A", "A"], {"t/1": "completed", "t/2": "held", "t/3": "completed"})


# -- whose checkpoint it is ------------------------------------------------------------------------------------


@WAYS
async def test_two_agents_of_one_name_in_one_thread_are_kept_apart(guard: Guard, world: World, way: str) -> None:
    """Each goes on with the turn that its own checkpointer has, whichever was the last."""
    steps = [PAY, ASK, ("pay", {"to": "B"})]
    one, other = (guard.wrap(make(world, steps), POLICIES) for _ in range(2))
    await go(one, way, ask(), on("t"))
    await go(other, way, ask(), on("t"))
    assert (world, turns(guard)) == (["A", "A"], {"t/1": "paused", "t/2": "paused"})
    await go(one, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "A", "B"], {"t/1": "completed", "t/2": "paused"})
    await go(other, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "A", "B", "B"], {"t/1": "completed", "t/2": "completed"})


@WAYS
async def test_an_agent_that_has_no_checkpoint_there_touches_no_turn(guard: Guard, world: World, way: str) -> None:
    """LangGraph says so as ever, or begins with nothing; and the turn of the other agent is still paused."""
    agent = guard.wrap(make(world, [PAY, ASK]), POLICIES)
    await go(agent, way, ask(), on("t"))
    for given, error in ((None, EmptyInputError), (Command(resume="yes"), ValueError)):
        with pytest.raises(error):
            await go(guard.wrap(make(world, [PAY, ASK]), POLICIES), way, given, on("t"))
    assert (states(guard)["t/1"], states(guard)["t/2"]) == ("paused", "held")
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, states(guard)["t/1"]) == (["A"], "completed")


@WAYS
async def test_nor_does_a_turn_get_lost_by_that(guard: Guard, world: World, way: str) -> None:
    """A turn of which no checkpoint was made is begun again by its input, also after somebody tried to go on."""
    saver = ForgetfulSaver()
    chat = Dying(script=[], scripts=[[[PAY]]], dies=[True], at=1)
    agent = guard.wrap(make(world, saver=saver, model=chat), POLICIES)
    saver.down = True
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(ask(), on("t"))
    saver.down = False
    with pytest.raises(EmptyInputError):
        await go(agent, way, None, on("t"))
    await go(agent, way, ask(), on("t"))
    assert (world, states(guard)["t/1"]) == (["A"], "completed")


@WAYS
async def test_an_answer_where_nothing_is_saved_is_input(guard: Guard, world: World, way: str) -> None:
    """So it begins again the turn that was interrupted, which repeats nothing, or else the next one."""
    saver, chat = ForgetfulSaver(), Dying(script=[], scripts=[[[PAY]]], dies=[True], at=1)
    agent = guard.wrap(make(world, saver=saver, model=chat), POLICIES)
    saver.down = True
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(ask(), on("t"))
    saver.down = False
    await go(agent, way, Command(resume="yes", update=ask()), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "completed"})


@WAYS
async def test_what_nobody_guarded_is_gone_on_with_in_a_turn_of_its_own(guard: Guard, world: World, way: str) -> None:
    """An agent that paused before it was wrapped, or beside the wrapped one: not in the last turn of that."""
    saver, steps = InMemorySaver(), [PAY, ASK, ("pay", {"to": "B"})]
    bare = make(world, steps, saver=saver)
    agent = guard.wrap(bare, POLICIES)
    await go(agent, way, ask(), on("t"))
    await go(bare, way, ask(), on("t"))
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "A", "B"], {"t/1": "paused", "t/2": "completed"})


class Earlier(InMemorySaver):
    """While ``is_earlier``, it is used by a version of Sagaspan that noted no runs."""

    is_earlier = True

    def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        noted = config.get("metadata", {})
        kept = {k: v for k, v in noted.items() if not (self.is_earlier and k.startswith("sagaspan_"))}
        return super().put({**config, "metadata": kept}, checkpoint, metadata, versions)


@WAYS
@pytest.mark.parametrize(("is_changed", "goes_back"), [(False, False), (False, True), (True, False)])
async def test_a_turn_that_an_earlier_version_paused_is_gone_on_with(
    guard: Guard, world: World, way: str, is_changed: bool, goes_back: bool
) -> None:
    """Its checkpoints name no run, and those that it makes from now on do: what it had done is not done again."""
    saver = Earlier()
    agent = guard.wrap(make(world, [PAY, ASK, ASK], saver=saver), POLICIES)
    await go(agent, way, ask(), on("t"))
    if is_changed:
        agent.update_state(on("t"), {"messages": []})
    saver.is_earlier = False
    if is_changed:
        await go(agent, way, None, on("t"))
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})
    if goes_back:
        earlier = list(agent.get_state_history(on("t")))[::-1]
        await go(agent, way, None, next(state.config for state in earlier if state.next == ("tools",)))
    else:
        await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "paused" if goes_back else "completed"})


@WAYS
async def test_so_is_the_one_of_two_that_was_under_way(guard: Guard, world: World, way: str) -> None:
    """When the checkpoint was made, not the last one."""
    saver = Earlier()
    agent = guard.wrap(make(world, [PAY, ASK], [PAY], saver=saver), POLICIES)
    await go(agent, way, ask(), on("t"))
    before = agent.get_state(on("t")).config
    await go(agent, way, ask(), on("t"))
    saver.is_earlier = False
    await go(agent, way, Command(resume="yes"), before)
    assert (world, turns(guard)) == (["A", "A"], {"t/1": "completed", "t/2": "completed"})


@WAYS
async def test_what_nobody_guarded_is_asked_about_once(guard: Guard, world: World, way: str) -> None:
    """The turn that asks has made no checkpoint; whoever answers goes on with it."""
    bare = make(world, [PAY], saver=InMemorySaver(), interrupt_before=["tools"])
    await go(bare, way, ask(), on("t"))
    agent = guard.wrap(make(world, [PAY], saver=bare.checkpointer), {"pay": {"effect": "write", "approve": True}})
    await go(agent, way, None, on("t"))
    await go(agent, way, Command(resume={"decisions": [{"type": "approve"}]}), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "completed"})


@WAYS
async def test_an_agent_that_is_made_anew_over_the_same_database_is_the_same(
    world: World, way: str, tmp_path: Path
) -> None:
    """In another process, with objects of its own: it goes on in the turn, from the end or from the middle."""

    async def life(given: Any, back_to: str | None = None) -> dict[str, str]:
        async with contextlib.AsyncExitStack() as stack:
            path = str(tmp_path / "checkpoints.db")
            saver: Any = (
                stack.enter_context(SqliteSaver.from_conn_string(path))
                if way == "invoke"
                else await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
            )
            guard = stack.enter_context(Guard(f"sqlite:///{tmp_path}/ledger.db"))
            agent = guard.wrap(make(world, [PAY, ASK, ("pay", {"to": "B"})], [ASK], saver=saver), POLICIES)
            history = [state async for state in agent.aget_state_history(on("t"))] if way == "ainvoke" else []
            history = history or list(agent.get_state_history(on("t"))) if way == "invoke" else history
            at = next((state.config for state in history[::-1] if state.next == (back_to,)), on("t"))
            await go(agent, way, given, at)
            return turns(guard)

    await life(ask())
    assert await life(None, "tools") == {"t/1": "paused"}
    assert await life(Command(resume="yes")) == {"t/1": "completed"}
    assert await life(ask()) == {"t/1": "completed", "t/2": "paused"}
    assert await life(None, "tools") == {"t/1": "completed", "t/2": "paused"}
    assert world == ["A", "B"]


def test_a_run_of_another_ledger_is_not_gone_on_with(world: World, tmp_path: Path) -> None:
    """Not in a run of the same id, either: what was done is on another record."""
    saver = InMemorySaver()
    for name in ("one", "two"):
        with Guard(f"sqlite:///{tmp_path}/{name}.db") as guard:
            agent = guard.wrap(make(world, [PAY, ASK], saver=saver), POLICIES)
            agent.invoke(ask(), on("t"))
            first = before(agent, "tools")
    with Guard(f"sqlite:///{tmp_path}/two.db") as guard:
        agent = guard.wrap(make(world, [PAY, ASK], saver=saver), POLICIES)
        with pytest.raises(RunConflict, match=r"'t/1' .* which this ledger does not know, so nothing ran"):
            agent.invoke(None, first)
        agent.invoke(Command(resume="yes"), on("t"))
        assert (world, turns(guard)) == (["A", "A"], {"t/1": "completed"})


def test_an_agent_that_was_renamed_says_which_name_it_had(guard: Guard, world: World) -> None:
    """Its turn is a run of that name; with it the agent goes on."""
    saver = InMemorySaver()
    guard.wrap(make(world, [PAY, ASK], saver=saver), POLICIES).invoke(ask(), on("t"))
    renamed = make(world, [PAY, ASK], saver=saver, name="teller")
    with pytest.raises(RunConflict, match=r"named 'LangGraph', not in one of 'teller'.*name='LangGraph'"):
        guard.wrap(renamed, POLICIES).invoke(Command(resume="yes"), on("t"))
    guard.wrap(renamed, POLICIES, name="LangGraph").invoke(Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "completed"})


@WAYS
async def test_a_pause_in_a_run_of_the_caller_s_is_gone_on_with_in_that(guard: Guard, world: World, way: str) -> None:
    """Outside of it nobody would know what it did; the error says how to enter it."""
    agent = guard.wrap(make(world, [PAY, ASK]), POLICIES)
    with guard.run("job", id="job"):
        agent.invoke(ask(), on("t"))
    with pytest.raises(RunConflict, match=r"guard.run\('job', id='job'\)"):
        await go(agent, way, None, before(agent, "tools"))
    assert states(guard) == {"job": "paused"}
    with guard.run("job", id="job"):
        agent.invoke(None, before(agent, "tools"))
    assert (world, states(guard)) == (["A"], {"job": "paused"})


class Silent(BaseCheckpointSaver[str]):
    """A checkpointer of somebody's own, which keeps nothing of a config's metadata."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = InMemorySaver()

    def get_tuple(self, config: Any) -> Any:
        return self._kept.get_tuple(config)

    def list(self, config: Any, **options: Any) -> Any:
        return self._kept.list(config, **options)

    def put(self, config: Any, *args: Any) -> Any:
        return self._kept.put({"configurable": config["configurable"]}, *args)

    def put_writes(self, *args: Any, **options: Any) -> None:
        self._kept.put_writes(*args, **options)


def test_a_checkpointer_that_keeps_no_metadata_goes_on_at_the_end_alone(guard: Guard, world: World) -> None:
    """There the last turn is the one; an earlier checkpoint may be of any."""
    agent = guard.wrap(make(world, [PAY], [PAY, ASK], saver=Silent()), POLICIES)
    for _ in range(2):
        agent.invoke(ask(), on("t"))
    with pytest.raises(RunConflict, match=r"does not keep the metadata.*no checkpoint_id"):
        agent.invoke(None, before(agent, "tools"))
    agent.invoke(Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A", "A"], {"t/1": "completed", "t/2": "completed"})


# -- what goes on, too -----------------------------------------------------------------------------------------


def asking(world: World) -> Any:
    """A graph whose one node pays and then asks, so that it pays again whenever it goes on."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return to

    graph: Any = StateGraph(MessagesState)
    graph.add_node("works", lambda state: pay.invoke({"to": "A"}) and interrupt("?") and None)
    graph.add_node("checks", lambda state: pay.invoke({"to": "B"}) and None)
    graph.add_edge(START, "works")
    return graph.compile(checkpointer=InMemorySaver())


@WAYS
async def test_a_command_without_an_answer_goes_on_too(guard: Guard, world: World, way: str) -> None:
    """LangGraph does again what had paused, whatever else it is told; where nothing is left to do, it is a turn."""
    agent = guard.wrap(asking(world), POLICIES)
    await go(agent, way, ask(), on("t"))
    await go(agent, way, Command(update=ask("hurry")), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})
    await go(agent, way, Command(resume="yes"), on("t"))
    assert (world, turns(guard)) == (["A"], {"t/1": "completed"})
    await go(agent, way, Command(goto="checks"), on("t"))
    assert (world, turns(guard)) == (["A", "B"], {"t/1": "completed", "t/2": "completed"})


@WAYS
async def test_so_does_input_that_is_given_again_under_the_id_of_its_run(guard: Guard, world: World, way: str) -> None:
    """As LangGraph's server does after a crash: the input is not taken again, so it is no turn of its own."""
    agent = guard.wrap(asking(world), POLICIES)
    config = {**on("t"), "metadata": {"run_id": "r-1"}}
    await go(agent, way, ask(), config)
    await go(agent, way, ask(), config)
    assert (world, turns(guard)) == (["A"], {"t/1": "paused"})
    await go(agent, way, ask(), {**on("t"), "metadata": {"run_id": "r-2"}})
    assert (world, turns(guard)) == (["A", "A"], {"t/1": "paused", "t/2": "paused"})
