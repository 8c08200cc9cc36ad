"""What shows traces behind the Collector, and what its API says of them: Jaeger, or the smaller viewer in its stead."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tests.services.asking import get, post

_VALUES: Final[Mapping[str, Callable[[str], Any]]] = {
    "bool": lambda said: said == "true",
    "int64": int,
    "float64": float,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One span, as it is shown."""

    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    name: str
    failed: bool
    attributes: dict[str, Any]
    links: list[str]  # the ids of the spans


class Backend(Protocol):
    """Where traces are looked at."""

    def trace(self, trace_id: str) -> list[Shown]:
        """The spans of one trace; an ``OSError``, or none, where it is not there yet."""

    def of_service(self, name: str) -> list[Shown]:
        """The spans of all traces that a service began."""

    def everything(self) -> str:
        """All that it has, as text."""


class Jaeger:
    """Jaeger's API."""

    def __init__(self, port: int) -> None:
        self.url: Final = f"http://127.0.0.1:{port}"

    def trace(self, trace_id: str) -> list[Shown]:
        return _of_jaeger(get(f"{self.url}/api/traces/{trace_id}")["data"][0])

    def of_service(self, name: str) -> list[Shown]:
        return [span for trace in self._traces(name) for span in _of_jaeger(trace)]

    def everything(self) -> str:
        services = get(f"{self.url}/api/services")["data"]
        return json.dumps([self._traces(name) for name in services])

    def _traces(self, service: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = get(f"{self.url}/api/traces", service=service, limit="10000")["data"]
        return found


def _of_jaeger(trace: dict[str, Any]) -> list[Shown]:
    return [_span_of_jaeger(span, trace["processes"][span["processID"]]["serviceName"]) for span in trace["spans"]]


def _span_of_jaeger(span: dict[str, Any], service: str) -> Shown:
    tags = {tag["key"]: tag["value"] for tag in span["tags"]}
    parents = [ref["spanID"] for ref in span["references"] if ref["refType"] == "CHILD_OF"]
    return Shown(
        trace_id=span["traceID"],
        span_id=span["spanID"],
        parent_id=parents[0] if parents else None,
        service=service,
        name=span["operationName"],
        failed=tags.get("error") is True,
        attributes=tags,
        links=[ref["spanID"] for ref in span["references"] if ref["refType"] != "CHILD_OF"],
    )


class DesktopViewer:
    """The JSON-RPC of otel-desktop-viewer."""

    def __init__(self, port: int) -> None:
        self.url: Final = f"http://127.0.0.1:{port}"

    def trace(self, trace_id: str) -> list[Shown]:
        return [_of_viewer(span["spanData"]) for span in self._spans(trace_id)]

    def of_service(self, name: str) -> list[Shown]:
        begun = [
            trace["traceID"]
            for trace in self._traces()
            if trace["hasRootSpan"] and trace["rootSpan"]["serviceName"] == name
        ]
        return [span for trace_id in begun for span in self.trace(trace_id)]

    def everything(self) -> str:
        return json.dumps([self._spans(trace["traceID"]) for trace in self._traces()])

    def _traces(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._asked("searchTraces", "0", str(2**63 - 1)) or []
        return found

    def _spans(self, trace_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._asked("searchSpans", trace_id)["spans"]
        return found

    def _asked(self, method: str, *params: str) -> Any:
        answer = post(f"{self.url}/rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if "error" in answer:
            raise OSError(f"{method}: {answer['error']['message']}")
        return answer["result"]


def _of_viewer(span: dict[str, Any]) -> Shown:
    return Shown(
        trace_id=span["traceID"],
        span_id=span["spanID"],
        parent_id=span["parentSpanID"],
        service=next(one["value"] for one in span["resource"]["attributes"] if one["key"] == "service.name"),
        name=span["name"],
        failed=span["statusCode"] == "Error",
        attributes={one["key"]: _VALUES.get(one["type"], str)(one["value"]) for one in span["attributes"]},
        links=[link["spanID"] for link in span["links"]],
    )
