"""Single tools and lists of them: the body is guarded, everything else of the tool is LangChain's as before."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain.tools import InjectedState, InjectedStore, ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, Field, PrivateAttr

from sagaspan import ConfigurationError, Guard, KeyConflict
from tests.adapters.langchain.scripts import answers, ask, calls_of, model

World = list[Any]


def call(name: str, args: dict[str, Any], call_id: str = "c1") -> dict[str, Any]:
    """A tool call as a model makes it."""
    return {"name": name, "args": args, "id": call_id, "type": "tool_call"}


def test_a_wrapped_tool_keeps_its_type_and_schema(guard: Guard) -> None:
    """A guarded tool is what it was, for the model and for ``isinstance``."""

    @tool
    def pay(amount: float, card: str = "c1") -> str:
        """Pay something."""
        return "paid"

    guarded = guard.wrap(pay)
    assert isinstance(guarded, StructuredTool)
    assert (guarded.name, guarded.description, guarded.args) == (pay.name, pay.description, pay.args)
    assert guarded.tool_call_schema.model_json_schema() == pay.tool_call_schema.model_json_schema()
    assert guarded.invoke({"amount": 1.0}) == "paid"
    assert guarded.invoke(call("pay", {"amount": 1.0})) == ToolMessage("paid", name="pay", tool_call_id="c1")


def test_an_agent_that_is_not_wrapped_may_ask_its_tool_for_the_same_again_and_again(guard: Guard) -> None:
    """Six users ask an ordinary agent with a guarded tool the same: none of them goes in circles."""

    @tool
    def look(order: str) -> str:
        """Look an order up."""
        return "shipped"

    guarded = guard.wrap(look)
    for _ in range(6):
        agent = create_agent(model(("look", {"order": "17"})), [guarded])
        assert [answer.content for answer in answers(agent.invoke(ask()))] == ["shipped"]


def test_a_list_keeps_its_kind_and_guards_functions_beside_tools(guard: Guard, world: World) -> None:
    """A tuple stays a tuple; a plain function among the tools is guarded as a function; provider tools pass through."""

    @tool
    def one(x: int) -> int:
        """One."""
        return x

    def two(x: int) -> int:
        """Two."""
        return x

    server_side = {"type": "web_search"}
    tools = guard.wrap((one, two, server_side))
    assert isinstance(tools, tuple)
    with guard.run("r", id="r"):
        assert tools[0].invoke({"x": 1}) == 1
        assert tools[1](x=2) == 2
    assert [c.tool for c in calls_of(guard, "r")] == ["one", "two"]
    assert tools[2] is server_side


def test_a_default_left_out_is_the_same_call_as_the_default(guard: Guard, world: World) -> None:
    """The model may give a default or leave it out: it is one call, for every way to declare a tool."""

    @tool
    def inferred(x: int, y: int = 2) -> str:
        """Add."""
        world.append("inferred")
        return "ok"

    class Method(BaseTool):
        name: str = "method"
        description: str = "Add."

        def _run(self, x: int, y: int = 2) -> str:
            world.append("method")
            return "ok"

    schema = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x"]}

    def from_json(x: int, y: int = 2) -> str:
        world.append("json")
        return "ok"

    described = StructuredTool.from_function(from_json, name="described", description="Add.", args_schema=schema)
    tools = guard.wrap([inferred, Method(), described], {"*": {"effect": "write"}})
    with guard.run("r", id="r"):
        for guarded in tools:
            guarded.invoke({"x": 1})
            guarded.invoke({"x": 1, "y": 2})
    assert world == ["inferred", "method", "json"]
    assert [c.args for c in calls_of(guard, "r")] == [{"x": 1, "y": 2}] * 3


def test_injected_arguments_reach_the_body_and_are_not_recorded(guard: Guard, world: World) -> None:
    """State, store, runtime, call id and config are LangChain's to fill; the ledger has what the model said."""

    @tool
    def nosy(
        x: int,
        state: Annotated[dict[str, Any], InjectedState],
        store: Annotated[BaseStore, InjectedStore],
        runtime: ToolRuntime,
        tool_call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
    ) -> str:
        """Look at everything."""
        world.append(
            (len(state["messages"]), store is not None, runtime.tool_call_id == tool_call_id, config["metadata"]["m"])
        )
        return "ok"

    agent = create_agent(model(("nosy", {"x": 1})), [nosy], store=InMemoryStore())
    guard.wrap(agent, run_id="r").invoke(ask(), {"metadata": {"m": "mine"}})
    assert world == [(2, True, True, "mine")]
    (record,) = calls_of(guard, "r")
    assert record.args == {"x": 1}
    assert record.tool_call_id is not None


