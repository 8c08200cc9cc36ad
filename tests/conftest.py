"""What every test stands on: a scrubbed environment, a guard over real SQLite, spans in memory, two kinds of caller."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import math
import os
import random
import shutil
import sqlite3
import subprocess
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sagaspan import Guard, Run
from sagaspan import _metrics as ours
from sagaspan.ledger import watching
from sagaspan.stores import sqlite
from sagaspan.testing import ledgers_on
from sagaspan.testing._leaving import leave_all
from sagaspan.testing._stores import empty_ledger
from tests.nursery import Forked, Nursery
from tests.outages import Outage, outage_of
from tests.providers.server import ModelServer
from tests.servers import MARIADB, POSTGRES, Mariadb, Postgres, url_of_server

# How long an example takes is no property of the code: a busy machine must not fail a test.
hypothesis.settings.register_profile("sagaspan", deadline=None)
hypothesis.settings.load_profile("sagaspan")


_ON: Final = os.environ.get("SAGASPAN_TEST_ON", "sqlite")
"""On which store the tests run that are the same on each: sqlite, postgres or mariadb."""

Sql = Callable[..., list[tuple[Any, ...]]]
"""A statement, and values for its question marks; returns the rows."""

# Priming makes thousands of commits faster; a test makes a few, and thousands of tests leave their ledgers behind.
sqlite.PRIMED_BYTES = 0  # type: ignore[misc]


_DEADLINE: Final = pytest.StashKey[float]()
_COLLECTED: Final = pytest.StashKey[int]()
_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 12 * 2**30
"""What must be free in memory: all the files of one run of the suite, three times."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--seconds``: on a slow machine the gate runs what it has time for, another part each day."""
    parser.addoption("--seconds", type=float, default=math.inf, help="begin no further test after so long")


