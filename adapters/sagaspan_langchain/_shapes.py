"""What of a tool's parameters the model sees: these are recorded, the rest only reaches the body."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from sagaspan import codecs
from sagaspan.adapters import keyword_signature
from sagaspan_langchain import _compat

FILLED_BY_LANGCHAIN: Final = frozenset({"run_manager", "callbacks"})
IDEMPOTENCY_KEY: Final = "idempotency_key"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """``names`` the model fills, in order; ``hidden`` ones are filled by LangChain or the guard.

    ``needs`` are those the body cannot do without that LangChain alone can fill, and only during an agent's step.
    """

    names: tuple[str, ...]
    hidden: frozenset[str]
    needs: tuple[str, ...]
    defaults: Mapping[str, Any]
    signature: inspect.Signature

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
        """What ``_run`` was called with, as arguments by name, hidden ones, and the names that came by position."""
        by_position = tuple(self.names[at] if at < len(self.names) else f"argument_{at}" for at in range(len(args)))
        given = {name: value for name, value in kwargs.items() if name not in self.hidden}
        # A default the model left out is the same call as the default it wrote down.
        arguments = {**self.defaults, **given, **dict(zip(by_position, args, strict=True))}
        return arguments, {name: kwargs[name] for name in kwargs if name in self.hidden}, by_position


def shape_of(tool: BaseTool, function: Callable[..., Any], run: Callable[..., Any]) -> Shape:
    """The shape of ``tool``, whose body is ``function`` and which LangChain calls through ``run``."""
    own = _parameters(function)
    candidates = _schema_names(tool)
    names = list(own) if candidates is None else candidates
    injected = _compat.injected_among(tool, {*names, *own})
    hidden = injected | FILLED_BY_LANGCHAIN | _config_names(run) | {IDEMPOTENCY_KEY}
    visible = tuple(name for name in names if name not in hidden | _config_names(function))
    defaults = {name: own[name].default for name in visible if name in own and _is_plain(own[name].default)}
    # The guard fills this one only if the body asks for it.
    asked = [IDEMPOTENCY_KEY] if IDEMPOTENCY_KEY in own else []
    needs = tuple(
        name
        for name, parameter in own.items()
        if name in injected | _config_names(function) | FILLED_BY_LANGCHAIN
        and (name not in FILLED_BY_LANGCHAIN or parameter.default is parameter.empty)
        and name != IDEMPOTENCY_KEY
    )
    return Shape(
        names=visible, hidden=hidden, needs=needs, defaults=defaults, signature=keyword_signature([*visible, *asked])
    )


def _schema_names(tool: BaseTool) -> list[str] | None:
    schema: Any = tool.args_schema
    if schema is None:
        return None
    if isinstance(schema, dict):
        return list(schema.get("properties", {}))
    fields = getattr(schema, "model_fields", None)
    return list(
        schema.__fields__ if fields is None else fields
    )  # a model of pydantic's first version has no model_fields


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    found = {name: parameter for name, parameter in signature.parameters.items() if parameter.kind in _NAMED}
    if next(iter(found), None) == "self":
        del found["self"]
    return found


def _config_names(function: Callable[..., Any]) -> frozenset[str]:
    """The parameters that LangChain fills with the config: found by their type, as LangChain finds them."""
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are the user's; LangChain finds nothing then either
        return frozenset()
    return frozenset(name for name, hint in hints.items() if hint is RunnableConfig)


def _is_plain(value: Any) -> bool:
    if value is inspect.Parameter.empty:
        return False
    try:
        codecs.to_json(value)
    except codecs.Unencodable:
        return False
    return True
