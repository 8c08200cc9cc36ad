"""A call outside a run: refused where there must be one, warned of where it looks like a mistake."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sagaspan._tool import Tool
from sagaspan.exceptions import PolicyDenied

if TYPE_CHECKING:
    from sagaspan._run import Run

_log = logging.getLogger("sagaspan")


class Outside:
    """What one guard says of calls outside a run; ``made``: the run that was made last, which is entered next."""

    def __init__(self, *, require_run: bool) -> None:
        self._require_run = require_run
        self.open_runs = 0
        self.made: Callable[[], Run | None] = lambda: None
        self._warned: set[str] = set()

    def check(self, tool: Tool, *, observes: bool) -> None:
        """Let a call of ``tool`` be made in the session; raises ``PolicyDenied``."""
        if self._require_run and not observes:
            raise PolicyDenied(
                f"tool {tool.name!r} was called outside a run, and this guard has require_run=True; use with "
                "guard.run(...)"
            )
        if not tool.policy.declared_write or tool.name in self._warned:
            return
        if (made := self.made()) is not None and not made.was_entered:
            self._warned.add(tool.name)
            _log.warning(
                "tool %r was called outside a run while the run %r was made but not entered, so this call is not "
                "rolled back with it; write `with guard.run(...):`",
                tool.name,
                made.id,
            )
        elif self.open_runs:
            self._warned.add(tool.name)
            _log.warning(
                "tool %r was called outside a run while a run is open: a plain thread does not inherit it, so "
                "this call is "
                "not rolled back with it. Hand the context over: contextvars.copy_context().run(...)",
                tool.name,
            )
