"""Guarding tools, alone, in a list or in an agent: whose policy, whose compensation, and never twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.tools import BaseTool

from sagaspan import ConfigurationError, Guard, Policy
from sagaspan.adapters import PolicyBook, guard_function, tool_behind, under_name
from sagaspan_langchain._bodies import body_of, function_of, keeps_functions, schema_of
from sagaspan_langchain._bypasses import way_past_the_body
from sagaspan_langchain._marks import guard_of, own_class
from sagaspan_langchain._subclasses import guarded_twin


def wrap_tools(guard: Guard, target: Any, book: PolicyBook) -> Any:
    """One tool, or a list or tuple of tools and functions, guarded; the container keeps its type."""
    if not isinstance(target, list | tuple):
        book.check_names([target.name], where=f"the tool {target.name!r}")
        return guard_tool(guard, target, book, {target.name: target})
    peers = {item.name: item for item in target if isinstance(item, BaseTool)}
    functions = [item.__name__ for item in target if _is_function(item)]
    book.check_names([*peers, *functions], where="this list of tools")
    return type(target)(_guarded_item(guard, item, book, peers) for item in target)


def guard_in_agent(guard: Guard, tool: BaseTool, book: PolicyBook, peers: Mapping[str, BaseTool]) -> BaseTool:
    """A tool of an agent, guarded; one that its owner guarded already stays as it is."""
    owner = guard_of(tool)
    if owner is None:
        return guard_tool(guard, tool, book, peers)
    if owner is not guard:
        raise ConfigurationError(f"the tool {tool.name!r} is guarded by another guard; wrap the agent with that one")
    _refuse_policy(tool.name, book)
    return tool


def guard_tool(guard: Guard, tool: BaseTool, book: PolicyBook, peers: Mapping[str, BaseTool]) -> BaseTool:
    """``tool`` guarded; ``peers`` are the tools a compensation can be named after."""
    if guard_of(tool) is not None:
        # Not silently the same object: policies given to a second wrap would do nothing.
        raise ConfigurationError(f"the tool {tool.name!r} is guarded already; wrap it once, with all its policies")
    if tool_behind(_function(tool)) is not None:  # a @guard.tool function: guarded where it is declared
        _refuse_policy(tool.name, book)
        return guarded_twin(guard, tool, sync=None, async_=None)
    policy = _with_compensation(tool.name, guard.policy_for(tool.name, Policy(), book), peers)
    way = way_past_the_body(own_class(tool))
    if way is not None:
        refuse_bypass(guard, tool.name, book, f"its class runs it in {way!r} without its body")
    reads = schema_of(tool)
    sync, async_ = (body_of(guard, tool, policy, is_async=is_async, reads=reads) for is_async in (False, True))
    return guarded_twin(guard, tool, sync=sync, async_=async_)


def _guarded_item(guard: Guard, item: Any, book: PolicyBook, peers: Mapping[str, BaseTool]) -> Any:
    if isinstance(item, BaseTool):
        return guard_tool(guard, item, book, peers)
    if _is_function(item):
        return guard_function(guard, item, item.__name__, book)
    if isinstance(item, dict):  # a tool the provider runs: there is no body here
        return item
    raise ConfigurationError(
        f"a {type(item).__qualname__} in a list of tools is neither a LangChain tool nor a function"
    )


def _is_function(item: Any) -> bool:
    return callable(item) and hasattr(item, "__name__") and not isinstance(item, type)


def refuse_bypass(guard: Guard, name: str, book: PolicyBook, how: str) -> None:
    """Raise ``ConfigurationError`` if a tool has a policy that would not hold, because of ``how`` it is reached."""
    if guard.policy_for(name, Policy(), book) != Policy():
        raise ConfigurationError(
            f"the policy of the tool {name!r} would not hold: {how}, past the guard; call it with "
            "invoke(...), let it do its work in _run or _arun, or guard the function itself with @guard.tool"
        )


def _refuse_policy(name: str, book: PolicyBook) -> None:
    if book.names_one((name,)):
        raise ConfigurationError(
            f"the tool {name!r} is guarded already; give its policy where that happens, not to this wrap"
        )


def _with_compensation(name: str, policy: Policy, peers: Mapping[str, BaseTool]) -> Policy:
    """``policy`` with the function of the agent's tool that its ``compensate`` names, under the tool's name."""
    if not isinstance(policy.compensate, str) or policy.compensate not in peers:
        return policy
    undo = peers[policy.compensate]
    if undo.name == name:
        raise ConfigurationError(f"the tool {name!r} cannot compensate itself")
    function = _function(undo)
    if not keeps_functions(undo):
        function = functools.partial(function, undo)
    behind = tool_behind(function)
    return policy.replace(compensate=under_name(behind.function if behind else function, undo.name))


def _function(tool: BaseTool) -> Callable[..., Any]:
    """The user's function, the synchronous one if there are two."""
    function = function_of(tool, is_async=False) or function_of(tool, is_async=True)
    if function is None:
        raise ConfigurationError(f"the tool {tool.name!r} has neither a function nor a coroutine to guard")
    return function
