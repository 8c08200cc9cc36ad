"""Every private name of LangChain and LangGraph this adapter leans on, and the check that they are what we think.

All else in the adapter is public API. The floors are those of reference/langchain.md, section 9.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.language_models.base import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.tools import Tool as SingleInputTool
from langgraph.checkpoint.base import BaseCheckpointSaver

from sagaspan import ConfigurationError
from sagaspan_langchain._marks import own_class

NEEDED: Final = "langchain-core>=1.7, langgraph>=1.2.12 and langgraph-prebuilt>=1.1.1"
_PACKAGES: Final = ("langchain-core", "langgraph", "langgraph-prebuilt")

try:
    from langgraph._internal._config import ensure_config, merge_configs
    from langgraph._internal._constants import (
        CONFIG_KEY_CHECKPOINT_NS,
        CONFIG_KEY_CHECKPOINTER,
        CONFIG_KEY_RESUMING,
        CONFIG_KEY_SCRATCHPAD,
        CONFIG_KEY_TASK_ID,
        INTERRUPT,
    )
    from langgraph._internal._scratchpad import PregelScratchpad
    from langgraph.config import get_config
    from langgraph.graph.message import add_messages
    from langgraph.prebuilt import ToolNode
    from langgraph.pregel import Pregel
    from langgraph.pregel._algo import LazyAtomicCounter, _scratchpad
    from langgraph.pregel.remote import RemoteGraph

    _missing: str | None = None
except ImportError as _error:  # said when something is wrapped, where it can be acted on
    _missing = str(_error)


@functools.cache
def check() -> None:
    """Raise ``ConfigurationError`` if the installed versions lack something this adapter needs."""
    lacking = _missing or next(_lacking(), None)
    if lacking is not None:
        installed = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
        raise ConfigurationError(f"the LangChain adapter needs {NEEDED}; installed: {installed} ({lacking})")


def _lacking() -> Iterator[str]:
    node = ToolNode([])
    private = {
        BaseTool: ("_filter_injected_args",), BaseChatModel: ("_get_ls_params",), BaseLLM: ("_get_ls_params",),
        node: ("_parse_input", "_messages_key", "_extract_state"),
    }  # fmt: skip
    for owner, names in private.items():
        yield from (f"{owner!r} has no {name!r} any more" for name in names if not hasattr(owner, name))
    if not isinstance(getattr(node, "_tools_by_name", None), dict):
        yield "ToolNode._tools_by_name is gone"
    if not {"resume", "get_null_resume", "subgraph_counter", "step"} <= set(PregelScratchpad.__annotations__):
        yield "the scratchpad of LangGraph's tasks has changed"
    latest = _scratchpad(None, [], "", "", None, 0, 0).get_null_resume
    if not {"null_resume_write", "parent_scratchpad", "pending_writes"} <= {*latest.__code__.co_freevars}:
        yield "what LangGraph keeps of answers has changed"
    counter = LazyAtomicCounter()
    if [_count_of(counter), counter(), counter(), _count_of(counter)] != [0, 0, 1, 2]:
        yield "the counter of LangGraph's interrupts has changed"
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


def parsed(tool: BaseTool, args: Mapping[str, Any], call_id: str | None) -> tuple[tuple[Any, ...], Any] | None:
    """What LangChain would call the body of ``tool`` with, without what it injects; None if it would refuse."""
    if isinstance(tool, SingleInputTool):
        return (next(iter(args.values()), ""),), {}
    try:
        if injected_among(tool, getattr(tool.args_schema, "model_fields", ())) - {"tool_call_id"}:
            return (), _without_injected(tool.tool_call_schema, args)
        return (), tool._parse_input(dict(args), call_id)  # noqa: SLF001 - the reason for this module
    except Exception:  # noqa: BLE001 - the tool itself says so
        return None


def _without_injected(schema: Any, args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` as the part of a schema reads them that the model sees, with its defaults."""
    read = schema.model_validate(dict(args))
    given = read.model_fields_set
    return {
        name: getattr(read, name) for name, one in schema.model_fields.items() if name in given or not one.is_required()
    }


def checkpointer_of(config: Mapping[str, Any]) -> Any:
    """What saves the graph in whose task this config is in force, or None."""
    found = config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINTER)
    return found if isinstance(found, BaseCheckpointSaver) else None


def task_of(config: Mapping[str, Any]) -> str | None:
    """The id of the task in force, the same whenever LangGraph runs it again; None outside of one."""
    found: str | None = config.get("configurable", {}).get(CONFIG_KEY_TASK_ID)
    return found


def answers_to(config: Mapping[str, Any]) -> list[Any]:
    """The answers that the questions of the task in force get, in their order, as far as they are given."""
    scratchpad = config.get("configurable", {}).get(CONFIG_KEY_SCRATCHPAD)
    if scratchpad is None:
        return []
    latest = _untaken(scratchpad)
    return [*scratchpad.resume, *([] if latest is None else [latest])]


