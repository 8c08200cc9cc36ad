"""The rows of the speed table: which figure of which benchmark each is, its target, and why it may be missed."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

Found = dict[str, Any]
Figure = Callable[[Found], float]
_PART: Final = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PACKAGES: Final = ("sagaspan", "psycopg", "duckdb", "dbos", "opentelemetry-sdk")
STORES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@dataclass(frozen=True)
class Row:
    """One line: ``figure`` is held against ``most`` or ``least``; ``told`` says what it was made of.

    ``why``: what stands in the way, written by hand; shown where the target is missed.
    """

    what: str
    figure: Figure
    unit: str
    most: float | None = None
    least: float | None = None
    told: Callable[[Found], str] = lambda _: ""
    why: str = ""

    @property
    def target(self) -> str:
        """As it is printed."""
        if self.most is not None:
            return f"<= {_number(self.most)}{self.unit}"
        return f">= {_number(self.least)}{self.unit}" if self.least is not None else ""

    def holds(self, value: float) -> bool:
        """Whether the target is met."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


def _number(value: float) -> str:
    return (
        f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"
    )


def _calls(store: str, kind: str, most: float | None, what: str, why: str = "") -> Row:
    where = f"calls, {store}"
    return Row(
        f"{what}, {STORES[store]}", lambda found: found[where][kind]["ratio"], "x", most=most,
        told=lambda found: "{p50_us:,.0f} us, by hand {by_hand_us:,.0f} us".format(**found[where][kind]), why=why,
    )  # fmt: skip


def _dbos(store: str, least: float) -> Row:
    where = f"dbos, {store}"
    return Row(
        f"a step of DBOS against a guarded call, {STORES[store]}", lambda found: found[where]["ratio"], "x",
        least=least, told=lambda found: "{dbos:,.0f} us, guarded {sagaspan:,.0f} us".format(**found[where]),
        why=_SHARE_OF_A_STEP,
    )  # fmt: skip


def _load(store: str, kind: str, *, rate: float | None = None, p99: float | None = None, why: str = "") -> list[Row]:
    figures: Callable[[Found], Any] = lambda found: found[f"load, {store}"]["load"][kind]  # noqa: E731
    what = f"{kind}, {STORES[store]}"
    rows = [Row(what, lambda found: figures(found)["calls_per_s"], " calls/s", least=rate, why=why,
                told=lambda found: "p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms".format(**figures(found)))]  # fmt: skip
    if p99 is not None:
        rows.append(Row(f"{what}, p99", lambda found: figures(found)["p99_ms"], " ms", most=p99, why=why))
    return rows


def _growth(store: str, what: str, most: float | None) -> Row:
    where = f"growth, {store}"
    return Row(
        f"a {what} on a full ledger against an empty one, {STORES[store]}",
        lambda found: found[where]["us"][f"{what}, ratio"], "x", most=most,
        told=lambda found: f"{found[where]['stored']:,} stored; {found[where]['us'][f'{what}, full']:,.0f} us, "
        f"empty {found[where]['us'][f'{what}, empty']:,.0f} us",
        why="all is found by key, in trees that are a level or two deeper; what is left is pages that are in no cache "
        "on a machine that has just written them.",
    )  # fmt: skip


def _size(store: str) -> Row:
    where = f"growth, {store}"
    return Row(
        f"a stored call on disk, with indexes, {STORES[store]}", lambda found: found[where]["bytes_a_call"]["all"],
        " bytes",
        told=lambda found: ", ".join(f"{table} {size:,.0f}" for table, size in found[where]["bytes_a_call"].items()
                                     if table != "all" and size >= 10),
    )  # fmt: skip


def _telemetry(what: str, part: str, name: str, unit: str, **more: Any) -> Row:
    return Row(what, lambda found: found["telemetry"][part][name], unit, **more)


def _slowest(job: str, most: float) -> Row:
    def queries(found: Found) -> Any:
        return found[job]["queries"]

    return Row("the slowest query of the set", lambda found: max(queries(found)["ms"].values()), " ms", most=most,
               told=lambda found: f"{max(queries(found)['ms'], key=queries(found)['ms'].get)}, "
               f"over {queries(found)['rows']:,} spans",
               why=_PROCESSOR)  # fmt: skip


def _against(what: str, job: str, part: str | None, ours: str, bare: str) -> Row:
    def sides(found: Found) -> tuple[float, float]:
        figures = found[job] if part is None else found[job][part]
        return figures[ours], figures[bare]

    return Row(what, lambda found: sides(found)[0] / sides(found)[1], "x",
               told=lambda found: "{:,.0f} us, bare {:,.0f} us".format(*sides(found)))  # fmt: skip


