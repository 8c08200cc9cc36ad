"""Spans: names, kinds, attributes; links; no content unless asked for; and telemetry never breaks a call."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from sagaspan import Guard, KeyConflict, Policy, PolicyDenied, Unsure
from tests.conftest import Caller

SECRET = "sk-canary-4711"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Declined(Exception):
    """What a service says no with."""


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The spans of this name in the order of starting."""
    found = [span for span in spans.get_finished_spans() if span.name == name]
    return sorted(found, key=lambda span: span.start_time or 0)


@pytest.mark.parametrize("opted_in", [False, True])
def test_users_are_on_spans_only_when_asked_for(
    guard: Guard, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, opted_in: bool
) -> None:
    """For whom it was, of a run, its calls, its models and what was undone: only under ``SAGASPAN_TRACE_USERS``."""
    monkeypatch.setenv("SAGASPAN_TRACE_USERS", str(opted_in).lower())
    refund = guard.tool("refund")(lambda amount: amount)
    pay = guard.tool("pay", cost="0.01 USD", compensate=refund)(lambda amount: amount)
    with pytest.raises(Declined), guard.run("trip", user="ada@example.test"):
        pay(5)
        with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=5) as call:
            call.record_usage(input_tokens=10, output_tokens=5)
        raise Declined
    found = {span.name: (span.attributes or {}).get("user.id") for span in spans.get_finished_spans()}
    names = {"execute_tool pay", "execute_tool refund", "chat gpt-4o", "sagaspan trip"}
    assert found == dict.fromkeys(names, "ada@example.test" if opted_in else None)
    assert opted_in or not any("ada@example.test" in span.to_json() for span in spans.get_finished_spans())


def test_a_run_that_is_not_sampled_has_no_spans_at_all(store_url: str, caller: Caller) -> None:
    """Its calls and models are not roots that are sampled for themselves, and what they send names their trace."""
    exporter, sent = InMemorySpanExporter(), []
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    guard = Guard(store_url, tracer_provider=provider)

    @caller.tool(guard, effect="write")
    def pay(number: int) -> None:
        sent.append(carrier := {})
        propagate.inject(carrier)

    async def job() -> None:
        for number in range(20):
            async with caller.run(guard, "trip"):
                await caller.call(pay, number)
                with guard.llm_call("gpt-4o", input_tokens=10, max_output_tokens=5) as call:
                    call.record_usage(input_tokens=10, output_tokens=5)

    with guard:
        caller.play(job)
    spans = exporter.get_finished_spans()
    traces = {span.context.trace_id for span in spans if span.context}
    assert 0 < len(traces) < 20
    assert {span.name for span in spans if span.parent is None} == {"sagaspan trip"}
    assert len(spans) == 3 * len(traces)
    assert [len(carrier["traceparent"]) for carrier in sent] == [55] * 20
    assert len(guard.runs.list()) == 20
    provider.shutdown()


def test_a_call_and_its_run(guard: Guard, caller: Caller, spans: InMemorySpanExporter) -> None:
    """``execute_tool {tool}`` under ``sagaspan {run}``, both internal, with exactly these attributes and types."""

    @caller.tool(guard, effect="write")
    def pay(amount: float) -> str:
        """Pay an amount."""
        assert trace.get_current_span().get_span_context().span_id
        return "ok"

    async def job() -> Any:
        async with caller.run(guard, "trip", id="a", agent="booker", conversation="c1") as run:
            await caller.call(pay, 5.0)
            return run.calls[0].id

    call_id = caller.play(job)
    (call,) = named(spans, "execute_tool pay")
    (run,) = named(spans, "sagaspan trip")
    attributes = dict(call.attributes or {})
    assert 0 <= attributes.pop("sagaspan.call.body_ms") < ((call.end_time or 0) - (call.start_time or 0)) / 1e6 + 1
    assert attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Pay an amount.",
        "gen_ai.agent.name": "booker",
        "gen_ai.conversation.id": "c1",
        "sagaspan.run.id": "a",
        "sagaspan.run.name": "trip",
        "sagaspan.call.phase": "forward",
        "sagaspan.call.effect": "write",
        "sagaspan.call.id": call_id,
        "sagaspan.call.state": "done",
        "sagaspan.call.executed": True,
        "sagaspan.call.attempts": 1,
        "sagaspan.idempotency.outcome": "executed",
    }
    assert {name: type(value) for name, value in (run.attributes or {}).items()} == {
        "gen_ai.operation.name": str, "sagaspan.run.id": str, "sagaspan.run.name": str, "sagaspan.run.state": str,
        "sagaspan.run.resumed": bool,
        "openinference.span.kind": str, "gen_ai.agent.name": str, "gen_ai.conversation.id": str,
    }  # fmt: skip
    assert (run.attributes or {})["sagaspan.run.state"] == "completed"
    for span in (call, run):
        assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
        assert span.instrumentation_scope.name == "sagaspan"
    assert call.parent is not None
    assert call.parent.span_id == run.context.span_id