def test_the_run_manager_reaches_the_body(guard: Guard, world: World) -> None:
    """A tool class that asks for LangChain's run manager gets it, sync and async."""

    class Managed(BaseTool):
        name: str = "managed"
        description: str = "Managed."

        def _run(self, x: int, run_manager: Any = None) -> str:
            world.append(type(run_manager).__name__)
            return "ok"

    guarded = guard.wrap(Managed())
    with guard.run("r", id="r"):
        guarded.invoke({"x": 1})
        asyncio.run(guarded.ainvoke({"x": 2}))
    assert world == ["CallbackManagerForToolRun", "CallbackManagerForToolRun"]
    assert [c.args for c in calls_of(guard, "r")] == [{"x": 1}, {"x": 2}]


def test_the_guard_fills_an_injected_idempotency_key(guard: Guard, world: World) -> None:
    """A body that asks for ``idempotency_key``, hidden from the model, gets the call's key."""

    @tool
    def pay(amount: float, idempotency_key: Annotated[str | None, InjectedToolArg] = None) -> str:
        """Pay."""
        world.append(idempotency_key)
        return "paid"

    with guard.run("r", id="r"):
        guard.wrap(pay, {"pay": {"effect": "write"}}).invoke(call("pay", {"amount": 1.0}))
    (record,) = calls_of(guard, "r")
    assert world == [record.idempotency_key]
    assert record.args == {"amount": 1.0}


def test_an_artifact_is_replayed_if_it_can_be_recorded(guard: Guard, world: World) -> None:
    """Content and artifact are both there on a replay; an artifact without encoding is left out, not the content."""

    @tool(response_format="content_and_artifact")
    def fetch(plain: bool) -> tuple[str, Any]:
        """Fetch."""
        world.append(plain)
        return "content", {"rows": [1, 2]} if plain else object()

    guarded = guard.wrap(fetch, {"fetch": {"effect": "write"}})
    for _ in range(2):
        with guard.run("r", id="r"):
            messages = [guarded.invoke(call("fetch", {"plain": plain})) for plain in (True, False)]
    assert world == [True, False]
    assert [message.content for message in messages] == ["content", "content"]
    assert [message.artifact for message in messages] == [{"rows": [1, 2]}, None]


def test_the_artifact_of_a_first_call_is_the_bodys_own_object(guard: Guard) -> None:
    """Recording does not replace what the body returned."""
    artifact = object()

    @tool(response_format="content_and_artifact")
    def fetch() -> tuple[str, Any]:
        """Fetch."""
        return "content", artifact

    with guard.run("r"):
        assert guard.wrap(fetch).invoke(call("fetch", {})).artifact is artifact


