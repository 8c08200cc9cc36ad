"""Hostile strings through every renderer, as a terminal shows them: what stands there is what was printed.

A terminal that obeyed any of it would show something else: text overwritten, coloured, hidden or moved, another title.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import pyte
import pytest

from sagaspan import ApprovalDenied, ApprovalPending, ApprovalRequest, Guard, Inbox
from sagaspan._approvals import Approvals
from sagaspan._console import Console
from sagaspan.cli._watch import _table
from sagaspan.rendering import visible
from sagaspan.webhooks import question_of
from tests.cli.conftest import Sagaspan
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
    """What a terminal shows of an output, and whether it obeyed anything in it."""

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        self._screen = pyte.Screen(max(map(len, lines)) + 2, len(lines) + 1)
        pyte.Stream(self._screen).feed(text.replace("\n", "\r\n"))

    @property
    def lines(self) -> list[str]:
        """Its lines; a wide character stands in two cells."""
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


def _check(output: str) -> None:
    """The terminal shows exactly the lines that were printed."""
    expected = [line.rstrip() for line in output.split("\n")]
    screen = Screen(output)
    assert screen.lines[: len(expected)] == expected
    assert screen.untouched


def test_the_emulator_sees_what_a_terminal_would_obey() -> None:
    """Raw, the corpus does what it is for: else the test below would prove nothing."""
    obeyed = [name for name, text in CORPUS.items() if "\x1b" in text or "\r" in text or "\b" in text]
    assert len(obeyed) > 8
    for name in ("colours", "cursor", "window title", "overwrite", "backspace", "private CSI"):
        screen = Screen(CORPUS[name])
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
    texts: list[str], sagaspan: Sagaspan, guard: Guard, pay: Pay, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the request's text, the console, the watcher, the webhook, and the command line in words and in JSON."""
    request = _ask(guard, pay, *texts)
    outputs = [
        request.text,
        *(visible(text)[:COLUMNS] for text in texts),
        json.dumps(question_of(request), indent=1)[:COLUMNS],
    ]
    outputs += [sagaspan("approvals", verb, *args).out for verb, args in (("show", (request.id,)), ("list", ()))]
    Console(read=lambda _: "l").decide(request)
    outputs.append(capsys.readouterr().err.replace("\u2500", "-"))
    outputs.append(_plain(_table([request])))
    Approvals(guard._store, channel="cli").deny(request.id, "".join(text[:20] for text in texts))
    with pytest.raises(ApprovalDenied) as denied, guard.override(approver=Inbox()), guard.run("trip", id="a"):
        pay(texts, {text: [text, {"deep": text}] for text in texts})
    outputs += [str(denied.value).split("\nsagaspan:")[0], sagaspan("show", request.id).out, sagaspan("show", "a").out]
    for output in outputs:
        _check(_one_cell(output))
    for output in (sagaspan("approvals", "show", request.id, "--json").out, sagaspan("show", "a", "--json").out):
        json.loads(output)
        assert not any(ord(one) < 0x20 and one != "\n" for one in output)
        _check(_one_cell("\n".join(line[:COLUMNS] for line in output.split("\n")[:40])))


def _one_cell(text: str) -> str:
    """Wide characters as one cell, marks that are drawn over a letter as one more: only their place would differ."""
    return "".join("W" if one in "支付\U0001f4b0" else "m" if one == "\u0301" else one for one in text)


def _plain(table: Any) -> str:
    from rich.console import Console as RichConsole

    screen = io.StringIO()
    RichConsole(file=screen, width=400, color_system=None).print(table)
    return screen.getvalue()


def test_json_with_a_field_twice_is_no_edit(sagaspan: Sagaspan, guard: Guard, pay: Pay) -> None:
    """Two readers would see two different arguments."""
    request = _ask(guard, pay, "x")
    twice = '{"text": "good", "inside": 1, "text": "evil"}'
    answer = sagaspan("approvals", "edit", request.id, twice, "--yes", "--digest", request.digest)
    assert (answer.code, "twice" in answer.err) == (2, True)
    answers = ["e", twice, "l"]
    assert Console(read=lambda _: answers.pop(0)).decide(request) == "later"
