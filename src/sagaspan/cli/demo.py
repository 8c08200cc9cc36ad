"""``sagaspan demo``: an existing LangChain agent, wrapped by one line, rolled back, run again, seen and queried."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from sagaspan._commands import quoted
from sagaspan.cli._options import Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json, emit_table, plain_error, say, short
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.records import CallInfo, Phase, RunInfo

if TYPE_CHECKING:
    from sagaspan import Guard, Policy

_WORLD: Final = "demo-world.jsonl"
_PRICES: Final = {"scripted": {"input": 2.5, "output": 10}}
QUERY = """
select split_part(run_id, '-', 3) as run, tool, phase, state, outcome, duration_ms::int as ms,
       split_part(error_type, '.', -1) as error
  from tool_calls where starts_with(run_id, '{prefix}') order by started
"""


@click.command()
@common_options
@pass_settings
def demo(settings: Settings) -> None:
    """The whole story, offline, in seconds: an agent, a declined card, a rollback, and nothing done twice."""
    from sagaspan import Guard, configure_metrics, configure_tracing
    from sagaspan._home import home

    trip = _trip()
    folder = home(create=True)
    provider = configure_tracing("sagaspan-demo", directory=settings.traces)
    configure_metrics("sagaspan-demo")
    story = _Story(trip, prefix=f"trip-{secrets.token_hex(3)}", world=folder / _WORLD, quiet=settings.as_json)
    with Guard(settings.store, prices=_PRICES, tracer_provider=provider) as guard:
        agent = guard.wrap(trip.build_agent(), _policies(trip))  # the one line
        runs = [
            story.declined(guard, agent),
            story.paid(guard, agent),
            story.again(guard, agent),
        ]
    provider.force_flush()
    table = _tool_calls(settings, story.prefix)
    if settings.as_json:
        emit_json({"runs": runs, "tool_calls": [dict(zip(table.columns, row, strict=True)) for row in table.rows]})
        return
    say("\n4. The spans just exported, as SQL", "bold")
    say(f'   {settings.again} sql "{" ".join(QUERY.format(prefix=story.prefix).split())}"\n', "dim")
    emit_table(table.columns, table.rows)
    _what_next(runs, settings)


def _policies(trip: ModuleType) -> dict[str, Policy]:
    from sagaspan import Policy

    return {
        "book_flight": Policy(compensate=trip.cancel_flight),
        "book_hotel": Policy(compensate=trip.cancel_hotel),
        "charge_card": Policy(effect="write"),
    }


@cache
def _app() -> Guard:
    """The demo's tools, for what undoes its runs later: ``--app sagaspan.cli.demo``."""
    from sagaspan import Guard
    from sagaspan._home import home

    trip = _trip()
    os.environ["TRIP_WORLD"] = str(home(create=True) / _WORLD)
    guard = Guard(prices=_PRICES)
    guard.wrap(trip.build_agent(), _policies(trip))
    return guard


def __getattr__(name: str) -> Any:
    if name == "guard":
        return _app()
    raise AttributeError(name)


