"""Spans that never change a result: every step of ours is guarded, counted in the log once, and carries no content.

Attribute names come from ``semconv``. Status stays UNSET on success and is ERROR with ``error.type`` on failure;
exception messages and arguments appear only under OpenTelemetry's own content opt-in (rule: no content by default).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, ParamSpec, TypeVar, cast

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)
from opentelemetry.util.types import Attributes, AttributeValue

from sagaspan import _live as live
from sagaspan import semconv
from sagaspan.exceptions import ApprovalPending, BudgetExceeded, SagaspanError, ScopeFrozen

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("sagaspan")
MAX_CONTENT: Final = 4096
"""Characters of one attribute with content."""
_MAX_MESSAGE: Final = 100_000
_NO_SPAN: Span = INVALID_SPAN
_SCOPE: Final = "sagaspan"
_NOTHING: Final = contextlib.nullcontext()
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def harmless(default: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: an error in telemetry code is logged and answered with ``default``."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def safely(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except Exception:  # noqa: BLE001 - telemetry never breaks the call it watches
                _log_once(function.__qualname__)
                return default

        return safely

    return decorate


@functools.cache
def _log_once(where: str) -> None:
    _log.exception("telemetry failed in %s; further failures there are not logged", where)


def tracer_of(provider: TracerProvider | None) -> Tracer:
    """The tracer of this library from ``provider`` (None: the global one, also if it is set later)."""
    return trace.get_tracer(_SCOPE, version_of(), provider, semconv.SCHEMA_URL)


def nobody_looks(tracer: Tracer) -> bool:
    """Whether nothing would come of a span of ``tracer``: there is no SDK, and no span of somebody's to go on from."""
    # The tracer that is behind it now; to ask for the provider reads the environment each time.
    is_off = type(tracer) is trace.ProxyTracer and type(getattr(tracer, "_tracer", None)) is trace.NoOpTracer
    return is_off and trace.get_current_span() is INVALID_SPAN


