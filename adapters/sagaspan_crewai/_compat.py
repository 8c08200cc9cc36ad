"""Every undocumented name of CrewAI this adapter leans on, and the check that they are what we think.

Elsewhere the adapter uses documented names only. Facts and floors: reference/crewai.md.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from sagaspan import ConfigurationError

FLOOR: Final = (1, 15, 21)
_UPGRADE: Final = "upgrade it: pip install -U 'sagaspan[crewai]', or 'crewai>=1.15.21'"

try:
    from crewai import Agent, Crew, Flow
    from crewai.agents.agent_builder.base_agent import BaseAgent
    from crewai.events.event_context import (
        EventContextConfig,
        MismatchBehavior,
        _default_config,
        _event_context_config,
        _event_id_stack,
    )
    from crewai.events.stream_context import add_stream_sink, reset_stream_sinks
    from crewai.hooks.dispatch import HookAborted, InterceptionPoint, get_scoped_hooks, scoped_hooks
    from crewai.llm import LLM
    from crewai.llms.base_llm import BaseLLM
    from crewai.mcp.client import MCPClient
    from crewai.mcp.transports.http import HTTPTransport
    from crewai.memory.memory_scope import MemoryScope, MemorySlice
    from crewai.memory.unified_memory import Memory
    from crewai.tools import BaseTool
    from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
    from crewai.tools.base_tool import Tool as FunctionTool
    from crewai.tools.mcp_native_tool import MCPNativeTool
    from crewai.tools.mcp_tool_wrapper import MCP_TOOL_EXECUTION_TIMEOUT, MCPToolWrapper
    from crewai.tools.structured_tool import CrewStructuredTool
    from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailure, ToolFailureReason, ToolFailureRecord
    from crewai.types.streaming import AsyncStreamSession, CrewStreamingOutput, StreamSession
    from crewai.utilities.string_utils import sanitize_tool_name

    MEMORIES: Any = Memory | MemoryScope | MemorySlice
    LiteLLM = LLM  # what is left of it once ``LLM(...)`` has found no class of the provider
    _missing: str | None = None
except ImportError as _error:  # said when something is wrapped, where it can be acted on
    _missing = str(_error)

_ENTRY_POINTS: Final = {
    "Crew": (
        "kickoff",
        "akickoff",
        "kickoff_for_each",
        "kickoff_for_each_async",
        "akickoff_for_each",
        "replay",
        "copy",
    ),
    "Agent": ("kickoff", "kickoff_async", "akickoff", "execute_task", "aexecute_task"),
    "Flow": ("kickoff", "kickoff_async", "akickoff", "resume_async", "stream_events", "astream"),
}

_PIECES: Final = ("_sync_iterator", "_async_iterator")


@functools.cache
def check() -> None:
    """Raise ``ConfigurationError`` if the installed CrewAI lacks something this adapter needs, saying what to do."""
    installed = _version()
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed)[:3])
    if numbers < FLOOR:
        raise ConfigurationError(f"the CrewAI adapter needs crewai>=1.15.21, and {installed} is installed; {_UPGRADE}")
    lacking = _missing or next(_lacking(), None)
    if lacking is not None:
        raise ConfigurationError(
            f"the CrewAI adapter does not know crewai {installed} ({lacking}); install a release of sagaspan that "
            "does, or the crewai this one was tested with (docs/crewai.md)"
        )


def _lacking() -> Iterator[str]:
    points = {point.name for point in InterceptionPoint}
    if not {"PRE_TOOL_CALL", "POST_TOOL_CALL", "PRE_MODEL_CALL"} <= points:
        yield "its interception points have changed"
    for kind, names in _ENTRY_POINTS.items():
        owner = {"Crew": Crew, "Agent": Agent, "Flow": Flow}[kind]
        yield from (f"{kind}.{name} is gone" for name in names if not callable(getattr(owner, name, None)))
    if not callable(getattr(BaseTool, "_run", None)) or "func" not in FunctionTool.model_fields:
        yield "tools keep their body elsewhere"
    if "func" not in CrewStructuredTool.model_fields:
        yield "CrewStructuredTool.func is gone"
    if not all(
        name in vars(kind()) for kind in (AsyncStreamSession, CrewStreamingOutput, StreamSession) for name in _PIECES
    ):
        yield "streams keep their pieces elsewhere"
    if not {"message", "reason"} <= set(ToolFailure.model_fields):
        yield "ToolFailure has changed"
    if BaseLLM.__getattribute__ is not object.__getattribute__:
        yield "its models look up their methods in a way of their own"


def _version() -> str:
    try:
        return version("crewai")
    except PackageNotFoundError:
        return "0 (none)"


def is_tool(target: object) -> bool:
    """Whether ``target`` is a tool as agents take it."""
    return isinstance(target, BaseTool)


def tools_beside(hook: Any) -> tuple[Any, ...]:
    """The tools that the agent of a call has beside the one it calls, those among them that were made for its task."""
    executor = getattr(hook.agent, "agent_executor", None)
    return tuple(each for each in getattr(executor, "original_tools", None) or () if isinstance(each, BaseTool))


def model_of_memory(memory: Any) -> Any:
    """The model that ``memory``, or the one that it is a part of, asks: a copy of the one it was made with."""
    return getattr(_whole(memory), "_llm_instance", None)


def wait_for_saves(agent: Any) -> None:
    """Wait until what ``agent`` keeps in its memory is there, as a crew does at its end and an agent alone does not."""
    memory = getattr(agent, "memory", None)
    whole = _whole(memory) if isinstance(memory, MEMORIES) else None
    if whole is not None:
        whole.drain_writes()


def _whole(memory: Any) -> Any:
    return memory if isinstance(memory, Memory) else memory._memory  # noqa: SLF001 - its only way to it


def model_of_feedback(method: Any) -> Any:
    """The model that sorts what a human says to a flow's ``method``."""
    return getattr(getattr(method, "__human_feedback_config__", None), "llm", None)


