"""``sagaspan backup``: a verified copy of a SQLite ledger that is in use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from sagaspan._checks import masked
from sagaspan._commands import command
from sagaspan.cli._options import Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json, say

_PROGRESS_SECONDS: Final = 2.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@common_options
@pass_settings
def backup(settings: Settings, file: Path, overwrite: bool) -> None:
    """Write a verified copy of a SQLite ledger to FILE (0600) while agents run.

    Never copy a ledger as a file while a process uses it: its newest records are in its -wal, and in the process that
    copies it SQLite loses its locks. For a ledger on a server, use pg_dump or mariadb-dump.
    """
    from sagaspan.stores import connect, default_store
    from sagaspan.stores.sqlite import SqliteStore

    url = settings.store or default_store()
    store = connect(url, create=False, migrate="check")
    if not isinstance(store, SqliteStore):
        program = "pg_dump" if url.startswith("postgres") else "mariadb-dump --single-transaction"
        raise click.ClickException(
            f"{masked(url)} is a ledger on a server, and sagaspan backup copies only SQLite files; nothing was "
            f"written. Use the server's own: {program}"
        )
    made = store.back_up(file, overwrite=overwrite, progress=_Progress())
    if settings.as_json:
        emit_json(made)
        return
    say(
        f"Backed up {masked(url)} to {made.file}: {made.bytes / 1e6:.1f} MB, schema {made.schema}, {made.runs:,} runs, "
        f"{made.calls:,} calls, {made.audit:,} audit rows. SQLite's integrity check passed."
    )
    say(f"To verify its history: {command('audit verify', store=f'sqlite:///{made.file}')}")
    secret = Path(f"{store.path}.secret")
    if secret.exists():
        say(f"Keep {secret} too, apart from it: without this key redacted values and signed links cannot be checked.")


class _Progress:
    """One line every two seconds, on standard error."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, copied: int, pages: int) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            click.echo(f"{copied:,} of {pages:,} pages copied so far", err=True)
