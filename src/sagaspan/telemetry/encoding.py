"""A finished span becomes one OTLP/JSON line, the same JSON that the Collector's ``file`` exporter writes.

The text is put together by hand because the caller's thread pays for it: about 6 us a span, where protobuf's
JSON takes 50 and dictionaries with ``json.dumps`` 100. What is hostile in a value never leaves this module:
lone surrogates, NaN, integers beyond 64 bits, bytes, nesting without end, and strings longer than
``MAX_VALUE_LENGTH``.
"""

from __future__ import annotations

import json.encoder
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import StatusCode

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext

    _Frame = tuple[Resource, InstrumentationScope | None, str, str]
    """A resource and a scope, and the JSON before and after a span of theirs."""

MAX_VALUE_LENGTH: Final = 4096  # characters; one runaway value must not make a line that nobody can read
MAX_DEPTH: Final = 8
_CACHE_SIZE: Final = 1024
_FLAG_HAS_REMOTE: Final = 0x100
_FLAG_IS_REMOTE: Final = 0x200
_UNSET: Final = StatusCode.UNSET
_NULL: Final = "{}"  # OTLP's AnyValue with nothing set
_NONE: Final = "[]"  # no attributes

# The C function that json.dumps itself uses; it leaves non-ASCII as it is, which UTF-8 then carries.
_quote: Callable[[str], str] = json.encoder.encode_basestring


class SpanEncoder:
    """Turns spans into lines. Keeps the JSON of attribute keys, and of what is around a span; each cache is bounded."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self._frames: dict[int, _Frame] = {}

    def encode(self, span: ReadableSpan) -> bytes:
        """The span as one ``ExportTraceServiceRequest`` in JSON, newline included."""
        resource, scope = span.resource, span.instrumentation_scope
        frame = self._frames.get(id(scope))
        if frame is None or frame[0] is not resource:
            frame = self._frame(resource, scope)
        _, _, opening, closing = frame
        # A lone surrogate has no UTF-8; "?" is a smaller loss than the span.
        return f"{opening}{self._span(span)}{closing}".encode("utf-8", "replace")

    def _span(self, span: ReadableSpan) -> str:
        context, parent, status = span.context, span.parent, span.status
        kind: int = span.kind._value_  # without the property, which is Python
        parts = [
            f'{{"traceId":"{_hex(context.trace_id, 16)}","spanId":"{_hex(context.span_id, 8)}"',
            f'"flags":{_flags(context, parent)},"name":{_quote(span.name)},"kind":{kind + 1}',
            f'"startTimeUnixNano":"{span.start_time or 0}","endTimeUnixNano":"{span.end_time or 0}"',
        ]
        if parent is not None:
            parts.append(f'"parentSpanId":"{_hex(parent.span_id, 8)}"')
        if context.trace_state:
            parts.append(f'"traceState":{_quote(context.trace_state.to_header())}')
        if (attributes := self._attributes(span.attributes)) != _NONE:
            parts.append(f'"attributes":{attributes}')
        # Most spans have neither; the SDK makes its copies under a lock only to say so.
        if getattr(span, "_events", True) and (events := span.events):
            parts.append(f'"events":[{",".join([self._event(event) for event in events])}]')
        if getattr(span, "_links", True) and (links := span.links):
            parts.append(f'"links":[{",".join([self._link(link) for link in links])}]')
        if dropped := span.dropped_attributes:
            parts.append(f'"droppedAttributesCount":{dropped}')
        if dropped := span.dropped_events:
            parts.append(f'"droppedEventsCount":{dropped}')
        if dropped := span.dropped_links:
            parts.append(f'"droppedLinksCount":{dropped}')
        code = status.status_code
        parts.append('"status":{}}' if code is _UNSET else f'"status":{_status(code, status.description)}}}')
        return ",".join(parts)

    def _event(self, event: Event) -> str:
        dropped = f',"droppedAttributesCount":{event.dropped_attributes}' if event.dropped_attributes else ""
        return (
            f'{{"timeUnixNano":"{event.timestamp}","name":{_quote(event.name)},'
            f'"attributes":{self._attributes(event.attributes)}{dropped}}}'
        )

    def _link(self, link: Link) -> str:
        context = link.context
        state = f'"traceState":{_quote(context.trace_state.to_header())},' if context.trace_state else ""
        return (
            f'{{"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}",{state}'
            f'"flags":{_flags(context, context)},"attributes":{self._attributes(link.attributes)}}}'
        )

    def _attributes(self, attributes: Mapping[str, object] | None) -> str:
        keys = self._keys
        parts = []
        for key, value in _snapshot(attributes).items():
            prefix = keys.get(key) or self._key(key)
            if type(value) is str:  # four of five values; worth not calling a function for
                parts.append(f'{prefix}{{"stringValue":{_quote(value[:MAX_VALUE_LENGTH])}}}}}')
            else:
                parts.append(f"{prefix}{_value(value)}}}")
        return f"[{','.join(parts)}]"

    def _key(self, key: str) -> str:
        if len(self._keys) >= _CACHE_SIZE:
            self._keys.clear()
        prefix = self._keys[key] = f'{{"key":{_quote(str(key))},"value":'
        return prefix

    def _frame(self, resource: Resource, scope: InstrumentationScope | None) -> _Frame:
        if len(self._frames) >= _CACHE_SIZE:
            self._frames.clear()
        opening, closing = ('{"scope":{},"spans":[', "]}") if scope is None else self._scope_text(scope)
        # The scope is kept with its text: an id is only unique while its object lives.
        frame = resource, scope, f"{self._resource_text(resource)}{opening}", f"{closing}]}}]}}\n"
        self._frames[id(scope)] = frame
        return frame

    def _resource_text(self, resource: Resource) -> str:
        attributes = self._attributes(resource.attributes)
        url = f'"schemaUrl":{_quote(resource.schema_url)},' if resource.schema_url else ""
        return f'{{"resourceSpans":[{{"resource":{{"attributes":{attributes}}},{url}"scopeSpans":['

    def _scope_text(self, scope: InstrumentationScope) -> tuple[str, str]:
        version = f',"version":{_quote(scope.version)}' if scope.version else ""
        attributes = f',"attributes":{self._attributes(scope.attributes)}' if scope.attributes else ""
        url = f',"schemaUrl":{_quote(scope.schema_url)}' if scope.schema_url else ""
        opening = f'{{"scope":{{"name":{_quote(scope.name)}{version}{attributes}}},"spans":['
        return opening, f"]{url}}}"


def _snapshot(attributes: Mapping[str, object] | None) -> Mapping[str, object]:
    """A plain dict of the SDK's mapping: iterating that one costs a lock and a copy an item."""
    if attributes is None:
        return {}
    copy = getattr(attributes, "copy", None)
    return copy() if callable(copy) else dict(attributes)


