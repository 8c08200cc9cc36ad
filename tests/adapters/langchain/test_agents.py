"""An agent of ``create_agent`` under a guard: one invocation is one run, undone together."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from sagaspan import ConfigurationError, Guard, RunClosed
from tests.adapters.langchain.scripts import answers, ask, calls_of, essence, model, on, states, steps_of

World = list[Any]


class Declined(Exception):
    """The bank says no."""


class Shop:
    """Three tools with effects that can be counted, and what undoes them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.declines = False

        @tool
        def book_flight(city: str) -> dict[str, Any]:
            """Book a flight."""
            world.append(("flight", city))
            return {"id": f"F{len(world)}"}

        @tool
        def book_hotel(city: str, nights: int = 2) -> dict[str, Any]:
            """Book a hotel."""
            world.append(("hotel", city, nights))
            return {"id": f"H{len(world)}"}

        @tool
        def charge(amount: float) -> str:
            """Charge the card."""
            if self.declines:
                raise Declined("no")
            world.append(("charge", amount))
            return "paid"

        def cancel_flight(result: dict[str, Any]) -> None:
            world.append(("cancel", result["id"]))

        def cancel_hotel(result: dict[str, Any], nights: int) -> None:
            world.append(("cancel", result["id"], nights))

        self.tools = [book_flight, book_hotel, charge]
        self.policies: dict[str, dict[str, Any]] = {
            "book_flight": {"compensate": cancel_flight},
            "book_hotel": {"compensate": cancel_hotel},
            "charge": {"effect": "write"},
        }

    def agent(self, *steps: Any, **options: Any) -> Any:
        trip = [("book_flight", {"city": "Rome"}), ("book_hotel", {"city": "Rome"}), ("charge", {"amount": 9.5})]
        return create_agent(model(*(steps or trip)), self.tools, name="trip", **options)


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world)


DONE = [("flight", "Rome"), ("hotel", "Rome", 2), ("charge", 9.5)]
UNDONE = [("flight", "Rome"), ("hotel", "Rome", 2), ("cancel", "H2", 2), ("cancel", "F1")]


def test_a_failing_agent_is_undone_in_reverse_and_its_error_raised(guard: Guard, shop: Shop, world: World) -> None:
    """What a failed agent did is undone last first, once each; the caller gets the tool's own error."""
    shop.declines = True
    agent = guard.wrap(shop.agent(), shop.policies)
    with pytest.raises(Declined) as caught:
        agent.invoke(ask())
    assert type(caught.value) is Declined
    assert any("undone book_hotel, book_flight" in note for note in caught.value.__notes__)
    assert world == UNDONE
    (run,) = guard.runs.list()
    assert (run.status, run.reason, run.name, run.agent) == ("compensated", "error", "trip", "trip")
    assert steps_of(guard, run.id)[:3] == [
        ("book_flight", "compensated"),
        ("book_hotel", "compensated"),
        ("charge", "failed"),
    ]


async def test_the_same_holds_for_ainvoke(guard: Guard, shop: Shop, world: World) -> None:
    """An agent that is awaited is undone alike."""
    shop.declines = True
    with pytest.raises(Declined):
        await guard.wrap(shop.agent(), shop.policies).ainvoke(ask())
    assert world == UNDONE


def test_the_same_run_id_does_nothing_twice(guard: Guard, shop: Shop, world: World) -> None:
    """Invoked again under its run id, an agent gets what was recorded, under the model's new call ids."""
    agent = guard.wrap(shop.agent(), shop.policies, run_id="order-1")
    first = agent.invoke(ask())
    second = agent.invoke(ask())
    assert world == DONE
    assert essence(first["messages"]) == essence(second["messages"])
    assert answers(first)[0].tool_call_id != answers(second)[0].tool_call_id
    assert [m.tool_call_id for m in answers(second)] == [
        call["id"] for message in second["messages"] for call in getattr(message, "tool_calls", ())
    ]


