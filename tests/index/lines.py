"""Trace lines for the tests of the index, as our sink and as a Collector write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

START = 1_790_000_000_000_000_000  # nanoseconds: 2026-09-21 14:13:20 UTC


def value(content: object) -> dict[str, Any]:
    match content:
        case bool():
            return {"boolValue": content}
        case int():
            return {"intValue": str(content)}
        case float():
            return {"doubleValue": content}
        case list():
            return {"arrayValue": {"values": [value(item) for item in content]}}
    return {"stringValue": str(content)}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(content)} for key, content in attributes.items()]


def span(number: int, name: str = "step", *, trace: int = 1, parent: int | None = None, **more: Any) -> dict[str, Any]:
    """A span that starts ``number`` ms after START and takes 2 ms.

    ``attributes`` and ``error`` are understood.
    """
    attributes, error = more.pop("attributes", {}), more.pop("error", None)
    start = START + number * 1_000_000
    result: dict[str, Any] = {
        "traceId": f"{trace:032x}",
        "spanId": f"{number + 1:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 2_000_000),
        "attributes": pairs(attributes | ({"error.type": error} if error else {})),
        "status": {"code": 2, "message": "it broke"} if error else {},
    }
    if parent is not None:
        result["parentSpanId"] = f"{parent + 1:016x}"
    return result | more


def line(*spans: dict[str, Any], service: str = "shop") -> str:
    request = {
        "resourceSpans": [
            {
                "resource": {"attributes": pairs({"service.name": service})},
                "scopeSpans": [{"scope": {"name": "sagaspan"}, "spans": list(spans)}],
            }
        ]
    }
    return json.dumps(request, separators=(",", ":")) + "\n"


def write(path: Path, *lines: str) -> Path:
    with path.open("a") as stream:
        stream.writelines(lines)
    return path


def call(number: int, tool: str, run: str = "order-1", *, call_id: str = "", **attributes: Any) -> dict[str, Any]:
    """A tool call's span as sagaspan makes it."""
    error = attributes.pop("error", None)
    named = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "sagaspan.run.id": run,
        "sagaspan.run.name": "trip",
        "sagaspan.call.id": call_id or f"call-{number}",
        "sagaspan.call.phase": "forward",
    }
    extra = {f"sagaspan.{key.replace('_', '.', 1)}": content for key, content in attributes.items()}
    return span(number, f"execute_tool {tool}", attributes=named | extra, error=error)


def run_span(number: int, state: str, run: str = "order-1", *, trace: int = 1, **attributes: Any) -> dict[str, Any]:
    """The span of a run that ended in ``state``."""
    named = {"sagaspan.run.id": run, "sagaspan.run.name": "trip", "sagaspan.run.state": state}
    extra = {f"sagaspan.run.{key}": content for key, content in attributes.items()}
    return span(number, "sagaspan trip", trace=trace, attributes=named | extra)
