"""The JSON Schema of a policy file, for editors; made of the models that read it."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit, core_schema

from sagaspan._defaults import FIELDS
from sagaspan._policy_file import TABLES
from sagaspan.notify import EVENTS
from sagaspan.policy import Policy
from sagaspan.rules import LIMITS, Rule


class _OfFile(GenerateJsonSchema):
    """What a file can say of a model: functions and types are only for code."""

    def callable_schema(self, schema: core_schema.CallableSchema) -> JsonSchemaValue:  # noqa: ARG002 - pydantic's
        """A function cannot be written in a file."""
        raise PydanticOmit

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:  # noqa: ARG002 - pydantic's
        """Nor can an object."""
        raise PydanticOmit

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:  # noqa: ARG002 - pydantic's
        """Nor a class."""
        raise PydanticOmit


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file."""
    policy, policy_parts = _schema_of(Policy)
    rule, rule_parts = _schema_of(Rule)
    limits = {name: policy["properties"][name] for name in LIMITS}
    rule["properties"]["limits"] = {"type": "object", "properties": limits, "additionalProperties": False}
    rule["properties"]["tools"] = _one_or_many({"type": "string", "minLength": 1})
    budget: dict[str, Any] = {"anyOf": [
        {"type": "string", "examples": ["20 USD/day"]},
        {"type": "object", "properties": {"limit": {"type": "string"}, "soft": {"type": "array"},
                                          "hard": {"type": "boolean"}}, "required": ["limit"]},
    ]}  # fmt: skip
    guard = {
        "budget": _one_or_many(budget), "loop": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": False}]},
        "fail_open": {"type": "boolean"}, "mode": {"enum": ["enforce", "observe"]},
    }  # fmt: skip
    properties: dict[str, Any] = {
        "guard": {
            "type": "object",
            "properties": {name: guard[name] for name in FIELDS},
            "additionalProperties": False,
        },
        "tools": {"type": "object", "additionalProperties": policy},
        "rules": {"type": "array", "items": rule},
        "budgets": {"type": "object", "additionalProperties": _one_or_many(budget)},
        "prices": {"type": "object", "additionalProperties": {"type": "object"}},
    }
    event = {"enum": list(EVENTS)}
    hook = {"url": {"type": "string"}, "secret": {"type": "string"}, "secret_env": {"type": "string"},
            "events": {"type": "array", "items": event}}  # fmt: skip
    properties["notify"] = {
        "type": "array",
        "items": {"type": "object", "properties": hook, "required": ["url"], "additionalProperties": False},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "sagaspan.toml", "type": "object",
        "properties": {name: properties[name] for name in TABLES}, "additionalProperties": False,
        "$defs": {**policy_parts, **rule_parts},
    }  # fmt: skip


def _schema_of(model: type[Policy | Rule]) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = model.model_json_schema(schema_generator=_OfFile)
    parts = schema.pop("$defs", {})
    properties = schema["properties"]
    if "retry" in properties:
        properties["retry"] = {"anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/Retry"}]}
        properties["rate"] = {"type": "string", "examples": ["10/minute"]}
    parts = {name: part for name, part in parts.items() if name not in ("Rate", "Policy")}
    return {**schema, "description": (model.__doc__ or "").strip().splitlines()[0]}, parts


def _one_or_many(item: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [item, {"type": "array", "items": item}]}