def test_a_completed_run_is_only_replayed(guard: Guard, shop: Shop, world: World) -> None:
    """A call that a completed run has not on record ends the replay with ``RunClosed``, out of ``invoke``."""
    guard.wrap(shop.agent(), shop.policies, run_id="order-1").invoke(ask())
    other = guard.wrap(shop.agent(("book_flight", {"city": "Oslo"})), shop.policies, run_id="order-1")
    with pytest.raises(RunClosed) as caught:
        other.invoke(ask())
    assert type(caught.value) is RunClosed
    assert world == DONE


def test_a_compensated_run_is_refused_at_its_door(guard: Guard, shop: Shop, world: World) -> None:
    """A run that was undone does not start again by itself."""
    shop.declines = True
    agent = guard.wrap(shop.agent(), shop.policies, run_id="order-1")
    with pytest.raises(Declined):
        agent.invoke(ask())
    with pytest.raises(RunClosed):
        agent.invoke(ask())
    assert world == UNDONE


def test_the_original_stays_as_it_is(guard: Guard, shop: Shop, world: World) -> None:
    """The agent that was wrapped is still unguarded: no run, no record, no undo."""
    original = shop.agent()
    guard.wrap(original, shop.policies)
    original.invoke(ask())
    assert world == DONE
    assert guard.runs.list() == []


def test_type_and_attributes_are_kept(guard: Guard, shop: Shop) -> None:
    """A wrapped agent is what it was: type, name, schemas, drawing, and the tools the model sees."""
    original = shop.agent()
    agent = guard.wrap(original, shop.policies)
    assert isinstance(agent, CompiledStateGraph)
    assert type(agent).__name__ == type(original).__name__
    assert agent.get_name() == "trip"
    assert agent.config == original.config
    assert agent.get_input_jsonschema() == original.get_input_jsonschema()
    assert agent.get_output_jsonschema() == original.get_output_jsonschema()
    assert agent.get_graph().draw_mermaid() == original.get_graph().draw_mermaid()
    assert set(vars(agent)) == set(vars(original))


def test_a_reconfigured_copy_is_still_guarded(guard: Guard, shop: Shop, world: World) -> None:
    """``with_config`` on a wrapped agent does not lose the guard."""
    agent = guard.wrap(shop.agent(), shop.policies).with_config(tags=["x"])
    agent.invoke(ask())
    assert list(states(guard).values()) == ["completed"]


def test_every_invocation_is_a_run_of_its_own(guard: Guard, shop: Shop, world: World) -> None:
    """Without an id, two invocations are two runs, and both do their work."""
    agent = guard.wrap(shop.agent(), shop.policies)
    agent.invoke(ask())
    agent.invoke(ask())
    assert world == DONE * 2
    assert list(states(guard).values()) == ["completed", "completed"]


def test_batch_is_a_run_per_item(guard: Guard, shop: Shop, world: World) -> None:
    """The items of a batch are undone apart from each other."""
    guard.wrap(shop.agent(), shop.policies).batch([ask(), ask(), ask()])
    assert sorted(map(str, world)) == sorted(map(str, DONE * 3))
    assert len(guard.runs.list()) == 3


async def test_abatch_is_a_run_per_item(guard: Guard, shop: Shop, world: World) -> None:
    """Concurrent invocations in one loop do not see each other's runs."""
    await guard.wrap(shop.agent(), shop.policies).abatch([ask(), ask(), ask()])
    runs = guard.runs.list()
    assert [len(calls_of(guard, run.id)) for run in runs] == [3, 3, 3]


def test_an_agent_joins_the_run_in_force(guard: Guard, shop: Shop, world: World) -> None:
    """Inside ``guard.run`` an agent opens nothing: its steps are the run's, and undone with it."""
    agent = guard.wrap(shop.agent(), shop.policies)
    with pytest.raises(ValueError, match="later"), guard.run("outer", id="o"):
        agent.invoke(ask())
        raise ValueError("later")
    assert world[3:] == [("cancel", "H2", 2), ("cancel", "F1")]
    assert states(guard) == {"o": "partially_compensated"}  # the charge has no undo


