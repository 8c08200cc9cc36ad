"""Every undocumented name of CrewAI this adapter leans on, and the check that they are what we think.

Elsewhere the adapter uses documented names only. Facts and floors: reference/crewai.md.
"""

from __future__ import annotations

import functools
import re
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
    from crewai.events.event_context import _event_id_stack
    from crewai.events.stream_context import add_stream_sink, reset_stream_sinks
    from crewai.hooks.dispatch import HookAborted, InterceptionPoint, get_scoped_hooks, scoped_hooks
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import BaseTool
    from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
    from crewai.tools.base_tool import Tool as FunctionTool
    from crewai.tools.mcp_native_tool import MCPNativeTool
    from crewai.tools.structured_tool import CrewStructuredTool
    from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailure, ToolFailureReason, ToolFailureRecord
    from crewai.types.streaming import AsyncStreamSession, CrewStreamingOutput, StreamSession
    from crewai.utilities.string_utils import sanitize_tool_name

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


def _version() -> str:
    try:
        return version("crewai")
    except PackageNotFoundError:
        return "0 (none)"


def is_tool(target: object) -> bool:
    """Whether ``target`` is a tool as agents take it."""
    return isinstance(target, BaseTool)


def read_by(
    output: Any,
    reads: Callable[[Iterator[Any]], Iterator[Any]],
    areads: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
) -> Any:
    """``output``, whose pieces come by ``reads`` or ``areads`` from now on if it is a stream."""
    if isinstance(output, AsyncStreamSession | CrewStreamingOutput | StreamSession):
        if output._sync_iterator is not None:  # noqa: SLF001 - it knows no other reader
            output._sync_iterator = reads(output._sync_iterator)  # noqa: SLF001
        if output._async_iterator is not None:  # noqa: SLF001
            output._async_iterator = areads(output._async_iterator)  # noqa: SLF001
    return output


def canonical(name: str) -> str:
    """The name by which a model calls the tool called ``name``."""
    return sanitize_tool_name(name)


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
            Exception.__init__(self, f"{type(original).__name__}: {original}")
            self.original = original
            self.reason = f"{type(original).__name__}: {original}"
            self.source = "sagaspan"
            self.record = ToolFailureRecord(tool_name="sagaspan", failure=ToolFailure(message=self.reason))


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
    "Agent", "BaseAgent", "BaseAgentTool", "BaseLLM", "BaseTool", "Crew", "CrewStructuredTool", "Flow", "FunctionTool",
    "MCPNativeTool", "Stopping", "ToolFailure", "ToolFailureReason", "canonical", "check", "is_agents_call", "is_tool",
    "listening", "read_by",
]  # fmt: skip
