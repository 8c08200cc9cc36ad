"""``sagaspan notifications``: what hooks are to be told and were not yet, or never took."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

import click

from sagaspan.cli._options import Group, NotFound, Settings, common_options, namespace_option, pass_settings
from sagaspan.cli._render import emit_json, emit_table, lately, say
from sagaspan.ledger.records import DeliveryRecord, moment
from sagaspan.ledger.store import DeliveryChange

_LIMIT: Final = 100_000


@click.group(cls=Group)
@common_options
def notifications() -> None:
    """What hooks are told, and have not taken yet.

    They are sent by the processes whose guard has the hooks, and by `recover --app`.
    """


@notifications.command("list")
@click.option("--dead", is_flag=True, help="Only those that were given up.")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1))
@namespace_option
@common_options
@pass_settings
def list_notifications(settings: Settings, dead: bool, limit: int, namespace: str | None) -> None:
    """What is not delivered, the oldest first."""
    found = settings.open_store().deliveries(namespace=namespace, dead=True if dead else None, limit=limit)
    if settings.as_json:
        emit_json([{**asdict(one), "next_us": moment(one.next_us), "created_us": moment(one.created_us)}
                   for one in found])  # fmt: skip
    elif not found:
        waiting = len(settings.open_store().deliveries(namespace=namespace, dead=False, limit=_LIMIT)) if dead else 0
        if waiting:
            say(f"None was given up; {waiting:,} wait for the next attempt. See: sagaspan notifications list")
        else:
            say("Everything is delivered.", "green")
    else:
        columns = ("id", "what", "about", "state", "attempts", "next", "error")
        emit_table(columns, [_row(one) for one in found], spare=("error",))


@notifications.command()
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def retry(settings: Settings, id_: str) -> None:
    """Send it again, from the beginning of its attempts."""
    store, record = _found(settings, id_)
    _save(store, record, replace(record, attempts=0, next_us=0, error=None, dead=False))
    say(f"{record.id} is sent again by the next process that has the hook.")


@notifications.command()
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def drop(settings: Settings, id_: str) -> None:
    """Send it no more."""
    store, record = _found(settings, id_)
    store.commit([DeliveryChange(record, done=True)], synced=True)
    say(f"{record.id} is dropped.")


def _save(store: Any, record: DeliveryRecord, changed: DeliveryRecord) -> None:
    if not store.commit([DeliveryChange(changed, record.attempts)], synced=True):
        raise NotFound(f"the notification {record.id} is being sent at this moment; look again")


def _found(settings: Settings, id_: str) -> tuple[Any, DeliveryRecord]:
    store = settings.open_store()
    found = [one for one in store.deliveries(limit=_LIMIT) if one.id.startswith(id_)]
    if len(found) != 1 and not (found := [one for one in found if one.id == id_]):
        raise NotFound(f"there is no notification {id_!r}, or more than one; see: sagaspan notifications list")
    return store, found[0]


def _row(one: DeliveryRecord) -> tuple[object, ...]:
    state = "undelivered" if one.dead else "waiting"
    return (one.id, one.kind, one.about, state, one.attempts, lately(moment(one.next_us)), one.error)