_CPU: Final = (
    "by hand, the statements have their values ready-made. The library makes them: it binds and hashes the arguments, "
    "reserves, encodes and chains the audit rows of both commits in Python, and an asynchronous call goes "
    "to another thread and back for each. What the interpreter takes for that is the limit, and the faster the disk, "
    "the larger the ratio: see what the ratios depend on, below."
)
_PROCESSOR: Final = (
    "absolute figures of the processor; of a span more than half is the SDK's own. What they were in other hours of "
    "one machine is below, in what the ratios depend on."
)
_IN_TURN: Final = (
    "threads of one process take turns with the interpreter. What a call takes of the CPU with the ledger in memory, "
    "where it waits for no disk, is the limit: below, in what the ratios depend on. The disk stands in the way no "
    "more: while it flushes for several of them, the others write on."
)
_SHARE_OF_A_STEP: Final = (
    "a guarded call takes no less than its own statements do by hand (above, without budgets). Where they alone take "
    "more than the share of a step of DBOS that the target leaves, no library around them can hold it; where they take "
    "less, what is missing is the interpreter's."
)
_ROUND_TRIPS: Final = (
    "by hand, the two statements are sent ready-made. The library makes them: it hashes, encodes and audits both "
    "commits in Python, and on two cores the server takes turns with it on the same caches. Two round trips, of which "
    "one is flushed, are the limit."
)

ROWS: Final[dict[str, list[Row]]] = {
    "A guarded call against its own statements by hand": [
        _calls("sqlite", "guarded", None, "no budgets, no SDK"),
        _calls("sqlite", "with 3 budgets", 1.5, "3 budgets, no SDK"),
        _calls("postgres", "guarded", None, "no budgets, no SDK"),
        _calls("postgres", "with 3 budgets", 1.3, "3 budgets, no SDK", _ROUND_TRIPS),
        _calls("sqlite", "with 3 budgets, SDK and sink", 1.9, "the same with SDK and file sink"),
        _calls("postgres", "with 3 budgets, SDK and sink", 1.9, "the same with SDK and file sink", _ROUND_TRIPS),
        _calls("sqlite", "async, with 3 budgets", 2.0, "the same async"),
        _calls("postgres", "async, with 3 budgets", 2.0, "the same async", _ROUND_TRIPS),
        _calls("sqlite", "async, with 3 budgets, SDK and sink", 2.4, "async, with SDK and file sink"),
        _calls("postgres", "async, with 3 budgets, SDK and sink", 2.4, "async, with SDK and file sink", _ROUND_TRIPS),
        *(_calls(store, "approved", None, "asked about, approved at once, then made") for store in STORES),
        *(_calls(store, "replayed", None, "answered from the ledger") for store in STORES),
    ],
    "Beside DBOS": [_dbos("sqlite", 3), _dbos("postgres", 2)],
    "Under load": [
        *_load("sqlite", "1 thread"),
        *_load("sqlite", "8 threads", rate=5000, p99=5, why=_IN_TURN),
        *_load("sqlite", "8 threads, SDK and sink", rate=3500, why=_IN_TURN),
        *_load("sqlite", "8 tasks"),
        *_load("sqlite", "4 processes"),
        *_load("postgres", "1 thread"),
        *_load("postgres", "8 threads"),
        *_load("postgres", "8 tasks"),
        *_load("postgres", "4 processes"),
        Row("an open run in memory", lambda found: found["load, sqlite"]["memory"]["kib"], " KiB",
            told=lambda found: f"of {found['load, sqlite']['memory']['runs']:,}, after a call each"),
    ],
    "A full ledger": [
        _growth("sqlite", "call", 1.2), _growth("postgres", "call", 1.2), _growth("sqlite", "run", None),
        _growth("postgres", "run", None), _size("sqlite"), _size("postgres"),
    ],
    "Models and frameworks, SQLite": [
        _against("`guard.wrap(client)` with 3 budgets", "budgets", None, "guard.wrap(client)", "bare client"),
        _against("a call metered by hand (`llm_call`)", "budgets", None, "metered by hand", "bare client"),
        _against("a guarded LangChain tool", "langchain", "tool.invoke", "wrapped", "bare"),
        _against("a turn of a guarded LangChain agent", "langchain", "agent.invoke", "wrapped", "bare"),
    ],
    "Telemetry": [
        _telemetry("a span, SDK and sink", "sink", "sdk_and_sink_us_per_span", " us", most=30,
                   told=lambda found: "the SDK alone {sdk_us_per_span} us; of the CPU {sdk_and_sink_cpu_us_per_span} "
                   "and {sdk_cpu_us_per_span} us".format(**found["telemetry"]["sink"]),
                   why=_PROCESSOR),
        _telemetry("telemetry without an SDK, a call", "without_sdk", "us_per_call", " us", most=5, why=_PROCESSOR),
        _telemetry("spans that one thread ends", "sink", "spans_per_s_1_thread", " spans/s"),
        _telemetry("spans that eight threads end", "sink", "spans_per_s_8_threads", " spans/s"),
        _telemetry("spans lost in a burst of 50,000", "sink", "lost", "", most=0),
        _telemetry("spans lost by kill -9", "kills", "lost", "", most=0,
                   told=lambda found: "{rounds} rounds, {ended:,} spans".format(**found["telemetry"]["kills"])),
        Row("the end of a program whose OTLP endpoint is down", lambda found: found["exit"]["longest_s"], " s", most=2,
            told=lambda found: f"of {len(found['exit']['held_s'])}: refusing, silent, 503, over HTTP and gRPC; "
            f"{found['exit']['lost']} of {found['exit']['spans']:,} spans not in its file"),
        _telemetry("sync into DuckDB", "index", "sync_spans_per_s", " spans/s", least=40_000, why=_PROCESSOR),
        _telemetry("sync with nothing new", "index", "sync_with_nothing_new_ms", " ms", most=10),
        _telemetry("a span in the index, on disk", "index", "index_bytes_per_span", " bytes", most=150,
                   told=lambda found: "in its file {log_bytes_per_span}, compressed {gzip_bytes_per_span}".format(
                       **found["telemetry"]["index"])),
        _slowest("telemetry", 50),
        _slowest("queries", 500),
        _telemetry("the command line, `sagaspan --help`", "start", "help_s", " s", most=0.3),
    ],
}  # fmt: skip