def test_the_name_of_its_runs_can_be_chosen(guard: Guard, shop: Shop) -> None:
    """``name=`` names the runs."""
    guard.wrap(shop.agent(), shop.policies, name="booking").invoke(ask())
    assert guard.runs.list()[0].name == "booking"


def test_parallel_calls_share_the_run(guard: Guard, shop: Shop, world: World) -> None:
    """Calls of one message, which LangGraph runs in threads, belong to the run and are undone with it."""
    shop.declines = True
    steps = ([("book_flight", {"city": "A"}), ("book_hotel", {"city": "A"})], ("charge", {"amount": 1.0}))
    with pytest.raises(Declined):
        guard.wrap(shop.agent(*steps), shop.policies).invoke(ask())
    assert sorted(entry[0] for entry in world) == ["cancel", "cancel", "flight", "hotel"]


def test_parallel_calls_really_run_side_by_side(guard: Guard) -> None:
    """The guard does not serialise an agent's parallel calls."""
    meet = threading.Barrier(2, timeout=60)

    @tool
    def wait_for_the_other(name: str) -> str:
        """Wait."""
        meet.wait()
        return name

    steps = [("wait_for_the_other", {"name": "a"}), ("wait_for_the_other", {"name": "b"})]
    agent = guard.wrap(create_agent(model(steps), [wait_for_the_other]))
    assert [message.content for message in answers(agent.invoke(ask()))] == ["a", "b"]


def test_a_hand_built_graph_is_guarded_with_its_subgraph(guard: Guard, shop: Shop, world: World) -> None:
    """Tool nodes are found in any compiled graph, also in a graph that is a node of another."""
    inner = StateGraph(MessagesState)
    inner.add_node("tools", ToolNode(shop.tools))
    inner.add_edge(START, "tools")
    outer = StateGraph(MessagesState)
    chat = model([("book_flight", {"city": "Rome"}), ("charge", {"amount": 1.0})])
    outer.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "model")
    outer.add_edge("model", "inner")
    outer.add_edge("inner", END)
    original = outer.compile()
    agent = guard.wrap(original, shop.policies)
    output = agent.invoke(ask())
    (run,) = guard.runs.list()
    assert sorted(steps_of(guard, run.id)) == [("book_flight", "done"), ("charge", "done")]
    assert dict(agent.get_subgraphs())["inner"] is agent.nodes["inner"].bound
    assert len(answers(output)) == 2
    original.invoke(ask())
    assert len(guard.runs.list()) == 1


def test_an_agent_as_a_tool_of_another_joins_its_run(guard: Guard, shop: Shop, world: World) -> None:
    """A wrapped agent that a tool of a wrapped agent invokes is part of the outer run."""
    inner = guard.wrap(shop.agent(("book_flight", {"city": "Rome"})), shop.policies)

    @tool
    def delegate(task: str) -> str:
        """Hand over."""
        return str(inner.invoke(ask(task))["messages"][-1].content)

    @tool
    def fail() -> str:
        """Fail."""
        raise Declined("late")

    with pytest.raises(Declined):
        guard.wrap(create_agent(model(("delegate", {"task": "t"}), ("fail", {})), [delegate, fail])).invoke(ask())
    assert world == [("flight", "Rome"), ("cancel", "F1")]
    assert len(guard.runs.list()) == 1


# -- streaming -------------------------------------------------------------------------------------------------


def _shape(chunk: Any) -> Any:
    """A streamed chunk without the ids that differ from run to run."""
    if isinstance(chunk, dict):
        return {key: _shape(value) for key, value in chunk.items()}
    if isinstance(chunk, list | tuple):
        return [_shape(item) for item in chunk]
    return essence([chunk]) if hasattr(chunk, "content") else chunk