def native_mcp_tool(wrapper: Any) -> Any:
    """A tool that asks the server of ``wrapper`` as those of ``MCPServerHTTP`` do, which say what has failed."""

    def client() -> Any:
        transport = HTTPTransport(url=wrapper.mcp_server_params["url"])
        return MCPClient(transport, execution_timeout=MCP_TOOL_EXECUTION_TIMEOUT)

    return MCPNativeTool(client, wrapper.original_tool_name, {}, wrapper.server_name)


def look_up_by(look_up: Callable[[Any, str], Any] | None) -> None:
    """Let ``look_up`` find the attributes of all models from now on; None: as it was (``check`` knows how that is)."""
    if look_up is None:
        del BaseLLM.__getattribute__
    else:
        BaseLLM.__getattribute__ = look_up  # type: ignore[method-assign]


def default_limit(llm: Any) -> int | None:
    """The limit that CrewAI sets itself where the API needs one: the most that the model gives."""
    default = getattr(sys.modules.get(type(llm).__module__), "_default_max_tokens_for_model", None)
    return default(llm.model) if callable(default) else None


def read_by(
    output: Any,
    reads: Callable[[Iterator[Any]], Iterator[Any]],
    areads: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
) -> Any:
    """``output``, whose pieces come by ``reads`` or ``areads`` from now on if it is a stream."""
    if isinstance(output, AsyncStreamSession | CrewStreamingOutput | StreamSession):
        let_go(output)
        if output._sync_iterator is not None:  # noqa: SLF001 - it knows no other reader
            output._sync_iterator = reads(output._sync_iterator)  # noqa: SLF001
        if output._async_iterator is not None:  # noqa: SLF001
            output._async_iterator = areads(output._async_iterator)  # noqa: SLF001
    return output


def let_go(stream: Any) -> None:
    """The generator of ``stream`` holds the stream: nobody would close one that is dropped before all is done.

    Or the garbage collector would, in the middle of anything, and wait there for a thread that may wait for this one.
    """
    for name, frame in (("_sync_iterator", "gi_frame"), ("_async_iterator", "ag_frame")):
        generator = getattr(getattr(stream, name, None), frame, None)
        holder = None if generator is None else generator.f_locals.get("output_holder")
        if isinstance(holder, list) and stream in holder:
            holder[:] = [weakref.proxy(stream)]