def test_a_command_is_replayed_as_a_command_with_the_new_call_id(guard: Guard, world: World) -> None:
    """A tool that steers the graph steers it on a replay too, and answers the call that was made now."""

    @tool
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Note."""
        world.append(text)
        return Command(update={"messages": [ToolMessage(f"noted {text}", tool_call_id=tool_call_id, id="fixed")]})

    agent = guard.wrap(create_agent(model(("note", {"text": "a"})), [note]), {"note": {"effect": "write"}}, run_id="r")
    first, second = agent.invoke(ask()), agent.invoke(ask())
    assert world == ["a"]
    assert [m.content for m in answers(first)] == [m.content for m in answers(second)] == ["noted a"]
    assert answers(second)[0].tool_call_id == second["messages"][1].tool_calls[0]["id"]
    assert answers(second)[0].id != "fixed"


def test_a_tool_message_is_replayed_as_one(guard: Guard, world: World) -> None:
    """A body that makes its own message is answered with a fresh copy of it."""

    @tool
    def speak(tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Speak."""
        world.append("spoke")
        return ToolMessage("hello", tool_call_id=tool_call_id, artifact={"a": 1})

    guarded = guard.wrap(speak, {"speak": {"effect": "write"}})
    for call_id in ("c1", "c2"):
        with guard.run("r", id="r"):
            message = guarded.invoke(call("speak", {}, call_id))
    assert world == ["spoke"]
    assert (message.content, message.tool_call_id, message.artifact) == ("hello", "c2", {"a": 1})


def test_a_tool_exception_keeps_its_meaning(guard: Guard) -> None:
    """``handle_tool_error`` answers the model as before; the record says failed."""

    def broken(x: int) -> str:
        """Break."""
        raise ToolException(f"no {x}")

    handled = StructuredTool.from_function(broken, handle_tool_error=lambda error: f"handled: {error}")
    with guard.run("r", id="r"):
        message = guard.wrap(handled).invoke(call("broken", {"x": 1}))
    assert (message.content, message.status) == ("handled: no 1", "error")
    assert [str(c.state) for c in calls_of(guard, "r")] == ["failed"]
    with pytest.raises(ToolException, match="no 2"):
        guard.wrap(StructuredTool.from_function(broken)).invoke({"x": 2})


def test_bad_arguments_are_langchains_to_answer(guard: Guard, world: World) -> None:
    """Arguments that do not fit the schema never reach the ledger."""

    @tool
    def strict(x: int) -> str:
        """Strict."""
        world.append(x)
        return "ok"

    agent = guard.wrap(create_agent(model(("strict", {"x": "many"})), [strict]), run_id="r")
    (message,) = answers(agent.invoke(ask()))
    assert message.status == "error"
    assert calls_of(guard, "r") == ()


async def test_an_async_only_tool(guard: Guard, world: World) -> None:
    """A coroutine tool is guarded; called synchronously it fails as it always did, and nothing is recorded."""

    @tool
    async def fetch(x: int) -> str:
        """Fetch."""
        world.append(x)
        return "ok"

    guarded = guard.wrap(fetch, {"fetch": {"effect": "write"}})
    async with guard.run("r", id="r"):
        assert await guarded.ainvoke({"x": 1}) == "ok"
        assert await guarded.ainvoke({"x": 1}) == "ok"
        told = json.loads((await guarded.ainvoke(call("fetch", {"x": 1}))).content)
        assert (told["status"], told["result"]) == ("done", "ok")
        assert told["message"].startswith("already done at 20")
        with pytest.raises(NotImplementedError):
            guarded.invoke({"x": 2})
    assert world == [1]
    assert len(calls_of(guard, "r")) == 1


async def test_a_sync_tool_is_awaited_once(guard: Guard, world: World) -> None:
    """A tool without a coroutine runs in a thread under ``ainvoke``, in its run, guarded once."""

    @tool
    def slow(x: int) -> str:
        """Slow."""
        world.append(x)
        return "ok"

    async with guard.run("r", id="r"):
        await guard.wrap(slow).ainvoke({"x": 1})
    assert world == [1]
    assert [c.tool for c in calls_of(guard, "r")] == ["slow"]


async def test_sync_and_async_bodies_of_a_tool_are_one_tool(guard: Guard, world: World) -> None:
    """A write done by one body of a tool is not done again by the other."""

    def sync(x: int) -> str:
        world.append("sync")
        return "ok"

    async def not_sync(x: int) -> str:
        world.append("async")
        return "ok"

    both = StructuredTool.from_function(sync, not_sync, name="both", description="Both.")
    guarded = guard.wrap(both, {"both": {"effect": "write"}})
    async with guard.run("r", id="r"):
        guarded.invoke({"x": 1})
        await guarded.ainvoke({"x": 1})
    assert world == ["sync"]