def pytest_configure(config: pytest.Config) -> None:
    """What tests write is in memory where there is room: on a disk they wait for flushes that prove nothing there."""
    if not _is_worker(config) and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    config.stash[_DEADLINE] = time.monotonic() + config.getoption("--seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over a test that is too late, without a report: thousands of them would take as long as tests."""
    return True if time.monotonic() > item.config.stash[_DEADLINE] else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were passed over."""
    outcomes = ("passed", "failed", "error", "skipped", "xfailed")
    begun = sum(len(terminalreporter.stats.get(outcome, ())) for outcome in outcomes)
    left = terminalreporter.config.stash[_COLLECTED] - begun
    if terminalreporter.config.getoption("--seconds") < math.inf and left > 0:
        terminalreporter.write_line(f"NOT TESTED: {left} tests, for which there was no time; .ci/nightly runs them")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Memory is given back; what failed can be looked at until the next run."""
    session.config.stash[_COLLECTED] = session.testscollected
    base = session.config._tmp_path_factory._basetemp  # type: ignore[attr-defined]
    if exitstatus == 0 and base is not None and not _is_worker(session.config) and base.is_relative_to(_MEMORY):
        shutil.rmtree(base, ignore_errors=True)


def _is_worker(config: pytest.Config) -> bool:
    """Of pytest-xdist: its folder is within that of the process that started it."""
    return hasattr(config, "workerinput")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: in a fifth of its time a test waits for a process or the end of a lease."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a server only those tests run that have a ledger, and are not about SQLite's file."""
    if config.getoption("--seconds") < math.inf:
        day = subprocess.run(["git", "log", "-1", "--format=%cs"], capture_output=True, text=True, check=False).stdout
        files = sorted({item.path for item in items})
        random.Random(day).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
    if _ON == "sqlite":
        return
    kept = [
        item for item in items
        if item.get_closest_marker("of_every_store") is not None
        or ("store_url" in getattr(item, "fixturenames", ()) and item.get_closest_marker("of_sqlite") is None)
    ]  # fmt: skip
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting makes no garbage, and looking for it, over all that is imported, was a fifth of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later garbage collection: it is half a second of each ``gc.collect()``."""
    # At its first use Hypothesis asks the collector who holds its random numbers, which says nobody of what is frozen.
    hypothesis.find(hypothesis.strategies.just(0), lambda _: True)
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end the collector has all of it again: DuckDB's bindings say what is left when the process ends."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _scrubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("SAGASPAN_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store_url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of this test's ledger, which has nothing in it yet."""
    if _ON != "sqlite":
        yield str(request.getfixturevalue(_ON).url)
        return
    file = tmp_path / "ledger.db"
    file.write_bytes(empty_ledger())
    yield f"sqlite:///{file}"
    leave_all(f"sqlite:///{file}")


@pytest.fixture
def sql(store_url: str) -> Sql:
    """What somebody does with the ledger's tables, past the library: one statement, committed; returns its rows."""

    def on_sqlite(statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        path = store_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            return connection.execute(statement, values).fetchall()

    def on_postgres(statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        from sagaspan.stores._postgres_connecting import numbered  # an adapter's tests have no driver
        from sagaspan.stores.postgres import PostgresStore

        with contextlib.closing(PostgresStore(store_url)._connect()) as connection:
            done = connection.execute(numbered(statement), values)
            return done.fetchall() if done.description else []

    def on_mariadb(statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        from sagaspan.stores._mariadb_connection import fetch
        from sagaspan.stores.mariadb import MariadbStore

        with contextlib.closing(MariadbStore(store_url)._connect()) as connection:
            return fetch(connection, statement, values)

    return {"sqlite": on_sqlite, "postgres": on_postgres, "mariadb": on_mariadb}[_ON]


@pytest.fixture
def outage(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """How this test's ledger comes to be out of reach; its URL there is ``outage.url``."""
    return outage_of(store_url, monkeypatch)


@pytest.fixture
def recorded(sql: Sql) -> Callable[[], list[tuple[Any, ...]]]:
    """All rows of this test's ledger in which something stands that was said to it."""
    tables = ("runs", "calls", "approvals", "audit", "usage", "locks", "loops", "facts")
    return lambda: [row for table in tables for row in sql(f'select * from "{table}"')]


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """A tracer provider of this test's own."""
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """What is measured from here on."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(ours, "_chosen", provider)
    monkeypatch.setattr(watching, "_stores", weakref.WeakSet())
    made = (ours._counter, ours._histogram, ours._gauge)
    for instruments in made:
        instruments.cache_clear()
    yield reader
    for instruments in made:
        instruments.cache_clear()
    provider.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    """The spans that ended in this test."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def guard(store_url: str, provider: TracerProvider) -> Iterator[Guard]:
    """A guard on this test's ledger, closed at the end."""
    with Guard(store_url, tracer_provider=provider) as guard:
        yield guard


@pytest.fixture
def model_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A provider of models on the loopback, for the real SDKs of OpenAI and Anthropic."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A ledger on a PostgreSQL server, if there is one."""
    ledger = Postgres()
    yield ledger
    ledger.drop()


@pytest.fixture(scope="session", autouse=True)
def _worlds() -> Iterator[None]:
    """The ledgers of ``World`` and ``temporary_store`` are where those of the tests are."""
    if _ON == "sqlite":
        yield
        return
    with ledgers_on(url_of_server({"postgres": POSTGRES, "mariadb": MARIADB}[_ON])):
        yield


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """A ledger on a PostgreSQL server, with nothing in it."""
    postgres_server.empty()
    yield postgres_server
    postgres_server.close()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Mariadb]:
    """A ledger on a MariaDB server, if there is one."""
    ledger = Mariadb()
    yield ledger
    ledger.drop()


@pytest.fixture
def mariadb(mariadb_server: Mariadb) -> Iterator[Mariadb]:
    """A ledger on a MariaDB server, with nothing in it."""
    mariadb_server.empty()
    yield mariadb_server
    mariadb_server.close()


class Caller:
    """One kind of caller: its tools, its ``with`` and its way of calling, so that a rule is tested once for both."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_async = kind == "async"

    def tool(self, guard: Guard, name: str | None = None, /, **fields: Any) -> Callable[[Callable[..., Any]], Any]:
        """``guard.tool`` over a synchronous body, made asynchronous for the asynchronous caller."""
        return lambda body: guard.tool(name or body.__name__, **fields)(self.body(body))

    def body(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """``body`` as this kind of caller writes it."""
        if not self.is_async:
            return body

        @functools.wraps(body)
        async def async_body(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return body(*args, **kwargs)

        return async_body

    async def call(self, tool: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a tool of this kind."""
        value = tool(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    def play(self, job: Callable[..., Any], /, *args: Any) -> Any:
        """Run an asynchronous ``job``; for the synchronous caller no loop is running and nothing in it may suspend."""
        coroutine = job(*args)
        if self.is_async:
            return asyncio.run(coroutine)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        finally:
            coroutine.close()
        raise AssertionError("the synchronous job suspended")

    def run(self, guard: Guard, *args: Any, **kwargs: Any) -> Any:
        """``guard.run`` to be entered with ``async with`` by both kinds."""
        run = guard.run(*args, **kwargs)
        return run if self.is_async else _SyncEntered(run)


class _SyncEntered:
    """A run entered by ``with``, written as ``async with``: it never suspends."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def __aenter__(self) -> Run:
        return self._run.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self._run.__exit__(*error)


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest) -> Caller:
    """Both kinds of caller."""
    return Caller(request.param)


@pytest.fixture
def warnings_of_sagaspan(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The messages that sagaspan logged."""
    caplog.set_level(logging.WARNING, logger="sagaspan")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "sagaspan"]


PREAMBLE = """
import os, sys, signal, time, asyncio, threading
from pathlib import Path
from sagaspan import *
from sagaspan import Guard, NotApplied
guard = Guard(os.environ["TEST_STORE"])
effects = Path(os.environ["TEST_EFFECTS"])
def effect(what):
    with effects.open("a") as file:
        file.write(str(what) + "\\n")
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """A process that forks workers."""
    nursery = Nursery()
    yield nursery
    nursery.close()


class Worker:
    """Real processes on this test's ledger; ``effects`` is the world outside."""

    def __init__(self, store_url: str, folder: Path, nursery: Nursery, server: Postgres | Mariadb | None) -> None:
        self.store_url = store_url
        self._server = server
        self.effects_file = folder / "effects.txt"
        self._folder = folder
        self._nursery = nursery
        self._started: list[Forked] = []

    @property
    def effects(self) -> list[str]:
        """What happened in the world, in order."""
        return self.effects_file.read_text().split() if self.effects_file.exists() else []

    def start(self, script: str, **environment: str) -> Forked:
        """Start a process that runs ``script`` after the preamble."""
        return self._start(PREAMBLE + textwrap.dedent(script), environment)

    def start_program(self, *args: str, **environment: str) -> Forked:
        """Start ``sagaspan`` with these arguments."""
        script = f"import sys, sagaspan.cli\nsys.argv = {['sagaspan', *args]!r}\nsagaspan.cli.main()"
        return self._start(script, environment)

    def begin_anew(self) -> None:
        """A world where nothing happened, and an empty ledger at the same URL."""
        for old in (*self._folder.glob("ledger.db*"), self.effects_file):
            old.unlink(missing_ok=True)
        if self._server is not None:
            self._server.begin_anew()
        else:
            (self._folder / "ledger.db").write_bytes(empty_ledger())

    def take_away(self) -> None:
        """End what was started and still runs, and close its pipes: they are no other test's warning."""
        for process in self._started:
            process.kill()
            process.communicate()

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``script`` to its end, or to its death."""
        return self._nursery.run(
            PREAMBLE + textwrap.dedent(script), self._environment() | environment, str(self._folder)
        )

    def _start(self, script: str, environment: dict[str, str]) -> Forked:
        process = self._nursery.start(script, self._environment() | environment, str(Path.cwd()))
        self._started.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "TEST_STORE": self.store_url, "TEST_EFFECTS": str(self.effects_file)}


@pytest.fixture
def worker(store_url: str, tmp_path: Path, nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """Real processes on this test's ledger."""
    server = None if _ON == "sqlite" else request.getfixturevalue(_ON)
    worker = Worker(store_url, tmp_path, nursery, server)
    yield worker
    worker.take_away()
