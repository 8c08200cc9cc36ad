"""Wrapped and unwrapped agents say the same, for many shapes of tools and every way to invoke them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.tools import InjectedState, ToolRuntime
from langchain_core._api import LangChainBetaWarning
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool, ToolException, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_stream_writer
from langgraph.prebuilt import InjectedStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, Field

from sagaspan import Guard
from tests.adapters.langchain.scripts import ask, calls_of, essence, model


@tool
def plain(x: int) -> int:
    """A function."""
    return x + 1


@tool
async def awaited(x: int) -> int:
    """A coroutine."""
    return x + 1


class Arguments(BaseModel):
    """Arguments with descriptions and a default."""

    x: int = Field(description="a number", ge=0)
    y: list[str] = Field(default_factory=lambda: ["a"])


@tool(args_schema=Arguments)
def described(x: int, y: list[str]) -> str:
    """A function with a schema of its own."""
    return f"{x} {y}"


@tool(response_format="content_and_artifact")
def with_artifact(x: int) -> tuple[str, Any]:
    """Content and artifact."""
    return "content", {"x": x}


@tool
def with_state(x: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """State."""
    return f"{x} {len(state['messages'])}"


@tool
def with_field(x: int, messages: Annotated[list[Any], InjectedState("messages")]) -> str:
    """A field of the state."""
    return f"{x} {len(messages)}"


@tool
def with_runtime(x: int, runtime: ToolRuntime) -> str:
    """Runtime."""
    return f"{x} {len(runtime.state['messages'])} {len(runtime.tools)}"


@tool
def with_config(x: int, config: RunnableConfig) -> str:
    """Config."""
    return f"{x} {config['metadata']['m']}"


@tool
def with_writer(x: int) -> str:
    """Stream writer."""
    get_stream_writer()({"x": x})
    return "ok"


@tool
def commanding(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Command."""
    return Command(update={"messages": [ToolMessage(f"cmd {x}", tool_call_id=tool_call_id)]})


@tool(return_direct=True)
def direct(x: int) -> str:
    """Return directly."""
    return f"direct {x}"


@tool
def blocks(x: int) -> list[dict[str, Any]]:
    """Content blocks."""
    return [{"type": "text", "text": str(x)}]


@tool
def none(x: int) -> None:
    """Nothing."""


@tool
def failing(x: int) -> str:
    """Fail."""
    raise ValueError(f"bad {x}")


def _raising(x: int) -> str:
    """Raise."""
    raise ToolException(f"tool says {x}")


class Method(BaseTool):
    """A tool class with both bodies."""

    name: str = "method"
    description: str = "A class."

    def _run(self, x: int, run_manager: Any = None) -> str:
        return f"sync {x} {run_manager is not None}"

    async def _arun(self, x: int, run_manager: Any = None) -> str:
        return f"async {x} {run_manager is not None}"


def _runnable() -> BaseTool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        chain = RunnableLambda(lambda given: f"r {given['x']}")
        return chain.as_tool(name="runnable", description="A runnable.", arg_types={"x": int})


@tool
def with_store(x: int, store: Annotated[Any, InjectedStore()]) -> str:
    """Store."""
    return f"{x} {store is None}"


@tool(
    args_schema={
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "title": "js",
        "description": "JSON.",
    }
)
def json_schema(x: int) -> str:
    """A schema in JSON."""
    return str(x)


@tool
def nested(x: int, inner: Arguments | None = None) -> str:
    """A model among the arguments."""
    return f"{x} {inner}"


SHAPES: dict[str, Callable[[], BaseTool]] = {
    **{
        t.name: (lambda t=t: t)
        for t in (plain, awaited, described, with_artifact, with_state, with_field, with_runtime)
    },
    **{t.name: (lambda t=t: t) for t in (with_config, with_writer, commanding, direct, blocks, none, failing)},
    "handled": lambda: StructuredTool.from_function(_raising, name="handled", handle_tool_error=True),
    "handled_by": lambda: StructuredTool.from_function(
        _raising, name="handled_by", handle_tool_error=lambda e: f"h {e}"
    ),
    "unhandled": lambda: StructuredTool.from_function(_raising, name="unhandled"),
    "method": Method,
    "single": lambda: Tool("single", lambda text: f"got {text}", "One string."),
    "runnable": lambda: _runnable(),
    "invalid": lambda: plain,
    **{t.name: (lambda t=t: t) for t in (with_store, json_schema, nested)},
    "tagged": lambda: StructuredTool.from_function(
        lambda x: x, name="tagged", description="Tags.", tags=["t"], metadata={"m": 1}, callbacks=[]
    ),
    "told what is wrong": lambda: StructuredTool.from_function(
        lambda x: x, name="strict", description="Strict.", args_schema=Arguments, handle_validation_error="no"
    ),
}
ARGUMENTS = {"invalid": {"x": "many"}, "single": {"text": "t"}}