class Counter(BaseTool):
    """A tool class with state, whose asynchronous body calls the synchronous one, as many do."""

    name: str = "counter"
    description: str = "Count."
    total: int = 0
    _calls: int = PrivateAttr(default=0)

    def _run(self, by: int) -> int:
        self.total += by
        self._calls += 1
        return self.total

    async def _arun(self, by: int) -> int:
        return self._run(by)


async def test_a_tool_class_shares_its_state_with_its_guarded_self(guard: Guard) -> None:
    """State changes through either object are seen by both; a body that calls the other body is guarded once."""
    counter = Counter()
    guarded = guard.wrap(counter)
    assert isinstance(guarded, Counter)
    async with guard.run("r", id="r"):
        assert guarded.invoke({"by": 1}) == 1
        assert await guarded.ainvoke({"by": 2}) == 3
    assert counter.invoke({"by": 10}) == 13
    assert (guarded.total, counter.total, guarded._calls, counter._calls) == (13, 13, 3, 3)
    assert len(calls_of(guard, "r")) == 2


def test_a_copy_of_a_guarded_tool_is_guarded_and_its_own(guard: Guard) -> None:
    """``model_copy`` of a guarded tool has state of its own and is still guarded."""
    guarded = guard.wrap(Counter())
    copied = guarded.model_copy(update={"total": 100})
    with guard.run("r", id="r"):
        assert copied.invoke({"by": 1}) == 101
        assert guarded.invoke({"by": 1}) == 1
    assert len(calls_of(guard, "r")) == 2


def test_a_single_input_tool(guard: Guard, world: World) -> None:
    """The oldest kind of tool, which takes one string, is recorded under the name of its parameter."""
    old = Tool("search", lambda query: world.append(query) or "found", "Search.")
    guarded = guard.wrap(old, {"search": {"effect": "write"}})
    with guard.run("r", id="r"):
        assert guarded.invoke("cats") == "found"
        assert guarded.run("cats") == "found"
    assert world == ["cats"]
    assert [c.args for c in calls_of(guard, "r")] == [{"query": "cats"}]


def test_a_single_input_tool_with_a_config(guard: Guard, world: World) -> None:
    """The config of such a tool is no argument of the model's either."""

    def search(query: str, config: RunnableConfig) -> str:
        world.append(config["metadata"]["m"])
        return query

    old = Tool("search", search, "Search.")
    assert guard.wrap(old).invoke("cats", {"metadata": {"m": "mine"}}) == "cats"
    assert world == ["mine"]
    with pytest.raises(ConfigurationError, match="config"):
        guard.wrap(old, {"search": {"key": "config"}})


def test_callbacks_see_what_they_saw(guard: Guard) -> None:
    """LangChain's callbacks fire as before, with the tool's own error."""
    seen: list[Any] = []

    class Handler(BaseCallbackHandler):
        def on_tool_start(self, serialized: Any, input_str: str, **details: Any) -> None:
            seen.append(("start", serialized["name"], input_str))

        def on_tool_end(self, output: Any, **details: Any) -> None:
            seen.append(("end", output))

        def on_tool_error(self, error: BaseException, **details: Any) -> None:
            seen.append(("error", type(error)))

    @tool
    def pick(x: int) -> int:
        """Pick."""
        return [10][x]

    for target in (pick, guard.wrap(pick)):
        assert target.invoke({"x": 0}, {"callbacks": [Handler()]}) == 10
        with pytest.raises(IndexError):
            target.invoke({"x": 1}, {"callbacks": [Handler()]})
    assert seen[:4] == seen[4:]


class Address(BaseModel):
    """An argument with a shape."""

    city: str


