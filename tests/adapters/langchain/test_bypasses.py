"""A gated tool of a wrapped agent that is reached by another way than LangChain's fails closed, or is guarded there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, Tool, tool
from langgraph.graph import START, MessagesState, StateGraph

from sagaspan import ApprovalDenied, ConfigurationError, Guard, Refused
from tests.adapters.langchain.scripts import ask, calls_of, model
from tests.adapters.langchain.test_models import Counted

World = list[Any]
GATED = {"pay": {"approve": True}}


@pytest.fixture
def pay(world: World) -> BaseTool:
    @tool
    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return f"paid {to}"

    return pay


@pytest.fixture
def strict(guard: Guard) -> Any:
    """Everything that must be approved is denied."""
    with guard.override(approver="auto-deny"):
        yield guard


def _node(work: Callable[[], Any], tools: Any = ()) -> Any:
    """A graph with one node of one's own; ``tools`` are reached by it some way."""

    def act(state: Any) -> Any:
        _ = tools
        work()
        return {"messages": [AIMessage("done")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    return graph.compile()


# -- threads that lose the context -----------------------------------------------------------------------------


def in_a_thread(work: Callable[[], Any]) -> None:
    """``threading.Thread``."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_timer(work: Callable[[], Any]) -> None:
    """``threading.Timer``."""
    timer = threading.Timer(0, work)
    timer.start()
    timer.join()


def in_a_pool(work: Callable[[], Any]) -> None:
    """A pool of its own."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def in_a_warm_pool(work: Callable[[], Any]) -> None:
    """A pool whose thread is older than the agent's step."""
    _warm.submit(work).result()


_warm = ThreadPoolExecutor(1)
_warm.submit(int).result()
PLACES = [in_a_thread, in_a_timer, in_a_pool, in_a_warm_pool]


@pytest.mark.parametrize("place", PLACES)
def test_a_gated_tool_in_a_lost_thread_does_not_run(
    strict: Guard, world: World, pay: BaseTool, place: Callable[..., None]
) -> None:
    """The original object is not what runs there, although nothing of the context is."""
    told: list[str] = []

    def attempt() -> None:
        with pytest.raises(ApprovalDenied):
            pay.invoke({"to": "A"})
        told.append("denied")

    strict.wrap(_node(lambda: place(attempt), pay), GATED).invoke(ask())
    assert (world, told) == ([], ["denied"])


@pytest.mark.parametrize("place", PLACES)
def test_a_tool_in_a_lost_thread_is_a_step_of_the_run(
    guard: Guard, world: World, pay: BaseTool, place: Callable[..., None]
) -> None:
    """It is recorded there, and undone with the rest."""

    def work() -> None:
        place(lambda: pay.invoke({"to": "A"}))
        raise ValueError("later")

    agent = guard.wrap(
        _node(work, pay), {"pay": {"compensate": lambda to: world.append(f"back from {to}")}}, run_id="r"
    )
    with pytest.raises(ValueError, match="later"):
        agent.invoke(ask())
    assert world == ["A", "back from A"]
    assert calls_of(guard, "r")[0].tool == "pay"


async def test_a_job_of_the_loops_own_pool(strict: Guard, world: World, pay: BaseTool) -> None:
    """``run_in_executor`` loses the context too."""

    async def act(state: Any) -> Any:
        await asyncio.get_running_loop().run_in_executor(None, pay.invoke, {"to": "A"})
        return {"messages": [AIMessage("done")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    with pytest.raises(ApprovalDenied):
        await strict.wrap(graph.compile(), GATED).ainvoke(ask())
    assert world == []


def test_a_model_in_a_lost_thread_is_metered(guard: Guard) -> None:
    """What it asks is a step of the run too."""
    chat = Counted(model="gpt-4o")
    guard.wrap(_node(lambda: in_a_thread(lambda: chat.invoke("hi")), chat), run_id="r").invoke(ask())
    run = guard.runs.get("r")
    assert run is not None
    assert [call.tool for call in run.calls] == ["chat gpt-4o"]


def test_threads_of_others_are_left_alone(strict: Guard, world: World, pay: BaseTool) -> None:
    """A thread that no step started runs the original, also on a worker that a step had made."""
    with ThreadPoolExecutor(1) as pool:
        strict.wrap(_node(lambda: pool.submit(int).result(), pay), GATED).invoke(ask())
        pool.submit(pay.invoke, {"to": "A"}).result()
    in_a_thread(lambda: pay.invoke({"to": "B"}))
    assert world == ["A", "B"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_outlives_its_agent_starts_nothing(guard: Guard, world: World, pay: BaseTool) -> None:
    """Its run is over, and would not undo it."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def late() -> None:
        over.wait(60)
        pay.invoke({"to": "A"})

    def work() -> None:
        threads.append(threading.Thread(target=late))
        threads[0].start()

    guard.wrap(_node(work, pay), {"pay": {"effect": "write"}}).invoke(ask())
    over.set()
    threads[0].join()
    assert world == []


# -- bodies that are called directly ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["func", "_run"])
def test_code_that_calls_the_body_of_a_gated_tool_is_refused(
    guard: Guard, world: World, pay: BaseTool, how: str
) -> None:
    """The function is the user's own, which nothing may change: so nobody is let believe that it is guarded."""
    target: Any = pay

    def direct() -> None:
        target.func(to="A") if how == "func" else target._run(to="A", config={})

    agent = _node(direct, pay)
    with pytest.raises(ConfigurationError, match="calls its body directly, past the guard"):
        guard.wrap(agent, GATED)
    assert "the tool 'pay': the node 'act' calls its body, past the guard" in guard.coverage(agent).opaque
    guard.wrap(agent).invoke(ask())  # a tool without a policy stays what it was
    assert world == ["A"]


def test_a_function_that_guards_itself_may_be_called_directly(guard: Guard, world: World) -> None:
    """``@guard.tool`` beneath a LangChain tool holds whoever calls it."""

    def pay(to: str) -> str:
        """Pay."""
        world.append(to)
        return to

    inner = tool(guard.tool(pay, approve=True))
    agent = guard.wrap(_node(lambda: inner.func(to="A"), inner))
    with guard.override(approver="auto-deny"), pytest.raises(ApprovalDenied):
        agent.invoke(ask())
    assert world == []


@pytest.mark.parametrize("way", ["func", "coroutine"])
async def test_the_function_of_a_guarded_tool_is_guarded(guard: Guard, world: World, way: str) -> None:
    """Whoever gets a tool from the agent, as a tool gets it from its runtime, cannot step past its guard."""

    def pay(to: str, amount: int = 5) -> str:
        """Pay."""
        world.append((to, amount))
        return f"paid {to}"

    async def apay(to: str, amount: int = 5) -> str:
        """Pay."""
        return pay(to, amount)

    one = tool(pay if way == "func" else apay)
    guarded = guard.wrap(one, {one.name: {"effect": "write", "approve": "amount > 9"}})
    async with guard.run("r", id="s"):
        assert [await _called(guarded, way, "A"), await _called(guarded, way, to="A", amount=5)] == ["paid A"] * 2
    with guard.override(approver="auto-deny"):
        async with guard.run("r", id="t"):
            with pytest.raises(Refused):
                await _called(guarded, way, "A", 10)
    assert world == [("A", 5)]
    assert await _called(one, way, "B") == "paid B"


async def _called(one: Any, way: str, *args: Any, **kwargs: Any) -> Any:
    result = getattr(one, way)(*args, **kwargs)
    return result if way == "func" else await result


def test_a_tool_that_calls_another_ones_function(strict: Guard, world: World, pay: BaseTool) -> None:
    """The tools in a ``ToolRuntime`` are the guarded ones."""

    @tool
    def sneak(runtime: ToolRuntime) -> str:
        """Reach around."""
        inner: Any = next(one for one in runtime.tools if one.name == "pay")
        return str(inner.func("A"))

    with contextlib.suppress(ApprovalDenied):
        strict.wrap(create_agent(model(("sneak", {})), [sneak, pay]), GATED).invoke(ask())
    assert world == []


def test_a_tool_of_one_input(guard: Guard, world: World) -> None:
    """The oldest kind of tool too."""
    guarded: Any = guard.wrap(Tool("say", world.append, "Say."), {"say": {"effect": "write"}})
    with guard.run("r", id="r"):
        guarded.func("hi")
        guarded.invoke("hi")
    assert world == ["hi"]


# -- classes that override how they run ------------------------------------------------------------------------


class Itself(BaseTool):
    """Its ``run`` does the work."""

    name: str = "pay"
    description: str = "Pay."
    world: Any  # not copied

    def run(self, tool_input: Any, *args: Any, **options: Any) -> Any:
        self.world.append(tool_input)
        return "paid"

    def _run(self, **given: Any) -> Any:
        raise NotImplementedError


class Logging(BaseTool):
    """Its ``run`` adds something to LangChain's."""

    name: str = "pay"
    description: str = "Pay."
    world: Any  # not copied

    def run(self, tool_input: Any, *args: Any, **options: Any) -> Any:
        self.world.append("logged")
        return super().run(tool_input, *args, **options)

    def _run(self, to: str) -> str:
        self.world.append(to)
        return "paid"


def test_a_class_that_runs_itself_is_refused_if_it_is_gated(guard: Guard, world: World) -> None:
    """There is no body to stand around; without a policy it stays what it was, and ``coverage`` says so."""
    itself = Itself(world=world)
    for target in (itself, [itself], create_agent(model(), [itself]), _node(lambda: itself.invoke("x"))):
        with pytest.raises(ConfigurationError, match="its class runs it in 'run' without its body, past the guard"):
            guard.wrap(target, GATED)
    assert guard.coverage([itself]).opaque == ("the tool 'pay': its class runs it in 'run', past the guard",)
    assert guard.wrap(itself).invoke("x") == "paid"


def test_one_that_is_made_on_the_way_is_refused_there(strict: Guard, world: World) -> None:
    """Nobody could know it before."""

    def work() -> None:
        Itself(world=world).invoke("x")

    with strict.override(approver="auto-approve"), pytest.raises(ConfigurationError, match="past the guard"):
        strict.wrap(_node(work), {"*": {"approve": True}}).invoke(ask())
    assert world == []


def test_a_class_that_adds_to_run_is_guarded(strict: Guard, world: World) -> None:
    """Also where only a closure holds it, and its class is newer than the guard."""

    class Newer(Logging):
        """A class that is made later."""

        def run(self, tool_input: Any, *args: Any, **options: Any) -> Any:
            return super().run(tool_input, *args, **options)

    for kind in (Logging, Newer):
        one = kind(world=world)
        with pytest.raises(ApprovalDenied):
            strict.wrap(_node(functools.partial(one.invoke, {"to": "A"})), {"*": {"approve": True}}).invoke(ask())
    assert world == ["logged", "logged"]
    one.invoke({"to": "B"})
    assert world[2:] == ["logged", "B"]
