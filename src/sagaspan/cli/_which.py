"""Which traces or spans a command is about: the options that say it, and what is said when there are more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sagaspan.cli._options import Milliseconds, Moment

if TYPE_CHECKING:
    from sagaspan.index import TraceIndex, Where

F = TypeVar("F", bound=Callable[..., Any])
Row = TypeVar("Row")


def which_options(*, limit: int) -> Callable[[F], F]:
    """Add the options that say which traces or spans are meant; the command gets them as ``where``."""
    options = (
        click.option(
            "--status", "-s", multiple=True, metavar="STATE",
            help="ok, error, or a state of runs, calls and requests; may be repeated.",
        ),
        click.option("--tool", metavar="NAME", help="Calls of this tool, or of a glob of them."),
        click.option("--run", "run_id", metavar="ID", help="Of this run; a unique prefix is enough."),
        click.option("--agent", metavar="NAME", help="Of this agent, or a glob."),
        click.option("--model", metavar="NAME", help="Calls of this model, or a glob."),
        click.option("--min-duration", "min_ms", type=Milliseconds("ms", "s"), help="Of at least, e.g. 250ms."),
        click.option("--max-duration", "max_ms", type=Milliseconds("ms", "s"), help="Of at most, e.g. 2s."),
        click.option("--since", type=Moment(), help="Started since then, e.g. 2h or 2026-11-21."),
        click.option("--until", type=Moment(), help="Started before then."),
        click.option("--limit", "-n", default=limit, show_default=True, type=click.IntRange(1)),
        click.option("--offset", default=0, show_default=True, type=click.IntRange(0)),
    )  # fmt: skip

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_where(*args: Any, **kwargs: Any) -> Any:
            from sagaspan.index import Where

            names = (
                "status",
                "tool",
                "run_id",
                "agent",
                "model",
                "min_ms",
                "max_ms",
                "since",
                "until",
                "limit",
                "offset",
            )
            given = {name: kwargs.pop(name) for name in names}
            if given["status"]:
                _check_states(given["status"])
            where = Where(**given)
            _check_bounds(where)
            return function(*args, where=where, **kwargs)

        return cast(F, functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), with_where))

    return decorate


def _check_states(asked: Sequence[str]) -> None:
    from sagaspan.ledger.records import ApprovalState, CallState, RunState

    known = tuple(dict.fromkeys(("ok", "error", *RunState, *CallState, *ApprovalState)))
    for status in asked:
        if status not in known:
            raise click.UsageError(f"--status {status}: there is no such state; one of {', '.join(known)}")


def _check_bounds(where: Where) -> None:
    """Refuse what nothing can fit, which would look as if there were nothing."""
    if where.since is not None and where.until is not None and where.since >= where.until:
        since, until = (f"{bound:%Y-%m-%d %H:%M:%S %z}" for bound in (where.since, where.until))
        raise click.UsageError(f"nothing starts since {since} and before {until}; --until must be later than --since")
    if where.min_ms is not None and where.max_ms is not None and where.min_ms > where.max_ms:
        raise click.UsageError(
            f"nothing takes at least {where.min_ms:g} ms and at most {where.max_ms:g} ms; "
            "--max-duration must not be less than --min-duration"
        )


def with_whole_run(index: TraceIndex, where: Where) -> Where:
    """The same with the whole id of the run; raises ``NotFound`` if several begin with what was given.

    That none does is no error: a run may have no spans yet.
    """
    from dataclasses import replace

    from sagaspan.cli._found import SHOWN, ambiguous

    if where.run_id is None:
        return where
    found = index.query(
        "select distinct run_id from spans where starts_with(run_id, ?) order by run_id limit ?",
        (where.run_id, SHOWN + 1),
    )
    runs = [str(run_id) for (run_id,) in found.rows]
    if len(runs) > 1 and runs[0] != where.run_id:
        raise ambiguous(where.run_id, "runs", [("run", run_id, "", None) for run_id in runs])
    return replace(where, run_id=runs[0]) if runs else where


def shown_of(what: str, asked: Callable[[Where], Sequence[Row]], where: Where) -> Sequence[Row]:
    """What fits, as many as are wanted; says so if there are more."""
    from dataclasses import replace

    found = asked(replace(where, limit=where.limit + 1))
    if len(found) > where.limit:
        there_are_more(what, where)
    return found[: where.limit]


def there_are_more(what: str, where: Where) -> None:
    """Say, beside the answer and not in it, that this is not all."""
    click.echo(f"There are more {what} that fit than these {where.limit}; see --limit and --offset.", err=True)
