"""``sagaspan status``: everything that needs a person, each with its next command."""

from __future__ import annotations

from dataclasses import replace

import click

from sagaspan.cli._found import with_namespaces
from sagaspan.cli._options import NEEDS_PERSON, Settings, common_options, namespace_option, pass_settings
from sagaspan.cli._render import emit_json, emit_table, say
from sagaspan.status.items import Item, list_items


@click.command()
@namespace_option
@common_options
@pass_settings
@click.pass_context
def status(context: click.Context, settings: Settings, namespace: str | None) -> None:
    """Everything that needs a person, each with its next command; exit 4 if any (for cron)."""
    store = settings.open_store()
    items = [replace(item, next=settings.located(item.next)) for item in list_items(store, namespace)]
    if settings.as_json:
        emit_json(items)
    elif not items:
        say("Nothing needs you.", "green")
    else:
        columns, rows = ("what", "id", "state", "why", "next"), [_row(item) for item in items]
        emit_table(*with_namespaces(store, namespace, columns, rows, [item.namespace for item in items]))
    context.exit(NEEDS_PERSON if items else 0)


def _row(item: Item) -> tuple[str, ...]:
    kept = f"; keeps the locks {', '.join(item.locks)}" if item.locks else ""
    return (f"{item.kind} {item.what}", item.id, item.state, item.why + kept, item.next)
