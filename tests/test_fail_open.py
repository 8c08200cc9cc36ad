"""``fail_open=True``: reads go on unrecorded while the store is down, and say so; writes never do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard, StoreUnavailable
from sagaspan._compensation import compensation_of
from sagaspan.ledger import fail_open
from tests.conftest import Caller
from tests.outages import Outage


class Shop:
    """A read and two writes; ``ran`` is the world."""

    def __init__(self, guard: Guard, caller: Caller) -> None:
        self.guard = guard
        self.ran: list[str] = []

        @caller.tool(guard, effect="read")
        def look(order: str) -> str:
            self.ran.append(f"look {order}")
            return f"seen {order}"

        @caller.tool(guard, effect="write")
        def pay(order: str) -> str:
            self.ran.append(f"pay {order}")
            return f"paid {order}"

        @caller.tool(guard)
        def undeclared(order: str) -> str:
            self.ran.append(f"undeclared {order}")
            return order

        @caller.tool(guard, effect="idempotent")
        def put(order: str) -> str:
            self.ran.append(f"put {order}")
            return order

        self.look, self.pay, self.undeclared, self.put = look, pay, undeclared, put


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fail_open, "RETRY_SECONDS", 0.0)


@pytest.fixture
def guard(outage: Outage, provider: TracerProvider) -> Iterator[Guard]:
    with Guard(outage.url, fail_open=True, tracer_provider=provider) as guard:
        yield guard


@pytest.fixture
def nowhere(tmp_path: Path, provider: TracerProvider) -> Guard:
    """A guard whose store can never be opened."""
    (tmp_path / "file").write_text("")
    return Guard(f"sqlite:///{tmp_path}/file/ledger.db", fail_open=True, tracer_provider=provider)


def of_tools(spans: InMemorySpanExporter) -> list[tuple[str, bool, str | None]]:
    """Each tool's span: what it says of being unrecorded, and its outcome."""
    return [
        (
            span.name.split()[1],
            bool((span.attributes or {}).get("sagaspan.unrecorded")),
            (span.attributes or {}).get("sagaspan.idempotency.outcome"),  # type: ignore[misc]
        )
        for span in spans.get_finished_spans()
        if span.name.startswith("execute_tool")
    ]


def test_reads_run_and_writes_do_not_when_the_store_never_was_there(
    nowhere: Guard, caller: Caller, spans: InMemorySpanExporter, warnings_of_sagaspan: Callable[[], list[str]]
) -> None:
    """Outside a run: the read returns its result, its span and the log say that nothing was recorded."""
    shop = Shop(nowhere, caller)

    async def job() -> None:
        assert await caller.call(shop.look, "o-1") == "seen o-1"
        for tool in (shop.pay, shop.undeclared, shop.put):
            with pytest.raises(StoreUnavailable) as caught:
                await caller.call(tool, "o-1")
            assert caught.value.tool_ran == "no"

    caller.play(job)
    assert shop.ran == ["look o-1"]
    assert of_tools(spans) == [("look", True, "unrecorded")]
    assert any("tool 'look' runs unrecorded (fail_open=True): the ledger" in text for text in warnings_of_sagaspan())


def test_a_run_of_reads_when_the_store_never_was_there(
    nowhere: Guard, caller: Caller, spans: InMemorySpanExporter
) -> None:
    """A run can be entered and left; a write in it, and in a run inside it, is refused."""
    shop = Shop(nowhere, caller)

    async def job() -> None:
        async with caller.run(nowhere, "job", id="a") as run:
            assert await caller.call(shop.look, "o-1") == "seen o-1"
            with pytest.raises(StoreUnavailable, match="its run 'a' is not recorded"):
                await caller.call(shop.pay, "o-1")
            async with caller.run(nowhere, "inner"):
                assert await caller.call(shop.look, "o-2") == "seen o-2"
                with pytest.raises(StoreUnavailable):
                    await caller.call(shop.pay, "o-2")
            assert run.calls == ()
            run.commit() if not caller.is_async else await run.acommit()
        assert run.status == "completed"

    caller.play(job)
    assert shop.ran == ["look o-1", "look o-2"]
    assert [span.attributes["sagaspan.unrecorded"] for span in spans.get_finished_spans() if "job" in span.name] == [
        True
    ]


