"""``sagaspan approvals watch``: what waits for somebody, as it comes, and answered where it is shown.

On a terminal a number opens a request, which is then shown whole and asked about like on the console approver.
Elsewhere, or with ``--json``, every change is a line.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sagaspan._console import Console
from sagaspan.approvers import LATER, Approve, Deny, Edit
from sagaspan.cli._render import console, lately, say, short, visible
from sagaspan.exceptions import ResolutionError
from sagaspan.ledger.records import ApprovalState
from sagaspan.rendering import render_subject

if TYPE_CHECKING:
    from sagaspan._approvals import Approvals
    from sagaspan.approvers import ApprovalRequest

SHOWN: Final = 9
"""How many requests a terminal shows, the oldest first: one digit opens one."""

_QUIT: Final = ("q", "\x04", "")
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class Keys:
    """Single keys from a terminal, without waiting for the end of a line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read keys within the block; the terminal is as it was after it."""
        import termios
        import tty

        before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        try:
            yield
        finally:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def next(self, seconds: float) -> str | None:
        """The next key; None if none is pressed in so many seconds, ``""`` if the terminal is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        return os.read(self._descriptor, 1).decode("ascii", "replace") if ready else None


class Watch:
    """One watcher of ``view``; ``roles`` are those of who decides here, ``interval`` is seconds between two looks."""

    def __init__(self, view: Approvals, *, roles: tuple[str, ...], interval: float) -> None:
        self._view = view
        self._roles = roles
        self._interval = interval
        self._read: Callable[[str], str] = input

    # -- on a terminal -----------------------------------------------------------------------------------------

    def on_terminal(self, keys: Keys | None = None) -> None:
        """Show what waits and answer it, until ``q``."""
        keys = keys or Keys(sys.stdin.fileno())
        while (request := self._picked(keys)) is not None:
            self._decide(request)

    def _picked(self, keys: Keys) -> ApprovalRequest | None:
        from rich.live import Live

        shown: list[ApprovalRequest] = []
        with keys.reading(), Live(console=console(), auto_refresh=False, transient=True) as live:
            while True:
                shown = self._oldest()
                live.update(_table(shown), refresh=True)
                key = keys.next(self._interval)
                if key in _QUIT:
                    return None
                if key is not None and key.isdecimal() and 0 < int(key) <= len(shown):
                    return shown[int(key) - 1]

    def _oldest(self) -> list[ApprovalRequest]:
        return list(reversed(self._view.list(limit=1000)))[:SHOWN]

    def _decide(self, request: ApprovalRequest) -> None:
        """Ask about one request as it is now; what is said counts only for what was shown."""
        now = self._view.get(request.id)
        if now is None or now.state is not ApprovalState.PENDING:
            say(f"Request {request.id} is {'gone' if now is None else now.state} already.")
            return
        try:
            decided = self._carried_out(now, Console(read=self._read).decide(now))
        except ResolutionError as error:
            say(visible(error), "red")
            return
        if decided is not None:
            say(f"Request {decided.id} for {visible(decided.tool)} is {decided.state}.")

    def _carried_out(self, request: ApprovalRequest, answer: Any) -> ApprovalRequest | None:
        if answer == LATER:
            return None
        if isinstance(answer, Deny):
            return self._view.deny(request.id, answer.reason, digest=request.digest)
        how: dict[str, Any] = {"roles": self._roles, "digest": request.digest, "shown": request.shown}
        if isinstance(answer, Edit):
            return self._view.edit(request.id, answer.arguments, **how)
        return self._view.approve(request.id, **how) if isinstance(answer, Approve) else None

    # -- elsewhere ---------------------------------------------------------------------------------------------

    def changes(self, tell: Callable[[ApprovalRequest], None]) -> None:
        """Tell of what waits, of each that comes, and of how each ends; until SIGINT or SIGTERM."""
        stopping = threading.Event()
        before = {name: signal.signal(name, lambda *_: stopping.set()) for name in _STOPS}
        known: dict[str, int] = {}
        try:
            while not stopping.is_set():
                known = self._told(known, tell)
                stopping.wait(self._interval)
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def _told(self, known: dict[str, int], tell: Callable[[ApprovalRequest], None]) -> dict[str, int]:
        waiting = {request.id: request for request in reversed(self._view.list(limit=1000))}
        for ended in known.keys() - waiting.keys():
            if (request := self._view.get(ended)) is not None:
                tell(request)
        for request in waiting.values():
            if known.get(request.id) != request.version:
                tell(request)
        return {request.id: request.version for request in waiting.values()}


def _table(shown: list[ApprovalRequest]) -> Any:
    from rich.table import Table
    from rich.text import Text

    how = f"{'1' if len(shown) == 1 else f'1-{len(shown)}'} opens one, q ends" if shown else "q ends"
    table = Table(caption=f"{'' if shown else 'Nothing waits for approval. '}{how}", caption_justify="left")
    for column in ("#", "tool", "arguments", "run", "agreed", "expires"):
        table.add_column(column)
    for number, request in enumerate(shown, 1):
        agreed = f"{len(request.approved_by)} of {request.approvers}"
        row = (number, request.tool, short(render_subject(request.subject).line, 60), request.run_id, agreed,
               lately(request.expires))  # fmt: skip
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table
