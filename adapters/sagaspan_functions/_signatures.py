"""A function's signature as the JSON schema that a model fills, and what it filled as the function's arguments."""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sagaspan import ConfigurationError
from sagaspan.adapters import Tool

# What is no number fits every comparison of an approval's expression, or none.
_CONFIG: Final = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
_DEEPEST: Final = 90
"""Levels of a model's arguments; a record takes hardly more."""


class Misfit(ValueError):
    """What a model filled in that does not fit the signature; its text is for the model."""


class Parameters:
    """The parameters of one tool that a model fills: all but those that the guard fills."""

    def __init__(self, tool: Tool) -> None:
        hints = _hints(tool.function)
        fields: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        for number, (name, parameter) in enumerate(tool.signature.parameters.items()):
            if name in tool.context or parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"tool {tool.name!r}: a model fills parameters by name, and {name!r} has none; write it as {name}"
                )
            # Not under its own name: a field called "copy" or "_id" is not one pydantic takes.
            self._names[f"p{number}"] = name
            required = parameter.default is parameter.empty
            default = Field(alias=name) if required else Field(default=parameter.default, alias=name)
            fields[f"p{number}"] = (hints.get(name, Any), default)
        try:
            self._model: type[BaseModel] = create_model(tool.name, __config__=_CONFIG, **fields)
            self.schema = _untitled(self._model.model_json_schema(by_alias=True))
        except Exception as error:
            raise ConfigurationError(
                f"tool {tool.name!r} has a parameter that JSON cannot describe: {error}; annotate it with a plain type"
            ) from error

    def read(self, arguments: Any) -> dict[str, Any]:
        """The arguments that a model gave, as JSON text or a mapping, as the function takes them; raises ``Misfit``."""
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}", object_pairs_hook=_each_once)
            except RecursionError:
                raise Misfit(_TOO_DEEP) from None
            except ValueError as error:
                raise Misfit(f"the arguments are no JSON: {error}") from None
        if not isinstance(arguments, Mapping):
            raise Misfit(f"the arguments are a {type(arguments).__name__}, not an object")
        _check_plain(arguments)
        try:
            filled = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            raise Misfit("; ".join(_sentence(problem) for problem in error.errors())) from None
        return {self._names[field]: getattr(filled, field) for field in self._names if field in filled.model_fields_set}


_TOO_DEEP: Final = f"the arguments are no JSON that is taken: they are nested deeper than {_DEEPEST} levels"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields differ: of two that are equal, an approver may read one and the tool get the other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same field twice")
    return found


def _check_plain(value: Any, depth: int = 0) -> None:
    """Refuse what a parser of JSON may let pass, and no record, and no approval, can be made of."""
    if depth > _DEEPEST:
        raise Misfit(_TOO_DEEP)
    if isinstance(value, float) and not math.isfinite(value):
        raise Misfit(f"the arguments are no JSON: {value} is no number")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit("the arguments are no JSON: a text has half a surrogate pair") from None
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            _check_plain(item, depth + 1)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except Exception:  # noqa: BLE001 - a name that is not there at run time; then anything goes
        return {}


def _sentence(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])


def _untitled(schema: Any) -> Any:
    """``schema`` without the titles that pydantic makes of names: they only cost tokens."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: item for name, item in schema.items() if name != "title" or not isinstance(item, str)}
    properties = schema.get("properties")
    found = {name: _untitled(item) for name, item in kept.items()}
    if isinstance(properties, dict):  # a parameter may be called "title"
        found["properties"] = {name: _untitled(item) for name, item in properties.items()}
    return found
