"""Durations on the command line have a unit."""

from __future__ import annotations

import click
import pytest

from sagaspan.cli import cli
from sagaspan.cli._options import Duration, Milliseconds, Moment
from tests.cli.conftest import Sagaspan


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("prune --yes --older-than 90", "write 90s (seconds) or 90d (days)"),
        ("traces prune --yes --older-than 90", "write 90s (seconds) or 90d (days)"),
        ("recover --older-than 90", "write 90s (seconds) or 90m (minutes)"),
        ("recover --watch --interval 90", "write 90s (seconds) or 90m (minutes)"),
        ("usage --since 1.5", "write 1.5h (hours) or 1.5d (days)"),
        ("approvals delegate bob --for 8", "write 8m (minutes) or 8h (hours)"),
        ("approvals watch --interval 1", "write 1ms (milliseconds) or 1s (seconds)"),
        ("sql --timeout 30 --named", "write 30s (seconds) or 30m (minutes)"),
        ("traces list --min-duration 250", "write 250ms (milliseconds) or 250s (seconds)"),
        ("traces filter --max-duration 0", "write 0ms (milliseconds) or 0s (seconds)"),
        ("traces list --since 2", "write 2h (hours) or 2d (days)"),
        ("traces export --until 2", "write 2h (hours) or 2d (days)"),
    ],
)
def test_a_number_without_a_unit_is_refused_with_the_likeliest_ones(
    sagaspan: Sagaspan, command: str, instead: str
) -> None:
    """Who writes ``prune --older-than 90`` means days, and would lose all but the last 90 seconds."""
    answer = sagaspan(*command.split())
    assert answer.code == 2
    assert f"has no unit; {instead}" in " ".join(answer.err.split())


def test_no_option_takes_a_time_as_a_bare_number() -> None:
    """An option whose name or help speaks of a time has one of the types that want a unit."""
    words = ("older", "since", "until", "interval", "timeout", "duration", "seconds", "wait", "minutes", "--for")
    for path, option in _options(cli, ()):
        said = f"{' '.join(option.opts)} {option.help or ''}".lower()
        if isinstance(option.type, click.types.FloatParamType | click.types.IntParamType):
            assert not any(word in said for word in words), (path, option.name)
    kinds = [option.type for _, option in _options(cli, ()) if isinstance(option.type, Duration | Moment)]
    assert all(kind.likely for kind in kinds if isinstance(kind, Duration))
    assert len(kinds) >= 19


def _options(command: click.Command, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Option]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        parts = [command.get_command(context, name) for name in command.list_commands(context)]
        return [found for part in parts if part is not None for found in _options(part, (*path, part.name or ""))]
    return [(path, parameter) for parameter in command.params if isinstance(parameter, click.Option)]


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("0s", 0), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("90d", 90 * 86400)]
)
def test_a_time_is_a_number_and_its_unit(text: str, seconds: float) -> None:
    """From milliseconds to days; of spans it is counted in milliseconds."""
    assert Duration("s", "d").convert(text, None, None) == pytest.approx(seconds)
    assert Milliseconds("ms", "s").convert(text, None, None) == pytest.approx(seconds * 1000)


@pytest.mark.parametrize("text", ["", "s", "ms", "soon", "nans", "-1s", "infd", "1e99d", "90 years"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    """Also what only looks like a number."""
    with pytest.raises(click.BadParameter, match="is no time; write for example 250ms, 90s, 10m, 2h or 1d"):
        Duration("s", "d").convert(text, None, None)


def test_a_time_out_of_bounds_is_refused_with_the_bound(sagaspan: Sagaspan) -> None:
    """An interval of nothing would never rest, a time limit of nothing would refuse every query."""
    assert "10ms is too short; write 100ms or more" in sagaspan("recover", "--watch", "--interval", "10ms").err
    assert "2h is too long; write 1h or less" in sagaspan("recover", "--watch", "--interval", "2h").err
    assert "0s is too short; write 1ms or more" in sagaspan("sql", "select 1", "--timeout", "0s").err


def test_a_date_without_dashes_is_a_date() -> None:
    """It is no number of seconds, although it looks like one."""
    found = Moment().convert("20261121", None, None)
    assert (found.year, found.month, found.day) == (2026, 11, 21)