MODES: tuple[Any, ...] = ("values", "updates", ["values", "updates"], "custom")


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_it_streams_what_the_unwrapped_agent_streams(guard: Guard, shop: Shop, mode: Any) -> None:
    """Chunks are the same, one by one, in every mode."""
    plain = [_shape(chunk) for chunk in shop.agent().stream(ask(), stream_mode=mode)]
    guarded = [_shape(chunk) for chunk in guard.wrap(shop.agent(), {}).stream(ask(), stream_mode=mode)]
    assert [str(chunk).replace("F4", "F1").replace("H5", "H2") for chunk in guarded] == [str(c) for c in plain]


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_it_streams_the_same_asynchronously(guard: Guard, shop: Shop, mode: Any) -> None:
    """Awaited chunks are the same, one by one, in every mode."""
    plain = [_shape(chunk) async for chunk in shop.agent().astream(ask(), stream_mode=mode)]
    guarded = [_shape(chunk) async for chunk in guard.wrap(shop.agent(), {}).astream(ask(), stream_mode=mode)]
    assert [str(chunk).replace("F4", "F1").replace("H5", "H2") for chunk in guarded] == [str(c) for c in plain]


def test_messages_are_streamed_token_by_token_as_before(guard: Guard, shop: Shop) -> None:
    """In ``messages`` mode the same messages come from the same nodes."""

    def streamed(agent: Any) -> list[tuple[str, str]]:
        return [(type(m).__name__, meta["langgraph_node"]) for m, meta in agent.stream(ask(), stream_mode="messages")]

    assert streamed(guard.wrap(shop.agent())) == streamed(shop.agent())


async def test_event_streams_run_the_guard_too(guard: Guard, shop: Shop) -> None:
    """``astream_events`` goes through the same run."""
    kinds = [event["event"] async for event in guard.wrap(shop.agent(), shop.policies).astream_events(ask())]
    assert kinds.count("on_tool_end") == 3
    assert list(states(guard).values()) == ["completed"]


def test_the_run_is_not_in_force_between_the_chunks(guard: Guard, shop: Shop) -> None:
    """Code that consumes a stream is not inside the agent's run."""
    agent = guard.wrap(shop.agent(), shop.policies)
    assert [guard.current_run() for _ in agent.stream(ask())] == [None] * 7


def test_an_abandoned_stream_is_undone(guard: Guard, shop: Shop, world: World) -> None:
    """A consumer that goes away interrupts the run; without an id of the caller's nobody can resume it."""
    stream = guard.wrap(shop.agent(), shop.policies).stream(ask())
    for _ in range(2):
        next(stream)
    stream.close()
    assert world == [("flight", "Rome"), ("cancel", "F1")]
    (run,) = guard.runs.list()
    assert (run.status, run.reason) == ("compensated", "interrupted")


async def test_an_abandoned_stream_with_an_id_is_held(guard: Guard, shop: Shop, world: World) -> None:
    """A consumer that goes away leaves a run of a known id for somebody to resume."""
    agent = guard.wrap(shop.agent(), shop.policies, run_id="r")
    stream = agent.astream(ask())
    for _ in range(2):
        await anext(stream)
    await stream.aclose()
    assert states(guard) == {"r": "held"}
    await agent.ainvoke(ask())
    assert world == DONE
    assert states(guard) == {"r": "completed"}


