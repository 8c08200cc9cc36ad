"""What the trace sink and the index cost, as ratios in one run, against the targets of the design; prints JSON.

    uv run python tests/benchmarks/bench_telemetry.py [--spans 120000] [--rows 1000000] [--kills 20]

``--spans`` are written by the sink and taken in by the index; ``--rows`` are made inside DuckDB and only asked (10 M
take minutes and 2 GB). Figures in us and spans/s depend on the machine, and on who else works on it; the ratios, and
whether a target holds, are what to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from sagaspan import semconv
from sagaspan.index import TraceIndex, Where, named_queries
from sagaspan.index.connection import writing
from sagaspan.telemetry import JsonLinesSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = 5
SPANS_A_ROUND: Final = 5_000
THREADS: Final = 8
BURST: Final = 50_000
QUERIES: Final = {
    "failed calls by tool": "select tool, error_type, count(*) from tool_calls where state = 'failed' group by all",
    "p95 by tool": "select tool, quantile_cont(duration_ms, 0.95) from tool_calls group by tool",
    "cost by model": "select model, sum(cost_usd), sum(input_tokens) from llm_calls group by model",
    "runs by state": "select state, count(*) from runs group by state",
    "refusals": "select reason, tool, count(*) from refusals group by all",
    "errors, the last 20": "select * from errors order by started desc limit 20",
}
ATTRIBUTES: Final = {
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
# Ten spans a trace, a trace a second: a run with a model, seven tools, of which one in fifty failed, and a refusal.
MADE: Final = """
insert into spans (trace_id, span_id, parent_span_id, name, kind, start_time, end_time, duration_ms, duration_ns,
                   status, service_name, scope_name, operation, tool_name, agent_name, conversation_id, model, provider,
                   input_tokens, output_tokens, cost_usd, error_type, run_id, run_name, call_id, phase, state, is_run,
                   outcome, executed, attempts, attributes, resource, source)