class _Story:
    """The three runs, told as they happen."""

    def __init__(self, trip: ModuleType, *, prefix: str, world: Path, quiet: bool) -> None:
        self.prefix = prefix
        self._trip = trip
        self._world = world
        self._quiet = quiet

    def declined(self, guard: Any, agent: Any) -> RunInfo:
        """The card is declined: what was booked before is cancelled in reverse order."""
        self._say("1. The agent books a flight and a hotel, then the card is declined", "bold")
        with self._outside(card="declined"):
            try:
                self._invoke(guard, agent, "declined")
            except self._trip.CardDeclined as error:
                self._say(f"   {type(error).__name__}: {error}", "red")
                for note in getattr(error, "__notes__", ()):  # LangGraph adds notes too
                    if note.startswith("sagaspan"):
                        self._say(f"   {note}", "yellow")
        return self._report(guard, "declined", trace=True)

    def paid(self, guard: Any, agent: Any) -> RunInfo:
        """The same task with a card that works."""
        self._say("\n2. The same task with a card that works", "bold")
        with self._outside(card="ok"):
            self._invoke(guard, agent, "paid")
        return self._report(guard, "paid")

    def again(self, guard: Any, agent: Any) -> RunInfo:
        """The same run id once more, as after a crash or a retried request: nothing is booked twice."""
        self._say("\n3. The same run id again, as after a crash or a retried request", "bold")
        before = self._books()
        with self._outside(card="ok"):
            self._invoke(guard, agent, "paid")
        same = before == self._books()
        self._say(
            f"   the outside world is {'exactly as before: nothing was done twice' if same else 'CHANGED'}", "green"
        )
        return self._report(guard, "paid")

    def _invoke(self, guard: Any, agent: Any, name: str) -> None:
        with guard.run("trip", id=f"{self.prefix}-{name}", on_interrupt="compensate"):
            result = agent.invoke({"messages": [("user", self._trip.TASK)]})
        self._say(f"   agent: {result['messages'][-1].content}", "green")

    def _report(self, guard: Any, name: str, *, trace: bool = False) -> RunInfo:
        run: RunInfo = guard.runs.get(f"{self.prefix}-{name}")
        if self._quiet:
            return run
        if trace:
            self._show_trace(run)
        undone = {call.compensates: call for call in run.calls if call.phase is Phase.COMPENSATION}
        rows = [
            (call.tool, call.state, short(call.result or plain_error(call.error), 80), _undone_by(undone.get(call.id)))
            for call in run.calls
            if call.phase is Phase.FORWARD
        ]
        say("")
        emit_table(("call", "state", "result or error", "undone by"), rows, title=f"run {run.id}: {run.status}")
        books = self._books()
        active = ", ".join(f"{now['active']} {kind}" for kind, now in books.items())
        cancelled = ", ".join(f"{now['cancelled']} {kind}" for kind, now in books.items() if now["cancelled"])
        say(f"the outside world: {active}; cancelled: {cancelled or 'nothing'}", "dim")
        return run

    def _show_trace(self, run: RunInfo) -> None:
        from opentelemetry import trace as otel

        from sagaspan.cli.runs import trace_of
        from sagaspan.cli.traces import print_trace

        flush = getattr(otel.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush()
        say("")
        print_trace(Settings(), trace_of(run.traceparent) or "")

    def _books(self) -> dict[str, dict[str, int]]:
        """What the outside world says was really done: it is asked, not the ledger."""
        with self._outside(card="ok"):
            books: dict[str, dict[str, int]] = self._trip.bookings()
        return books

    def _say(self, text: str, style: str = "") -> None:
        if not self._quiet:
            say(text, style)

    @contextmanager
    def _outside(self, *, card: str) -> Iterator[None]:
        """The world the agent acts on: its books, and what the bank says of the card."""
        before = {name: os.environ.get(name) for name in ("TRIP_WORLD", "TRIP_CARD")}
        os.environ.update(TRIP_WORLD=str(self._world), TRIP_CARD=card)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _undone_by(undo: CallInfo | None) -> str:
    return (
        ""
        if undo is None
        else f"{undo.tool}({', '.join(f'{name}={short(value)}' for name, value in undo.args.items())})"
    )


def _tool_calls(settings: Settings, prefix: str) -> Any:
    from sagaspan.cli._index import synced_index

    return synced_index(settings).query(QUERY.format(prefix=prefix))


def _what_next(runs: list[RunInfo], settings: Settings) -> None:
    from sagaspan.cli.runs import trace_of

    again = settings.again
    say(f"\nAll of it is in {settings.traces.parent}. What to type next:", "bold")
    say(f"  {again} traces show {(trace_of(runs[0].traceparent) or '')[:16]}")
    say(f"  {again} show {runs[0].id}")
    say(f"  {again} runs list")
    if settings.store is None:
        say(f"  {again} compensate {quoted(runs[1].id)} --app sagaspan.cli.demo")
    count = "select tool, state, count(*) as calls from tool_calls where executed group by all order by all"
    say(f'  {again} sql "{count}"')
    say(f"  {again} status")


def _trip() -> ModuleType:
    """``examples/trip.py``: beside the package in a wheel, at the top of a checkout."""
    if importlib.util.find_spec("langchain") is None:
        raise ConfigurationError("the demo wraps a LangChain agent; install it: pip install 'sagaspan[langchain]'")
    package = Path(__file__).parents[1]
    for path in (package / "examples" / "trip.py", package.parents[1] / "examples" / "trip.py"):
        if path.is_file():
            return _loaded(path)
    raise ConfigurationError(f"examples/trip.py is missing from this installation ({package}); reinstall sagaspan")


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sagaspan_demo_trip", path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} cannot be loaded; reinstall sagaspan")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