async def test_a_cancelled_agent_follows_on_interrupt(guard: Guard, world: World) -> None:
    """Cancellation in the middle of a tool undoes what was done if that is what the wrap says."""
    started = asyncio.Event()

    @tool
    async def book(city: str) -> str:
        """Book."""
        world.append(city)
        return city

    @tool
    async def hang() -> str:
        """Hang."""
        started.set()
        await asyncio.sleep(60)
        return ""

    def cancel(result: str) -> None:
        world.append(f"cancelled {result}")

    agent = create_agent(model(("book", {"city": "A"}), ("hang", {})), [book, hang])
    guarded = guard.wrap(agent, {"book": {"compensate": cancel}}, run_id="r", on_interrupt="compensate")
    task = asyncio.create_task(guarded.ainvoke(ask()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world == ["A", "cancelled A"]
    assert states(guard) == {"r": "compensated"}


async def test_an_abandoned_stream_stops_what_is_still_running(guard: Guard, world: World) -> None:
    """A tool in the middle of its work is stopped with the stream before the run ends."""

    @tool
    async def slow() -> str:
        """Slow."""
        get_stream_writer()("started")
        await asyncio.sleep(2)
        world.append("finished")
        return "ok"

    stream = guard.wrap(create_agent(model(("slow", {})), [slow])).astream(ask(), stream_mode="custom")
    assert await anext(stream) == "started"
    await stream.aclose()
    assert steps_of(guard, guard.runs.list()[0].id) == [("slow", "unknown")]
    assert world == []


# -- what is refused when it is wrapped ------------------------------------------------------------------------


def test_a_policy_for_a_tool_the_agent_does_not_have_is_refused(guard: Guard, shop: Shop) -> None:
    """A typo in a policy is an error at once, with the nearest name."""
    with pytest.raises(ConfigurationError, match="did you mean book_flight"):
        guard.wrap(shop.agent(), {"book_fligth": {"effect": "write"}})


def test_an_agent_is_wrapped_once(guard: Guard, shop: Shop) -> None:
    """Wrapping a wrapped agent is refused rather than guarding twice or ignoring its policies."""
    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(guard.wrap(shop.agent()))


def test_an_agent_of_guarded_tools_is_guarded_once(guard: Guard, shop: Shop, world: World) -> None:
    """Tools that were wrapped before the agent was built keep their guard and policies, and are recorded once."""
    tools = guard.wrap(shop.tools, shop.policies)
    shop.declines = True
    shop.tools = tools
    agent = guard.wrap(shop.agent())
    with pytest.raises(Declined):
        agent.invoke(ask())
    assert world == UNDONE
    assert len(calls_of(guard, guard.runs.list()[0].id)) == 5
    with pytest.raises(ConfigurationError, match="give its policy where that happens"):
        guard.wrap(shop.agent(), {"charge": {"effect": "read"}})


def test_what_it_cannot_guard_is_refused_by_name(guard: Guard) -> None:
    """A LangChain object without tools of its own is refused with what to wrap instead."""
    with pytest.raises(ConfigurationError, match=r"Document.*wrap the agent"):
        guard.wrap(Document(page_content="no agent"))


def test_a_compensation_can_be_named_after_a_tool_of_the_agent(guard: Guard, world: World) -> None:
    """``compensate="cancel"`` finds the agent's own tool, and the undo is recorded under its name."""

    @tool
    def book(city: str) -> str:
        """Book."""
        world.append(city)
        return f"B-{city}"

    @tool
    def cancel(result: str) -> str:
        """Cancel."""
        world.append(f"cancelled {result}")
        return "ok"

    @tool
    def fail() -> str:
        """Fail."""
        raise Declined("no")

    agent = create_agent(model(("book", {"city": "A"}), ("fail", {})), [book, cancel, fail])
    with pytest.raises(Declined):
        guard.wrap(agent, {"book": {"compensate": "cancel"}}).invoke(ask())
    assert world == ["A", "cancelled B-A"]
    assert steps_of(guard, guard.runs.list()[0].id)[-1] == ("cancel", "done")


def test_a_compensation_nobody_has_stops_before_the_first_body(guard: Guard, shop: Shop, world: World) -> None:
    """A name that is neither a tool of the agent nor of the guard is an error before anything ran."""
    with pytest.raises(ConfigurationError, match="cancel_everything"):
        guard.wrap(shop.agent(), {"charge": {"compensate": "cancel_everything"}}).invoke(ask())
    assert world == []


def test_runs_of_a_thread_are_numbered_without_a_checkpointer(guard: Guard, shop: Shop) -> None:
    """A thread id alone makes the runs of a conversation."""
    agent = guard.wrap(shop.agent(), shop.policies)
    for _ in range(11):
        agent.invoke(ask(), on("chat*1"))
    assert set(states(guard)) == {f"chat*1/{n}" for n in range(1, 12)}
    assert guard.runs.list()[0].conversation == "chat*1"