def test_a_nested_run_belongs_to_the_conversation_of_the_outer_one(guard: Guard, spans: InMemorySpanExporter) -> None:
    """Its spans, those of what it calls and of what undoes that are found by it; unless it has one of its own."""
    pay = guard.tool("pay", compensate=guard.tool("refund")(lambda: None))(lambda: 1)
    with guard.run("trip", conversation="c1"):
        with guard.run("leg") as leg:
            pay()
            leg.abort()
        with guard.run("other", conversation="c2") as other:
            pass
    assert (leg.record.conversation, other.record.conversation) == ("c1", "c2")
    said = {span.name: (span.attributes or {})["gen_ai.conversation.id"] for span in spans.get_finished_spans()}
    assert said.pop("sagaspan other") == "c2"
    assert said == dict.fromkeys(["sagaspan trip", "sagaspan leg", "execute_tool pay", "execute_tool refund"], "c1")


def test_the_span_is_current_in_the_body_alone(
    guard: Guard, caller: Caller, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """Spans that a body starts are children of its call; around it the current span is the run's."""
    tracer = provider.get_tracer("user")

    @caller.tool(guard)
    def pay() -> None:
        tracer.start_span("http").end()

    async def job() -> None:
        async with caller.run(guard, "trip"):
            await caller.call(pay)
            tracer.start_span("mine").end()

    caller.play(job)
    (call,), (http,), (mine,), (run,) = (
        named(spans, name) for name in ("execute_tool pay", "http", "mine", "sagaspan trip")
    )
    assert http.parent is not None
    assert mine.parent is not None
    assert (http.parent.span_id, mine.parent.span_id) == (call.context.span_id, run.context.span_id)
    assert not trace.get_current_span().get_span_context().is_valid


def test_outcomes(guard: Guard, caller: Caller, spans: InMemorySpanExporter) -> None:
    """A replay, a conflict and a refusal have a span of their own that says so."""

    async def deny(call: Any, call_next: Any) -> Any:
        if call.arguments.get("order") == "bad":
            raise PolicyDenied("no")
        return await call_next(call)

    with Guard(guard._store.url, middleware=[deny], tracer_provider=guard_provider(spans)) as own:
        pay = caller.tool(own, "pay", key="order")(lambda order, amount=1: amount)

        async def job() -> None:
            async with caller.run(own, "trip"):
                await caller.call(pay, "o")
                await caller.call(pay, "o")
                with pytest.raises(KeyConflict):
                    await caller.call(pay, "o", 2)
                with pytest.raises(PolicyDenied):
                    await caller.call(pay, "bad")

        caller.play(job)
    seen = [
        (
            (span.attributes or {}).get("sagaspan.idempotency.outcome"),
            (span.attributes or {})["sagaspan.call.executed"],
            (span.attributes or {}).get("error.type"),
            span.status.status_code,
        )
        for span in named(spans, "execute_tool pay")
    ]
    assert seen == [
        ("executed", True, None, StatusCode.UNSET),
        ("replayed", False, None, StatusCode.UNSET),
        ("conflict", False, "key_conflict", StatusCode.ERROR),
        (None, False, "policy_denied", StatusCode.ERROR),
    ]


def guard_provider(spans: InMemorySpanExporter) -> TracerProvider:
    """Another provider into the same exporter."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


FOREIGN = {
    "OpenTelemetry's": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "pay"},
    "OpenInference's": {"openinference.span.kind": "TOOL", "tool.name": "pay"},
    "OpenLLMetry's": {"traceloop.span.kind": "tool", "traceloop.entity.name": "pay"},
}


@pytest.mark.parametrize("attributes", FOREIGN.values(), ids=FOREIGN)
def test_a_span_that_somebody_opened_for_the_call_is_adopted(
    guard: Guard,
    caller: Caller,
    spans: InMemorySpanExporter,
    provider: TracerProvider,
    reader: InMemoryMetricReader,
    attributes: dict[str, str],
) -> None:
    """It says what ours would beside what it said, and its owner ends it; a second call has its own.

    Tools are measured once: OpenTelemetry's instrumentations do so themselves, the others do not.
    """
    theirs = provider.get_tracer("somebody")
    pay = caller.tool(guard, "pay", effect="write", repeat="new")(lambda: theirs.start_span("http").end())

    async def job() -> None:
        async with caller.run(guard, "trip", id="a"):
            with theirs.start_as_current_span("their pay", attributes={**attributes, "gen_ai.tool.type": "extension"}):
                await caller.call(pay)
                assert not named(spans, "their pay")
                await caller.call(pay)

    caller.play(job)
    (adopted,), (own,), https = (named(spans, name) for name in ("their pay", "execute_tool pay", "http"))
    said = dict(adopted.attributes or {})
    assert attributes.items() <= said.items()
    assert said["gen_ai.tool.type"] == "extension"
    assert set(own.attributes or {}) <= set(said)
    assert (said["sagaspan.run.id"], said["sagaspan.call.state"], said["gen_ai.tool.name"]) == ("a", "done", "pay")
    assert own.parent is not None
    assert own.parent.span_id == adopted.context.span_id
    assert [http.parent and http.parent.span_id for http in https] == [adopted.context.span_id, own.context.span_id]
    ran = [point.count for metric in _metrics(reader, "gen_ai.execute_tool.duration") for point in metric]
    assert ran == [1 if "gen_ai.operation.name" in attributes else 2]


def _metrics(reader: InMemoryMetricReader, name: str) -> list[Any]:
    data = reader.get_metrics_data()
    assert data is not None
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return [metric.data.data_points for scope in scopes for metric in scope.metrics if metric.name == name]


def test_a_span_that_is_not_current_is_adopted_where_it_is_given(
    guard: Guard, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """An adapter knows it though nothing on it says so yet; given twice, it is that of the first call only."""
    tool = guard.define(lambda n: n, name="pay", policy=Policy())
    theirs = provider.get_tracer("somebody").start_span("their pay")
    with guard.run("trip"):
        for number in range(2):
            guard.call_tool(tool, {"n": number}, lambda arguments: arguments["n"], span=theirs)
    theirs.end()
    (adopted,), (own,) = named(spans, "their pay"), named(spans, "execute_tool pay")
    assert set(own.attributes or {}) == set(adopted.attributes or {})
    assert (adopted.attributes or {})["sagaspan.call.state"] == "done"


def test_a_refusal_is_an_error_of_the_adopted_span(
    guard: Guard, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """Also where its owner never sees it, because the model is told."""
    pay = guard.tool("pay", key="order")(lambda order, amount: amount)
    pay("o", 1)
    theirs = provider.get_tracer("somebody").start_as_current_span("pay", attributes=FOREIGN["OpenInference's"])
    with theirs, pytest.raises(KeyConflict):
        pay("o", 2)
    (span,) = named(spans, "pay")
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "key_conflict")


@pytest.mark.parametrize(
    "attributes",
    [{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "other"}, {"gen_ai.operation.name": "chat"}, {}],
)
def test_another_span_is_not_adopted(
    guard: Guard, spans: InMemorySpanExporter, provider: TracerProvider, attributes: dict[str, str]
) -> None:
    """One of another tool, of a model or of anything else is only the parent; nor is one of ours, in a recursion."""

    @guard.tool
    def pay(again: bool) -> None:
        if again:
            pay(False)

    with provider.get_tracer("somebody").start_as_current_span("pay", attributes=attributes):
        pay(True)
    assert len(named(spans, "execute_tool pay")) == 2
    (theirs,) = named(spans, "pay")
    assert dict(theirs.attributes or {}) == attributes


def test_each_attempt_is_current_while_it_runs(
    guard: Guard, caller: Caller, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """What the body does is below the attempt that did it, also the first; a probe is current while it looks."""
    did: list[int] = []

    def looked(kind: str) -> None:
        provider.get_tracer("client").start_span(f"{kind} {len(did)}").end()

    @caller.tool(guard, retry={"attempts": 3, "initial_delay": 0}, effect="read")
    def pay() -> None:
        did.append(1)
        looked("http")
        if len(did) == 1:
            raise Declined

    def find() -> Unsure:
        looked("search")
        return Unsure("they do not know")

    @caller.tool(guard, effect="write", probe=find)
    def lose() -> None:
        raise TimeoutError

    async def job() -> None:
        async with caller.run(guard, "trip"):
            await caller.call(pay)
            with contextlib.suppress(TimeoutError):
                await caller.call(lose)

    caller.play(job)
    names = {span.context.span_id: span.name for span in spans.get_finished_spans()}
    above = {
        span.name: names[span.parent.span_id] for span in spans.get_finished_spans()
        if span.parent and span.name.startswith(("http", "search"))
    }  # fmt: skip
    assert above == {"http 1": "attempt 1", "http 2": "attempt 2", "search 2": "probe lose"}


def test_errors_and_attempts(guard: Guard, caller: Caller, spans: InMemorySpanExporter) -> None:
    """A failure is ERROR with its type and no text; attempts have spans only if there is more than one."""

    @caller.tool(guard, retry={"attempts": 3, "initial_delay": 0.01, "jitter": False}, effect="read")
    def pay(fail: int) -> None:
        failures.append(1)
        if len(failures) <= fail:
            raise Declined(SECRET)

    failures: list[int] = []

    async def job() -> None:
        async with caller.run(guard, "trip"):
            await caller.call(pay, 0)
            failures.clear()
            await caller.call(pay, 1)
            failures.clear()
            await caller.call(pay, 9)

    with pytest.raises(Declined):
        caller.play(job)
    once, twice, thrice = named(spans, "execute_tool pay")
    children = {
        span.context.span_id: [child for child in spans.get_finished_spans() if child.parent and
                               child.parent.span_id == span.context.span_id]
        for span in (once, twice, thrice)
    }  # fmt: skip
    assert [len(children[span.context.span_id]) for span in (once, twice, thrice)] == [0, 2, 3]
    first, second = sorted(children[twice.context.span_id], key=lambda span: span.name)
    assert (first.name, second.name) == ("attempt 1", "attempt 2")
    assert (first.attributes or {})["error.type"] == f"{Declined.__module__}.Declined"
    assert dict(second.attributes or {}) == {
        "sagaspan.attempt.number": 2, "sagaspan.attempt.delay_ms": 10.0, "openinference.span.kind": "CHAIN",
    }  # fmt: skip
    assert (thrice.status.status_code, thrice.status.description) == (StatusCode.ERROR, None)
    assert (thrice.attributes or {})["sagaspan.call.attempts"] == 3
    assert (thrice.attributes or {})["sagaspan.call.state"] == "failed"
    (run,) = named(spans, "sagaspan trip")
    assert run.status.status_code is StatusCode.ERROR
    assert (run.attributes or {})["sagaspan.run.reason"] == "error"


def test_compensations_are_linked(guard: Guard, caller: Caller, spans: InMemorySpanExporter) -> None:
    """A compensation is a child of the run's span and links to what it undoes."""

    def refund() -> None: ...

    pay = caller.tool(guard, "pay", compensate=refund)(lambda: 1)

    async def job() -> None:
        async with caller.run(guard, "trip") as run:
            await caller.call(pay)
            run.abort()

    caller.play(job)
    (call,), (undo,), (run,) = (
        named(spans, name) for name in ("execute_tool pay", "execute_tool refund", "sagaspan trip")
    )
    (link,) = undo.links
    assert (link.context.trace_id, link.context.span_id) == (call.context.trace_id, call.context.span_id)
    assert dict(link.attributes or {}) == {"sagaspan.link.type": "compensates"}
    assert undo.parent is not None
    assert undo.parent.span_id == run.context.span_id
    attributes = undo.attributes or {}
    assert attributes["sagaspan.call.phase"] == "compensation"
    assert attributes["sagaspan.call.compensates"] == (call.attributes or {})["sagaspan.call.id"]
    assert (attributes["sagaspan.call.state"], attributes["sagaspan.run.name"]) == ("done", "trip")
    assert (run.attributes or {})["sagaspan.run.state"] == "compensated"


def test_a_failed_compensation_is_an_error(guard: Guard, spans: InMemorySpanExporter) -> None:
    """A compensation that fails ends its span as an error, each of its attempts too."""

    def refund() -> None:
        raise Declined(SECRET)

    pay = guard.tool("pay", compensate=refund)(lambda: 1)
    with pytest.raises(Exception, match="NOT undone"), guard.run("trip") as run:
        pay()
        run.abort()
    (undo,) = named(spans, "execute_tool refund")
    assert undo.status.status_code is StatusCode.ERROR
    assert (undo.attributes or {})["error.type"] == f"{Declined.__module__}.Declined"


def test_a_resumed_run_is_a_new_trace_with_a_link(guard: Guard, caller: Caller, spans: InMemorySpanExporter) -> None:
    """Entered again, a run links to the span it goes on from."""

    async def job(pause: bool) -> None:
        async with caller.run(guard, "trip", id="a") as run:
            if pause:
                run.pause()

    caller.play(job, True)
    caller.play(job, False)
    first, second = named(spans, "sagaspan trip")
    (link,) = second.links
    assert link.context.span_id == first.context.span_id
    assert first.context.trace_id != second.context.trace_id
    assert (second.attributes or {})["sagaspan.run.resumed"] is True


def _everything(spans: InMemorySpanExporter) -> str:
    return "\n".join(span.to_json() for span in spans.get_finished_spans())


def _secretive(guard: Guard, caller: Caller) -> None:
    def refund(result: Any, token: str) -> None:
        raise Declined(SECRET)

    @caller.tool(guard, compensate=refund)
    def pay(token: str) -> dict[str, str]:
        return {"token": token}

    @caller.tool(guard)
    def fail(token: str) -> None:
        raise ValueError(f"bad {token}")

    async def job() -> None:
        async with caller.run(guard, "trip", input={"token": SECRET}, tags={"t": SECRET}) as run:
            run.output = SECRET
            await caller.call(pay, SECRET)
            await caller.call(fail, SECRET)

    with pytest.raises(Exception, match="NOT undone"):
        caller.play(job)


@pytest.mark.parametrize("setting", ["", "NO_CONTENT", "EVENT_ONLY", "true"])
def test_no_content_by_default(
    guard: Guard, caller: Caller, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Arguments, results, messages, input and output appear on no span, whatever is not the opt-in."""
    monkeypatch.setenv(CONTENT, setting)
    _secretive(guard, caller)
    assert len(spans.get_finished_spans()) >= 4
    assert SECRET not in _everything(spans)


@pytest.mark.parametrize("setting", ["SPAN_ONLY", "span_and_event"])
def test_content_on_request(
    guard: Guard, caller: Caller, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """With OpenTelemetry's own opt-in, arguments and results are on the call's span, at most 4096 characters."""
    monkeypatch.setenv(CONTENT, setting)
    _secretive(guard, caller)
    (pay,), (fail,) = named(spans, "execute_tool pay"), named(spans, "execute_tool fail")
    assert (pay.attributes or {})["gen_ai.tool.call.arguments"] == f'{{"token":"{SECRET}"}}'
    assert (pay.attributes or {})["gen_ai.tool.call.result"] == f'{{"token":"{SECRET}"}}'
    assert fail.status.description == f"bad {SECRET}"
    big = caller.tool(guard, "big")(lambda text: object())
    caller.play(caller.call, big, "x" * 10_000)
    (span,) = named(spans, "execute_tool big")
    assert len(str((span.attributes or {})["gen_ai.tool.call.arguments"])) == 4096
    assert "gen_ai.tool.call.result" not in (span.attributes or {})


def test_content_of_a_compensation_is_that_of_a_call(
    guard: Guard, caller: Caller, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What undid a step says with what, and what came of it; not what its tool redacts, and not the step itself."""
    monkeypatch.setenv(CONTENT, "SPAN_ONLY")

    def refund(order: str, mail: str, result: dict[str, str], call: Any, idempotency_key: str) -> dict[str, str]:
        return {"refund": order, "token": SECRET}

    undo = guard.tool(redact=["mail", "result.token"])(refund)
    pay = caller.tool(guard, "pay", compensate=undo, redact=["result.token"])(
        lambda order, mail: {"id": 1, "token": SECRET}
    )

    async def job() -> None:
        async with caller.run(guard, "trip") as run:
            await caller.call(pay, "o-1", "ada@example.com")
            run.abort()

    caller.play(job)
    (span,) = named(spans, "execute_tool refund")
    assert "ada@example.com" not in span.to_json()
    said = dict(span.attributes or {})
    arguments = json.loads(str(said["gen_ai.tool.call.arguments"]))
    assert (arguments["order"], arguments["result"]["id"], set(arguments)) == (
        "o-1", 1, {"order", "mail", "result", "idempotency_key"},
    )  # fmt: skip
    assert json.loads(str(said["gen_ai.tool.call.result"]))["refund"] == "o-1"
    assert SECRET not in _everything(spans)


class _Broken(SpanProcessor):
    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._where == "start":
            raise RuntimeError("broken processor")

    def on_end(self, span: Any) -> None:
        if self._where == "end":
            raise RuntimeError("broken processor")


@pytest.mark.parametrize("where", ["start", "end"])
def test_broken_telemetry_breaks_nothing(
    store_url: str, caller: Caller, where: str, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """A span processor that raises changes no result, no rollback and no error; the log says it once a place."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(_Broken(where))
    undone: list[int] = []
    with Guard(store_url, tracer_provider=provider) as guard:
        pay = caller.tool(guard, "pay", compensate=lambda result: undone.append(result), retry=2)(lambda n: n)

        async def job() -> None:
            async with caller.run(guard, "trip", id="a"):
                assert await caller.call(pay, 1) == 1
                assert await caller.call(pay, 2) == 2
                raise Declined

        with pytest.raises(Declined):
            caller.play(job)
        assert (undone, guard.runs.get("a").status) == ([2, 1], "compensated")
    provider.shutdown()


def test_an_error_that_cannot_be_told_still_ends_its_span(
    guard: Guard, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception whose text raises leaves no span open, also with content."""
    monkeypatch.setenv(CONTENT, "SPAN_ONLY")

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @guard.tool
    def pay() -> None:
        raise Mute

    with pytest.raises(Mute), guard.run("trip"):
        pay()
    assert len(named(spans, "execute_tool pay")) == len(named(spans, "sagaspan trip")) == 1


NO_SDK = """
import sys
sys.modules["opentelemetry.sdk"] = None
from sagaspan import Guard
with Guard(sys.argv[1]) as guard:
    undone = []
    pay = guard.tool("pay", compensate=lambda: undone.append(1))(lambda: 1)
    with guard.run() as run:
        pay()
        run.abort()
    assert undone == [1]
assert not [name for name in sys.modules if name.startswith(("duckdb", "langchain", "opentelemetry.exporter"))]
"""


def test_without_an_sdk(store_url: str, tmp_path: Path) -> None:
    """The core needs the OpenTelemetry API alone, and imports neither SDK, exporter, DuckDB nor a framework."""
    done = subprocess.run([sys.executable, "-c", NO_SDK, store_url], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_framework_call_carries_its_id(guard: Guard, spans: InMemorySpanExporter) -> None:
    """The framework's call id and agent are on the span and in the record."""
    tool = guard.define(lambda n: n, name="pay", policy=Policy())
    with guard.run("trip") as run:
        assert guard.call_tool(tool, {"n": 1}, lambda arguments: arguments["n"], tool_call_id="call_1", agent="x") == 1
        assert run.calls[0].tool_call_id == "call_1"
    (span,) = named(spans, "execute_tool pay")
    assert (span.attributes or {})["gen_ai.tool.call.id"] == "call_1"
    assert (span.attributes or {})["gen_ai.agent.name"] == "x"
