"""What users declare, as data: frozen, of strict types, without unknown fields, refused in plain words."""

from __future__ import annotations

import difflib
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from sagaspan.exceptions import ConfigurationError


class DeclaredModel(BaseModel):
    """Frozen, strict, no unknown fields; errors are one ``ConfigurationError`` in plain words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        if values:
            first = next(iter(type(self).model_fields))
            raise ConfigurationError(
                f"{type(self).__name__} takes its fields by name, such as "
                f"{type(self).__name__}({first}={values[0]!r}), not {', '.join(map(repr, values))} alone"
            )
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigurationError(_explain(type(self), error)) from error

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigurationError(
            f"a {type(self).__name__} is not changed once it is made; make another one with replace({name}=...)"
        )

    def replace(self, **fields: Any) -> Self:
        """A copy with ``fields`` changed, validated like a new one."""
        return type(self)(**{**self._decided(), **fields})

    def _decided(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


def _description(model: type[BaseModel], field: str) -> str | None:
    """What a field takes, in words, if somebody wrote that down."""
    found = model.model_fields.get(field)
    if found is None or found.description:
        return None if found is None else found.description
    options = (found.annotation, *get_args(found.annotation))
    infos = (info for option in options for info in getattr(option, "__metadata__", ()))
    return next((info.description for info in infos if getattr(info, "description", None)), None)


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "?"
    if first["type"] != "extra_forbidden":
        takes = _description(model, field)
        says = f" takes {takes}" if takes else f": {first['msg'].lower()}"
        got = "nothing" if first["type"] == "missing" else f"{first['input']!r}"
        return f"{model.__name__} field {field!r}{says}, got {got}"
    near = difflib.get_close_matches(field, list(model.model_fields), n=2)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(model.model_fields)}"
    return f"{model.__name__} has no field {field!r}; {hint}"
