"""The command line: noun then verb, tables for people, ``--json`` for machines.

Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 something needs a person. A command parses, asks the library,
renders; each is imported only when it is called, so that the program starts fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from sagaspan.cli._options import FAILED, NEEDS_PERSON, WRONG, Group, NotFound, Settings, common_options
from sagaspan.cli._render import emit_json, emit_table, visible
from sagaspan.exceptions import CompensationFailed, ConfigurationError, OutcomeUnknown, SagaspanError

_COMMANDS = {
    "demo": ("demo", "The whole story, offline, in seconds."),
    "status": ("status", "Everything that needs a person, each with its next command; exit 4 if any."),
    "show": ("show", "A run, call, approval, trace or idempotency key, by unique prefix."),
    "runs": ("runs", "What agents did: list, show, export, pause, resume."),
    "calls": ("calls", "What was called, what is in doubt: list, show, duplicates, resolve."),
    "approvals": ("approvals", "What waits for approval: list, show, approve, deny, edit, watch."),
    "notifications": ("notifications", "What hooks were told, and did not take: list, retry, drop."),
    "compensate": ("compensate", "Undo a run, also a completed one, or one call of it."),
    "recover": ("recover", "Go on after processes that died: hold or undo their runs, finish their rollbacks."),
    "freeze": ("freeze", "Let nothing of a scope begin, in any process: tool:pay, agent:x, user:42, all."),
    "unfreeze": ("freeze", "Let a frozen scope go on."),
    "budgets": ("budgets", "What may be used, and what is: list, set, fsck."),
    "usage": ("usage", "What calls cost and used, by agent, user, model, tool, run or tenant."),
    "policy": ("policy", "The policy file: schema, check, explain."),
    "traces": ("traces", "The spans of it: list, show, filter, export, prune."),
    "metrics": ("metrics", "What needs a person, as a gauge for Prometheus to scrape."),
    "audit": ("audit", "Whether the audit trail is as it was written: verify, export."),
    "sql": ("sql", "SQL over the exported traces and the ledger."),
    "migrate": ("migrate", "Make a ledger on a server, or bring a ledger to this version; --check only looks."),
    "backup": ("backup", "Write a verified copy of a SQLite ledger while agents run."),
    "prune": ("prune", "Forget runs and calls that were settled long ago."),
    "doctor": ("doctor", "What is installed, where everything is, and whether it is well."),
}


class _LazyGroup(Group):
    """Imports a command when it is called; its help line is known without."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"sagaspan.cli.{_COMMANDS[cmd_name][0]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sagaspan")
@common_options
def cli() -> None:
    """What did the agent do, who allowed it, what did it cost, is it undone?"""


def main(args: list[str] | None = None) -> None:
    """Run the program; errors become one sentence and an exit code."""
    try:
        code = cli.main(args=args, standalone_mode=False)
    except click.ClickException as error:
        _report(error, error.format_message(), args)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except ConfigurationError as error:
        _report(error, str(error), args)
        sys.exit(WRONG)
    except SagaspanError as error:
        _report(error, str(error), args)
        sys.exit(NEEDS_PERSON if isinstance(error, OutcomeUnknown | CompensationFailed) else FAILED)
    except BrokenPipeError:
        # The reader (head, less) has gone; Python must not complain about it at exit.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception, message: str, args: list[str] | None) -> None:
    """One sentence on standard error; with ``--json`` one document on standard output as well."""
    matches = getattr(error, "matches", ()) if isinstance(error, NotFound) else ()
    if Settings.wants_json(sys.argv[1:] if args is None else args):
        answer: dict[str, Any] = {"error": message, "kind": type(error).__name__}
        if matches:
            answer["matches"] = [{"kind": kind, "id": id_, "what": what} for kind, id_, what in matches]
        if isinstance(error, SagaspanError) and error.call is not None:
            answer["call"] = error.call.id
        emit_json(answer)
    elif isinstance(error, click.UsageError):
        error.show()
        return
    elif matches:
        emit_table(("kind", "id", "what"), matches)
    click.echo(f"Error: {visible(message)}", err=True)