def test_nested_models_are_recorded_as_data(guard: Guard, world: World) -> None:
    """An argument that LangChain parses into a model reaches the body as a model and the ledger as data."""

    @tool
    def ship(to: Address) -> str:
        """Ship."""
        world.append(type(to).__name__)
        return to.city

    with guard.run("r", id="r"):
        assert guard.wrap(ship).invoke({"to": {"city": "Rome"}}) == "Rome"
    assert world == ["Address"]
    assert calls_of(guard, "r")[0].args == {"to": {"city": "Rome"}}


def test_open_arguments_of_a_json_schema_are_all_recorded(guard: Guard) -> None:
    """A tool that takes whatever its JSON schema says, as remote tools do, is recorded with all of it."""

    def remote(**arguments: Any) -> str:
        return json.dumps(arguments)

    schema = {"type": "object", "properties": {"file-path": {"type": "string"}, "n": {"type": "integer"}}}
    described = StructuredTool.from_function(remote, name="remote", description="Remote.", args_schema=schema)
    with guard.run("r", id="r"):
        assert guard.wrap(described).invoke({"file-path": "/a", "n": 1}) == '{"file-path": "/a", "n": 1}'
    assert calls_of(guard, "r")[0].args == {"file-path": "/a", "n": 1}


def test_a_business_key_may_name_the_models_arguments(guard: Guard, world: World) -> None:
    """``key=`` is checked against what the model sees, and makes two runs one call."""

    @tool
    def pay(order: str, amount: float, config: RunnableConfig) -> str:
        """Pay."""
        world.append(order)
        return "paid"

    guarded = guard.wrap(pay, {"pay": {"key": "order"}})
    for run in ("a", "b"):
        with guard.run(run, id=run):
            guarded.invoke({"order": "o1", "amount": 1.0})
    assert world == ["o1"]
    with pytest.raises(ConfigurationError, match="config"):
        guard.wrap(pay, {"pay": {"key": "config"}})


def test_a_guard_tool_function_in_a_langchain_tool_is_guarded_once(guard: Guard, world: World) -> None:
    """A function declared with ``@guard.tool`` keeps its own guard inside a LangChain tool."""

    @tool
    @guard.tool(key="order")
    def pay(amount: float, order: str = "o") -> str:
        """Pay."""
        world.append(amount)
        return "paid"

    guarded = guard.wrap(pay)
    with guard.run("r", id="r"):
        assert guarded.invoke({"amount": 1.0}) == "paid"
        assert guarded.invoke({"amount": 1.0}) == "paid"
        with pytest.raises(KeyConflict):
            guarded.invoke({"amount": 2.0})
    assert world == [1.0]
    assert len(calls_of(guard, "r")) == 1
    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(pay, {"pay": {"effect": "read"}})


def test_a_tool_is_wrapped_once_and_opens_no_run(guard: Guard) -> None:
    """A second wrap, a run id, or a policy for another tool is refused."""

    @tool
    def pay(amount: float) -> str:
        """Pay."""
        return "paid"

    with pytest.raises(ConfigurationError, match="guarded already"):
        guard.wrap(guard.wrap(pay))
    with pytest.raises(ConfigurationError, match="opens no run"):
        guard.wrap(pay, run_id="r")
    with pytest.raises(ConfigurationError, match="did you mean pay"):
        guard.wrap(pay, {"pya": {}})


def test_a_method_compensates_by_its_tools_name(guard: Guard, world: World) -> None:
    """A tool class can be the undo of another: its body runs on its own object."""

    class Cancel(BaseTool):
        name: str = "cancel"
        description: str = "Cancel."
        reason: str = "rollback"

        def _run(self, result: str) -> str:
            world.append((self.reason, result))
            return "ok"

    @tool
    def book(city: str) -> str:
        """Book."""
        return f"B-{city}"

    book_guarded, _ = guard.wrap([book, Cancel()], {"book": {"compensate": "cancel"}})
    with pytest.raises(ValueError, match="later"), guard.run("r", id="r"):
        book_guarded.invoke({"city": "A"})
        raise ValueError("later")
    assert world == [("rollback", "B-A")]
    assert [c.tool for c in calls_of(guard, "r")] == ["book", "cancel"]


