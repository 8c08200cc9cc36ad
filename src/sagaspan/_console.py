"""The console approver: one question at a time, on the terminal of the process that asks.

It shows ``request.text``, which the library made of the bytes that are decided about, and nothing else; all of them if
somebody asks for what is shortened.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final

from sagaspan import _fork as fork
from sagaspan import _owner as owner
from sagaspan import _strict_json as strict_json
from sagaspan import codecs
from sagaspan.approvers import LATER, ApprovalRequest, Approve, Deny, Edit
from sagaspan.rendering import few, folded, render_subject

_QUESTION: Final = "[a]pprove, [d]eny, [e]dit or [l]ater? "
_QUESTION_OF_CUT: Final = "[a]pprove, [d]eny, [e]dit, [f]ull or [l]ater? "
_one_at_a_time = fork.new_lock()


class Console:
    """Asks whoever sits at the terminal; the end of input is ``LATER``.

    It speaks for the user of the process, whose groups are the roles.
    """

    channel = "console"
    wait = 0.0

    def __init__(self, *, read: Callable[[str], str] = input) -> None:
        self._read = read

    def decide(self, request: ApprovalRequest, /) -> Any:
        """What is typed; asked again until it is an answer."""
        with _one_at_a_time:
            show(request.text, title="Approve exactly this?")
            forget_typed()
            try:
                while True:
                    question = _QUESTION_OF_CUT if request.cut else _QUESTION
                    answer = self._answer(self._typed(question).strip().lower(), request)
                    if answer is not None:
                        return answer
            except EOFError:
                return LATER

    def _answer(self, word: str, request: ApprovalRequest) -> Any:
        """The answer that ``word`` begins; None if it is none. Only a word that says so approves."""
        if word in ("a", "approve"):
            return Approve(roles=owner.os_groups())
        if word in ("d", "deny"):
            return Deny(self._typed("Why? The model is told: ") or None)
        if word in ("l", "later"):
            return LATER
        if word in ("f", "full"):
            show(request.whole, title="All that is decided about")
        return self._edit(request) if word in ("e", "edit") else None

    def _edit(self, request: ApprovalRequest) -> Edit | None:
        names = few(tuple(name for name, _ in render_subject(request.subject).lines))
        with contextlib.suppress(ValueError):
            value = strict_json.loads(self._typed(f"All arguments ({names}) as a JSON object: "))
            if isinstance(value, dict):
                arguments = {name: codecs.decode(codecs.dump(item)) for name, item in value.items()}
                for name, one in arguments.items():
                    codecs.to_json(one, name)
                return Edit(arguments, roles=owner.os_groups())
        sys.stderr.write("That is no JSON object of arguments.\n")
        return None

    def _typed(self, question: str) -> str:
        """What is typed; nothing, if it is no text."""
        with contextlib.suppress(UnicodeError):
            text = self._read(question)
            text.encode()
            return text
        sys.stderr.write("That is no text.\n")
        return ""


def show(text: str, *, title: str) -> None:
    """Show a text of the library's between two rules, folded here: nothing is left for the terminal to fold."""
    from rich.console import Console as RichConsole
    from rich.text import Text

    screen = RichConsole(stderr=True, highlight=False)
    shown = Text(folded(text, screen.width))
    shown.highlight_regex(r"(?m)^warning .*(\n  \| .*)*", style="bold red")
    screen.rule(title, style="yellow")
    screen.print(shown, soft_wrap=True)
    screen.rule(style="yellow")


def forget_typed() -> None:
    """Forget what was typed so far: nobody agrees to a question by what he typed before he saw it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import termios

        if sys.stdin.isatty():
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def somebody_is_there() -> bool:
    """Whether a question on the terminal would be seen, and holds up no event loop."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        return False
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty())
