"""What agents send arrives in a real Collector, Jaeger and Prometheus: whole, under the right names, without content.

The Collector runs with the configuration that is shipped, Prometheus with that of ``dashboards/``. The backend is
Jaeger; where that could not be had, otel-desktop-viewer.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator

from sagaspan import semconv
from tests.services.agents import CANARY, CARD, SERVICE
from tests.services.asking import eventually, get
from tests.services.programs import missing
from tests.services.queries import as_prometheus_is_asked, dashboards
from tests.services.stack import ROOT, Stack

REQUIRED: Final = os.environ.get("SAGASPAN_REQUIRE_SERVICES") == "1"
WORKERS: Final = "PYTEST_XDIST_WORKER" in os.environ
DEMO: Final = "sagaspan-demo"

pytestmark = pytest.mark.services


def _lacking() -> str | None:
    """Why these tests cannot run here."""
    if WORKERS and not REQUIRED:
        return "real servers are started by one process only: pytest -n 0 tests/services"
    lacking = missing()
    return f"no {', '.join(lacking)} here: python -m tests.services.programs" if lacking else None


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All three, started once."""
    if (reason := _lacking()) is not None:
        (pytest.fail if REQUIRED else pytest.skip)(reason)
    stack = Stack(tmp_path_factory.mktemp("services"))
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(autouse=True)
def _logs_of_a_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed and "stack" in request.fixturenames:
        print(request.getfixturevalue("stack").logs())


