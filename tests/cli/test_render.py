"""Tables that people can read in a terminal of 80 columns."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from sagaspan import Guard
from sagaspan.cli._render import emit_table, lately, plain_error
from tests.cli.conftest import Sagaspan


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody looks on, in a window as it opens by default."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def lines(out: str) -> list[str]:
    """What is seen of ``out``, without colours."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()]


@pytest.fixture
def trip(guard: Guard) -> None:
    """A run with names as long as they are in real life."""

    def cancel_flight(result: dict) -> None: ...

    @guard.tool(compensate=cancel_flight)
    def book_flight(city: str, passengers: list) -> dict:
        return {"id": "F-708147", "city": city, "passengers": passengers}

    @guard.tool(effect="write")
    def charge_card(amount: float) -> dict:
        raise LookupError("the bank declined 540.00 EUR, and it does not say why it did so")

    with pytest.raises(LookupError), guard.run("trip", id="trip-b757ef-declined"):
        book_flight("Lisbon", ["Ada Lovelace", "Charles Babbage"])
        charge_card(540.0)


@pytest.mark.usefixtures("trip")
@pytest.mark.parametrize(
    "command",
    [
        ["runs", "list"],
        ["runs", "show", "trip"],
        ["calls", "list", "--all"],
        ["traces", "list"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_it_fits_80_columns(sagaspan: Sagaspan, command: list[str]) -> None:
    """As a table, not as a page of lists; but for what has to stay in one piece, and commands to copy."""
    shown = lines(sagaspan(*command).out)
    table = [line for line in shown if not re.match("  [a-z]", line)]  # the facts above it are lines of their own
    assert [line for line in table if len(line) > 80 and "sagaspan " not in line] == []
    heads = [line for line in shown if line.startswith(("run  ", "call  ", "trace  ", "what  ", "#  "))]
    assert max(len(line.split()) for line in heads) > 2


@pytest.mark.usefixtures("trip")
def test_names_stay_in_one_piece(sagaspan: Sagaspan) -> None:
    """Folded between words, not within them; the class of an error without its module."""
    out = "\n".join(lines(sagaspan("runs", "show", "trip").out))
    for word in ("book_flight", "cancel_flight", "charge_card", "compensated", "LookupError:", '"F-708147",'):
        assert word in out
    assert "builtins" not in out


@pytest.mark.usefixtures("trip")
def test_where_there_is_room_nothing_is_folded(
    sagaspan: Sagaspan, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide window, or a file, has a line a row."""
    monkeypatch.setenv("COLUMNS", "200")
    assert len(lines(sagaspan("runs", "list").out)) == 2
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("COLUMNS", "20")
    assert len(lines(sagaspan("calls", "list", "--all").out)) == 4
    emit_table(("id", "text"), [(1, "word " * 100)] * 3)
    assert len(lines(capfd.readouterr().out)) == 4


def test_what_can_be_spared_is_left_out_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything else is; without any such column the rows become lists."""
    row = ("a" * 30, "b" * 30, "c" * 30)
    emit_table(("id", "run", "trace"), [row], spare=("trace",))
    assert lines(capsys.readouterr().out) == [f"{'id':<30}  run", f"{'a' * 30}  {'b' * 30}"]
    emit_table(("id", "run", "trace"), [row])
    assert lines(capsys.readouterr().out) == [f"id     {'a' * 30}", f"run    {'b' * 30}", f"trace  {'c' * 30}", ""]


def test_a_table_is_laid_out_by_its_first_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A long cell after many rows is folded; nothing of it is lost."""
    emit_table(("n", "text"), [*((n, "short") for n in range(1000)), (1000, "word " * 30)])
    shown = lines(capsys.readouterr().out)
    assert shown[1] == "0    short"
    assert " ".join(shown).count("word") == 30


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sagaspan_demo_trip.CardDeclined: no money", "CardDeclined: no money"),
        ("httpx.ConnectError", "ConnectError"),
        ("ValueError: a.b.C: d", "ValueError: a.b.C: d"),
        ("a.b.<locals>.E: no", "a.b.<locals>.E: no"),
        (None, None),
    ],
)
def test_an_error_is_named_by_its_class(text: str | None, shown: str | None) -> None:
    """Its module is in ``show`` of the call."""
    assert plain_error(text) == shown


def test_a_time_is_as_short_as_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of today the time, of this year the day too; in a file all of it."""
    now = dt.datetime.now().astimezone()
    assert lately(now) == now.strftime("%H:%M:%S")
    assert lately(now.replace(year=now.year - 1, month=2, day=3)) == f"{now.year - 1}-02-03"
    monkeypatch.delenv("FORCE_COLOR")
    assert lately(now) == now.strftime("%Y-%m-%d %H:%M:%S")
    assert lately(None) == ""