def _hex(number: int, length: int) -> str:
    """An id as text, in half the time of formatting it."""
    try:
        return number.to_bytes(length).hex()
    except OverflowError:  # somebody's own, and not one: no reason to lose the span
        return f"{number:0{2 * length}x}"


def _flags(context: SpanContext, origin: SpanContext | None) -> int:
    remote = _FLAG_IS_REMOTE if origin is not None and origin.is_remote else 0
    return int(context.trace_flags) | _FLAG_HAS_REMOTE | remote


def _status(code: StatusCode, description: str | None) -> str:
    message = f',"message":{_quote(description[:MAX_VALUE_LENGTH])}' if description else ""
    return f'{{"code":{code.value}{message}}}'


def _value(value: object, depth: int = 0) -> str:
    """One OTLP ``AnyValue``. What has no type there becomes its text."""
    if value is True or value is False:
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, str):
        return f'{{"stringValue":{_quote(value[:MAX_VALUE_LENGTH])}}}'
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return f'{{"intValue":"{int(value)}"}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{_double(value)}}}'
    if value is None:
        return _NULL
    if isinstance(value, bytes | bytearray):
        return f'{{"bytesValue":"{b64encode(value[:MAX_VALUE_LENGTH]).decode()}"}}'
    if isinstance(value, Mapping | Sequence) and depth < MAX_DEPTH:
        return _nested(value, depth + 1)
    return f'{{"stringValue":{_quote(_text(value)[:MAX_VALUE_LENGTH])}}}'


def _nested(value: Mapping[object, object] | Sequence[object], depth: int) -> str:
    if isinstance(value, Mapping):
        pairs = [f'{{"key":{_quote(_text(k))},"value":{_value(v, depth)}}}' for k, v in value.items()]
        return f'{{"kvlistValue":{{"values":[{",".join(pairs)}]}}}}'
    return f'{{"arrayValue":{{"values":[{",".join([_value(item, depth) for item in value])}]}}}}'


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - somebody else's __str__, or an integer too long to print
        return f"<{type(value).__name__}>"


def _double(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
