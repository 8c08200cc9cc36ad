"""``sagaspan freeze`` and ``unfreeze``: stop a tool, an agent, a user, a model or everything, at the next claim."""

from __future__ import annotations

from typing import Any

import click

from sagaspan.cli._options import Settings, common_options, namespace_option, pass_settings
from sagaspan.cli._render import emit_json, say, visible


@click.command()
@click.argument("scope")
@click.option("--reason", required=True, help="Why, for whoever finds it frozen.")
@click.option("--actor", help="Who decides; default: the user of this process.")
@namespace_option
@common_options
@pass_settings
def freeze(settings: Settings, scope: str, reason: str, actor: str | None, namespace: str | None) -> None:
    """Let nothing of SCOPE begin, in any process, from its next claim on, until somebody unfreezes it.

    SCOPE is tool:pay, agent:x, user:42, tenant:t, model:m, run:ID, a glob of these, or all. What runs goes on to its
    end, and what is undone is undone. A run that meets it is held if its id is yours, to go on with the same id.
    """
    from sagaspan._freezes import freeze

    store = settings.open_store()
    frozen = freeze(store, the_namespace(settings, store, namespace), scope, reason=reason, actor=actor)
    if settings.as_json:
        emit_json(frozen)
    else:
        say(f"{visible(scope)} is frozen from the next claim on, by {visible(frozen.by)}.", "yellow")
        say(f"To let it go on: {settings.command('unfreeze', scope)}")


@click.command()
@click.argument("scope")
@click.option("--actor", help="Who decides; default: the user of this process.")
@namespace_option
@common_options
@pass_settings
def unfreeze(settings: Settings, scope: str, actor: str | None, namespace: str | None) -> None:
    """Let a frozen SCOPE go on."""
    from sagaspan._freezes import unfreeze

    store = settings.open_store()
    before = unfreeze(store, the_namespace(settings, store, namespace), scope, actor=actor)
    if settings.as_json:
        emit_json(before)
    else:
        say(f"{visible(scope)} goes on; it was frozen by {visible(before.by)}: {visible(before.reason)}", "green")


def the_namespace(settings: Settings, store: Any, named: str | None) -> str:
    """The namespace that is meant; raises ``UsageError`` where none is named and that could be several."""
    if named is not None:
        return named
    guard = settings.load_guard()
    if guard is not None:
        return guard.namespace
    names: list[str] = store.namespaces()
    if len(names) > 1:
        raise click.UsageError(f"the ledger has several namespaces ({', '.join(map(visible, names))}); add --namespace")
    return names[0] if names else "default"