def _sagaspan(*arguments: str, **environment: str) -> Any:
    """What the command line answers, in JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "sagaspan", *arguments, "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


COLUMNS: Final = "trace_id, span_id, parent_span_id, name, status, error_type, run_id, call_id"


def _spans(folder: Path, where: str) -> set[tuple[str | None, ...]]:
    """The spans that the index of this folder has, as `sagaspan sql` says."""
    rows = _sagaspan("sql", f"select {COLUMNS} from spans where {where}", SAGASPAN_TRACE_DIR=str(folder))
    return {tuple(row.values()) for row in rows}


@pytest.fixture(scope="module")
def demo(stack: Stack) -> Path:
    """The home in which the demo ran, exporting to the Collector."""
    home = stack.folder / "demo" / ".sagaspan"
    _sagaspan("demo", SAGASPAN_HOME=str(home), **stack.otlp_environment)
    return home


@pytest.fixture(scope="module")
def declined(demo: Path) -> str:
    """The trace of the run whose card was declined."""
    (row,) = _sagaspan("sql", "select trace_id from runs where run_id like '%-declined'", SAGASPAN_HOME=str(demo))
    trace_id: str = row["trace_id"]
    return trace_id


@pytest.fixture(scope="module")
def agents(stack: Stack) -> Iterator[Path]:
    """The home of agents that work, and fail, for as long as this module runs; with content opted in to."""
    home = stack.folder / "agents" / ".sagaspan"
    environment = {
        **os.environ,
        **stack.otlp_environment,
        "SAGASPAN_HOME": str(home),
        semconv.ENV_CAPTURE_CONTENT: "SPAN_ONLY",
        "PYTHONPATH": str(ROOT),
    }
    log = stack.folder / "agents.log"
    with log.open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.services.agents"],
            cwd=stack.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n", log.read_text()
        yield home
    finally:
        process.kill()
        process.communicate()


def test_the_trace_is_a_tree_in_the_backend(stack: Stack, demo: Path, declined: str) -> None:
    """The run is the root; models, tools and what undid them are below it, with their status and attributes."""
    here = _spans(demo / "traces", f"trace_id = '{declined}'")
    spans = eventually(
        lambda: found if len(found := stack.backend.trace(declined)) == len(here) else None, "the demo in the backend"
    )
    by_name = {span.name: span for span in spans}
    root = by_name["sagaspan trip"]
    assert root.parent_id is None
    assert Counter(span.name for span in spans if span.parent_id == root.span_id) == {
        "chat scripted": 3, "execute_tool book_flight": 1, "execute_tool book_hotel": 1, "execute_tool charge_card": 1,
        "execute_tool cancel_hotel": 1, "execute_tool cancel_flight": 1,
    }  # fmt: skip
    assert {span.name for span in spans if span.failed} == {"sagaspan trip", "execute_tool charge_card"}
    said = {name: span.attributes for name, span in by_name.items()}
    assert said["sagaspan trip"][semconv.RUN_STATE] == "compensated"
    assert said["execute_tool charge_card"][semconv.ERROR_TYPE].endswith("CardDeclined")
    assert (
        said["execute_tool book_hotel"]
        | {
            semconv.GEN_AI_OPERATION_NAME: "execute_tool",
            semconv.GEN_AI_TOOL_NAME: "book_hotel",
            semconv.CALL_STATE: "done",
            semconv.CALL_EXECUTED: True,
            semconv.CALL_ATTEMPTS: 1,
            semconv.IDEMPOTENCY_OUTCOME: "executed",
        }
        == said["execute_tool book_hotel"]
    )
    assert said["execute_tool cancel_hotel"][semconv.CALL_PHASE] == "compensation"
    assert by_name["execute_tool cancel_hotel"].links == [by_name["execute_tool book_hotel"].span_id]
    assert {span.service for span in spans} == {DEMO}


def test_each_span_is_in_the_file_in_the_backend_and_in_sql(stack: Stack, demo: Path) -> None:
    """What the program wrote beside its ledger, the Collector wrote too: the same spans in `sagaspan sql`."""
    here = _spans(demo / "traces", "true")
    assert len(here) > 20

    def there() -> bool:
        return stack.traces.is_dir() and _spans(stack.traces, f"service_name = '{DEMO}'") == here

    eventually(there, "the demo in the Collector's file")
    expected = {(trace_id, span_id) for trace_id, span_id, *_ in here}

    def shown() -> bool:
        return {(span.trace_id, span.span_id) for span in stack.backend.of_service(DEMO)} == expected

    eventually(shown, "every span of the demo in the backend, and no other")


@pytest.mark.parametrize("name", ["operations", "money"])
def test_every_query_of_the_dashboards_has_an_answer(stack: Stack, agents: Path, name: str) -> None:
    """With real numbers: no series is missing, no quotient is of nothing."""
    for query in dashboards()[name].promql:
        asked = as_prometheus_is_asked(query, interval="30s", over="10m", service=".*")

        def answered(asked: str = asked) -> list[float]:
            values = [float(found["value"][1]) for found in stack.query(asked)]
            return [value for value in values if value == value and value not in (float("inf"), 0.0)]

        eventually(answered, f"an answer to {asked}")


def test_variables_of_the_dashboards_have_values(stack: Stack, agents: Path) -> None:
    """Services are chosen from what is measured."""
    assert eventually(lambda: [s for s in stack.query("target_info") if s["metric"]["job"] == SERVICE], "target_info")


def test_a_number_leads_to_its_trace(stack: Stack, agents: Path) -> None:
    """An exemplar of a tool's duration is a span of that tool, in the backend."""

    def exemplar() -> Any:
        answer = get(
            f"{stack.prometheus}/api/v1/query_exemplars",
            query='gen_ai_execute_tool_duration_seconds_bucket{gen_ai_tool_name="pay"}',
            start="0",
            end="99999999999",
        )
        return next((one for series in answer["data"] for one in series["exemplars"]), None)

    trace_id = eventually(exemplar, "an exemplar")["labels"]["trace_id"]
    spans = eventually(lambda: stack.backend.trace(trace_id), "its trace")
    assert "execute_tool pay" in {span.name for span in spans}


def test_programs_without_metrics_are_counted_by_their_spans(stack: Stack, demo: Path) -> None:
    """The Collector counts spans before it samples them."""
    query = f'traces_span_metrics_calls_total{{service_name="{DEMO}",gen_ai_tool_name="book_hotel"}}'
    assert eventually(lambda: stack.query(query), query)