@harmless(_NO_SPAN)
def start(
    tracer: Tracer,
    name: str,
    attributes: Mapping[str, AttributeValue],
    *,
    parent: Span | None = None,
    links: list[Link] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Span:
    """Start a span under ``parent`` (None: under the current one) without making it the current one."""
    return tracer.start_span(
        name,
        context=None if parent is None else trace.set_span_in_context(parent),
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    )


@harmless(None)
def end(span: Span, attributes: Mapping[str, AttributeValue], error: BaseException | None = None) -> None:
    """End ``span`` with ``attributes``, and as an error if there is one; to wait for somebody is none."""
    if not span.is_recording():
        return
    try:
        tell(span, attributes, error)
    finally:
        span.end()


@harmless(None)
def tell(span: Span, attributes: Mapping[str, AttributeValue], error: BaseException | None = None) -> None:
    """As ``end`` for a span that somebody else ends."""
    span.set_attributes(attributes)
    if error is None or isinstance(error, ApprovalPending):
        return
    span.set_attribute(semconv.ERROR_TYPE, error_type(error))
    if isinstance(error, BudgetExceeded):
        span.set_attribute(semconv.BUDGET_SCOPE, error.scope)
    elif isinstance(error, ScopeFrozen):
        span.set_attribute(semconv.FREEZE_SCOPE, error.scope)
    captured = captures_content()
    if captured and error.__traceback__ is not None:
        span.set_attribute(semconv.EXCEPTION_STACKTRACE, _stack(error))
    span.set_status(StatusCode.ERROR, content(error_message(error) or "") if captured else None)


@harmless(cast("Span | None", None))
def opened_for(tool: str, given: Span = INVALID_SPAN) -> Span | None:
    """The span that another instrumentation opened for this very call of ``tool``; None if there is none.

    It is ``given`` by whoever knows it, or the current one. To open one more would count the call twice on every
    dashboard. One that a call has already is not given to the next one: a tool may call itself, or be called again,
    under the same foreign span.
    """
    if given.is_recording():
        return given if semconv.CALL_PHASE not in (getattr(given, "attributes", None) or {}) else None
    span = trace.get_current_span()
    if not span.is_recording():
        return None
    scope = getattr(span, "instrumentation_scope", None)
    if scope is None or scope.name == _SCOPE:  # the span of the run: most calls end here, and attributes are slow
        return None
    attributes = getattr(span, "attributes", None)
    if not attributes or semconv.CALL_PHASE in attributes:
        return None
    if attributes.get(semconv.GEN_AI_OPERATION_NAME) == semconv.OPERATION_EXECUTE_TOOL:
        named = attributes.get(semconv.GEN_AI_TOOL_NAME)
    elif attributes.get(semconv.OPENINFERENCE_SPAN_KIND) == semconv.KIND_TOOL:
        named = attributes.get(semconv.OPENINFERENCE_TOOL_NAME, getattr(span, "name", None))
    elif attributes.get(semconv.TRACELOOP_SPAN_KIND) == "tool":
        named = attributes.get(semconv.TRACELOOP_ENTITY_NAME)
    else:
        return None
    return span if named == tool else None


@harmless(True)
def is_measured(span: Span) -> bool:
    """Whether who opened ``span`` for a tool measures ``gen_ai.execute_tool.duration`` as well, or nobody knows.

    OpenTelemetry's own instrumentations do; OpenInference and OpenLLMetry only record spans.
    """
    attributes = getattr(span, "attributes", None) or {}
    is_conventional = attributes.get(semconv.GEN_AI_OPERATION_NAME) == semconv.OPERATION_EXECUTE_TOOL
    return is_conventional and semconv.TRACELOOP_SPAN_KIND not in attributes


def current(span: Span) -> contextlib.AbstractContextManager[object]:
    """``span`` as the current one within the block, if there is one; it is not ended.

    One that is not sampled is passed on too: what a parent-based sampler asks, and what goes out as ``traceparent``, is
    its context (W3C Trace Context, section 2.2.2).
    """
    if not span.get_span_context().is_valid:
        return _NOTHING
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


@harmless(cast("Context | None", None))
def enter(span: Span) -> Context | None:
    """Make ``span`` the current one, and return the context to ``leave`` it for; None if there is no span."""
    if not span.get_span_context().is_valid:
        return None
    before = context.get_current()
    context.attach(trace.set_span_in_context(span, before))
    return before


@harmless(None)
def leave(span: Span, before: Context) -> None:
    """Make ``before`` the current context again, if ``span`` is the current one: it may be left in another task."""
    # Not by a token: it belongs to the task that entered, and OpenTelemetry logs an error anywhere else.
    if trace.get_current_span() is span:
        context.attach(before)


@harmless(None)
def mark(span: Span, attribute: str) -> None:
    """Say on ``span`` that ``attribute`` is true."""
    span.set_attribute(attribute, True)


class AttemptSpan(Span):
    """The span of one attempt, started as soon as anything needs it: a child, a header, an attribute, a second attempt.

    The first attempt is nearly always the only one, and needs none.
    """

    def __init__(self, tracer: Tracer, parent: Span, number: int, delay: float) -> None:
        self._tracer = tracer
        self._parent = parent
        self._attributes: dict[str, AttributeValue] = {
            semconv.ATTEMPT_NUMBER: number,
            semconv.ATTEMPT_DELAY_MS: delay * 1000,
            semconv.OPENINFERENCE_SPAN_KIND: semconv.KIND_CHAIN,
        }
        self._number = number
        self._started_ns = time.time_ns()
        self._lock = threading.Lock()
        self._made: Span | None = None

    @property
    def is_started(self) -> bool:
        """Whether anything has needed it."""
        return self._made is not None

    def _span(self) -> Span:
        with self._lock:
            if self._made is None:
                self._made = self._tracer.start_span(
                    semconv.SPAN_ATTEMPT.format(n=self._number),
                    context=trace.set_span_in_context(self._parent),
                    attributes=self._attributes,
                    start_time=self._started_ns,
                )
            return self._made

    def end(self, end_time: int | None = None) -> None:
        """As OpenTelemetry's, and so are all below."""
        self._span().end(end_time)

    def get_span_context(self) -> SpanContext:
        return self._span().get_span_context()

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._span().set_attributes(attributes)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self._span().set_attribute(key, value)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        self._span().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        self._span().add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self._span().update_name(name)

    def is_recording(self) -> bool:
        return self._span().is_recording()

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._span().set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self._span().record_exception(exception, attributes, timestamp, escaped)


def error_type(error: BaseException) -> str:
    """``error.type``: snake case for our refusals (a closed set), else the class's full name, builtins bare."""
    kind = type(error)
    if isinstance(error, SagaspanError):
        named = next(base for base in kind.__mro__ if base.__module__ == SagaspanError.__module__)
        return re.sub(r"(?<!^)(?=[A-Z])", "_", named.__name__).lower()
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_message(error: BaseException) -> str | None:
    """What an exception says, as text that can be stored; None if it says nothing, or breaks when it is asked.

    Of a long one the beginning: one that quotes a whole answer may be larger than a row of the ledger.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - somebody's __str__ must not hide the error itself
        return None
    text = live.scrubbed(text.encode("utf-8", "backslashreplace").decode())
    return (text if len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 1]}…") or None


def _stack(error: BaseException) -> str:
    """Where an exception came from; of a long one the end, which is where it was raised."""
    text = live.scrubbed("".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace").decode())
    return text if len(text) <= MAX_CONTENT else "…" + text[1 - MAX_CONTENT :]


def captures_content() -> bool:
    """Whether the user opted in to content on spans (``SPAN_ONLY`` or ``SPAN_AND_EVENT``)."""
    return os.environ.get(semconv.ENV_CAPTURE_CONTENT, "").upper() in ("SPAN_ONLY", "SPAN_AND_EVENT")


def user_of(user: str | None) -> str | None:
    """``user`` as it may be on a span: nobody, unless the operator opted in."""
    return user if user and os.environ.get(semconv.ENV_CAPTURE_USERS, "").lower() in ("true", "1") else None


def content(text: str) -> str:
    """Content as it goes on a span: at most 4096 characters."""
    return text if len(text) <= MAX_CONTENT else text[: MAX_CONTENT - 1] + "…"


def traceparent_of(span: Span) -> str | None:
    """The W3C ``traceparent`` of a span that records, to find it again in another process."""
    of_span = span.get_span_context()
    if not of_span.is_valid:
        return None
    return f"00-{of_span.trace_id:032x}-{of_span.span_id:016x}-{of_span.trace_flags:02x}"


def link_to(traceparent: str | None, kind: str) -> list[Link] | None:
    """A link of ``kind`` to the span of ``traceparent``."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None:
        return None
    linked = SpanContext(
        int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=TraceFlags(int(match[3], 16))
    )
    return [Link(linked, {semconv.LINK_TYPE: kind})]


@functools.cache
def version_of() -> str:
    """The version of this library."""
    try:
        return version("sagaspan")
    except PackageNotFoundError:
        return "0"
