"""Calls that a middleware may change before they are made: asked about as they are made, within that middleware.

``wrap_tool_call`` may call another tool, or the same one with other arguments, as LangChain's own human-in-the-loop
middleware does with an edit; and it brings the tools that were added on the way. What the model asked for is then not
what runs. That holds for a call that is the only one of its task, as all are in ``create_agent``: beside others nobody
can be asked there, since LangGraph matches answers to questions by their order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode

from sagaspan.adapters import approver_here
from sagaspan_langchain import _compat
from sagaspan_langchain._approvals import Action, Step
from sagaspan_langchain._asking import aask, ask
from sagaspan_langchain._bodies import is_beside, may_ask
from sagaspan_langchain._marks import guard_of


@contextlib.contextmanager
def answered_by(step: Step | None) -> Iterator[None]:
    """Within the block the answers of ``step`` are those that its calls get."""
    if step is None or step.answers is None:
        yield
        return
    token = approver_here.set(step.answers)
    try:
        yield
    finally:
        approver_here.reset(token)


@dataclass(slots=True, kw_only=True)
class Wrapped:
    """The one call of a task: ``node`` asks about it innermost, and ``edited`` is what answers made of it.

    ``guarded`` finds the guarded tool that stands for one. Who makes the call again, as a retry does, asks again: an
    approval is used once. A middleware that makes a message of every error does not make one of a question.
    """

    node: ToolNode
    config: Mapping[str, Any]
    guarded: Callable[[BaseTool], BaseTool]
    edited: dict[str, Action] = field(default_factory=dict)
    _stopped: BaseException | None = None

    def asking(self) -> ToolNode:
        """The node that asks so."""
        wrap, awrap = _compat.wrappers_of(self.node)
        return _compat.with_wrappers(
            self.node, None if wrap is None else self._within(wrap), None if awrap is None else self._awithin(awrap)
        )

    def _within(self, wrap: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(request: Any, execute: Callable[[Any], Any]) -> Any:
            def made(request: Any) -> Any:
                with self._asking():
                    step = ask(self._tools_for(request), [request.tool_call], self.config)
                with self._answered(step, request) as answered:
                    return execute(answered)

            with self._stopping():
                return wrap(request, made)

        return wrapped

    def _awithin(self, wrap: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
            async def made(request: Any) -> Any:
                with self._asking():
                    step = await aask(self._tools_for(request), [request.tool_call], self.config)
                with self._answered(step, request) as answered:
                    return await execute(answered)

            with self._stopping():
                return await wrap(request, made)

        return wrapped

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._stopped = self._stopped or error
            raise
        self._stopped = None

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Raise what asking raised, whatever became of it within the block."""
        try:
            yield
        finally:
            if self._stopped is not None:
                raise self._stopped

    def _tools_for(self, request: Any) -> dict[str, BaseTool]:
        """The tools that there are, with the one that is called: the node may not know that."""
        tools = dict(_compat.tools_of(self.node))
        if request.tool is not None:
            tools[request.tool_call["name"]] = self._guarded(request.tool)
        return tools

    def _guarded(self, tool: BaseTool) -> BaseTool:
        return tool if guard_of(tool) is not None else self.guarded(tool)

    @contextlib.contextmanager
    def _answered(self, step: Step | None, request: Any) -> Iterator[Any]:
        """What is asked for then, with the answers to it in force."""
        if step is not None:
            self.edited |= step.edited
            request = self._instead(request, step.calls[0])
        token = is_beside.set(request.tool is not None and may_ask(self._guarded(request.tool)))
        try:
            with answered_by(step):
                yield request
        finally:
            is_beside.reset(token)

    def _instead(self, request: Any, call: Any) -> Any:
        if call is request.tool_call:
            return request
        tool = (
            request.tool if call["name"] == request.tool_call["name"] else _compat.tools_of(self.node).get(call["name"])
        )
        return request.override(tool_call=call, tool=tool)


def wrapped(
    node: ToolNode, given: Any, config: Any, guarded: Callable[[BaseTool], BaseTool], *, is_async: bool
) -> Wrapped | None:
    """How the call of a task is asked about within what wraps it; None if it is asked about before."""
    wrap, awrap = _compat.wrappers_of(node)
    if (wrap is None and not (is_async and awrap is not None)) or len(_compat.calls_of(node, given)) != 1:
        return None
    return Wrapped(node=node, config=config, guarded=guarded)
