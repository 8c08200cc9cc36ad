"""What users declare, as data: frozen, of strict types, without unknown fields, refused in plain words."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sagaspan.exceptions import ConfigurationError


class DeclaredModel(BaseModel):
    """Frozen, strict, no unknown fields; errors are one ``ConfigurationError`` in plain words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigurationError(_explain(type(self), error)) from error


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "?"
    if first["type"] != "extra_forbidden":
        return f"{model.__name__} field {field!r}: {first['msg'].lower()}, got {first['input']!r}"
    near = difflib.get_close_matches(field, list(model.model_fields), n=2)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(model.model_fields)}"
    return f"{model.__name__} has no field {field!r}; {hint}"
