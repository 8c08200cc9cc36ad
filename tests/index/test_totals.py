"""What is kept of whole traces and runs is what counting all their spans would give, however they came."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from sagaspan.index import TraceIndex

from .lines import call, line, run_span, span, write

if TYPE_CHECKING:
    from pathlib import Path


def story(run: int) -> list[dict[str, Any]]:
    """A run that paused, was resumed in a second trace, failed and was undone; about 12 spans."""
    name, first, second = f"order-{run}", 2 * run + 1, 2 * run + 2
    at, before, after = 1000 * run, {"traceId": f"{first:032x}"}, {"traceId": f"{second:032x}"}
    return [
        run_span(at, "paused", name, trace=first, reason="approval"),
        *(call(at + n, "book", name, call_executed=True, cost_usd=0.25) | before | _below(at) for n in range(1, 4)),
        call(at + 4, "pay", name, call_state="awaiting_approval") | before | _below(at),
        run_span(at + 500, "compensated", name, trace=second, reason="error"),
        call(at + 501, "book", name, idempotency_outcome="replayed") | after | _below(at + 500),
        call(at + 502, "pay", name, call_state="failed", error="app.Declined") | after | _below(at + 500),
        *(
            call(at + 503 + n, "cancel", name, call_phase="compensation", call_compensates=f"call-{at + n // 2}")
            | after
            | _below(at + 500)
            for n in range(4)
        ),
        span(at + 507, "chat m", attributes=_chat(name)) | after | _below(at + 500),
    ]


def _below(parent: int) -> dict[str, Any]:
    return {"parentSpanId": f"{parent + 1:016x}"}


def _chat(run: str) -> dict[str, Any]:
    usage = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 7}
    return {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "desk", "sagaspan.run.id": run} | usage


def everything(index: TraceIndex) -> dict[str, list[tuple[Any, ...]]]:
    return {
        "traces": index.query("select * from traces order by trace_id").rows,
        "runs": index.query("select * exclude (trace_id) from runs order by run_id").rows,
        "last traces": index.query("select trace_id from runs where state is not null order by run_id").rows,
    }


@pytest.mark.parametrize("seed", range(3))
def test_spans_that_come_in_any_order_over_many_syncs_are_counted_once(tmp_path: Path, seed: int) -> None:
    """Late, twice, from two files, the root last: the same traces and runs as all at once."""
    spans = [item for run in range(4) for item in story(run)]
    at_once = TraceIndex(tmp_path / "at_once")
    at_once.directory.mkdir()
    write(at_once.directory / "a.jsonl", *(line(item) for item in spans))
    at_once.sync()

    chance = random.Random(seed)
    scattered = TraceIndex(tmp_path / "scattered", batch_bytes=4000)
    scattered.directory.mkdir()
    lines = [line(item) for item in spans + chance.sample(spans, 20)]
    chance.shuffle(lines)
    for start in range(0, len(lines), 15):
        write(scattered.directory / f"{chance.choice('ab')}.jsonl", *lines[start : start + 15])
        scattered.sync()
    assert everything(scattered) == everything(at_once)


def test_the_totals_are_those_of_the_spans(tmp_path: Path) -> None:
    """Told by counting the story itself, not by asking the index twice."""
    write(tmp_path / "a.jsonl", *(line(item) for item in story(0)))
    index = TraceIndex(tmp_path)
    index.sync()
    table = index.query("select * exclude (started) from runs")
    (run,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert run == {
        "run_id": "order-0",
        "name": "trip",
        "state": "compensated",
        "reason": "error",
        "duration_ms": 509.0,
        "calls": 4,
        "compensations": 2,
        "llm_calls": 1,
        "errors": 1,
        "cost_usd": 0.75,
        "input_tokens": 100,
        "output_tokens": 7,
        "agent_name": "desk",
        "conversation_id": None,
        "user": None,
        "tenant": None,
        "trace_id": f"{2:032x}",
    }
    counted: dict[str, int] = defaultdict(int)
    for item in story(0):
        counted[item["traceId"]] += 1
    rows = index.query("select trace_id, status, spans, errors, cost_usd from traces order by started").rows
    assert rows == [
        (f"{1:032x}", "paused", counted[f"{1:032x}"], 0, 0.75),
        (f"{2:032x}", "compensated", counted[f"{2:032x}"], 1, None),
    ]


def test_a_span_without_a_trace_id_belongs_to_none(tmp_path: Path) -> None:
    """It is among the spans, and makes no trace of its own."""
    write(tmp_path / "a.jsonl", line(span(0, traceId="")), line(span(1)))
    index = TraceIndex(tmp_path)
    assert index.sync().spans == 2
    assert index.query("select spans from traces").rows == [(1,)]