def test_an_error_and_an_abort_leave_an_unrecorded_run_as_ever(nowhere: Guard, caller: Caller) -> None:
    """The caller's error comes through; an aborted run refuses further calls, and there is nothing to undo."""
    shop = Shop(nowhere, caller)

    async def job() -> None:
        with pytest.raises(LookupError):
            async with caller.run(nowhere, id="a") as failed:
                raise LookupError
        async with caller.run(nowhere, id="b") as aborted:
            await caller.call(shop.look, "o-1")
            aborted.abort("enough")
            with pytest.raises(Exception, match="was aborted"):
                await caller.call(shop.look, "o-2")
        assert (failed.status, aborted.status) == ("failed", "failed")

    caller.play(job)
    assert shop.ran == ["look o-1"]


def test_the_store_goes_down_in_the_middle(
    guard: Guard, caller: Caller, outage: Outage, spans: InMemorySpanExporter
) -> None:
    """Before, it is recorded; meanwhile reads are not and writes are refused; afterwards it is recorded again."""
    shop = Shop(guard, caller)

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(shop.look, "before")
            with outage.down():
                assert await caller.call(shop.look, "meanwhile") == "seen meanwhile"
                with pytest.raises(StoreUnavailable):
                    await caller.call(shop.pay, "meanwhile")
            await caller.call(shop.look, "after")
            await caller.call(shop.pay, "after")

    caller.play(job)
    assert shop.ran == ["look before", "look meanwhile", "look after", "pay after"]
    run = guard.runs.get("a")
    assert [call.args["order"] for call in run.calls] == ["before", "after", "after"]
    assert run.status == "completed"
    assert [outcome for _, _, outcome in of_tools(spans)] == ["executed", "unrecorded", None, "executed", "executed"]


def test_a_run_that_only_read_is_left_while_the_store_is_down(guard: Guard, caller: Caller, outage: Outage) -> None:
    """That its end cannot be recorded is no failure of its agent; recovery ends it later, and undoes nothing."""
    shop = Shop(guard, caller)

    async def job() -> None:
        with contextlib.ExitStack() as meanwhile:
            async with caller.run(guard, id="a"):
                await caller.call(shop.look, "o-1")
                meanwhile.enter_context(outage.down())

    caller.play(job)
    assert guard.runs.get("a").status == "running"
    assert [run.id for run in guard.recover().held] == ["a"]


@pytest.mark.parametrize("nested", [False, True])
def test_a_run_that_wrote_is_not_left_in_silence(guard: Guard, caller: Caller, outage: Outage, nested: bool) -> None:
    """Its end decides what is undone, so it must be known."""
    shop = Shop(guard, caller)

    async def job() -> None:
        with contextlib.ExitStack() as meanwhile, pytest.raises(StoreUnavailable):
            async with caller.run(guard, id="a"):
                if nested:
                    async with caller.run(guard, "inner"):
                        await caller.call(shop.pay, "o-1")
                else:
                    await caller.call(shop.pay, "o-1")
                meanwhile.enter_context(outage.down())

    caller.play(job)


@pytest.mark.of_sqlite("can be read while it cannot be written to")
def test_a_resumed_run_reads_on(guard: Guard, caller: Caller, outage: Outage) -> None:
    """What was recorded is answered from the ledger while that can be read; other reads run unrecorded."""
    shop = Shop(guard, caller)

    async def job() -> None:
        async with caller.run(guard, id="a") as run:
            await caller.call(shop.look, "old")
            run.pause()
        async with caller.run(guard, id="a"):
            with outage.down():
                assert await caller.call(shop.look, "old") == "seen old"
                assert await caller.call(shop.look, "new") == "seen new"
            with outage.gone(guard):
                assert await caller.call(shop.look, "newest") == "seen newest"
                with pytest.raises(StoreUnavailable):
                    await caller.call(shop.pay, "newest")

    caller.play(job)
    assert shop.ran == ["look old", "look new", "look newest"]
    assert guard.runs.get("a").status == "completed"


