"""``sagaspan migrate``: bring a ledger to this version, when somebody asks for it."""

from __future__ import annotations

import click

from sagaspan._checks import masked
from sagaspan.cli._options import Settings, common_options, pass_settings
from sagaspan.cli._render import emit_json


@click.command()
@click.option("--check", is_flag=True, help="Only say whether it is of this version; exit 1 if not.")
@common_options
@pass_settings
def migrate(settings: Settings, check: bool) -> None:
    """Make the ledger that --store names, or bring it to this version.

    A SQLite ledger is migrated when it is opened. One on a server belongs to many programs, so only this command does
    it; programs of this version refuse an older one until then, and older programs a newer one.
    """
    from sagaspan.stores import connect, default_store

    url = settings.store or default_store()
    done = connect(url, create=not check).migrate(check=check)
    if settings.as_json:
        emit_json({"store": masked(url), "done": done})
    elif done:
        click.echo(f"{masked(url)} is of this version now; applied: {', '.join(done)}")
    else:
        click.echo(f"{masked(url)} is of this version")
