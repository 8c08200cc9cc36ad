"""Where a project's ledger and traces live: the nearest ``.sagaspan`` folder of this user, upwards.

``SAGASPAN_HOME`` names it outright. A folder that belongs to somebody else is passed over: on a shared machine
a ``/tmp/.sagaspan`` planted by a stranger must not receive our records.
"""

from __future__ import annotations

import os
from pathlib import Path

from sagaspan.exceptions import StoreUnavailable

NAME = ".sagaspan"


def home(*, create: bool = False) -> Path:
    """The home in force; ``./.sagaspan`` if there is none yet, made (0700, ignored by git) when ``create``.

    Raises ``StoreUnavailable`` if it has to be made and cannot.
    """
    named = os.environ.get("SAGASPAN_HOME")
    found = Path(named).expanduser() if named else _nearest(Path.cwd())
    if create:
        make(found)
    return found


def traces_directory() -> Path:
    """The folder of the trace files (``SAGASPAN_TRACE_DIR`` names it outright), below the home."""
    named = os.environ.get("SAGASPAN_TRACE_DIR")
    return Path(named).expanduser() if named else home() / "traces"


def _nearest(start: Path) -> Path:
    for folder in (start, *start.parents):
        candidate = folder / NAME
        if candidate.is_dir() and _is_ours(candidate):
            return candidate
    return start / NAME


def _is_ours(folder: Path) -> bool:
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def make(folder: Path) -> None:
    """Make a home (0700, ignored by git) unless it is there; raises ``StoreUnavailable``."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    except OSError as error:
        raise StoreUnavailable(
            f"cannot make the folder {folder} ({error.strerror}); set SAGASPAN_HOME or --home to one you can write"
        ) from error