def test_an_undo_that_is_guarded_itself_is_recorded_once(guard: Guard, world: World) -> None:
    """A compensation named after a tool that was wrapped before runs its body, not its guard."""

    @tool
    def cancel(result: str) -> str:
        """Cancel."""
        world.append(result)
        return "ok"

    @tool
    def book(city: str) -> str:
        """Book."""
        return f"B-{city}"

    built = create_agent(model(("book", {"city": "A"})), [guard.wrap(cancel), book])
    with pytest.raises(ValueError, match="later"), guard.run("r", id="r"):
        guard.wrap(built, {"book": {"compensate": "cancel"}}).invoke(ask())
        raise ValueError("later")
    assert world == ["B-A"]
    assert [(c.tool, c.phase) for c in calls_of(guard, "r")] == [("book", "forward"), ("cancel", "compensation")]


class Till(BaseTool):
    """A tool class with a field of its own."""

    name: str = "pay"
    description: str = "Pay."
    account: str = "till"
    bank: Any = None
    paid: int = 0
    log: Any = None

    def _run(self, amount: int) -> str:
        self.paid += amount
        self.log.append((self.account, amount))
        return "paid"


class Numbered(Till):
    """Each object of it has a number that nobody gave it."""

    number: str = Field(default_factory=lambda: uuid4().hex)


class Bank(BaseModel):
    """What a tool is made with."""

    name: str


@dataclass
class Branch:
    """Another thing that a tool is made with."""

    banks: list[Bank]


@pytest.mark.parametrize(
    ("same", "other"),
    [
        ({}, {"account": "safe"}),
        ({"bank": Bank(name="a")}, {"bank": Bank(name="b")}),
        ({"bank": Branch([Bank(name="a")])}, {"bank": Branch([Bank(name="b")])}),
    ],
    ids=["a-value", "a-model", "within-a-dataclass"],
)
def test_objects_of_one_class_that_differ_in_a_plain_field_are_two_tools(
    guard: Guard, world: World, same: dict[str, Any], other: dict[str, Any]
) -> None:
    """An equal write of the second would silently not happen; it is refused. Those that are alike are one tool."""
    tills = [Till(log=world, **deepcopy(fields)) for fields in (same, same, other)]
    till, again, safe = (guard.wrap(one, {"pay": {"effect": "write"}}) for one in tills)
    with guard.run("r", id="r"):
        assert [till.invoke({"amount": 5}), again.invoke({"amount": 5})] == ["paid", "paid"]
        with pytest.raises(ConfigurationError, match="different names"):
            safe.invoke({"amount": 5})
    assert world == [("till", 5)]


def test_what_a_default_factory_made_tells_no_two_apart(guard: Guard, world: World) -> None:
    """A tool that is made anew, with an id or the time in it, does a write once; a value that was given tells."""
    tills = [Numbered(log=world), Numbered(log=world), Numbered(log=world, number="mine")]
    one, again, other = (guard.wrap(each, {"pay": {"effect": "write"}}) for each in tills)
    with guard.run("r", id="r"):
        assert [one.invoke({"amount": 5}), again.invoke({"amount": 5})] == ["paid", "paid"]
        with pytest.raises(ConfigurationError, match="different names"):
            other.invoke({"amount": 5})
    assert world == [("till", 5)]


def test_a_tool_that_counts_in_its_own_fields_stays_itself(guard: Guard, world: World) -> None:
    """Wrapped again within its run, it is the same object, whatever it has counted since."""
    till = Till(log=world)
    with guard.run("r", id="r"):
        for _ in range(2):
            guard.wrap(till, {"pay": {"effect": "write"}}).invoke({"amount": 5})
    assert world == [("till", 5)]