select md5((i // 10)::varchar), lpad(to_hex(i), 16, '0'),
       case when i % 10 > 0 then lpad(to_hex(i - i % 10), 16, '0') end,
       case i % 10 when 0 then 'sagaspan trip' when 1 then 'chat gpt-4o' else 'execute_tool tool' || (i % 7) end,
       'INTERNAL', make_timestamp_ns(1780000000000000000 + (i // 10) * 1000000000 + (i % 10) * 1000000),
       make_timestamp_ns(1780000000000000000 + (i // 10) * 1000000000 + (i % 10) * 1000000 + ms * 1000000),
       ms, ms * 1000000, case when bad then 'ERROR' else 'UNSET' end, 'shop', 'sagaspan',
       case i % 10 when 0 then null when 1 then 'chat' else 'execute_tool' end,
       case when i % 10 > 1 then 'tool' || (i % 7) end, 'desk' || (i % 3), 'c' || (i // 100),
       case i % 10 when 1 then ['gpt-4o', 'sonnet', 'mini'][i // 10 % 3 + 1] end, case i % 10 when 1 then 'openai' end,
       case i % 10 when 1 then 1000 + i % 500 end, case i % 10 when 1 then i % 300 end,
       case i % 10 when 1 then 0.002 when 2 then 0.01 end,
       case when bad then ['app.SoldOut', 'budget_exceeded'][i // 50 % 2 + 1] end,
       'run-' || (i // 10), 'trip', case when i % 10 > 0 then md5(i::varchar) end,
       case when i % 10 > 1 then 'forward' end,
       case when i % 10 = 0 then ['completed', 'compensated'][i // 10 % 2 + 1] when bad then 'failed' else 'done' end,
       i % 10 = 0, case when i % 10 > 1 then 'executed' end, i // 50 % 2 = 0, 1,
       map {'sagaspan.run.id': 'run-' || (i // 10), 'http.route': '/r/' || (i % 20), 'sagaspan.run.reason': 'error'},
       map {'service.name': 'shop'}, 'made.jsonl'
from (select i, (hash(i) % 900 + 1)::bigint as ms, i % 50 = 4 as bad from range(?, ?) rows(i))
"""
_WRITER: Final = """
import sys
from opentelemetry.sdk.trace import TracerProvider
from sagaspan.telemetry import JsonLinesSpanProcessor
provider = TracerProvider()
provider.add_span_processor(JsonLinesSpanProcessor(sys.argv[1]))
tracer, number = provider.get_tracer("t"), 0
while True:
    tracer.start_span(f"span-{number}").end()
    print(number, flush=True)
    number += 1
"""


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
    eight = statistics.median(_in_threads(sunk) for _ in range(3))
    started = time.perf_counter()
    spend(sunk, BURST)
    burst = time.perf_counter() - started
    sink.shutdown()
    written = sum(path.read_bytes().count(b"\n") for path in directory.glob("*.jsonl"))
    ended = ROUNDS * SPANS_A_ROUND + 3 * THREADS * SPANS_A_ROUND + BURST
    return {
        "sdk_us_per_span": round(sdk, 1),
        "sdk_and_sink_us_per_span": round(both, 1),
        "sink_us_per_span": round(both - sdk, 1),
        "ratio_to_sdk": round(both / sdk, 2),
        "spans_per_s_1_thread": round(1e6 / both),
        f"spans_per_s_{THREADS}_threads": round(THREADS * SPANS_A_ROUND / eight),
        "burst_spans_per_s": round(BURST / burst),
        "dropped": sink.dropped,
        "lost": ended - written,
    }


def _in_threads(provider: TracerProvider) -> float:
    threads = [threading.Thread(target=spend, args=(provider, SPANS_A_ROUND)) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def measure_kills(folder: Path, rounds: int) -> dict[str, int]:
    """Spans that a process had ended when it was killed, and that no file has."""
    ended = lost = 0
    for number in range(rounds):
        directory = folder / str(number)
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(directory)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(200 + 37 * number):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            last = 200 + 37 * number + process.stdout.read().count(b"\n")
        text = b"".join(path.read_bytes() for path in directory.glob("*.jsonl"))
        ended, lost = ended + last, lost + max(0, last - text.count(b"\n"))
    return {"rounds": rounds, "ended": ended, "lost": lost}


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
    }


def measure_queries(directory: Path, rows: int) -> dict[str, object]:
    """How long answers take over ``rows`` spans, opening the index included."""
    index = TraceIndex(directory)
    index.sync()
    with writing(index.path) as connection:
        for first in range(0, rows, 1_000_000):
            connection.execute(MADE, [first, min(first + 1_000_000, rows)])
        connection.execute("checkpoint")
    ((trace_id,),) = index.query("select trace_id from spans limit 1 offset ?", [rows // 2]).rows
    asked: dict[str, Callable[[], object]] = {
        "opening alone": lambda: index.query("select 1"),
        "traces list": index.traces,
        "traces list --status error --tool": lambda: index.traces(Where(status=("error",), tool="tool*")),
        "traces list --run": lambda: index.traces(Where(run_id="run-77")),
        "traces filter --min-duration": lambda: index.spans(Where(min_ms=890.0, tool="tool3")),
        "traces show": lambda: index.trace(trace_id),
        **{name: (lambda sql=sql: index.query(sql)) for name, sql in QUERIES.items()},
        **{
            f"--named {name}": (lambda sql=sql: index.query(sql, timeout=120))
            for name, (_, sql) in named_queries().items()
            if "ledger." not in sql
        },
    }
    took = {name: round(timed(ask, 5 if rows <= 1_000_000 else 3) * 1000, 1) for name, ask in asked.items()}
    return {"rows": rows, "bytes_per_row": round(index.path.stat().st_size / rows), "ms": took}


def measure_start(directory: Path) -> dict[str, float]:
    """Python, the command line, and an answer: the median of nine calls, and of Python alone."""
    environment = {**os.environ, "SAGASPAN_TRACE_DIR": str(directory)}

    def call(*arguments: str) -> float:
        run = lambda: subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)  # noqa: E731
        return round(timed(run, 9), 3)

    return {
        "python_s": call("-c", "pass"),
        "help_s": call("-m", "sagaspan", "--help"),
        "sql_s": call("-m", "sagaspan", "sql", "select 1", "--json"),
        "traces_list_s": call("-m", "sagaspan", "traces", "list", "--json"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=120_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "sink": measure_sink(Path(folder) / "sink"),
            "kills": measure_kills(Path(folder) / "kills", arguments.kills),
            "index": measure_index(Path(folder) / "index", arguments.spans),
            "queries": measure_queries(Path(folder) / "made", arguments.rows),
            "start": measure_start(Path(folder) / "index"),
        }
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
