"""``GuardMiddleware``: the guard for people who build their agent with ``create_agent(middleware=[...])``.

It guards the tools and the models of the agent, and asks for approvals. What it cannot do from inside is to open a run:
the calls belong to the run in force, else to the guard's session, which nothing rolls back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from sagaspan import Guard
from sagaspan.adapters import PolicyBook, approver_here
from sagaspan_langchain import _compat
from sagaspan_langchain._approvals import Step, aask, ask
from sagaspan_langchain._reach import Scope, install
from sagaspan_langchain._revised import as_made, has_one_of


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Guards an agent from inside: ``create_agent(model, tools, middleware=[GuardMiddleware(guard, {...})])``.

    ``policies`` are those of ``guard.wrap``. Put it last, so that it is innermost and sees the retries of other
    middleware. Invoke the agent within ``guard.run(...)``, so that its steps are undone together. A policy for a tool
    that the agent does not have raises ``ConfigurationError`` before the first request.
    """

    def __init__(self, guard: Guard, policies: Any = None) -> None:
        super().__init__()
        _compat.check()
        install()
        self._peers: dict[str, BaseTool] = {}
        self._book = PolicyBook(policies, source="GuardMiddleware(policies)")
        self._scope = Scope(guard=guard, book=self._book, peers=self._peers)
        self._is_checked = False

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Every request to a model is reserved before it is sent."""
        self._know(request.tools)
        with self._scope.in_force():
            return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As ``wrap_model_call``, in a running loop."""
        self._know(request.tools)
        with self._scope.in_force():
            return await handler(request)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """The tool runs as one call of the ledger, once somebody agreed if its policy asks."""
        config = request.runtime.config
        with self._scope.in_force():
            if request.tool is None or _compat.checkpointer_of(config) is None:
                return handler(request)
            step = ask(self._guarded_tools(request.tool), [request.tool_call], config)
            token = approver_here.set(None if step is None else step.answers)
            try:
                return self._told(request, step, handler(self._as_decided(request, step)))
            finally:
                approver_here.reset(token)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As ``wrap_tool_call``, in a running loop."""
        config = request.runtime.config
        with self._scope.in_force():
            if request.tool is None or _compat.checkpointer_of(config) is None:
                return await handler(request)
            step = await aask(self._guarded_tools(request.tool), [request.tool_call], config)
            token = approver_here.set(None if step is None else step.answers)
            try:
                return self._told(request, step, await handler(self._as_decided(request, step)))
            finally:
                approver_here.reset(token)

    def _guarded_tools(self, tool: BaseTool) -> dict[str, BaseTool]:
        known = {**self._peers, tool.name: tool}
        return {name: self._scope.tool(one) for name, one in known.items()}

    def _as_decided(self, request: Any, step: Step | None) -> Any:
        if step is None:
            return request
        (call,) = step.calls
        tool = request.tool if call["name"] == request.tool.name else self._peers.get(call["name"])
        return request.override(tool_call=call, tool=tool)

    def _told(self, request: Any, step: Step | None, output: Any) -> Any:
        """``output``, with the model's message as it would be had it made the call that an edit made of its own."""
        if step is None or not step.edited or not isinstance(output, ToolMessage):
            return output
        messages = getattr(request.state, "messages", None) or request.state.get("messages", ())
        revised = [as_made(one, step.edited) for one in messages if has_one_of(one, step.edited) and one.id]
        return Command(update={"messages": [*revised, output]}) if revised else output

    def _know(self, tools: Any) -> None:
        """The tools of the agent, which a request to its model is the first to tell."""
        if self._is_checked:
            return
        found = {tool.name: tool for tool in tools if isinstance(tool, BaseTool)}
        self._book.check_names(list(found), where="this agent")
        self._peers.update(found)
        self._is_checked = True