def test_nothing_that_was_said_or_done_is_behind_the_collector(stack: Stack, demo: Path, agents: Path) -> None:
    """Neither in the backend, in Prometheus, nor in any file; the programs recorded it, and others would have."""
    local = b"".join(path.read_bytes() for path in (agents / "traces").glob("*.jsonl"))
    assert CANARY.encode() in local
    assert CARD.encode() in local
    foreign = "harmless"
    eventually(lambda: foreign.encode() in _files(stack), "a span of another instrumentation in the file")
    seen = eventually(lambda: all_ if foreign in (all_ := stack.backend.everything()) else None, "and in the backend")
    series = json.dumps(get(f"{stack.prometheus}/api/v1/series", **{"match[]": '{job=~".+"}'}))
    assert SERVICE in series
    places = {"backend": seen, "Prometheus": series, "files": _files(stack).decode(errors="replace")}
    for word in (CANARY, CARD, "Lisbon"):
        assert [place for place, text in places.items() if word in text] == []


def _files(stack: Stack) -> bytes:
    """All that the servers wrote: traces, the queue, the time series, their logs."""
    skipped = {stack.folder / "demo", stack.folder / "agents", stack.folder / "agents.log"}
    return b"".join(
        path.read_bytes()
        for top in stack.folder.iterdir()
        if top not in skipped
        for path in (top.rglob("*") if top.is_dir() else [top])
        if path.is_file()
    )


class _Numbered(IdGenerator):
    """Ids in a row, so that a test that is tried again has others."""

    def __init__(self, first: int) -> None:
        self._next = first

    def generate_trace_id(self) -> int:
        self._next += 1
        return self._next << 64 | self._next

    def generate_span_id(self) -> int:
        self._next += 1
        return self._next


def _provider(stack: Stack, service: str, first: int) -> TracerProvider:
    provider = TracerProvider(
        resource=Resource({"service.name": service}), id_generator=_Numbered(first), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{stack.otlp}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def test_sampling_keeps_every_run_and_a_tenth_of_the_rest(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of requests for approval, of refusals and of errors every one; the file has them all."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    first = secrets.randbits(48)  # the sampling goes by the ids; a second try has others than the first
    service = f"sampled-{first}"
    provider = _provider(stack, service, first)
    tracer = provider.get_tracer("t")
    kept: dict[str, dict[str, Any]] = {
        "run": {semconv.RUN_ID: "r"}, "approval": {semconv.APPROVAL_ID: "a"}, "refusal": {semconv.CALL_EXECUTED: False},
    }  # fmt: skip
    for _ in range(20):
        for name, attributes in kept.items():
            tracer.start_span(name, attributes=attributes).end()
        for number in range(5):
            tracer.start_span(f"rest {number}").end()
    tracer.start_span("last", attributes={semconv.RUN_ID: "last"}).end()
    provider.shutdown()

    def seen() -> Counter[str] | None:
        names = Counter(span.name.split()[0] for span in stack.backend.of_service(service))
        return names if names["last"] and all(names[name] >= 20 for name in kept) else None

    names = eventually(seen, "the kept spans in the backend")  # the Collector sends what it decided on in no order
    assert {name: names[name] for name in kept} == dict.fromkeys(kept, 20)
    assert 0 < names["rest"] < 40
    spans = eventually(
        lambda: s if len(s := _spans(stack.traces, f"service_name = '{service}'")) >= 161 else None, "all"
    )
    assert len(spans) == 161


def test_what_waits_for_a_backend_outlives_the_collector(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is away, the Collector is killed; when both are back, the span arrives."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    other = Stack(stack.folder / "queue-test")
    other.folder.mkdir()
    try:
        collector = other.start_collector(OTELCOL_DECISION_WAIT="1s")
        provider = _provider(other, "patient", 2_000_000)
        provider.get_tracer("t").start_span("waits", attributes={semconv.RUN_ID: "r"}).end()
        provider.shutdown()

        def queued() -> bool:
            return b"waits" in b"".join(path.read_bytes() for path in (other.folder / "queue").iterdir())

        eventually(queued, "the span in the queue on disk")
        collector.kill()
        other.start_backend()
        other.start_collector()
        spans = eventually(lambda: other.backend.of_service("patient"), "the span in the backend")
        assert [span.name for span in spans] == ["waits"]
    finally:
        other.stop()
