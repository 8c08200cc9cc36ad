"""The private names of LangChain's tools, models and nodes that this adapter leans on, and the check of all of them.

Those of LangGraph's tasks are in ``_compat_tasks``. All else in the adapter is public API. The floors are those of
reference/langchain.md, section 9.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.language_models.base import BaseLanguageModel
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.tools import Tool as SingleInputTool
from pydantic import create_model

from sagaspan import ConfigurationError
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain._marks import own_class

NEEDED: Final = "langchain-core>=1.7, langgraph>=1.2.12 and langgraph-prebuilt>=1.1.1"
_PACKAGES: Final = ("langchain-core", "langgraph", "langgraph-prebuilt")

try:
    from langgraph.graph.message import add_messages
    from langgraph.prebuilt import ToolNode
    from langgraph.pregel import Pregel
    from langgraph.pregel.remote import RemoteGraph

    _missing: str | None = None
except ImportError as _error:  # said when something is wrapped, where it can be acted on
    _missing = str(_error)


@functools.cache
def check() -> None:
    """Raise ``ConfigurationError`` if the installed versions lack something this adapter needs."""
    lacking = _missing or tasks.missing or next(itertools.chain(_lacking(), tasks.lacking()), None)
    if lacking is not None:
        installed = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        raise ConfigurationError(f"the LangChain adapter needs {NEEDED}; installed: {installed} ({lacking})")


def _lacking() -> Iterator[str]:
    node = ToolNode([])
    private = {
        BaseTool: ("_filter_injected_args",), BaseChatModel: ("_get_ls_params",), BaseLLM: ("_get_ls_params",),
        node: ("_parse_input", "_messages_key", "_extract_state", "_wrap_tool_call", "_awrap_tool_call"),
    }  # fmt: skip
    for owner, names in private.items():
        yield from (f"{owner!r} has no {name!r} any more" for name in names if not hasattr(owner, name))
    if not isinstance(getattr(node, "_tools_by_name", None), dict):
        yield "ToolNode._tools_by_name is gone"
    if not _runs_itself(node):
        yield "ToolNode.func is not its own method any more"
    if not {"nodes", "stream", "astream", "get_name"} <= {*dir(Pregel), *Pregel.__annotations__}:
        yield "Pregel has changed"


def is_tool(target: object) -> bool:
    """Whether ``target`` is a LangChain tool."""
    return isinstance(target, BaseTool)


def is_graph(target: object) -> bool:
    """Whether ``target`` is a compiled graph that runs here."""
    return isinstance(target, Pregel)


def is_model(target: object) -> bool:
    """Whether ``target`` is a model of chat, of texts or of embeddings."""
    return isinstance(target, BaseChatModel | BaseLLM | Embeddings)


def facts_of(model: BaseLanguageModel[Any], stop: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says of itself for tracing; a provider only if its class names one."""
    kind: Any = own_class(model)
    facts = dict(kind._get_ls_params(model, stop=stop, **options))  # noqa: SLF001 - the reason for this module
    if kind._get_ls_params in (BaseChatModel._get_ls_params, BaseLLM._get_ls_params):  # noqa: SLF001 - as above
        facts.pop("ls_provider", None)  # made of the name of the class, which no price table knows
    return facts


@functools.cache
def takes(method: Callable[..., Any], name: str) -> bool:
    """Whether ``method`` has a parameter ``name``, or takes all."""
    parameters = inspect.signature(method).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def is_runnable(target: object) -> bool:
    """Whether ``target`` is anything else of LangChain's that is invoked, and runs here."""
    return isinstance(target, Runnable) and not isinstance(target, RemoteGraph)


def name_of(model: Any, facts: Mapping[str, Any] | None = None) -> str:
    """What a model asks for, or what it is."""
    known = facts_of(model, None, {}) if facts is None else facts
    return str(known.get("ls_model_name") or model._llm_type)  # noqa: SLF001 - as every model has it