def _untaken(scratchpad: Any) -> Any:
    """The answer that no question has taken yet, or None.

    LangGraph still shows one that was taken, of the same task or of another one within the same node.
    """
    held = _held_by(scratchpad.get_null_resume)
    write = held["null_resume_write"]
    if write is None:
        around = held["parent_scratchpad"]
        return None if around is None else _untaken(around)
    return write[2] if any(one is write for one in held["pending_writes"]) else None


def _held_by(function: Any) -> dict[str, Any]:
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    }


def next_answers(config: Mapping[str, Any]) -> list[Any]:
    """Of the answers that the task in force got, those to the question that is asked next and to later ones."""
    scratchpad = config["configurable"].get(CONFIG_KEY_SCRATCHPAD)
    return [] if scratchpad is None else answers_to(config)[_count_of(scratchpad.interrupt_counter) :]


def _count_of(counter: Any) -> int:
    """How often LangGraph's counter has counted, without counting."""
    begun = counter._counter  # noqa: SLF001 - the reason for this module
    return 0 if begun is None else int(repr(begun.__self__).removeprefix("count(").removesuffix(")"))


def config_here() -> Mapping[str, Any] | None:
    """The config of the node whose code runs here; None outside of one."""
    try:
        return get_config()
    except RuntimeError:
        return None


def around_here() -> tuple[str, tuple[int, ...], str] | None:
    """The tasks around the graph whose node runs here: their names, the steps they are in, and which ones they are."""
    configurable = (config_here() or {}).get("configurable", {})
    place = configurable.get(CONFIG_KEY_CHECKPOINT_NS, "").rpartition("|")[0]
    scratchpad = configurable.get(CONFIG_KEY_SCRATCHPAD)
    if not place or scratchpad is None:
        return None
    steps = []
    while (scratchpad := _held_by(scratchpad.get_null_resume)["parent_scratchpad"]) is not None:
        steps.append(scratchpad.step)
    return "|".join(part.partition(":")[0] for part in place.split("|")), tuple(steps), place


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


def shown_to(config: Mapping[str, Any]) -> Any:
    """What the task in force asked when it paused, as its checkpoint has it; None if it did not."""
    return _shown(config, checkpointer_of(config).get_tuple(_saved_under(config)))


async def ashown_to(config: Mapping[str, Any]) -> Any:
    """As ``shown_to``, in a running loop."""
    return _shown(config, await checkpointer_of(config).aget_tuple(_saved_under(config)))


def _saved_under(config: Mapping[str, Any]) -> RunnableConfig:
    configurable = config["configurable"]
    within = configurable.get(CONFIG_KEY_CHECKPOINT_NS, "").rpartition("|")[0]
    return {"configurable": {"thread_id": configurable["thread_id"], CONFIG_KEY_CHECKPOINT_NS: within}}


def _shown(config: Mapping[str, Any], saved: Any) -> Any:
    task = config["configurable"].get(CONFIG_KEY_TASK_ID)
    writes = [] if saved is None else saved.pending_writes or []
    asked = [value for task_id, channel, value in writes if task_id == task and channel == INTERRUPT]
    last = asked[-1] if asked else None
    last = last[-1] if isinstance(last, list | tuple) and last else last
    return getattr(last, "value", None)


def principal_of(config: Mapping[str, Any]) -> str | None:
    """Who answers, if LangGraph's server knows that: a name in a request would be no identity."""
    found = config.get("configurable", {}).get("langgraph_auth_user_id")
    return found if isinstance(found, str) and found else None


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


def merged(*configs: RunnableConfig | None) -> RunnableConfig:
    """``configs`` merged as LangGraph does, without filling in what they leave open."""
    return merge_configs(*configs)


def in_force(*configs: RunnableConfig | None) -> RunnableConfig:
    """``configs`` merged over the config of the node that runs here, as a graph invoked with them sees it."""
    return ensure_config(*configs)


def is_nested(config: RunnableConfig) -> bool:
    """Whether a graph invoked with this config (see ``in_force``) runs inside another graph's node."""
    return CONFIG_KEY_TASK_ID in config.get("configurable", {})


def place_of(config: RunnableConfig, graph: Any) -> str | None:
    """Where a graph that is invoked with this config in another's node has its checkpoints; None if it has none."""
    if checkpointer_of(config) is None or getattr(graph, "checkpointer", None) is False:
        return None
    place: str = config["configurable"].get(CONFIG_KEY_CHECKPOINT_NS, "")
    before = _count_of(config["configurable"][CONFIG_KEY_SCRATCHPAD].subgraph_counter)
    return f"{place}|{before}" if before else place


def at(config: RunnableConfig, place: str) -> RunnableConfig:
    """``config`` for the checkpoints at a ``place_of``."""
    return {**config, "configurable": {**config["configurable"], CONFIG_KEY_CHECKPOINT_NS: place}}


def is_resuming(config: RunnableConfig) -> bool:
    """Whether the graph around the one that is invoked with this config goes on, rather than begins."""
    return bool(config["configurable"].get(CONFIG_KEY_RESUMING))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
