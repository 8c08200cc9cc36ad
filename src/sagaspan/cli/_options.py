"""The options that every command takes, before or after the verb, and what they open."""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sagaspan._checks import without_password
from sagaspan._commands import CommandLine, command

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
NOT_FOUND: Final = 3
NEEDS_PERSON: Final = 4

if TYPE_CHECKING:
    from sagaspan import Guard

F = TypeVar("F", bound=Callable[..., Any])


_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _without_unit(text: str, likely: Sequence[str]) -> str | None:
    """Return what to write instead of a number that has no unit; None if ``text`` is no number."""
    number = text.strip()
    if not number.replace(".", "", 1).isdecimal():
        return None
    return f"{number} has no unit; write " + " or ".join(f"{number}{unit} ({_UNITS[unit]})" for unit in likely)


class Group(click.Group):
    """Commands under one word; for one that does not exist the error names the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that ``args`` begin with, and the rest of them."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


def confirm(question: str) -> None:
    """Ask the person at the terminal; raises ``ClickException`` if the answer is no."""
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was done: the answer was no")


def tags_of(given: Sequence[str]) -> dict[str, str]:
    """Return the tags that were typed as KEY=VALUE; raises ``UsageError``."""
    tags = dict(tag.partition("=")[::2] for tag in given)
    if not all(tags) or not all("=" in tag for tag in given):
        raise click.UsageError("a tag is KEY=VALUE, as in --tag env=prod")
    return tags


class Duration(click.ParamType):  # type: ignore[type-arg] # generic only in the newest click
    """A time with its unit (``250ms``, ``90s``, ``10m``, ``2h``, ``90d``), as seconds.

    ``likely`` are the units that somebody who forgets one may mean; ``least`` and ``most`` are durations, too.
    """

    name = "time"

    def __init__(self, *likely: str, least: str = "0s", most: str | None = None) -> None:
        self.likely, self._least, self._most = likely, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds of what was typed."""
        from sagaspan._durations import seconds_of

        if not isinstance(value, str):
            return float(value)
        try:
            seconds = seconds_of(value)
        except ValueError:
            examples = "write for example 250ms, 90s, 10m, 2h or 1d"
            self.fail(_without_unit(value, self.likely) or f"{value} is no time; {examples}", param, ctx)
        if seconds < seconds_of(self._least):
            self.fail(f"{value} is too short; write {self._least} or more", param, ctx)
        if self._most is not None and seconds > seconds_of(self._most):
            self.fail(f"{value} is too long; write {self._most} or less", param, ctx)
        return seconds


class Milliseconds(Duration):
    """A time with its unit, as milliseconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the milliseconds of what was typed."""
        return super().convert(value, param, ctx) * (1000 if isinstance(value, str) else 1)


