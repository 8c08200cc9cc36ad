"""``sagaspan budgets``: what may be used, what is, and whether the books are right."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from sagaspan.cli._found import with_namespaces
from sagaspan.cli._options import (
    NEEDS_PERSON,
    Group,
    Settings,
    common_options,
    confirm,
    namespace_option,
    pass_settings,
)
from sagaspan.cli._render import emit_json, emit_table, say, visible, when
from sagaspan.cli.freeze import the_namespace
from sagaspan.exceptions import StoreUnavailable
from sagaspan.scopes import check_scope

if TYPE_CHECKING:
    from sagaspan._accounts import Account, Difference

_NEGATIVE: Final = re.compile(r"-\$?\.?[0-9]|-(?:inf|nan)\b", re.IGNORECASE)


@click.group(cls=Group)
@common_options
def budgets() -> None:
    """What may be used, what is used of it, and whether the books are right."""


@budgets.command("list")
@click.argument("scope", required=False)
@click.option("--past", is_flag=True, help="Also hours, days and months that are over.")
@namespace_option
@common_options
@pass_settings
def list_budgets(settings: Settings, scope: str | None, past: bool, namespace: str | None) -> None:
    """Budgets of which something was used, and limits that were set; of one SCOPE, or of all."""
    from sagaspan._accounts import Accounts

    store = settings.open_store()
    found = Accounts(store, namespace).list(scope, past=past)
    if settings.as_json:
        emit_json(found)
    elif not found:
        say("No budgets: nothing that has one was called, and none was set. See: sagaspan budgets set --help")
    else:
        columns = ("scope", "limit", "spent", "reserved", "left", "set by")
        rows, spaces = [_row(account) for account in found], [account.namespace for account in found]
        emit_table(*with_namespaces(store, namespace, columns, rows, spaces), spare=("set by",))


class _WithAmounts(click.Command):
    """Takes "-1 USD" for an amount, so that it is refused as one, and not as an option that nobody knows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(_NEGATIVE.match(arg) for arg in args)
        return super().parse_args(ctx, args)


@budgets.command("set", cls=_WithAmounts)
@click.argument("scope")
@click.argument("amount")
@click.option("--per", type=click.Choice(["hour", "day", "month"]), help="Anew each hour, day or month of UTC.")
@click.option("--soft", multiple=True, type=click.IntRange(1, 100), metavar="PERCENT",
              help="Speak up at so much of it; may be repeated  [default: 50, 80, 95]")  # fmt: skip
@click.option("--watch", is_flag=True, help="Refuse nothing, only speak up.")
@click.option("--create", is_flag=True, help="Make a SQLite ledger that does not exist yet, without asking.")
@click.option("--actor", help="Who decides; default: the user of this process.")
@namespace_option
@common_options
@pass_settings
def set_budget(
    settings: Settings,
    scope: str,
    amount: str,
    per: str | None,
    soft: tuple[int, ...],
    watch: bool,
    create: bool,
    actor: str | None,
    namespace: str | None,
) -> None:
    """Set what may be used of SCOPE, as in user:42 "20 USD" --per day.

    Several at once: "20 USD, 100 calls".

    It holds from the next call on in every process, also of a scope that was never used. A SCOPE may be a glob:
    "user:*" gives each user their own. What calls on record have used counts: in the present hour, day or month, or
    ever without one. Less than what is used already admits nothing until there is room again.

    Limits of other units and windows hold beside it. Of those of its own the most specific SCOPE that was set holds:
    user:42 before "user:4*" before "user:*". It replaces what programs declare of that SCOPE or of a broader one; what
    they declare more specifically holds beside it, so that a limit for all gives nobody more.
    """
    from sagaspan._accounts import Accounts

    wanted = _budgets(amount, per, soft, watch)
    check_scope(scope)
    store = settings.open_store(create=create or _is_to_be_made(scope, settings))
    accounts = Accounts(store, the_namespace(settings, store, namespace))
    before = {(one.unit, one.window): one for one in accounts.list(scope)}
    accounts.set(scope, wanted, actor=actor)
    kinds, found = {(budget.unit.value, budget.window) for budget in wanted}, accounts.list(scope)
    is_set = [one for one in found if (one.unit, one.window) in kinds]
    if settings.as_json:
        emit_json(is_set)
        return
    for account in is_set:
        used = f"{_amount(account.spent, account)} of it used, " if account.spent or account.reserved else ""
        was = before.get((account.unit, account.window))
        used = f"{used}nothing is left, " if used and account.hard and not account.remaining else used
        instead = "" if was is None or was.limit is None else f"; before: {_limit(was)}, {_origin(was, ago=False)}"
        by = visible(account.set_by)
        say(f"{visible(account.scope)}: {_limit(account)} from the next call on, {used}set by {by}{visible(instead)}.")
    for account in found:
        if account.limit is not None and account not in is_set:
            say(f"  beside it holds: {_limit(account)}, {visible(_origin(account, ago=False))}.")


