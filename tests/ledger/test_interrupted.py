"""What a process answers for is interrupted at any moment, by a handler of signals or by Ctrl-C, and goes on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard, Run, StoreUnavailable, semconv
from sagaspan import _metrics as metrics
from sagaspan import _owner as owner
from sagaspan._llm import LlmCall
from sagaspan._llm_growth import Growth
from sagaspan.ledger.leases import Lease
from tests.moments import interrupted_everywhere


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def _ends(what: Callable[[], object]) -> bool:
    """Whether another thread gets to the end of it."""
    other = threading.Thread(target=what, daemon=True)
    other.start()
    other.join(60)
    return not other.is_alive()


@pytest.fixture
def lease(guard: Guard) -> Iterator[Lease]:
    """Of a process that has made a call."""
    guard.tool("act")(lambda: 1)()
    lease = guard._engine.lease
    yield lease
    assert _ends(lease.release)


def test_a_ctrl_c_at_any_moment_leaves_the_lease_renewed(lease: Lease) -> None:
    """A condition of ``threading`` that is interrupted stays taken, and who renews would wait for it for ever."""
    for where, _ in interrupted_everywhere(lease.hurry, _ctrl_c, within=("ledger/leases.py", "/threading.py")):
        assert _ends(lease.hurry), where


def test_a_handler_while_the_lease_is_renewed(lease: Lease, store_url: str) -> None:
    """It renews it too, or is refused in the middle of SQLite's file; a server has another connection for it."""
    refused: list[StoreUnavailable] = []

    def renew() -> None:
        lease.lapse()
        lease.cover()

    def handle() -> None:
        try:
            renew()
        except StoreUnavailable as error:
            refused.append(error)

    for where, error in interrupted_everywhere(renew, handle, within=("ledger/leases.py", "stores/sqlite.py")):
        assert error is None, where
    assert bool(refused) is store_url.startswith("sqlite")


def test_a_handler_while_the_session_begins(store_url: str) -> None:
    """There is one session, also if the handler makes the first call of it."""
    guard = Guard(store_url)
    act = guard.tool("act", loop=False)(lambda: 1)
    refused: list[StoreUnavailable] = []

    def begin() -> None:
        guard.close()
        act()

    def handle() -> None:
        try:
            act()
        except StoreUnavailable as error:
            refused.append(error)

    within = ("sagaspan/_session.py", "ledger/leases.py", "stores/sqlite.py", "sagaspan/_owner.py")
    for where, error in interrupted_everywhere(begin, handle, within=within):
        assert error is None, where
    guard.close()
    assert refused
    assert {run.state for run in guard._store.list_runs()} == {"completed"}


