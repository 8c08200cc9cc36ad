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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sagaspan._characters import clip, word
from sagaspan._console import Console
from sagaspan.approvers import LATER, Approve, Deny, Edit
from sagaspan.cli._decided import what_follows
from sagaspan.cli._render import console, lately, say, visible
from sagaspan.exceptions import ConfigurationError, ResolutionError
from sagaspan.ledger.records import ApprovalState
from sagaspan.rendering import render_subject

if TYPE_CHECKING:
    from sagaspan._approvals import Approvals
    from sagaspan.approvers import ApprovalRequest
    from sagaspan.ledger.store import Store

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
    """One watcher of ``view`` on ``store``; ``roles`` are those of who decides here, ``interval`` is seconds between
    two looks.
    """

    def __init__(self, view: Approvals, store: Store, *, roles: tuple[str, ...], interval: float) -> None:
        self._view = view
        self._store = store
        self._roles = roles
        self._interval = interval
        self._read: Callable[[str], str] = input
        self._count = 0

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
                live.update(listed(shown, self._count, *console().size), refresh=True)
                key = keys.next(self._interval)
                if key in _QUIT:
                    return None
                if key is not None and key.isdecimal() and 0 < int(key) <= len(shown):
                    return shown[int(key) - 1]

    def _oldest(self) -> list[ApprovalRequest]:
        waiting = self._view.list(limit=1000)
        self._count = len(waiting)
        return list(reversed(waiting))[: max(min(SHOWN, (console().height - 2) // 2), 1)]

    def _decide(self, request: ApprovalRequest) -> None:
        """Ask about one request as it is now; what is said counts only for what was shown."""
        now = self._view.get(request.id)
        if now is None or now.state is not ApprovalState.PENDING:
            say(f"Request {request.id} is {'gone' if now is None else now.state} already.")
            return
        try:
            decided = self._carried_out(now, Console(read=self._read).decide(now))
        except (ResolutionError, ConfigurationError) as error:
            say(visible(error), "red")
            return
        if decided is not None:
            say(f"Request {decided.id} for {visible(decided.tool)} is {decided.state}.")
            if follows := what_follows(self._store, decided):
                say(follows)

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


def listed(shown: Sequence[ApprovalRequest], count: int, width: int, _: int = 0) -> Any:
    """The requests that a terminal of so many columns shows, two rows each, of the ``count`` that wait."""
    from rich.text import Text

    rows = Text(no_wrap=True)
    for number, request in enumerate(shown, 1):
        agreed = f"{len(request.approved_by)} of {request.approvers}"
        about = f"{word(request.title)}  {word(request.run_id)}  {agreed} agreed  until {lately(request.expires)}"
        rows.append(f"{number}  ", "bold").append(f"{clip(about, width - 4)}\n")
        rows.append(f"   {clip(render_subject(request.subject).line, width - 4)}\n", "dim")
    how = f"{'1' if len(shown) == 1 else f'1-{len(shown)}'} opens one, q ends"
    if count > len(shown):
        how = f"{how}; {count - len(shown)} more wait"
    return rows.append(clip(how if shown else "Nothing waits for approval. q ends", width - 1), "italic")