def injected_among(tool: BaseTool, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` that LangChain fills and the model never sees."""
    candidates = dict.fromkeys(names)
    return frozenset(candidates) - frozenset(tool._filter_injected_args(candidates))  # noqa: SLF001 - the reason for this module


def method_of(kind: Any, *, is_async: bool) -> Callable[..., Any]:
    """What LangChain calls as the body of a tool of this class: the methods its subclasses define."""
    method: Callable[..., Any] = kind._arun if is_async else kind._run  # noqa: SLF001 - the reason for this module
    return method


def is_executors_call(options: Mapping[str, Any]) -> bool:
    """Whether ``AgentExecutor`` calls ``BaseTool.run`` for its model: it names a colour, and gives no tool call id."""
    return "color" in options


def tools_of(node: ToolNode) -> Mapping[str, BaseTool]:
    """The tools of a node by name."""
    return node.tools_by_name


def calls_of(node: ToolNode, given: Any) -> list[Any]:
    """The tool calls in the input of a node, in their order; none if it is no input of such a node."""
    try:
        calls: list[Any] = node._parse_input(given)[0]  # noqa: SLF001 - the reason for this module
    except (ValueError, TypeError, KeyError, AttributeError):  # the node itself says so
        return []
    return calls


def with_calls(node: ToolNode, given: Any, calls: Sequence[Any]) -> ToolNode:
    """A copy of ``node`` for one input, which finds ``calls`` in it."""
    kind = node._parse_input(given)[1]  # noqa: SLF001 - the reason for this module
    clone = copy.copy(node)
    clone.__dict__["_parse_input"] = lambda _: ([*calls], kind)
    return clone


def wrappers_of(node: ToolNode) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """What stands around each call of a node, and what does where it is awaited."""
    return node._wrap_tool_call, node._awrap_tool_call  # noqa: SLF001 - the reason for this module


def with_wrappers(node: ToolNode, wrap: Callable[..., Any] | None, awrap: Callable[..., Any] | None) -> ToolNode:
    """A copy of ``node`` for one input, with these around each call."""
    clone = copy.copy(node)
    clone.__dict__.update(_wrap_tool_call=wrap, _awrap_tool_call=awrap)
    return clone


def parsed(tool: BaseTool, args: Mapping[str, Any], call_id: str | None) -> tuple[tuple[Any, ...], Any] | None:
    """What LangChain would call the body of ``tool`` with, without what it injects; None if it would refuse."""
    if isinstance(tool, SingleInputTool):
        return (next(iter(args.values()), ""),), {}
    try:
        return (), read(tool, args, call_id)
    except Exception:  # noqa: BLE001 - the tool itself says so
        return None


def read(tool: BaseTool, args: Mapping[str, Any], call_id: str | None) -> dict[str, Any]:
    """``args`` as the schema of ``tool`` reads them; raises what LangChain would refuse them with."""
    if injected_among(tool, getattr(tool.args_schema, "model_fields", ())) - {"tool_call_id"}:
        return _without_injected(tool.tool_call_schema, args)
    found: Any = tool._parse_input(dict(args), call_id)  # noqa: SLF001 - the reason for this module
    return dict(found)


def read_some(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Some of the ``args`` of ``tool``, each as its schema reads it by itself."""
    fields = getattr(tool.args_schema, "model_fields", {})
    known: Any = {name: (fields[name].rebuild_annotation(), ...) for name in args if name in fields}
    found = create_model(tool.name, **known).model_validate(dict(args))
    return {name: getattr(found, name, value) for name, value in args.items()}


def _without_injected(schema: Any, args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` as the part of a schema reads them that the model sees, with its defaults."""
    read = schema.model_validate(dict(args))
    given = read.model_fields_set
    return {
        name: getattr(read, name) for name, one in schema.model_fields.items() if name in given or not one.is_required()
    }


def messages_key_of(node: ToolNode) -> str:
    """Where a node finds the model's messages in a state, and puts its answers."""
    key: str = node._messages_key  # noqa: SLF001 - the reason for this module
    return key


def messages_in(node: ToolNode, given: Any, config: Any) -> list[Any]:
    """The messages of the state that a node works on."""
    state: Any = node._extract_state(given, config)  # noqa: SLF001 - the reason for this module
    if not isinstance(state, list):
        key = messages_key_of(node)
        state = state.get(key) if isinstance(state, dict) else getattr(state, key, None)
    return list(state) if isinstance(state, list) else []


def update_of(node: ToolNode, given: Any, messages: list[Any]) -> Any:
    """``messages`` as an update of the state that the input ``given`` of a node is of."""
    is_state = isinstance(given, list) and not isinstance(given[-1], dict)
    return messages if is_state else {messages_key_of(node): messages}


def merges_by_id(graph: Any, node: ToolNode) -> bool:
    """Whether the state of ``graph`` replaces a message by one with its id, where ``node`` puts its answers."""
    channels = getattr(graph, "channels", {})
    channel = channels.get("__root__") or channels.get(messages_key_of(node))
    return getattr(channel, "operator", None) is add_messages


def with_tools(
    node: ToolNode,
    tools: dict[str, BaseTool],
    run: Callable[[ToolNode, Any, Any, Any], Any],
    arun: Callable[[ToolNode, Any, Any, Any], Any],
) -> ToolNode:
    """A copy of ``node`` that holds ``tools`` and goes through ``run`` and ``arun``; it shares everything else."""
    if not _runs_itself(node):
        raise ConfigurationError(
            f"the tool node {node.name!r} runs a function of its own, which hides its tools; wrap its tools"
        )
    clone = copy.copy(node)
    clone._tools_by_name = tools  # noqa: SLF001 - the reason for this module
    # The copy still holds bound methods of the original, which would look into the original's tools. LangGraph hands
    # these arguments over by name.
    clone.func = lambda input, config, runtime: run(clone, input, config, runtime)  # noqa: A006
    clone.afunc = lambda input, config, runtime: arun(clone, input, config, runtime)  # noqa: A006
    return clone


def run_node(node: ToolNode, given: Any, config: Any, runtime: Any) -> Any:
    """What ``node`` does with an input."""
    return node._func(given, config, runtime)  # noqa: SLF001 - the reason for this module


async def arun_node(node: ToolNode, given: Any, config: Any, runtime: Any) -> Any:
    """As ``run_node``, in a running loop."""
    return await node._afunc(given, config, runtime)  # noqa: SLF001 - the reason for this module


def _runs_itself(node: ToolNode) -> bool:
    return all(getattr(method, "__self__", None) is node for method in (node.func, node.afunc))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