def test_a_completed_run_is_only_replayed_also_then(guard: Guard, caller: Caller, outage: Outage) -> None:
    """A replay runs nothing: what cannot be looked up is an error."""
    shop = Shop(guard, caller)

    async def job() -> None:
        for _ in range(2):
            async with caller.run(guard, id="a") as run:
                if run.replaying:
                    with outage.gone(guard), pytest.raises(StoreUnavailable):
                        await caller.call(shop.look, "old")
                assert await caller.call(shop.look, "old") == "seen old"

    caller.play(job)
    assert shop.ran == ["look old"]


def test_a_read_that_asks_something_of_the_claim_fails_closed(tmp_path: Path, caller: Caller) -> None:
    """What a layer declared (an approval to use up, a reservation, a lock) is not passed by."""
    (tmp_path / "file").write_text("")

    async def gate(call: Any, call_next: Any) -> Any:
        return await call_next(call.declare(compensation=compensation_of(lambda: None, (), where="here")))

    gated = Guard(f"sqlite:///{tmp_path}/file/ledger.db", fail_open=True, middleware=[gate])
    shop = Shop(gated, caller)

    async def job() -> None:
        async with caller.run(gated, id="a"):
            with pytest.raises(StoreUnavailable):
                await caller.call(shop.look, "o-1")

    caller.play(job)
    assert shop.ran == []


def test_the_default_is_closed(tmp_path: Path, caller: Caller) -> None:
    """Without being asked for, nothing runs unrecorded."""
    (tmp_path / "file").write_text("")
    closed = Guard(f"sqlite:///{tmp_path}/file/ledger.db")
    shop = Shop(closed, caller)

    async def job() -> None:
        with pytest.raises(StoreUnavailable):
            await caller.call(shop.look, "o-1")
        with pytest.raises(StoreUnavailable):
            async with caller.run(closed, id="a"):
                pytest.fail("entered")

    caller.play(job)
    assert shop.ran == []


def test_a_read_that_fails_is_an_error_of_its_own(nowhere: Guard, caller: Caller) -> None:
    """What the body raises comes through; it is repeated as its policy says."""
    tries: list[int] = []

    @caller.tool(nowhere, effect="read", retry={"attempts": 3, "initial_delay": 0.0})
    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("lost")
        return "at last"

    @caller.tool(nowhere, effect="read")
    def broken() -> str:
        raise LookupError("no such thing")

    async def job() -> None:
        assert await caller.call(flaky) == "at last"
        with pytest.raises(LookupError, match="no such thing"):
            await caller.call(broken)

    caller.play(job)


def test_a_body_whose_own_store_is_down_is_not_run_twice(guard: Guard, nowhere: Guard, caller: Caller) -> None:
    """The outage of another guard inside the body is a failure of the body, not of this store."""
    ran: list[int] = []
    inner = caller.tool(nowhere, "inner", effect="write")(lambda: 1)

    @guard.tool(effect="read")
    def look_sync() -> Any:
        ran.append(1)
        return inner()

    @guard.tool(effect="read")
    async def look_async() -> Any:
        ran.append(1)
        return await inner()

    async def job() -> None:
        with pytest.raises(StoreUnavailable):
            await caller.call(look_async if caller.is_async else look_sync)

    caller.play(job)
    assert ran == [1]


def test_while_it_is_down_reads_do_not_wait_for_it_each(
    guard: Guard, caller: Caller, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one failure the store is left alone for a while, and then asked again."""
    shop = Shop(guard, caller)
    monkeypatch.setattr(fail_open, "RETRY_SECONDS", 3600.0)

    async def job() -> None:
        async with caller.run(guard, id="a"):
            await caller.call(shop.look, "before")
            with outage.down(), outage.counted(monkeypatch) as asked:
                await caller.call(shop.look, "o-0")
                first = asked()
                for n in range(1, 5):
                    await caller.call(shop.look, f"o-{n}")
                assert (first > 0, asked() - first) == (True, 0)
            guard._engine.outage._until = 0.0
            await caller.call(shop.look, "after")

    caller.play(job)
    assert [call.args["order"] for call in guard.runs.get("a").calls] == ["before", "after"]
