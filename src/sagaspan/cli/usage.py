"""``sagaspan usage``: what calls cost and used."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from sagaspan.cli._options import Duration, Settings, common_options, namespace_option, pass_settings
from sagaspan.cli._render import emit_json, emit_table, say

if TYPE_CHECKING:
    from sagaspan._usage import Spending

_KINDS = ("agent", "user", "model", "tool", "run", "tenant")


@click.command()
@click.option("--by", type=click.Choice(_KINDS), help="A line for each; without it one for all.")
@click.option("--since", type=Duration("h", "d"), help="Calls that began so long ago at most, e.g. 1h; default: all.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Only of this one, e.g. user:42; all must fit.")
@namespace_option
@common_options
@pass_settings
def usage(
    settings: Settings, by: str | None, since: float | None, scopes: tuple[str, ...], namespace: str | None
) -> None:
    """What calls of tools and models cost and used, the most expensive first.

    Every call counts, also one that failed; what was pruned is gone. A run counts without those nested in it.
    """
    from sagaspan._usage import usage_by
    from sagaspan.scopes import check_scope

    which = dict(check_scope(scope).split(":", 1) for scope in scopes)
    if len(which) < len(scopes):
        raise click.UsageError("a call is of one scope of a kind; name each kind once")
    store = settings.open_store()
    found = usage_by(store, namespace, which, by, None if since is None else dt.timedelta(seconds=since))
    if settings.as_json:
        emit_json(found)
    elif not any(one.calls for one in found):
        say("No calls.")
    else:
        columns = (by or "", "USD", "calls", "input", "output", "cached", "reasoning", "no price")
        emit_table(columns, [_row(one, by) for one in found], spare=("no price", "reasoning", "cached"))


def _row(one: Spending, by: str | None) -> tuple[object, ...]:
    key = "all" if by is None else "(none)" if one.key is None else one.key
    counts = (one.calls, one.input_tokens, one.output_tokens, one.cached_tokens, one.reasoning_tokens, one.unpriced)
    return key, f"{one.spent:f}", *(f"{count:,}" for count in counts)
