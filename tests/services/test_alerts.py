"""Every alert fires in a real Prometheus, from one short process that has ended, and ends with its cause."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from sagaspan import semconv
from sagaspan.index import TraceIndex
from tests.services.agents import CARD
from tests.services.asking import eventually, get
from tests.services.programs import found
from tests.services.queries import as_prometheus_is_asked, dashboards
from tests.services.stack import ROOT, Stack

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(found("prometheus") is None, reason="no Prometheus here: python -m tests.services.programs"),
    pytest.mark.skipif(
        "PYTEST_XDIST_WORKER" in os.environ,
        reason="real servers are started by one process: pytest -n 0 tests/services",
    ),
]

FAILS = """
import contextlib, os, sys, threading, time
from sagaspan import Guard, Notify

guard = Guard(approver="inbox", notify=Notify(url=sys.argv[1], secret="s" * 32))

guard.tool("untaxi", effect="write")(lambda: None)
guard.tool("taxi", compensate="untaxi")(lambda: "t")()  # is to be undone by who has the tools

def refund(result): raise RuntimeError("the bank does not answer")
pay = guard.tool("pay", compensate=refund)(lambda: "paid")
with contextlib.suppress(Exception), guard.run("rolled back in part", id="stuck"):
    pay()
    raise ValueError

@guard.tool(effect="write")
def charge(): raise TimeoutError
with contextlib.suppress(TimeoutError), guard.run("held", id="held"):
    charge()

with contextlib.suppress(Exception), guard.run("asks", id="asks"):
    guard.tool("ask", effect="write", approve=True)(lambda: 1)()

go_on = threading.Event()
@guard.tool(effect="write", timeout=0.05)
def late(): go_on.wait(60)
with guard.run("late", id="late"):
    with contextlib.suppress(Exception):
        late()
    (call,) = guard.runs.get("late").calls
    guard.calls.resolve(call.id, "did-not-happen", note="not in the books")
go_on.set()
while guard.calls.get(call.id).state != "done":
    time.sleep(0.01)

until = time.monotonic() + 60
guard.freeze("tool:frozen", reason="a trial")
while not guard._store.deliveries(dead=True):
    assert time.monotonic() < until
    time.sleep(0.05)

@guard.tool(effect="write")
def lose(): os._exit(9)
with guard.run("dies", id="dead"): lose()
"""

LIVES = """
import sys, time
from pathlib import Path
from sagaspan import Guard

file = Path("policy.toml")
file.write_text("# nothing")
with Guard(policies=file) as guard:
    look = guard.tool("look", effect="read")(lambda n: n)
    look(1)
    file.write_text("[[rules]]\\naction = 'forbid'\\n")
    time.sleep(1.5)  # it is looked at once a second
    look(2)
    print("stale", flush=True)
    sys.stdin.read()
"""


class _Gone(BaseHTTPRequestHandler):
    """A receiver that wants no message ever again."""

    def do_POST(self) -> None:
        self.send_response(410)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home that a process left behind in which everything failed that can, once."""
    with HTTPServer(("127.0.0.1", 0), _Gone) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/"
        done = subprocess.run(
            [sys.executable, "-c", FAILS, url], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "SAGASPAN_HOME": str(tmp_path / ".sagaspan"), "NO_PROXY": "127.0.0.1"},
        )  # fmt: skip
        receiver.shutdown()
    assert done.returncode == 9, done.stderr
    taxi = _sagaspan(tmp_path, "calls", "list", "--all", "--tool", "taxi", "--json")
    (call,) = yaml.safe_load(taxi.stdout)
    undone = _sagaspan(tmp_path, "compensate", call["run_id"], "--call", call["id"], "--yes")
    assert undone.returncode == 4, undone.stdout + undone.stderr
    return tmp_path