def machine() -> dict[str, Any]:
    """Where, when and with what it was measured."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.processor()]
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {
        "cores": os.cpu_count(), "processor": names[0], "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version, "when": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC", **versions,
    }  # fmt: skip


def text(found: Found) -> str:
    """The generated part of the page; of a run of some benchmarks (``--only``) only what they measured."""
    missed: dict[str, list[str]] = {}
    parts = [_about(found["machine"]), *_limits(found)]
    for title, rows in ROWS.items():
        lines = [line for row in rows if (line := _line(row, found, missed)) is not None]
        if lines:
            head = f"### {title}\n\n| what | target | measured | of it | |\n| --- | --- | --- | --- | --- |\n"
            parts.append(head + "\n".join(lines))
    if missed:
        reasons = "\n".join(f"- {'; '.join(names)}: {why}" for why, names in missed.items())
        parts.append(f"### What is missed, and why\n\n{reasons}")
    return "\n\n".join(parts)


def _about(about: Found) -> str:
    packages = ", ".join(f"{name} {about[name]}" for name in PACKAGES)
    form = "the bounded form, " if about["quick"] else ""
    return (
        f"{about['when']}, {form}{about['cores']} cores ({about['processor']}), load {about['load']:.1f} before it "
        f"began, {about['seconds'] / 60:.1f} minutes; Python {about['python']}, SQLite {about['sqlite']}, {packages}."
    )


def _line(row: Row, found: Found, missed: dict[str, list[str]]) -> str | None:
    try:
        value, told = row.figure(found), row.told(found)
    except KeyError:
        return None  # not asked for
    except TypeError:
        return f"| {row.what} | {row.target} | not measured: its benchmark failed | | |"
    if not row.holds(value):
        missed.setdefault(row.why or _CPU, []).append(row.what)
    verdict = ("holds" if row.holds(value) else "**missed**") if row.target else ""
    return f"| {row.what} | {row.target} | {_number(value)}{row.unit} | {told} | {verdict} |"


def _limits(found: Found) -> list[str]:
    ours, theirs = (found.get(f"limits, {store}") for store in STORES)
    if not ours or not theirs:
        return []
    lines = ["### Nobody can be faster here than", "", "| | SQLite | PostgreSQL |", "| --- | --- | --- |"]
    return ["\n".join([*lines, *(f"| {name} | {ours[name]:,.0f} us | {theirs[name]:,.0f} us |" for name in ours)])]


def write(page: Path, measured: str) -> None:
    """Put it into the page, in the place of what was measured before."""
    before = page.read_text(encoding="utf-8")
    page.write_text(_PART.sub(lambda match: f"{match[1]}{measured}\n{match[3]}", before), encoding="utf-8")
