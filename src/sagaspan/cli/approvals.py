"""``sagaspan approvals``: what waits for somebody, and deciding it as the user of this shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sagaspan import _strict_json as strict_json
from sagaspan._console import forget_typed, show
from sagaspan.cli._decided import denied_by, what_follows
from sagaspan.cli._found import ambiguous, with_namespaces
from sagaspan.cli._options import (
    NEEDS_PERSON,
    Duration,
    Group,
    NotFound,
    Settings,
    common_options,
    confirm,
    namespace_option,
    pass_settings,
)
from sagaspan.cli._render import emit_block, emit_json, emit_line, emit_table, lately, say, short, visible
from sagaspan.ledger.records import ApprovalState
from sagaspan.rendering import render, render_subject

if TYPE_CHECKING:
    from sagaspan._approvals import Approvals
    from sagaspan.approvers import ApprovalRequest

_DIGEST = click.option("--digest", help="Only if it asks about exactly this; what `show` says.")
_FULL = click.option("--full", is_flag=True, help="All of what is decided about, also of what is shown shortened.")
_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask: for scripts, which say --digest.")


@click.group(cls=Group)
@common_options
def approvals() -> None:
    """What waits for approval, and deciding it.

    You decide as the user of this shell, with its groups as roles: a name that somebody types is nobody.
    """


@approvals.command("list")
@click.option("--status", "-s", multiple=True, type=click.Choice([state.value for state in ApprovalState]))
@click.option("--all", "everything", is_flag=True, help="Also those that are decided.")
@click.option("--run", "run_id", help="Of this run.")
@click.option("--tool", metavar="NAME", help="Of this tool, or of a glob of names.")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@namespace_option
@common_options
@pass_settings
@click.pass_context
def list_approvals(
    context: click.Context,
    settings: Settings,
    status: tuple[str, ...],
    everything: bool,
    run_id: str | None,
    tool: str | None,
    limit: int,
    offset: int,
    namespace: str | None,
) -> None:
    """Requests that wait for somebody, newest first; exit 4 if any does."""
    states = status or (() if everything else (ApprovalState.PENDING,))
    found = _approvals(settings, namespace).list(status=states, run=run_id, tool=tool, limit=limit, offset=offset)
    if settings.as_json:
        emit_json([_as_data(request) for request in found])
    elif not found:
        say("No such requests." if status or everything else "Nothing waits for approval.", "green")
    else:
        columns = ("id", "tool", "arguments", "run", "state", "approved", "expires")
        rows = [_row(request) for request in found]
        store, spaces = settings.open_store(), [request.namespace for request in found]
        emit_table(*with_namespaces(store, namespace, columns, rows, spaces), spare=("expires", "run"))
    context.exit(NEEDS_PERSON if any(request.state is ApprovalState.PENDING for request in found) else 0)


@approvals.command("show")
@click.argument("request_id", metavar="ID")
@_FULL
@common_options
@pass_settings
def show_approval(settings: Settings, request_id: str, full: bool) -> None:
    """One request, from exactly the bytes that are decided about."""
    print_request(the_request(settings, request_id)[1], settings, full=full)


@approvals.command()
@click.argument("request_id", metavar="ID")
@_DIGEST
@_YES
@_FULL
@click.option("--grant", metavar="TOKEN", help="For who gave it to you: what `delegate` printed.")
@common_options
@pass_settings
def approve(settings: Settings, request_id: str, digest: str | None, yes: bool, full: bool, grant: str | None) -> None:
    """Agree to exactly what is shown; it is shown first."""
    view, request = the_request(settings, request_id)
    parts = [
        ("Approve exactly this?", request.text),
        *([("All of its arguments", request.whole)] if full and request.cut else []),
    ]
    _confirm(request, parts, "Approve exactly this?", digest=digest, yes=yes)
    _say_decided(settings, view.approve(request.id, roles=_roles(), grant=grant, **_seen(request, digest)))


@approvals.command()
@click.argument("request_id", metavar="ID")
@click.option("--reason", help="Why; the model is told.")
@common_options
@pass_settings
def deny(settings: Settings, request_id: str, reason: str | None) -> None:
    """Say no, which is final for these arguments in that run; also of what was approved and has not started."""
    view, request = the_request(settings, request_id)
    if reason is None and sys.stdin.isatty() and not settings.as_json:
        reason = click.prompt("Why? The model is told (Enter: no reason)", default="", show_default=False, err=True)
    _say_decided(settings, view.deny(request.id, reason or None))


@approvals.command()
@click.argument("request_id", metavar="ID")
@click.argument("arguments", metavar="JSON")
@_DIGEST
@_YES
@common_options
@pass_settings
def edit(settings: Settings, request_id: str, arguments: str, digest: str | None, yes: bool) -> None:
    """Agree to other arguments: all of them, as a JSON object. You are one of those who must agree."""
    view, request = the_request(settings, request_id)
    wanted = _parsed(arguments)
    parts = [("Instead of this", request.text), ("Run it with these", render(_plain(wanted), whole=True).text)]
    _confirm(request, parts, "Run it with these?", digest=digest, yes=yes)
    _say_decided(settings, view.edit(request.id, wanted, roles=_roles(), **_seen(request, digest)))


@approvals.command()
@click.argument("to", metavar="USER")
@click.option("--tools", default="*", show_default=True, metavar="GLOB", help="Of which tools.")
@click.option("--when", metavar="CEL", help="A condition over the arguments, such as 'amount <= 1000'.")
@click.option(
    "--for", "seconds", default="8h", show_default=True, type=Duration("m", "h"), help="How long, at most 30d."
)
@namespace_option
@common_options
@pass_settings
def delegate(settings: Settings, to: str, tools: str, when: str | None, seconds: float, namespace: str | None) -> None:
    """Let USER agree for you, with your groups as roles: prints a grant for `approve --grant`."""
    grant = _approvals(settings, namespace).delegate(to, roles=_roles(), tools=tools, when=when, expires_in=seconds)
    if settings.as_json:
        emit_json({"grant": grant})
    else:
        click.echo(grant)


@approvals.command()
@click.option(
    "--interval",
    default="500ms",
    show_default=True,
    type=Duration("ms", "s", least="50ms", most="1m"),
    help="The time between two looks.",
)
@namespace_option
@common_options
@pass_settings
def watch(settings: Settings, interval: float, namespace: str | None) -> None:
    """What waits, as it comes; a number opens a request, which is answered in place.

    Where nobody sits at a terminal, and with --json, every change is a line, until SIGINT or SIGTERM.
    """
    from sagaspan.cli._watch import Watch

    view = _approvals(settings, namespace)
    watching = Watch(view, _store(settings), roles=_roles(), interval=interval)
    if settings.as_json:
        watching.changes(lambda request: emit_line(_as_data(request)))
    elif sys.stdin.isatty() and sys.stdout.isatty():
        watching.on_terminal()
    else:
        watching.changes(_say_change)


def print_request(request: ApprovalRequest, settings: Settings, *, full: bool = False) -> None:
    """One request, and what to type next; ``full``: with all of its arguments."""
    if settings.as_json:
        emit_json(_as_data(request))
        return
    emit_block(request.text)
    if full and request.cut:
        emit_block(f"all of its arguments\n{request.whole}")
    if request.state is ApprovalState.DENIED:
        emit_block(f"{'denied by':<12}{denied_by(_store(settings), request)}")
    if request.state is ApprovalState.PENDING:
        for verb in ("approve", "deny"):
            click.echo(f"{'next':<12}{settings.command(f'approvals {verb}', request.id)}")


def the_request(settings: Settings, prefix: str) -> tuple[Approvals, ApprovalRequest]:
    """The request of this id or unique prefix, and what decides it; raises ``NotFound``."""
    store = _store(settings)
    found = store.match_approvals(prefix, limit=11)
    if not found:
        raise NotFound(f"there is no request {prefix!r}; see: sagaspan approvals list")
    if len(found) > 1:
        raise ambiguous(
            prefix, "requests", [("approval", one.id, f"{one.tool} {one.state}", one.namespace) for one in found]
        )
    view = _approvals(settings)
    request = view.get(found[0].id)
    if request is None:  # pruned meanwhile
        raise NotFound(f"there is no request {prefix!r} any more")
    return view, request


def _approvals(settings: Settings, namespace: str | None = None) -> Approvals:
    from sagaspan._approvals import Approvals
    from sagaspan.keys import fingerprint

    guard = settings.load_guard()
    if guard is None:
        return Approvals(settings.open_store(), namespace, fingerprint, channel="cli")
    engine = guard._engine  # noqa: SLF001 - the same house
    return Approvals(guard._store, namespace, engine.digest, channel="cli", reads=engine.known.reads_of)  # noqa: SLF001 - as above


def _store(settings: Settings) -> Any:
    guard = settings.load_guard()
    return settings.open_store() if guard is None else guard._store  # noqa: SLF001 - the same house


def _roles() -> tuple[str, ...]:
    from sagaspan._owner import os_groups

    return os_groups()


def _confirm(
    request: ApprovalRequest, parts: Sequence[tuple[str, str]], question: str, *, digest: str | None, yes: bool
) -> None:
    """Show what is decided, each part under its title, and ask; a script says the digest of what it has seen."""
    if yes:
        if digest is None:
            raise click.UsageError("--yes needs --digest, so that what is approved is what was looked at")
        if request.uninspectable:
            raise click.UsageError(
                "some of its arguments cannot be shown, so nobody approves them unseen; leave --yes out"
            )
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask on this terminal; say --yes --digest DIGEST")
    for title, text in parts:
        show(text, title=title)
    forget_typed()
    confirm(question)


def _seen(request: ApprovalRequest, digest: str | None) -> dict[str, Any]:
    """What a decision holds for: what a script said, or what was just shown."""
    return {"digest": request.digest, "shown": request.shown} if digest is None else {"digest": digest}


def _say_decided(settings: Settings, request: ApprovalRequest) -> None:
    if settings.as_json:
        emit_json(_as_data(request))
        return
    say(f"Request {request.id} for {visible(request.tool)} is {request.state}.")
    if follows := what_follows(_store(settings), request):
        say(follows)


def _say_change(request: ApprovalRequest) -> None:
    emit_block(f"{request.id} {visible(request.tool)} {request.state}: {render_subject(request.subject).line}")
    sys.stdout.flush()


def _row(request: ApprovalRequest) -> tuple[object, ...]:
    return (request.id, request.tool, short(render_subject(request.subject).line, 80), request.run_id, request.state,
            f"{len(request.approved_by)} of {request.approvers}", lately(request.expires))  # fmt: skip


def _as_data(request: ApprovalRequest) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(request)


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise click.BadParameter(f"{text!r} is no JSON object of all arguments, such as '{{\"amount\": 50}}'")
    from sagaspan import codecs

    try:
        arguments = {name: codecs.decode(codecs.dump(item)) for name, item in value.items()}
        _plain(arguments)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} are no arguments ({error})") from error
    return arguments


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    from sagaspan import codecs

    return {name: codecs.to_json(value, name) for name, value in arguments.items()}