def test_a_run_is_aborted_by_a_handler_at_any_moment(guard: Guard) -> None:
    """As programs do that are told to end (SIGTERM): what was done is undone, and nothing waits for itself."""
    done: set[int] = set()
    inside: list[Run] = []

    @guard.tool(compensate=lambda n: done.discard(n))
    def act(n: int) -> None:
        done.add(n)

    def work() -> None:
        inside.clear()
        with guard.run("job") as run:
            inside.append(run)
            act(1)
            act(2)
        inside.clear()

    def abort() -> None:
        for run in inside:
            run.abort("told to end")

    states: set[str] = set()
    within = ("sagaspan/_engine.py", "sagaspan/_in_flight.py", "ledger/attempts.py", "stores/sqlite.py")
    for where, _ in interrupted_everywhere(work, abort, within=within):
        (run,) = guard.runs.list(limit=1)
        states.add(str(run.status))
        assert done == (set() if run.reason == "aborted" else {1, 2}), where
        done.clear()
    assert "compensated" in states


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what Python says of what it broke off
def test_a_call_that_a_ctrl_c_ends_is_waited_for_by_nobody(guard: Guard) -> None:
    """Whenever it came: leaving the run waited half a minute for a call that was over, and held the run then."""
    act = guard.tool("act", effect="write")(lambda n: n)
    running: list[str] = []
    look = guard.tool("look", effect="read")(lambda: running.append(*owner.held("body:")))

    def work() -> None:
        with guard.run("job"):
            act(1)
            look()

    within = ("sagaspan/_engine.py", "sagaspan/_in_flight.py", "ledger/attempts.py", "sagaspan/_owner.py")
    for where, error in interrupted_everywhere(work, _ctrl_c, within=within):
        assert error is None or isinstance(error, KeyboardInterrupt), where
        assert not owner.held("body:"), where
    assert len(running) > 1  # a body that goes on is said to
    gc.collect()  # now, and in no other test: what was broken off is closed then, and says so


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_nested_run_that_a_ctrl_c_ends_is_waited_for_by_nobody(guard: Guard) -> None:
    act = guard.tool("act", effect="write")(lambda n: n)

    def work() -> None:
        with guard.run("job"), guard.run("part"):
            act(1)

    for where, error in interrupted_everywhere(work, _ctrl_c, within=("sagaspan/_run.py", "sagaspan/_in_flight.py")):
        assert error is None or isinstance(error, KeyboardInterrupt), where
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_model_call_that_a_ctrl_c_keeps_from_being_sent_costs_nothing(guard: Guard) -> None:
    """Nor is it waited for by whoever leaves the run."""
    sent: list[str] = []

    def work() -> None:
        sent.clear()
        with guard.run("job"), guard.llm_call("gpt-4o-mini", input_tokens=10, max_output_tokens=10) as call:
            sent.append("yes")
            call.record_usage(input_tokens=10, output_tokens=10)

    def ctrl_c() -> None:
        if not sent:
            raise KeyboardInterrupt

    kept: set[str] = set()
    for where, error in interrupted_everywhere(work, ctrl_c, within=("sagaspan/_llm.py", "sagaspan/_in_flight.py")):
        assert error is None or isinstance(error, KeyboardInterrupt), where
        calls = guard.calls.list(open=False, limit=1)
        assert sent or all(str(call.state) != "running" for call in calls), where
        kept |= {str(call.state) for call in calls}
    assert kept == {"done", "failed"}
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_model_call_that_a_ctrl_c_ends_is_waited_for_by_nobody(guard: Guard) -> None:
    def work() -> None:
        with guard.run("job"), guard.llm_call("gpt-4o-mini", input_tokens=10, max_output_tokens=10) as call:
            call.record_usage(input_tokens=10, output_tokens=10)

    for where, error in interrupted_everywhere(work, _ctrl_c, within=("sagaspan/_in_flight.py",)):
        assert error is None or isinstance(error, KeyboardInterrupt), where
    gc.collect()


def test_a_model_call_is_over_before_what_a_ctrl_c_may_break_off(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlmCall, "_let_go", lambda _: _ctrl_c())
    with pytest.raises(KeyboardInterrupt), guard.run("job") as run, guard.llm_call("gpt-4o-mini") as call:
        call.record_usage(input_tokens=10, output_tokens=10)
    assert not run.in_flight


def test_a_model_call_that_was_not_sent_took_no_time(
    guard: Guard, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as one that was refused: not executed, and in no histogram."""
    measured: list[float] = []
    monkeypatch.setattr(metrics, "model_call", lambda seconds, *_: measured.append(seconds))

    def work() -> None:
        with guard.llm_call("gpt-4o-mini", input_tokens=10, max_output_tokens=10):
            pytest.fail("a Ctrl-C came before")

    def begin(_: Growth) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Growth, "begin", begin)
    with pytest.raises(KeyboardInterrupt):
        work()
    (span,) = (span for span in spans.get_finished_spans() if span.name.startswith("chat"))
    assert span.attributes is not None
    assert span.attributes[semconv.CALL_EXECUTED] is False
    assert not measured
