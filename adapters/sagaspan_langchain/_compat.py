"""Every private name of LangChain and LangGraph this adapter leans on, and the check that they are what we think.

All else in the adapter is public API. The floors are those of reference/langchain.md, section 9.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from sagaspan import ConfigurationError
from sagaspan_langchain._marks import own_class

NEEDED: Final = "langchain-core>=1.7, langgraph>=1.2.12 and langgraph-prebuilt>=1.1.1"
_PACKAGES: Final = ("langchain-core", "langgraph", "langgraph-prebuilt")

try:
    from langgraph._internal._config import ensure_config, merge_configs
    from langgraph._internal._constants import CONFIG_KEY_TASK_ID
    from langgraph.prebuilt import ToolNode
    from langgraph.pregel import Pregel

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
    if not hasattr(BaseTool, "_filter_injected_args"):
        yield "BaseTool._filter_injected_args is gone"
    if not hasattr(BaseChatModel, "_get_ls_params"):
        yield "BaseChatModel._get_ls_params is gone"
    node = ToolNode([])
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
    """Whether ``target`` is a chat model."""
    return isinstance(target, BaseChatModel)


def facts_of(model: BaseChatModel, stop: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a chat model says of itself for tracing; a provider only if its class names one."""
    facts = dict(model._get_ls_params(stop=stop, **options))  # noqa: SLF001 - the reason for this module
    if own_class(model)._get_ls_params is BaseChatModel._get_ls_params:  # noqa: SLF001 - as above
        facts.pop("ls_provider", None)  # made of the name of the class, which no price table knows
    return facts


@functools.cache
def takes(method: Callable[..., Any], name: str) -> bool:
    """Whether ``method`` has a parameter ``name``, or takes all."""
    parameters = inspect.signature(method).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


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


def with_tools(node: ToolNode, tools: dict[str, BaseTool]) -> ToolNode:
    """A copy of ``node`` that holds ``tools``; everything else is shared with the original."""
    if not _runs_itself(node):
        raise ConfigurationError(
            f"the tool node {node.name!r} runs a function of its own, which hides its tools; wrap its tools"
        )
    clone = copy.copy(node)
    clone._tools_by_name = tools  # noqa: SLF001 - the reason for this module
    # The copy still holds bound methods of the original, which would look into the original's tools.
    clone.func, clone.afunc = clone._func, clone._afunc  # noqa: SLF001 - the reason for this module
    return clone


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


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
