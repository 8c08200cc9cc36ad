"""The tools of a wrapped object as the ledger knows them: under which name, which policy, undone by what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagaspan import ConfigurationError, Guard, Policy
from sagaspan.adapters import PolicyBook, Tool, keyword_signature, tool_behind, under_name
from sagaspan_crewai import _compat
from sagaspan_crewai._mcp import names_of, title_of
from sagaspan_crewai._places import body_of, effect_of, made_with

IDEMPOTENCY_KEY: Final = "idempotency_key"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A tool of CrewAI's as the ledger knows it; ``tool`` is None if its function guards itself (``@guard.tool``)."""

    name: str
    tool: Tool | None
    policy: Policy
    names: tuple[str, ...]
    defaults: Mapping[str, Any]

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What a body was called with, by name; a default that the model left out is the same as one it wrote."""
        if len(args) > len(self.names):
            raise TypeError(f"tool {self.name!r} takes {len(self.names)} arguments, {len(args)} were given by position")
        given = {**self.defaults, **kwargs, **dict(zip(self.names, args, strict=False))}
        given.pop(IDEMPOTENCY_KEY, None)  # the guard's to fill, never the model's
        return given


class Toolbox:
    """The guarded tools of one wrapped object, defined when they are first seen.

    CrewAI makes some tools as it goes (delegation, memory, MCP), so not all are known from the start. ``books`` are
    the policies of the wraps it is in, the outermost first; ``peers`` are what a compensation can be named after.
    """

    def __init__(self, guard: Guard, books: tuple[PolicyBook, ...], tools: Iterable[Any]) -> None:
        self.guard = guard
        self.books = books
        self.peers: dict[str, Any] = {}
        self._met: dict[int, Any] = {}
        self._tools = tuple(tools)
        self._defined: dict[tuple[int, bool], tuple[Any, Guarded]] = {}
        self.meet(self._tools)
        for tool in self._tools:
            self.of(tool)

    def meet(self, tools: Iterable[Any]) -> None:
        """Know ``tools`` by all their names, for a compensation to be named after: others may come as CrewAI goes."""
        for tool in tools:
            if id(tool) not in self._met:
                self._met[id(tool)] = tool  # kept, so that no other one gets its id
                for alias in aliases_of(tool):
                    self.peers.setdefault(alias, tool)

    def within(self, outer: Toolbox | None) -> Toolbox:
        """These tools, under the policies of the object around theirs as well."""
        if outer is None or outer.guard is not self.guard:
            return self
        return Toolbox(self.guard, (*outer.books, *self.books), self._tools)

    def of(self, tool: Any, place: str | None = None) -> Guarded:
        """``tool``, called by ``place``, as the ledger knows it; raises ``ConfigurationError``."""
        is_async = inspect.iscoroutinefunction(body_of(tool, place))
        known = self._defined.get((id(tool), is_async))
        if known is None:
            # The tool is kept beside, so that no other one gets its id.
            known = self._defined.setdefault((id(tool), is_async), (tool, self._define(tool, is_async=is_async)))
        return known[1]

    def _define(self, tool: Any, *, is_async: bool) -> Guarded:
        (name, *others), title, body = aliases_of(tool), title_of(tool), body_of(tool)
        behind = tool_behind(body)
        if behind is not None:
            if any(book.names_one((name, *others)) for book in self.books):
                raise ConfigurationError(
                    f"the tool {tool.name!r} is guarded already; give its policy where that happens, not to this wrap"
                )
            return Guarded(name=name, tool=None, policy=behind.policy, names=behind.parameters, defaults={})
        policy = self._with_compensation(name, self.guard.policy_for(name, Policy(), *self.books, aliases=others))
        own = _parameters(body)
        names = tuple(_schema_names(tool) or own)
        visible = tuple(each for each in names if each != IDEMPOTENCY_KEY)
        defined = self.guard.define(
            body,
            name=name,
            aliases=others,
            title=title,
            policy=policy,
            signature=keyword_signature([*visible, *([IDEMPOTENCY_KEY] if IDEMPOTENCY_KEY in own else [])]),
            is_async=is_async,
            description=f"{title}: {tool.description}" if title else tool.description,
            made_with=made_with(tool),
            send=(lambda arguments: effect_of(tool)(**arguments)) if policy.defer else None,
        )
        return Guarded(name=name, tool=defined, policy=policy, names=visible, defaults=_defaults(own, visible))

    def _with_compensation(self, name: str, policy: Policy) -> Policy:
        """``policy`` with the function of the crew's tool that its ``compensate`` names, under the tool's name."""
        called = policy.compensate
        if not isinstance(called, str) or called not in self.peers:
            return policy
        undo = self.peers[called]
        if _compat.canonical(undo.name) == name:
            raise ConfigurationError(f"the tool {name!r} cannot compensate itself")
        behind = tool_behind(body_of(undo))
        return policy.replace(compensate=under_name(behind.function if behind else effect_of(undo), called))


def aliases_of(tool: Any) -> tuple[str, ...]:
    """The names a policy may have for ``tool``: what models call it, what its author did, and the MCP server."""
    names = [_compat.canonical(tool.name), tool.name, title_of(tool)]
    for original in names_of(tool):
        names += [original, _compat.canonical(original)]
    return tuple(dict.fromkeys(filter(None, names)))


# -- what a body is called with -------------------------------------------------------------------------------------


def _schema_names(tool: Any) -> list[str]:
    return list(getattr(tool.args_schema, "model_fields", None) or ())


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    found = {name: parameter for name, parameter in signature.parameters.items() if parameter.kind in _NAMED}
    found.pop("self", None)
    return found


def _defaults(own: Mapping[str, inspect.Parameter], names: tuple[str, ...]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    return {name: own[name].default for name in names if name in own and isinstance(own[name].default, plain)}
