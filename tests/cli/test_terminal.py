"""Hostile strings through every renderer, as a terminal shows them: what stands there is what was printed.

A terminal that obeyed any of it would show something else: text overwritten, coloured, hidden or moved, another title.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyte
import pytest

from sagaspan import ApprovalDenied, ApprovalPending, ApprovalRequest, Guard, Inbox
from sagaspan._approvals import Approvals
from sagaspan._characters import cells, folded, visible
from sagaspan._console import Console
from sagaspan.cli import _index
from sagaspan.cli._options import Settings
from sagaspan.cli._render import emit_csv
from sagaspan.cli._watch import listed
from sagaspan.webhooks import question_of
from tests.cli.conftest import Sagaspan
from tests.index import lines
from tests.test_rendering import HOSTILE

COLUMNS: Final = 2000
MORE = {
    "homoglyph": "p\u0430ypal", "double-width": "支付", "combining": "e\u0301", "emoji": "\U0001f4b0",
    "spelt escape": "\\u{202e}", "quotes": '"; rm -rf ~ #', "html": "<script>alert(1)</script>",
    "markup": "[bold red]approved[/]", "slack": "<!channel> *approved*", "repeat": "a\x1b[1000b",
    "private CSI": "\x1b[?1049h\x1b[?25l", "charset": "\x1b(0lqqk", "DCS": "\x1bPq#0;2;0;0;0\x1b\\",
    "APC": "\x1b_G\x1b\\",
    "answerback": "\x1b[c\x05", "long": "\u202ea" * 5_000,
}  # fmt: skip
CORPUS = {**HOSTILE, **MORE}


class Screen:
    """What a terminal of so many columns shows of an output, and whether it obeyed anything in it."""

    def __init__(self, text: str, columns: int) -> None:
        rows = sum(len(line) * 2 // columns + 1 for line in text.split("\n"))
        self._screen = pyte.Screen(columns, rows + 1)
        pyte.Stream(self._screen).feed(text.replace("\n", "\r\n"))

    @property
    def lines(self) -> list[str]:
        """Its lines."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def untouched(self) -> bool:
        """Nothing but its text has changed: no title, no colours, no modes."""
        default = self._screen.default_char
        plain = all(
            cell._replace(data=" ") == default._replace(data=" ")
            for row in self._screen.buffer.values()
            for cell in row.values()
        )
        return plain and self._screen.title == "" and self._screen.mode == pyte.Screen(1, 1).mode


def _check(output: str, columns: int = 80) -> None:
    """The terminal shows exactly the lines that were printed: it folded none of them itself, and obeyed nothing."""
    expected = [line.rstrip() for line in output.split("\n")]
    screen = Screen(output, columns)
    assert screen.lines[: len(expected)] == expected
    assert screen.untouched


def _check_json(output: str) -> None:
    """For machines: its lines are as long as they are, and nothing in them is obeyed or pads them."""
    for line in output.split("\n"):
        screen = Screen(line, COLUMNS)
        assert "".join(screen.lines).replace(" ", "") == line.replace(" ", "")
        assert screen.untouched
        assert "  " not in line.lstrip()


def test_the_emulator_sees_what_a_terminal_would_obey() -> None:
    """Raw, the corpus does what it is for: else the test below would prove nothing."""
    obeyed = [name for name, text in CORPUS.items() if "\x1b" in text or "\r" in text or "\b" in text]
    assert len(obeyed) > 8
    for name in ("colours", "cursor", "window title", "overwrite", "backspace", "private CSI"):
        screen = Screen(CORPUS[name], COLUMNS)
        assert not (screen.lines[0] == CORPUS[name] and screen.untouched), name


Pay = Callable[..., Any]


@pytest.fixture
def pay(guard: Guard) -> Pay:
    """A payment that is asked about."""

    @guard.tool(approve=True, effect="write")
    def pay(text: Any, inside: Any) -> None:
        raise ValueError(str(text)[:500])

    return pay