def canonical(name: str) -> str:
    """The name by which a model calls the tool called ``name``."""
    return sanitize_tool_name(name)


@contextmanager
def events_end_where_they_began(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """After the block CrewAI's events belong to what they belonged to before.

    A kickoff that an error ends early leaves its own scope open, and events of the thread's next crew would be its
    children: whoever makes a tree of them lacks their root. Of one that is stopped nothing is printed about that.
    """
    before = _event_id_stack.get()
    token = _event_context_config.set(_Unsaid(_event_context_config.get() or _default_config, is_stopping))
    try:
        yield
    finally:
        _event_context_config.reset(token)
        _event_id_stack.set(before)


def is_agents_call() -> bool:
    """Whether an agent, rather than the user's code, called the tool whose body is running here."""
    stack = _event_id_stack.get()
    return bool(stack) and stack[-1][1] == "tool_usage_started"


# -- the carrier of what must end the run -----------------------------------------------------------------------


if _missing is None:

    class Stopping(HookAborted, ToolExecutionFailedError):
        """Carries the error that ends a run through CrewAI, each layer of which lets one of its two bases pass."""

        def __init__(self, original: BaseException) -> None:
            # Neither base's own: a constructor that failed within a hook would be swallowed, and the tool would run.
            self.reason = _words_of(original)
            Exception.__init__(self, self.reason)
            self.original = original
            self.source = "sagaspan"
            self.record = ToolFailureRecord(tool_name="sagaspan", failure=ToolFailure(message=self.reason))

    class _Unsaid(EventContextConfig):
        """``around``, but that nothing is printed of events that end others than began last while a kickoff stops."""

        def __init__(self, around: EventContextConfig, is_stopping: Callable[[], bool]) -> None:
            self._around = around
            self._is_stopping = is_stopping

        max_stack_depth = property(lambda self: self._around.max_stack_depth)
        mismatch_behavior = property(lambda self: self._unless_stopping(self._around.mismatch_behavior))
        empty_pop_behavior = property(lambda self: self._unless_stopping(self._around.empty_pop_behavior))

        def _unless_stopping(self, behavior: MismatchBehavior) -> MismatchBehavior:
            is_said = behavior is not MismatchBehavior.WARN or not self._is_stopping()
            return behavior if is_said else MismatchBehavior.SILENT


def _words_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - of the user's class, which may not know what to say
        return type(error).__name__


# -- hooks and events, for what runs in this context only --------------------------------------------------------


@contextmanager
def listening(
    *,
    before_tool: Callable[[Any], bool | None],
    after_tool: Callable[[Any], str | None],
    before_model: Callable[[Any], None],
    on_event: Callable[[Any, Any], None],
) -> Iterator[None]:
    """Hooks and a sink of events for what starts within the block, in whatever thread; the user's own stay."""
    ours: Mapping[Any, Callable[[Any], Any]] = {
        InterceptionPoint.PRE_TOOL_CALL: before_tool,
        InterceptionPoint.POST_TOOL_CALL: after_tool,
        InterceptionPoint.PRE_MODEL_CALL: before_model,
    }
    hooks = {point: list(get_scoped_hooks(point)) for point in InterceptionPoint}
    for point, hook in ours.items():
        hooks[point].append(hook)
    token = add_stream_sink(on_event)
    try:
        with scoped_hooks(hooks):
            yield
    finally:
        reset_stream_sinks(token)


__all__ = [
    "MEMORIES", "Agent", "BaseAgent", "BaseAgentTool", "BaseLLM", "BaseTool", "Crew", "CrewStructuredTool", "Flow",
    "FunctionTool", "LiteLLM", "MCPNativeTool", "MCPToolWrapper", "Stopping", "ToolFailure", "ToolFailureReason",
    "canonical", "check", "default_limit", "is_agents_call", "is_tool", "listening", "look_up_by", "model_of_feedback",
    "model_of_memory", "native_mcp_tool", "read_by", "tools_beside", "wait_for_saves",
]  # fmt: skip
