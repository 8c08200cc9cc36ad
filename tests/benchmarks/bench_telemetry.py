"""What the trace sink and the index cost, as ratios in one run, against the targets of the design; prints JSON.

    uv run python -m tests.benchmarks.bench_telemetry --kills 20
    uv run python -m tests.benchmarks.bench_telemetry --only queries --rows 10000000     # two minutes and 1 GB

``--spans`` are written by the sink and taken in by the index; ``--rows`` are made inside DuckDB and only asked. Figures
in us and spans/s depend on the machine, and on who else works on it: beside times by the clock (medians) stand those of
the CPU (the least of all threads together), which depend on it less. The command line is started as it is installed,
with bytecode.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
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
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from sagaspan import Guard, semconv
from sagaspan import _metrics as metrics
from sagaspan import _spans as spans
from sagaspan._backends import run_sync
from sagaspan.index import TraceIndex, Where, named_queries
from sagaspan.index.connection import writing
from sagaspan.index.totals import add_totals
from sagaspan.index.transaction import transaction
from sagaspan.middleware.telemetry import TelemetryMiddleware
from sagaspan.telemetry import JsonLinesSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from sagaspan import Call, CallNext, Result

ROUNDS: Final = 5
SPANS_A_ROUND: Final = 5_000
THREADS: Final = 8
PARTS: Final = ("sink", "without_sdk", "kills", "index", "queries", "start")
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
                   outcome, executed, attempts, refused, attributes, resource, source)
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
       bad and i // 50 % 2 = 1,
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


def spend(provider: TracerProvider, count: int = SPANS_A_ROUND) -> tuple[float, float]:
    """Seconds by the clock, and of the CPU, for ``count`` spans with ten attributes."""
    tracer = provider.get_tracer("bench")
    started, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        with tracer.start_as_current_span("execute_tool pay", attributes=ATTRIBUTES):
            pass
    return time.perf_counter() - started, time.process_time() - used


def provider_with(*processors: SpanProcessor) -> TracerProvider:
    provider = TracerProvider(resource=Resource({"service.name": "bench"}), shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def measure_sink(directory: Path) -> dict[str, float]:
    # The floor: a processor that does nothing, because only with one does the SDK make what it hands to processors.
    alone, sunk = provider_with(SpanProcessor()), provider_with(sink := JsonLinesSpanProcessor(directory))
    pairs = [(spend(alone), spend(sunk)) for _ in range(ROUNDS)]
    sdk = statistics.median(first[0] for first, _ in pairs) / SPANS_A_ROUND * 1e6
    both = statistics.median(second[0] for _, second in pairs) / SPANS_A_ROUND * 1e6
    sdk_cpu = min(first[1] for first, _ in pairs) / SPANS_A_ROUND * 1e6
    both_cpu = min(second[1] for _, second in pairs) / SPANS_A_ROUND * 1e6
    eight = statistics.median(_in_threads(sunk) for _ in range(3))
    burst, _ = spend(sunk, BURST)
    sink.shutdown()
    written = sum(path.read_bytes().count(b"\n") for path in directory.glob("*.jsonl"))
    ended = ROUNDS * SPANS_A_ROUND + 3 * THREADS * SPANS_A_ROUND + BURST
    return {
        "sdk_us_per_span": round(sdk, 1),
        "sdk_and_sink_us_per_span": round(both, 1),
        "sink_us_per_span": round(both - sdk, 1),
        "sdk_cpu_us_per_span": round(sdk_cpu, 1),
        "sdk_and_sink_cpu_us_per_span": round(both_cpu, 1),
        "sink_cpu_us_per_span": round(both_cpu - sdk_cpu, 1),
        "ratio_to_sdk": round(both / sdk, 2),
        "spans_per_s_1_thread": round(1e6 / both),
        f"spans_per_s_{THREADS}_threads": round(THREADS * SPANS_A_ROUND / eight),
        "burst_spans_per_s": round(BURST / burst),
        "dropped": sink.dropped,
        "lost": ended - written,
    }


def measure_without_sdk(folder: Path) -> dict[str, float]:
    """What telemetry adds to a guarded call where no SDK is configured: the same answer, with what it does and without.

    That is its layer, with metrics, and what others do for it: a cost is counted, the claim asks for a span's id.
    """
    seen: list[tuple[Call, Result]] = []

    async def watch(call: Call, call_next: CallNext, /) -> Result:
        result = await call_next(call)
        seen.append((call, result))
        return result

    with Guard(f"sqlite:///{folder / 'ledger.db'}", middleware=(watch,)) as guard, guard.run("bench"):
        guard.tool(effect="write", cost="0.01 USD")(_pay)(12.5, "c1")
    ((call, result),) = seen
    layer = TelemetryMiddleware(spans.tracer_of(None))

    async def answer(_: Call) -> Result:
        return result

    def watched() -> None:
        for _ in range(SPANS_A_ROUND):
            run_sync(layer(call, answer))
            spans.traceparent_of(call.span)
            metrics.cost(10_000_000, semconv.GEN_AI_TOOL_NAME, "pay", None)
            call.span.set_attribute(semconv.COST_USD, 0.01)

    def unwatched() -> None:
        for _ in range(SPANS_A_ROUND):
            run_sync(answer(call))

    pairs = [(timed(watched), timed(unwatched)) for _ in range(ROUNDS)]
    cpu = cpu_of(watched, ROUNDS) - cpu_of(unwatched, ROUNDS)
    return {
        "us_per_call": round(statistics.median(first - second for first, second in pairs) / SPANS_A_ROUND * 1e6, 2),
        "cpu_us_per_call": round(cpu / SPANS_A_ROUND * 1e6, 2),
    }


def _pay(amount: float, card: str) -> int:
    return 1


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


def cpu_of(action: Callable[[], object], times: int = 1, whose: int = resource.RUSAGE_SELF) -> float:
    """The least CPU time of ``action`` in seconds, over all threads of this process, or over its children."""
    durations = []
    for _ in range(times):
        before = resource.getrusage(whose)
        action()
        after = resource.getrusage(whose)
        durations.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(durations)


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
    logs = list(directory.glob("*.jsonl"))
    index = TraceIndex(directory)
    cpu: list[float] = []
    seconds = timed(lambda: cpu.append(cpu_of(index.sync)))
    spans = int(index.query("select count(*) from spans").rows[0][0])
    return {
        "spans": spans,
        "sync_spans_per_s": round(spans / seconds),
        "sync_spans_per_cpu_s": round(spans / cpu[0]),
        "sync_with_nothing_new_ms": round(timed(index.sync, 9) * 1000, 2),
        "sync_with_nothing_new_cpu_ms": round(cpu_of(index.sync, 9) * 1000, 2),
        "sync_of_one_span_ms": round(timed(lambda: (write_traces(directory, 6), index.sync()), 5) * 1000, 1),
        "log_bytes_per_span": round(size / spans),
        "gzip_bytes_per_span": round(sum(len(gzip.compress(path.read_bytes())) for path in logs) / spans),
        "index_bytes_per_span": round(index.path.stat().st_size / spans),
    }


def measure_queries(directory: Path, rows: int) -> dict[str, object]:
    """How long answers take over ``rows`` spans, opening the index included."""
    index = TraceIndex(directory)
    index.sync()
    with writing(index.path) as connection:
        for first in range(0, rows, 1_000_000):
            with transaction(connection):
                connection.execute(MADE, [first, min(first + 1_000_000, rows)])
                add_totals(connection, first - 1)
        connection.execute("checkpoint")
    ((trace_id,),) = index.query("select trace_id from spans limit 1 offset ?", [rows // 2]).rows
    asked: dict[str, Callable[[], object]] = {
        "opening alone": lambda: index.query("select 1"),
        "all traces": lambda: index.query("select * from traces", max_rows=1000),
        "all runs": lambda: index.query("select * from runs", max_rows=1000),
        "the steps of a run": lambda: index.query("select * from saga_steps where run_id = 'run-77'"),
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
    times = 5 if rows <= 1_000_000 else 3
    took = {name: round(timed(ask, times) * 1000, 1) for name, ask in asked.items()}
    cpu = {name: round(cpu_of(ask, times) * 1000, 1) for name, ask in asked.items()}
    return {"rows": rows, "bytes_per_row": round(index.path.stat().st_size / rows), "ms": took, "cpu_ms": cpu}


def measure_start(directory: Path, folder: Path) -> dict[str, float]:
    """Python, the command line, and an answer: the median of nine calls, and of Python alone."""
    environment = {**os.environ, "SAGASPAN_TRACE_DIR": str(directory), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    found = {}
    for name, arguments in {
        "python": ("-c", "pass"),
        "duckdb": ("-c", "import duckdb; duckdb.connect().execute('select 1')"),
        "help": ("-m", "sagaspan", "--help"),
        "sql": ("-m", "sagaspan", "sql", "select 1", "--json"),
        "traces_list": ("-m", "sagaspan", "traces", "list", "--json"),
    }.items():
        command = [sys.executable, *arguments]
        run = lambda: subprocess.run(command, env=environment, check=True, capture_output=True)  # noqa: B023, E731
        run()
        found[f"{name}_s"] = round(timed(run, 9), 3)
        found[f"{name}_cpu_s"] = round(cpu_of(run, 9, resource.RUSAGE_CHILDREN), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=120_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--json", action="store_true", help="nothing else is ever printed")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[Path], object]] = {
        "sink": lambda folder: measure_sink(folder / "sink"),
        "without_sdk": measure_without_sdk,
        "kills": lambda folder: measure_kills(folder / "kills", arguments.kills),
        "index": lambda folder: measure_index(folder / "index", arguments.spans),
        "queries": lambda folder: measure_queries(folder / "made", arguments.rows),
        "start": lambda folder: measure_start(folder / "index", folder),
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "index").mkdir()
        chosen = arguments.only or list(parts)
        found = {name: part(Path(folder)) for name, part in parts.items() if name in chosen}
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