def _is_to_be_made(scope: str, settings: Settings) -> bool:
    """Ask the person at a terminal whether to make a ledger that does not exist; raises ``StoreUnavailable``."""
    file = settings.missing_ledger
    if file is None:
        return False
    if not sys.stdin.isatty():
        raise StoreUnavailable(f"there is no ledger at {file}; add --create to make it with the limit of {scope}")
    confirm(f"There is no ledger at {visible(file)}. Make it with this limit?")
    return True


@budgets.command("unset")
@click.argument("scope")
@click.option("--unit", type=click.Choice(["USD", "tokens", "calls", "time"]), help="Only limits of this.")
@click.option("--per", type=click.Choice(["hour", "day", "month"]), help="Only limits of this window.")
@click.option("--actor", help="Who decides; default: the user of this process.")
@namespace_option
@common_options
@pass_settings
def unset_budget(
    settings: Settings, scope: str, unit: str | None, per: str | None, actor: str | None, namespace: str | None
) -> None:
    """Take back what was set of SCOPE, or of a glob as it was set.

    From the next call on, in every process, what programs declare holds again. What was used stays used.
    """
    from sagaspan._accounts import Accounts

    store = settings.open_store()
    accounts = Accounts(store, the_namespace(settings, store, namespace))
    found = accounts.unset(scope, unit=unit, per=per, actor=actor)
    if settings.as_json:
        emit_json(found)
        return
    for account in found:
        say(f"{visible(account.scope)}: {_limit(account)} is taken back, which {visible(account.set_by)} had set.")
    for account in accounts.list(scope):
        if account.limit is not None:
            say(f"  holds now: {_limit(account)}, {visible(_origin(account, ago=False))}.")


@budgets.command()
@namespace_option
@common_options
@pass_settings
@click.pass_context
def fsck(context: click.Context, settings: Settings, namespace: str | None) -> None:
    """Make the books anew from the calls, and show what is counted otherwise; exit 4 if anything is.

    It may run while agents do: it looks at one moment.
    """
    from sagaspan._accounts import Accounts

    store = settings.open_store()
    found = Accounts(store, namespace).fsck()
    if settings.as_json:
        emit_json(found)
    elif not found:
        say("Every budget is what its calls say.", "green")
    else:
        columns, rows = ("scope", "what", "counted", "by its calls"), [_difference(one) for one in found]
        emit_table(*with_namespaces(store, namespace, columns, rows, [one.namespace for one in found]))
    context.exit(NEEDS_PERSON if found else 0)


def _budgets(amount: str, per: str | None, soft: tuple[int, ...], watch: bool) -> list[Any]:
    """What was typed as budgets; raises ``ConfigurationError``."""
    from sagaspan.budget import Budget
    from sagaspan.exceptions import ConfigurationError

    said = next((part.strip() for part in amount.split(",") if per and ("/" in part or " per " in part)), None)
    if said is not None:
        raise ConfigurationError(f"{said!r:.60} says itself how long it lasts; leave --per {per} out")
    options = {"hard": not watch, **({"soft": soft} if soft else {})}
    return [Budget(f"{part.strip()}/{per}" if per else part, **options) for part in amount.split(",")]


def _row(account: Account) -> tuple[object, ...]:
    left = "" if account.remaining is None else _amount(account.remaining, account)
    return (
        account.scope, _limit(account), _amount(account.spent, account), _amount(account.reserved, account), left,
        _origin(account),
    )  # fmt: skip


def _origin(account: Account, *, ago: bool = True) -> str:
    """Where its limit comes from; in a table also how long ``ago``."""
    if account.set_by is None:
        return ("" if account.limit is None else "a program") if ago else "as a program declares"
    what = "" if account.set_for == account.scope else f"for {account.set_for}"
    if ago:
        return ", ".join(filter(None, (account.set_by, what, when(account.set_at))))
    return f"set by {account.set_by}{what and f' {what}'}"


def _limit(account: Account) -> str:
    if account.limit is None:  # a program's that refuses nothing, or what the next call finds
        return f"none known, per {account.window}" if account.window else "none known"
    amount = _amount(account.limit, account) + (f"/{account.window}" if account.window else "")
    return amount if account.hard else f"{amount}, watched"


def _amount(value: Any, account: Account | Difference) -> str:
    unit = {"time": "s"}.get(account.unit, account.unit)
    return f"{value:f} {unit}"


def _difference(one: Difference) -> tuple[object, ...]:
    window = f" ({one.window} of {one.begins:%Y-%m-%d %H:%M} UTC)" if one.window and one.begins else ""
    return f"{one.scope}{window}", f"{one.what} {one.unit}", _amount(one.counted, one), _amount(one.by_calls, one)
