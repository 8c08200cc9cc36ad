"""A line means what the official protobuf encoding of the same span means, whatever the values are."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from sagaspan.telemetry.encoding import MAX_VALUE_LENGTH, SpanEncoder

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_IDS = ("traceId", "spanId", "parentSpanId")


@pytest.fixture
def tracer() -> Tracer:
    resource = Resource({"service.name": "shop", "list": ["a", "b"]}, "https://example.test/resource")
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    return provider.get_tracer("sagaspan", "1.0", "https://example.test/schema", {"scope.key": 1})


def finished(tracer: Tracer, name: str = "step", **arguments: Any) -> ReadableSpan:
    span = tracer.start_span(name, **arguments)
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


def attributes_of(values: dict[str, Any]) -> dict[str, Any]:
    """Past the tracer, because older SDKs refuse some of these values before they reach us."""
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    line = SpanEncoder().encode(ReadableSpan("n", context=context, resource=Resource({}), attributes=values))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    span = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    return {pair["key"]: pair["value"] for pair in span["attributes"]}


def as_protobuf(line: bytes) -> ExportTraceServiceRequest:
    """OTLP/JSON differs from protobuf's own JSON in one thing: ids are hex there, base64 here.

    The W3C bits of ``flags`` (0-7) are taken out: OTLP has them, the official Python encoder leaves them out.
    """

    def base64_ids(item: dict[str, Any]) -> dict[str, Any]:
        if "flags" in item:
            item["flags"] &= ~0xFF
        for key in _IDS:
            if item.get(key):
                item[key] = base64.b64encode(bytes.fromhex(item[key])).decode()
        return item

    return Parse(json.dumps(json.loads(line, object_hook=base64_ids)), ExportTraceServiceRequest())


def test_line_equals_the_official_encoding(tracer: Tracer) -> None:
    """Parsed as OTLP, the line is equal to what the OTLP exporter would send."""
    link = Link(SpanContext(7, 8, is_remote=True), {"why": "compensates"})
    span = tracer.start_span(
        "execute_tool päy",
        kind=SpanKind.CLIENT,
        attributes={"s": 'quo"te\n\t\\ ☃', "b": True, "i": 2**62, "f": 0.1, "l": ["x", "y"], "n": [1, 2]},
        links=[link],
    )
    span.add_event("retry", {"attempt": 2})
    span.set_status(Status(StatusCode.ERROR, "card refused"))
    span.end()
    assert isinstance(span, ReadableSpan)
    assert as_protobuf(SpanEncoder().encode(span)) == encode_spans([span])


def test_flags_carry_the_sampled_bit(tracer: Tracer) -> None:
    """The W3C trace flags are in the low byte of ``flags``, as OTLP says."""
    span = finished(tracer)
    decoded = json.loads(SpanEncoder().encode(span))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert decoded["flags"] & 0xFF == int(span.context.trace_flags)


def test_child_of_a_remote_parent_equals_the_official_encoding(tracer: Tracer) -> None:
    """Parent id, trace state and the remote flag survive."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    parent = SpanContext(5, 6, True, TraceFlags(1), TraceState([("vendor", "x")]))
    span = finished(tracer, context=set_span_in_context(NonRecordingSpan(parent)))
    assert as_protobuf(SpanEncoder().encode(span)) == encode_spans([span])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), {"doubleValue": "NaN"}),
        (float("inf"), {"doubleValue": "Infinity"}),
        (float("-inf"), {"doubleValue": "-Infinity"}),
        (1e300, {"doubleValue": 1e300}),
        (-(2**63), {"intValue": str(-(2**63))}),
        (2**70, {"stringValue": str(2**70)}),
        (b"\x00\xff", {"bytesValue": "AP8="}),
        (True, {"boolValue": True}),
        ([1, "a", None], {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "a"}, {}]}}),
        ({"a": {"b": 1}}, {"kvlistValue": {"values": [
            {"key": "a", "value": {"kvlistValue": {"values": [{"key": "b", "value": {"intValue": "1"}}]}}}
        ]}}),
    ],
)  # fmt: skip
def test_values_keep_their_type(value: object, expected: dict[str, Any]) -> None:
    """Every kind of value has its OTLP form; what JSON cannot carry is a string."""
    assert attributes_of({"key": value}) == {"key": expected}


def test_none_and_lone_surrogates_are_tolerated() -> None:
    """A missing value is an empty one, and a lone surrogate in a key or a value becomes a question mark."""
    span = ReadableSpan(
        "na\udc80me",
        context=SpanContext(1, 2, False, TraceFlags(1)),
        resource=Resource({}),
        attributes={"none": None, "sur\ud800rogate": "a\ud83db"},  # type: ignore[dict-item]
    )
    decoded = json.loads(SpanEncoder().encode(span))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert decoded["name"] == "na?me"
    assert decoded["attributes"] == [
        {"key": "none", "value": {}},
        {"key": "sur?rogate", "value": {"stringValue": "a?b"}},
    ]


def test_an_id_that_is_none_does_not_cost_its_span() -> None:
    """An id with more digits than OTLP has, as only a program's own code makes one, is written as it is."""
    context = SpanContext(2**130, 8, is_remote=False, trace_flags=TraceFlags(1))
    line = SpanEncoder().encode(ReadableSpan("n", context=context, resource=Resource({})))
    assert int(json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"], 16) == 2**130


def test_nesting_without_end_is_cut() -> None:
    """A value that contains itself is cut at a depth instead of failing."""
    circle: dict[str, Any] = {}
    circle["again"] = circle
    span = ReadableSpan(
        "n", context=SpanContext(1, 2, False, TraceFlags(1)), resource=Resource({}), attributes={"circle": circle}
    )
    assert json.loads(SpanEncoder().encode(span))


def test_long_values_are_cut() -> None:
    """Strings are cut at 4096 characters, alone and in a list."""
    values = attributes_of({"one": "x" * 10_000, "many": ["y" * 10_000]})
    assert values["one"]["stringValue"] == "x" * MAX_VALUE_LENGTH
    assert values["many"]["arrayValue"]["values"][0]["stringValue"] == "y" * MAX_VALUE_LENGTH


def test_key_cache_is_bounded_and_right(tracer: Tracer) -> None:
    """Ten thousand different keys neither grow the cache for ever nor get mixed up."""
    encoder = SpanEncoder()
    for number in range(10_000):
        line = encoder.encode(finished(tracer, attributes={f"key-{number}": number}))
        assert f'"key-{number}","value":{{"intValue":"{number}"}}'.encode() in line
    assert len(encoder._keys) <= 1024


def test_each_span_gets_its_own_resource_and_scope() -> None:
    """The caches of resource and scope never serve one provider's text to another."""
    encoder = SpanEncoder()
    for name in ("a", "b", "a"):
        provider = TracerProvider(resource=Resource({"service.name": name}), shutdown_on_exit=False)
        for scope in ("one", "two"):
            request = json.loads(encoder.encode(finished(provider.get_tracer(scope))))["resourceSpans"][0]
            assert request["resource"]["attributes"][0]["value"] == {"stringValue": name}
            assert request["scopeSpans"][0]["scope"]["name"] == scope
