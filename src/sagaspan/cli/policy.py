"""``sagaspan policy``: the policy file: its schema, what is wrong with it, and what it says of one call."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sagaspan import _strict_json as strict_json
from sagaspan.cli._options import FAILED, Group, NotFound, Settings, common_options, pass_settings, tags_of
from sagaspan.cli._render import emit_json, emit_table, say, short, visible

if TYPE_CHECKING:
    from sagaspan import Guard
    from sagaspan._defaults import Mode
    from sagaspan._explained import Explanation
    from sagaspan._policy_file import PolicyFile
    from sagaspan._tool import Tool

_DEFAULT = "sagaspan.toml"


@click.group(cls=Group)
@common_options
def policy() -> None:
    """The policy file: what is wrong with it, and what it says of a call."""


@policy.command()
@common_options
def schema() -> None:
    """Print the JSON Schema of a policy file, for editors."""
    from sagaspan._policy_schema import policy_schema

    emit_json(policy_schema())


@policy.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=_DEFAULT)
@common_options
@pass_settings
@click.pass_context
def check(context: click.Context, settings: Settings, file: Path) -> None:
    """Say everything that is wrong with FILE, each with its line; exit 1 if anything is.

    With --app also what does not fit its tools, and names that fit none of them (these are warnings).
    """
    from sagaspan._policy_check import check_policy_file

    problems = check_policy_file(file)
    if not problems and settings.app_named:
        problems = check_policy_file(file, _tools(settings.load_guard()))
    wrong = any(not problem.warning for problem in problems)
    if settings.as_json:
        emit_json(problems)
    else:
        for problem in problems:
            at = f"{file}:{problem.line}" if problem.line else str(file)
            kind = "warning" if problem.warning else ""
            parts = (at, kind, problem.where, problem.message)
            say(": ".join(visible(part) for part in parts if part), "yellow" if kind else "red")
        if not wrong:
            from sagaspan._policy_file import PolicyFile

            read = PolicyFile.read(file)
            say(f"{visible(file)} is well: version {read.version}, {len(read.rules)} rules.", "green")
    context.exit(FAILED if wrong else 0)


@policy.command()
@click.argument("tool")
@click.argument("arguments", default="{}")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False),
              help=f"The policy file; default: that of --app, else {_DEFAULT}.")  # fmt: skip
@click.option("--user", help="For whom the run works.")
@click.option("--tenant", help="The run's tenant.")
@click.option("--agent", help="The agent that calls.")
@click.option("--run", default="run", show_default=True, help="The name of the run.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A tag of the run; may be repeated.")
@click.option("--spent", type=float, default=0.0, show_default=True, help="US dollars the run has spent so far.")
@click.option("--calls", type=int, default=0, show_default=True, help="Calls the run has made so far.")
@click.option("--at", type=click.DateTime(["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]), help="When, in UTC; default: now.")
@common_options
@pass_settings
def explain(
    settings: Settings, /, tool: str, arguments: str, file: Path | None, at: dt.datetime | None, **run: Any
) -> None:
    """Say what becomes of a call of TOOL with ARGUMENTS, as in pay '{"amount": 150}', and why.

    Each rule that was looked at, and each field of the policy with who says it. Without --app as far as the file
    alone says it. Nothing is called, and nothing recorded.
    """
    from sagaspan._explained import Facts, explain

    guard = settings.load_guard()
    values = _arguments(arguments)
    found = None if guard is None else _the_tool(guard, tool)
    read = _file(file, guard)
    if found is not None and file is not None and read is not None:
        from sagaspan._tool import redefined

        found = redefined(found, read.tools)
    now = dt.datetime.now(dt.UTC) if at is None else at.replace(tzinfo=dt.UTC)
    facts = Facts(**{**run, "tags": tags_of(run["tags"])}, at=now)
    explanation = explain(read, tool, values, facts, tool=found, mode=_mode(guard, read))
    if settings.as_json:
        emit_json(explanation)
    else:
        _print(explanation, known=found is not None)


def _print(explanation: Explanation, *, known: bool) -> None:
    words = {"allow": ("is allowed", "green"), "ask": ("is asked about", "yellow"), "deny": ("is denied", "red")}
    sentence, style = words[explanation.outcome]
    by = f" by {', '.join(explanation.by)}" if explanation.by else ""
    if observed := explanation.mode == "observe" and explanation.outcome != "allow":
        sentence, style = sentence.replace("is ", "would be ", 1), "yellow"
    say(f"{visible(explanation.tool)} {sentence}{visible(by)}", style)
    if observed:
        say("  but mode is observe: it is allowed, and what would have refused it is noted")
    if explanation.reason:
        say(f"  {visible(explanation.reason)}")
    say(f"  policy version {explanation.version or 'none: there is no policy file'}")
    if not known:
        say("  as far as the file alone says it; --app MODULE:GUARD adds what the code says")
    if explanation.rules:
        say("")
        rows = [(one.rule, one.action, one.found, one.why) for one in explanation.rules]
        emit_table(("rule", "action", "its condition", "why"), rows, title="rules that were looked at")
    decided = [one for one in explanation.policy if one.origin != "default"]
    if decided:
        say("")
        emit_table(("field", "value", "from"), [(one.field, short(one.value), one.origin) for one in decided])


def _file(file: Path | None, guard: Guard | None) -> PolicyFile | None:
    from sagaspan._policy_file import PolicyFile

    if file is None and guard is not None:
        return guard._engine.policy  # noqa: SLF001 - the same house
    return PolicyFile.read(file or Path(_DEFAULT))


def _mode(guard: Guard | None, read: PolicyFile | None) -> Mode:
    """What a guard does: the one that was named, or else one that only has this file and the environment."""
    from sagaspan._defaults import defaults_of

    if guard is not None:
        return "observe" if guard._engine.observes else "enforce"  # noqa: SLF001 - the same house
    return defaults_of({} if read is None else read.tables, "the policy file").mode


def _tools(guard: Guard | None) -> list[Tool]:
    return [] if guard is None else sorted(guard._engine.known.defined, key=lambda tool: tool.name)  # noqa: SLF001 - same house


def _the_tool(guard: Guard, name: str) -> Tool:
    import difflib

    found = _tools(guard)
    tools = {name: tool for tool in found for name in tool.known_as} | {tool.name: tool for tool in found}
    if name not in tools:
        near = difflib.get_close_matches(name, tools, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(tools) or 'none'}"
        raise NotFound(f"the guard has no tool {name!r}; {hint}")
    return tools[name]


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"ARGUMENTS are no JSON ({error}); write them as '{{\"amount\": 150}}'") from error
    if not isinstance(value, dict):
        raise click.UsageError("ARGUMENTS are one JSON object, with the arguments by name: '{\"amount\": 150}'")
    return value