async def _said(target: Any, way: str) -> Any:
    """What an agent says, asked that way: messages, chunks, events and errors, without what is made up anew."""
    config = {"metadata": {"m": "mine"}}
    streamed: dict[str, Any] = {"stream_mode": ["values", "custom", "updates", "messages"]}
    try:
        match way:
            case "invoke":
                return _essence_of(target.invoke(ask(), config))
            case "ainvoke":
                return _essence_of(await target.ainvoke(ask(), config))
            case "batch":
                return [_essence_of(one) for one in target.batch([ask(), ask("again")], config)]
            case "abatch":
                return [_essence_of(one) for one in await target.abatch([ask()], config)]
            case "stream":
                return [_essence_of(chunk) for chunk in target.stream(ask(), config, **streamed)]
            case "astream":
                return [_essence_of(chunk) async for chunk in target.astream(ask(), config, **streamed)]
            case _:
                events = [event async for event in target.astream_events(ask(), config, version="v2")]
                return [(one["event"], one["name"], one["tags"], _essence_of(one["data"])) for one in events]
    except Exception as error:
        return type(error), str(error)


_MADE_UP = ("callbacks", "runtime", "id", "tool_call_id")


def _essence_of(value: Any) -> Any:
    """``value`` with the essence of each message in the place of that; what has an id is told by its type."""
    if isinstance(value, BaseMessage):
        return essence([value])[0]
    if isinstance(value, dict):
        return {name: _essence_of(item) for name, item in value.items() if name not in _MADE_UP}
    if isinstance(value, list | tuple):
        return [_essence_of(item) for item in value if not (isinstance(item, dict) and "langgraph_step" in item)]
    return value if isinstance(value, str | int | float | bool | None) else type(value)


WAYS = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch", "events")


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_wrapped_agent_says_what_the_unwrapped_one_says(guard: Guard, shape: str) -> None:
    """Messages, artifacts, statuses, streamed chunks, events and errors are equal, in seven ways to ask."""
    built = SHAPES[shape]()
    agent = create_agent(model((built.name, ARGUMENTS.get(shape, {"x": 1}))), [built], store=InMemoryStore())
    wrapped = guard.wrap(agent)
    for number, way in enumerate(WAYS, 1):
        expected = await _said(agent, way)
        assert expected, way
        assert await _said(wrapped, way) == expected, way
        runs = guard.runs.list()
        assert len(runs) == number + (number >= WAYS.index("batch") + 1), way
        guarded_once = 0 if shape == "invalid" or (shape == "awaited" and way in ("invoke", "stream", "batch")) else 1
        assert len(calls_of(guard, runs[0].id)) == guarded_once, way


async def _outcome(do: Callable[[], Any]) -> Any:
    try:
        found = do()
        found = await found if inspect.isawaitable(found) else found
    except Exception as error:
        return type(error), str(error)
    return essence([found])[0] if isinstance(found, ToolMessage) else found


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_wrapped_tool_answers_as_the_unwrapped_one_does(guard: Guard, shape: str) -> None:
    """Asked alone, in every way and for what it says of itself; wrong arguments and missing injections fail alike."""
    built = SHAPES[shape]()
    args = ARGUMENTS.get(shape, {"x": 1})
    call = {"name": built.name, "args": args, "id": "c", "type": "tool_call"}
    config = {"metadata": {"m": "mine"}, "tags": ["mine"]}
    given = "t" if shape == "single" else args
    ways: dict[str, Callable[[Any], Any]] = {
        "call": lambda one: one.invoke(call, config), "acall": lambda one: one.ainvoke(call, config),
        "args": lambda one: one.invoke(given, config), "aargs": lambda one: one.ainvoke(given, config),
        "run": lambda one: one.run(given), "run a call": lambda one: one.run(given, tool_call_id="c"),
        "arun": lambda one: one.arun(given), "batch": lambda one: one.batch([given, given], config),
        "abatch": lambda one: one.abatch([given], config), "nothing": lambda one: one.invoke({}, config),
        "schema": lambda one: one.get_input_jsonschema(), "openai": convert_to_openai_tool,
        "args of it": lambda one: one.args, "itself": lambda one: (one.name, one.description, one.tags, one.metadata),
    }  # fmt: skip
    wrapped = guard.wrap(built, {"*": {"loop": False}})
    assert isinstance(wrapped, type(built))
    for way, do in ways.items():
        expected = await _outcome(lambda do=do: do(built))
        assert await _outcome(lambda do=do: do(wrapped)) == expected, way