def _sagaspan(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SAGASPAN_HOME": str(home / ".sagaspan")}
    command = [sys.executable, "-m", "sagaspan", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def agent(home: Path) -> Iterator[None]:
    """An agent that goes on by an older content of its policy file."""
    environment = {**os.environ, "SAGASPAN_HOME": str(home / ".sagaspan")}
    command = [sys.executable, "-c", LIVES]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=home, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stale\n"
        yield
        process.communicate("")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Prometheus alone, with the rules that are shipped."""
    folder = tmp_path / "services"
    folder.mkdir()
    stack = Stack(folder)
    try:
        stack.start_prometheus()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def exporter(home: Path, stack: Stack) -> Iterator[subprocess.Popen[str]]:
    """``sagaspan metrics``, started after the process that failed has ended."""
    environment = {**os.environ, "SAGASPAN_HOME": str(home / ".sagaspan")}
    command = [sys.executable, "-m", "sagaspan", "metrics", "--port", str(stack.exporter)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"Serving http://127.0.0.1:{stack.exporter}/metrics")
        yield process
        process.kill()


def _panel(stack: Stack, title: str) -> float | None:
    """What a panel of the dashboard for operations shows; None if it has no data."""
    panels = dashboards()["operations"].panels
    (panel,) = [panel for panel in panels if (panel["title"], panel["type"]) == (title, "stat")]
    expression = panel["targets"][0]["expr"]
    found = stack.query(as_prometheus_is_asked(expression, interval="1m", over="10m", service=".*"))
    return float(found[0]["value"][1]) if found else None


def _alerts(stack: Stack) -> dict[str, float]:
    """The alerts whose condition holds, also those that still wait for their ``for``, with their values."""
    alerts = get(f"{stack.prometheus}/api/v1/alerts")["data"]["alerts"]
    return {alert["labels"]["alertname"]: float(alert["value"]) for alert in alerts}


@pytest.mark.usefixtures("agent")
def test_every_alert_fires_after_the_process_that_failed_has_ended(
    home: Path, stack: Stack, exporter: subprocess.Popen[str]
) -> None:
    """Red before: counters that are born at 1 in a process that ends said 0. An alert ends with its cause."""
    (group,) = yaml.safe_load((ROOT / "dashboards" / "alerts.yaml").read_text())["groups"]
    known = {rule["alert"] for rule in group["rules"]}
    of_ledger = known - {"SagaspanCallsRefused", "SagaspanLedgerUnread"}  # the first: test_real.py

    values = {
        "SagaspanCompensationFailed": 1, "SagaspanCallInDoubt": 2, "SagaspanEffectUnexpected": 1,
        "SagaspanRunStopped": 3, "SagaspanUndoWaits": 1, "SagaspanRunPaused": 1, "SagaspanApprovalWaits": 1,
        "SagaspanFrozen": 1, "SagaspanPolicyStale": 1, "SagaspanNotificationUndelivered": 1,
    }  # fmt: skip
    assert set(values) == of_ledger
    eventually(lambda: _alerts(stack) == values, f"every alert: {values}")
    shown = {
        "Approvals waiting": 1, "Calls in doubt": 2, "Compensations that failed": 1, "Runs that stopped": 3,
        "Anything else": 6,
    }  # fmt: skip
    eventually(lambda: {title: _panel(stack, title) for title in shown} == shown, f"every panel: {shown}")
    assert _sagaspan(home, "unfreeze", "tool:frozen").returncode == 0
    eventually(lambda: "SagaspanFrozen" not in _alerts(stack), "the end of the alert")
    exporter.terminate()
    assert exporter.wait(60) == 0
    eventually(lambda: "SagaspanLedgerUnread" in _alerts(stack), "the alert that no process reads the ledger")


REFUSED = """
import contextlib
from sagaspan import Guard, KeyConflict, configure_metrics

configure_metrics("short")
with Guard() as guard:
    once = guard.tool("once", effect="write", key="n")(lambda n, amount: n)
    def refund(result): raise RuntimeError
    pay = guard.tool("pay", compensate=refund)(lambda: "paid")
    @guard.tool(effect="write")
    def lose(): raise TimeoutError
    with guard.run("refused"):
        once(1, amount=1)
        with contextlib.suppress(KeyConflict):
            once(1, amount=2)
    with contextlib.suppress(Exception), guard.run("undone"):
        pay()
        raise ValueError
    with contextlib.suppress(TimeoutError), guard.run("lost"):
        lose()
"""


@pytest.mark.skipif(found("otelcol") is None, reason="no Collector here: python -m tests.services.programs")
def test_one_failure_of_a_short_process_is_counted_as_one(tmp_path: Path, stack: Stack) -> None:
    """Red before: `increase()` sees nothing of a counter that is born at 1. It stays one while it is scraped again."""
    stack.start_collector()
    environment = {**os.environ, **stack.otlp_environment, "SAGASPAN_HOME": str(tmp_path / ".sagaspan")}
    done = subprocess.run([sys.executable, "-c", REFUSED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = {"Refused": 1, "Lost track of": 1, "Runs undone or failed": pytest.approx(2 / 3)}
    eventually(lambda: {title: _panel(stack, title) for title in shown} == shown, f"every panel: {shown}")
    eventually(lambda: "SagaspanCallsRefused" in _alerts(stack), "the alert")
    assert {title: _panel(stack, title) for title in shown} == shown
    by_state = 'sum(max_over_time(sagaspan_compensations_total{sagaspan_call_state="compensation_failed"}[10m]))'
    assert [found["value"][1] for found in stack.query(by_state)] == ["1"]


@pytest.mark.skipif(found("otelcol") is None, reason="no Collector here: python -m tests.services.programs")
def test_ids_that_are_numbers_stay_apart_and_card_numbers_are_masked(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked, two runs with numbers for ids were one; an id with a card number in it becomes its own hash."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    stack.start_collector()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"http://127.0.0.1:{stack.otlp}/v1/traces")))
    ids = ["4000000000000000", "4000000000000001", CARD, f"order-{CARD}", "4111 1111 1111 1111"]
    for number, run in enumerate(ids):
        attributes = {semconv.RUN_ID: run, "note": f"paid with {CARD}"}
        provider.get_tracer("t").start_span(f"run {number}", attributes=attributes).end()
    provider.shutdown()
    file = stack.traces / "collector.jsonl"
    eventually(lambda: file.is_file() and all(f"run {n}" in file.read_text() for n in range(len(ids))), "the runs")
    with TraceIndex(stack.traces) as index:
        index.sync()
        rows = dict(index.query("select name, run_id from spans").rows)
    assert [rows["run 0"], rows["run 1"]] == ids[:2]
    assert len(set(rows.values())) == len(ids)
    assert CARD not in file.read_text()
    assert "1111 1111" not in file.read_text()
    assert file.read_text().count("paid with ****") == len(ids)