def _ask(guard: Guard, pay: Pay, *texts: str) -> ApprovalRequest:
    with guard.override(approver=Inbox()), pytest.raises(ApprovalPending) as caught, guard.run("trip", id="a"):
        pay(list(texts), {text: [text, {"deep": text}] for text in texts})
    request = guard.approvals.get(caught.value.approval_id)
    assert request is not None
    return request


GROUPS: Final = [list(CORPUS.values())[at : at + 8] for at in range(0, len(CORPUS), 8)]


@pytest.mark.parametrize("texts", GROUPS, ids=range(len(GROUPS)))
def test_a_hostile_text_is_shown_as_a_terminal_shows_plain_text(
    texts: list[str], sagaspan: Sagaspan, guard: Guard, pay: Pay, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the request's text, the console, the watcher, the webhook, and the command line in words and in JSON."""
    request = _ask(guard, pay, *texts)
    outputs = [request.text, *(folded(visible(text)[:COLUMNS]) for text in texts)]
    outputs.append(sagaspan("approvals", "show", request.id, "--full").out)
    Console(read=lambda _: "l").decide(request)
    outputs.append(capfd.readouterr().err.replace("\u2500", "-"))
    outputs += [_printed(listed([request], 1, columns), columns) for columns in (40, 80)]
    wide = [sagaspan("approvals", "list").out]
    Approvals(guard._store, channel="cli").deny(request.id, "".join(text[:20] for text in texts))
    with pytest.raises(ApprovalDenied) as denied, guard.override(approver=Inbox()), guard.run("trip", id="a"):
        pay(texts, {text: [text, {"deep": text}] for text in texts})
    outputs.append(sagaspan("approvals", "show", request.id).out)
    wide += [str(denied.value).split("\nsagaspan:")[0], sagaspan("show", request.id).out, sagaspan("show", "a").out]
    for output in outputs:
        _check(_one_cell(output))
    for output in wide:  # a line a row, where nobody looks on
        _check(_one_cell(output), COLUMNS)
    for command in (("approvals", "show", request.id), ("show", "a"), ("approvals", "list", "--all")):
        output = sagaspan(*command, "--json").out
        json.loads(output)
        _check_json(_one_cell("\n".join(line[:COLUMNS] for line in output.split("\n")[:40])))
    sent = json.dumps(question_of(request), indent=1)  # ASCII, and its text is the one above
    assert json.loads(sent)["text"] == request.text
    _check(sent[:COLUMNS], COLUMNS)


FORGED: Final = ('  to      "bob"', " needs 1 person", " state approved by the owner", ' to "bob"')


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("filler", [" ", "- ", "支", "\u0430", "x"])
def test_a_value_forges_no_line_by_its_length(
    filler: str, columns: int, sagaspan: Sagaspan, guard: Guard, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded to the edge of the screen it would go on in a line of its own: what stands there has a mark before it."""

    @guard.tool(approve=True)
    def wire(note: str, amount: int, to: str) -> None:
        """Nothing."""

    note = "".join(f"rent{(filler * columns)[: columns - width]}{line}" for width in (15, 8, 6, 4) for line in FORGED)
    with guard.override(approver=Inbox()), pytest.raises(ApprovalPending) as caught:
        wire(note, 9000, "mallory")
    request = guard.approvals.get(caught.value.approval_id)
    assert request is not None
    monkeypatch.setenv("COLUMNS", str(columns))
    Console(read=lambda _: "l").decide(request)
    asked = capfd.readouterr().err
    assert max(map(cells, asked.replace("\u2500", "-").split("\n"))) <= columns
    whole = [asked, *([request.text] if columns >= 80 else [])]
    whole += [_on_terminal(monkeypatch, sagaspan, "approvals", "show", request.id, *more) for more in ((), ("--full",))]
    tables = [
        _printed(listed([request], 1, columns), columns),
        _on_terminal(monkeypatch, sagaspan, "approvals", "list"),
    ]
    for output in (*whole, *tables):
        shown = [line.strip() for line in Screen(output, columns).lines]
        blocks = 2 if "all of its arguments" in shown else 1
        for genuine, begin in ((blocks, 'to      "mallory"'), (0, 'to      "bob"'), (0, "state       approved")):
            assert sum(line.startswith(begin) for line in shown) <= genuine, output
        if output in whole:
            assert not any(line.startswith(("rent", 'to \\"', "needs 1", "state appr")) for line in shown), output


def _on_terminal(monkeypatch: pytest.MonkeyPatch, sagaspan: Sagaspan, *command: str) -> str:
    """What is printed where somebody looks on."""
    with monkeypatch.context() as there:
        there.setenv("TTY_COMPATIBLE", "1")
        there.setenv("NO_COLOR", "1")
        return sagaspan(*command).out


@pytest.mark.parametrize("columns", [40, 80])
def test_a_call_that_is_shown_forges_no_line(
    columns: int, sagaspan: Sagaspan, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments and its error are of whoever made it."""

    @guard.tool(effect="write")
    def pay(note: str) -> None:
        raise ValueError(note)

    note = "".join(f"{'x' * (columns - width)} state done, result paid" for width in range(4, 40, 6))
    with pytest.raises(ValueError, match="x"), guard.run("trip", id="a"):
        pay(note)
    (call,) = guard.runs.get("a").calls
    monkeypatch.setenv("COLUMNS", str(columns))
    output = _on_terminal(monkeypatch, sagaspan, "show", call.id).split("history")[0]
    assert not any(line.strip().startswith(("state done", "done,")) for line in Screen(output, columns).lines), output


def _one_cell(text: str) -> str:
    """Wide characters as one cell, marks that are drawn over a letter as one more: only their place would differ."""
    return "".join("W" if one in "支付\U0001f4b0" else "m" if one == "\u0301" else one for one in text)


def _printed(table: Any, columns: int) -> str:
    from rich.console import Console as RichConsole

    screen = io.StringIO()
    RichConsole(file=screen, width=columns, color_system=None).print(table)
    return screen.getvalue()


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
def test_a_long_sync_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    """On a terminal, on standard error, and only then: a short one leaves the terminal alone, and nothing stays."""
    lines.write(tmp_path / "a.jsonl", *(lines.line(lines.span(number)) for number in range(200)))
    monkeypatch.setattr(_index, "_SHOWN_FROM", 1 if long else 2**30)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("SAGASPAN_TRACE_DIR", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    master, slave = pty.openpty()
    try:
        with os.fdopen(slave, "w") as terminal, monkeypatch.context() as within:
            within.setattr(sys, "stderr", terminal)
            _index.synced_index(Settings())
            terminal.flush()
            os.set_blocking(master, False)
            parts: list[bytes] = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    parts.append(os.read(master, 65_536))
            shown = b"".join(parts).decode()
    finally:
        os.close(master)
    assert ("reading traces" in shown) is long
    screen = pyte.Screen(100, 5)
    pyte.Stream(screen).feed(shown)
    assert "".join(screen.display).strip() == ""


def test_json_with_a_field_twice_is_no_edit(sagaspan: Sagaspan, guard: Guard, pay: Pay) -> None:
    """Two readers would see two different arguments."""
    request = _ask(guard, pay, "x")
    twice = '{"text": "good", "inside": 1, "text": "evil"}'
    answer = sagaspan("approvals", "edit", request.id, twice, "--yes", "--digest", request.digest)
    assert (answer.code, "twice" in answer.err) == (2, True)
    answers = ["e", twice, "l"]
    assert Console(read=lambda _: answers.pop(0)).decide(request) == "later"


def test_rows_for_a_program_are_as_they_are_and_for_a_terminal_are_shown() -> None:
    """CSV: what another program reads is the very text, and a person's terminal obeys none of it."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    texts = [*CORPUS.values(), "a\rb", "a\r\nb", "a\nb", "\r", 'a"\r']
    rows = [[text, 1, None] for text in texts]
    piped, terminal = io.StringIO(newline=""), Tty(newline="")
    emit_csv(rows, piped)
    assert [row[0] for row in csv.reader(io.StringIO(piped.getvalue(), newline=""))] == texts
    emit_csv([[text, 1, None] for text in CORPUS.values()], terminal)
    shown = list(csv.reader(io.StringIO(terminal.getvalue(), newline="")))
    assert shown == [[visible(text), "1", ""] for text in CORPUS.values()]