class Moment(click.ParamType):  # type: ignore[type-arg] # generic only in the newest click
    """When: ``2h`` is two hours ago; else a date or time of ISO 8601, local where it has no zone."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dt.datetime:
        """The aware time of what was typed."""
        from sagaspan._durations import seconds_of

        if isinstance(value, dt.datetime):
            return value
        try:
            return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds_of(value))
        except ValueError:
            pass
        try:
            return dt.datetime.fromisoformat(value).astimezone()
        except ValueError:
            examples = "write for example 2h, 2026-11-21 or 2026-11-21T09:30"
            self.fail(_without_unit(value, ("h", "d")) or f"{value} is no time; {examples}", param, ctx)


class NotFound(click.ClickException):
    """Nothing of that name, or more than one thing: ``matches`` are (kind, id, what)."""

    exit_code = NOT_FOUND

    def __init__(self, message: str, matches: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.matches = tuple(matches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where to look, and how to answer."""

    as_json: bool = False
    store: str | None = None
    home: Path | None = None
    app: str | None = None

    def merged(self, **given: Any) -> Settings:
        """These settings with those that were ``given`` (not None, not False)."""
        return replace(self, **{name: value for name, value in given.items() if value})

    def open_store(self, *, create: bool = False) -> Any:
        """Return the ledger, or that of ``--app`` if it alone is named; raises ``StoreUnavailable``.

        Named with ``--app``, a guard with a codec also lets its content be read. ``create``: make a ledger of SQLite
        that does not exist.
        """
        from sagaspan.cli._render import show_titles
        from sagaspan.ledger.tool_names import titles
        from sagaspan.stores import connect, default_store

        guard = self.load_guard() if self.app and not self.store else None
        url = self.store or default_store() if guard is None else guard._store.url  # noqa: SLF001 - the same house
        store = connect(url, create=create, migrate="auto" if create and self.missing_ledger else "check")
        if not self.as_json:
            show_titles(functools.partial(titles, store))
        engine = None if guard is None else guard._engine  # noqa: SLF001 - the same house
        if engine is not None and engine.codec is not None:
            store.seal.encrypt(engine.namespace, engine.codec)
        return store

    def load_guard(self) -> Guard | None:
        """The user's guard, named by ``--app``, or None if none is named; raises ``UsageError``."""
        from sagaspan.cli._app import load_guard

        named = self.app_named
        return None if named is None else load_guard(named, store=self.store)

    @staticmethod
    def send_telemetry() -> None:
        """Send spans and metrics of what this command does to the OTLP endpoint of the environment, if one is set.

        After the module of ``--app`` is imported, which may set up its own. The service is ``sagaspan`` where
        OpenTelemetry's variables name none.
        """
        if not any(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT") for signal in ("", "TRACES_", "METRICS_")):
            return  # the SDK need not be imported
        from sagaspan.telemetry import configure_metrics, configure_tracing

        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        service = None if named else "sagaspan"
        configure_tracing(service)
        configure_metrics(service)

    @property
    def app_named(self) -> str | None:
        """What ``--app`` or the environment names."""
        return self.app or os.environ.get("SAGASPAN_APP") or None

    @property
    def missing_ledger(self) -> Path | None:
        """The file of a SQLite ledger that does not exist; None if it does, or is on a server, or that of ``--app``."""
        from sagaspan.stores import default_store

        scheme, _, path = (self.store or default_store()).partition(":///")
        file = Path(path).expanduser()
        return file if scheme == "sqlite" and not (self.app and not self.store) and not file.exists() else None

    @property
    def has_ledger(self) -> bool:
        """Whether a ledger was named, or stands where it would by default."""
        from sagaspan.stores import default_store

        scheme, _, path = default_store().partition(":///")
        return self.store is not None or scheme != "sqlite" or Path(path).expanduser().exists()

    @property
    def again(self) -> str:
        """How to call the program so that it looks at the same place: what ``demo`` tells people to type."""
        # Under `uv run` in a checkout nothing is on the shell's own PATH.
        runner = "uv run --no-dev --extra langchain " if os.environ.get("UV_RUN_RECURSION_DEPTH") else ""
        return runner + self.located(command(""))

    def command(self, verb: str, *words: str) -> CommandLine:
        """Return a command of ours that looks at the same place: what to type next."""
        return self.located(command(verb, *words)).adding(app=self.app or None)

    def located(self, line: CommandLine) -> CommandLine:
        """Return ``line`` looking at the same place; without a password, for what is shown is kept in logs."""
        store = without_password(self.store) if self.store else None
        return line.adding(home=self.home or None, store=store)

    @property
    def traces(self) -> Path:
        """The folder of the trace files."""
        from sagaspan._home import traces_directory

        return traces_directory()

    @staticmethod
    def wants_json(args: Sequence[str]) -> bool:
        """Whether a command line asks for JSON (for errors that come before it is parsed)."""
        return "--json" in args


def common_options(function: F) -> F:
    """Add ``--json``, ``--store``, ``--home`` and ``--app``; a group and its commands share one ``Settings``."""

    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @click.option("--store", metavar="URL", help="The ledger, e.g. sqlite:///ledger.db  [env: SAGASPAN_STORE]")
    @click.option(
        "--home", type=click.Path(path_type=Path, file_okay=False), help="The .sagaspan folder  [env: SAGASPAN_HOME]"
    )
    @click.option("--app", metavar="MODULE:GUARD", help="Your guard, for what must run your tools  [env: SAGASPAN_APP]")
    @click.pass_context
    def with_settings(context: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in ("as_json", "store", "home", "app")}
        if given["home"] is not None:
            os.environ["SAGASPAN_HOME"] = str(given["home"])
        context.obj = (context.obj or Settings()).merged(**given)
        return function(*args, **kwargs)

    return cast(F, functools.update_wrapper(with_settings, function))


def namespace_option(function: F) -> F:
    """Add ``--namespace``, for commands that would otherwise look at all of them."""
    return click.option("--namespace", metavar="NAME", help="Only this one; the default is all of them.")(function)


pass_settings = click.make_pass_decorator(Settings, ensure=True)
