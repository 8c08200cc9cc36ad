"""What the trace sink and the index cost, as ratios in one run; prints JSON.

    PYTHONPATH=src python tests/benchmarks/bench_telemetry.py [--spans 120000]

Figures in us and spans/s depend on the machine; the ratios, and whether a target holds, are what to look at.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from sagaspan import semconv
from sagaspan.index import TraceIndex
from sagaspan.telemetry import JsonLinesSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
SPANS_A_ROUND = 5_000
QUERIES = {
    "last 20 traces": "select * from traces order by start desc limit 20",
    "failed calls by tool": "select tool, error_type, count(*) from tool_calls where state = 'failed' group by all",
    "p95 by tool": "select tool, quantile_cont(duration_ms, 0.95) from tool_calls group by tool",
    "runs": "select state, count(*) from runs group by state",
}
ATTRIBUTES = {
    semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
    semconv.GEN_AI_TOOL_NAME: "pay",
    semconv.RUN_ID: "order-17",
    semconv.RUN_NAME: "refund",
    semconv.CALL_ID: "01J8ZQ3V5K",
    semconv.CALL_PHASE: semconv.PHASE_FORWARD,
    semconv.CALL_STATE: "done",
    semconv.CALL_EXECUTED: True,
    semconv.CALL_ATTEMPTS: 1,
    semconv.COST_USD: 0.01,
}


def spend(provider: TracerProvider, count: int) -> float:
    """Seconds for ``count`` spans with ten attributes."""
    tracer = provider.get_tracer("bench")
    started = time.perf_counter()
    for _ in range(count):
        with tracer.start_as_current_span("execute_tool pay", attributes=ATTRIBUTES):
            pass
    return time.perf_counter() - started


def provider_with(*processors: JsonLinesSpanProcessor) -> TracerProvider:
    provider = TracerProvider(resource=Resource({"service.name": "bench"}), shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def measure_sink(directory: Path) -> dict[str, float]:
    alone, sunk = provider_with(), provider_with(sink := JsonLinesSpanProcessor(directory))
    pairs = [(spend(alone, SPANS_A_ROUND), spend(sunk, SPANS_A_ROUND)) for _ in range(ROUNDS)]
    sdk = statistics.median(first for first, _ in pairs) / SPANS_A_ROUND * 1e6
    both = statistics.median(second for _, second in pairs) / SPANS_A_ROUND * 1e6
    sink.shutdown()
    return {
        "sdk_us_per_span": round(sdk, 1),
        "sdk_and_sink_us_per_span": round(both, 1),
        "sink_us_per_span": round(both - sdk, 1),
        "ratio_to_sdk": round(both / sdk, 2),
        "dropped": sink.dropped,
    }


def write_traces(directory: Path, count: int) -> int:
    """``count`` spans, six a trace. Returns the bytes written."""
    sink = JsonLinesSpanProcessor(directory)
    tracer = provider_with(sink).get_tracer("bench")
    for _ in range(count // 6):
        with tracer.start_as_current_span("sagaspan refund", attributes={semconv.RUN_STATE: "completed"}):
            for _ in range(5):
                tracer.start_span("execute_tool pay", attributes=ATTRIBUTES).end()
    sink.shutdown()
    return sum(path.stat().st_size for path in directory.glob("*.jsonl"))


def timed(action: Callable[[], object], times: int = 1) -> float:
    """The median time of ``action`` in seconds."""
    durations = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def measure_index(directory: Path, count: int) -> dict[str, object]:
    size = write_traces(directory, count)
    index = TraceIndex(directory)
    seconds = timed(index.sync)
    spans = int(index.query("select count(*) from spans").rows[0][0])
    return {
        "spans": spans,
        "sync_spans_per_s": round(spans / seconds),
        "sync_with_nothing_new_ms": round(timed(index.sync, 9) * 1000, 1),
        "log_bytes_per_span": round(size / spans),
        "index_bytes_per_span": round(index.path.stat().st_size / spans),
        "query_ms_with_open": {
            name: round(timed(lambda sql=sql: index.query(sql), 5) * 1000, 1)  # type: ignore[misc]
            for name, sql in QUERIES.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=120_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sink = measure_sink(Path(folder) / "sink")
        index = measure_index(Path(folder) / "index", arguments.spans)
    json.dump({"sink": sink, "index": index}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
