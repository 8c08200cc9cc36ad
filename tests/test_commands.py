"""Command lines that are shown run sagaspan with exactly the ids that they name, and nothing else."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from sagaspan import ApprovalPending, CompensationFailed, Guard, LockConflict, RunError, ScopeFrozen
from sagaspan._commands import command, quoted
from sagaspan.cli import _COMMANDS, cli
from tests.cli.conftest import Sagaspan
from tests.cli.conftest import home as home
from tests.cli.conftest import sagaspan as sagaspan

ROOT = Path(__file__).parents[1]

HOSTILE = (
    "order-17$(touch X)",
    "order-17`touch X`",
    "a; touch X; b",
    "a && touch X || touch Y",
    "it's \"quoted\" 'twice'",
    "-rf",
    "--json",
    "--",
    "$HOME *?[a] {b,c} ~ # !! \\",
    "a b  c   d",
    "line one\nline two; touch X\n",
    "\n",
    "\t\x1b[31mred\x07\r",
    "naïve-日本-\u202e\u200b",
    "100%s\\n%n",
    "a|b>X<Y&",
    "plain/order.17:x@y",
)

Paste = Callable[[str], list[str]]

SHELLS = tuple(shell for shell in ("sh", "bash", "dash", "busybox") if shutil.which(shell))


@pytest.fixture
def pasted(tmp_path: Path) -> Paste:
    """Paste a line into real shells where ``sagaspan`` records its arguments; return them, the same of each shell."""
    folder = tmp_path / "pasted"
    folder.mkdir()
    stub = folder / "sagaspan"
    stub.write_text('#!/bin/sh\nfor word do printf "%s\\000" "$word"; done > "$SAID"\n')
    stub.chmod(0o755)

    def paste(line: str) -> list[str]:
        found = []
        for shell in SHELLS:
            here = folder / f"in-{shell}"
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir()
            said = folder / "said"
            said.unlink(missing_ok=True)
            program = [shell, "sh"] if shell == "busybox" else [shell]
            environment = {"PATH": str(folder), "SAID": str(said), "LC_ALL": "C.UTF-8"}
            done = subprocess.run(
                [shutil.which(program[0]) or "", *program[1:], "-s"], input=f"{line}\n".encode(), cwd=here,
                env=environment, capture_output=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), (shell, line)
            assert not list(here.iterdir()), (shell, line)
            found.append([word.decode() for word in said.read_bytes().split(b"\0")[:-1]])
        assert all(one == found[0] for one in found), line
        return found[0]

    return paste


def parsed(arguments: list[str]) -> dict[str, object]:
    """What the program itself takes these arguments for, without running anything."""
    found: click.Command = cli
    context = click.Context(cli)
    while isinstance(found, click.Group):
        name, *arguments = arguments
        found = found.get_command(context, name) or pytest.fail(f"there is no command {name!r}")
    return found.make_context("sagaspan", arguments, parent=context).params


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_shell_runs_sagaspan_with_exactly_that_id(pasted: Paste, hostile: str) -> None:
    """Quotes, substitutions, line ends, leading dashes: nothing in an id is obeyed, and nothing of it is lost."""
    assert pasted(command("show", hostile)) in (["show", hostile], ["show", "--", hostile])
    line = command("compensate", hostile, call=hostile, namespace=None).adding(home=hostile, yes=True)
    given = parsed(pasted(line))
    assert (given["run_id"], given["call_id"], given["yes"]) == (hostile, hostile, True)
    given = parsed(pasted(command("calls resolve", hostile, "happened", note=hostile)))
    assert (given["call_id"], given["outcome"], given["note"]) == (hostile, "happened", hostile)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_line_is_shown_as_it_is(hostile: str) -> None:
    """A terminal obeys nothing in it and hides nothing, unless an id ends with a line end."""
    assert "\x1b" not in quoted(hostile)
    assert "\n" not in quoted(hostile.rstrip("\n"))


def test_what_is_simple_stays_as_people_write_it() -> None:
    """An id of letters, digits and common marks is not quoted."""
    assert command("show", "plain/order.17:x@y") == "sagaspan show plain/order.17:x@y"
    assert command("budgets set", "user:42", "AMOUNT", per="day") == "sagaspan budgets set user:42 AMOUNT --per day"


@pytest.mark.parametrize("hostile", ["order-17$(touch X)", "-rf", "it's; `touch X`", "one\ntwo  three", "--json"])
@pytest.mark.usefixtures("home")
def test_what_errors_notes_logs_and_commands_say_can_be_pasted(pasted: Paste, sagaspan: Sagaspan, hostile: str) -> None:
    """A run under a hostile id, in every text that names it: what is pasted finds that run."""
    guard = Guard(on_interrupt="hold", approver="inbox")

    @guard.tool(effect="write")
    def book() -> None:
        raise ConnectionResetError("gone")

    @guard.tool(effect="write", lock=lambda: "seat")
    def hold_seat() -> str:
        return "held"

    @guard.tool(effect="irreversible", approve=True)
    def pay() -> None: ...

    show = command("show", hostile)
    with pytest.raises(ConnectionResetError) as left, guard.run("trip", id=hostile):
        hold_seat()
        book()
    assert show in " ".join(left.value.__notes__)
    with pytest.raises(LockConflict) as locked, guard.run("other", id="other"):
        hold_seat()
    assert show in str(locked.value)
    with pytest.raises(RunError) as missing:
        guard.compensate(hostile, call="nothing")
    assert show in str(missing.value)

    (run,) = [item for item in sagaspan("status", "--json").json if item["kind"] == "run"]
    assert run["next"] == show
    assert str(show) in sagaspan("status").out
    assert sagaspan("--json", *pasted(run["next"])).json["id"] == hostile
    (call,) = [call for call in guard.runs.get(hostile).calls if call.tool == "book"]
    assert sagaspan("calls", "resolve", call.id, "did-not-happen", "--note", "looked", "--yes").code == 0

    freeze = command("runs pause", hostile, reason="look")
    paused = sagaspan(*pasted(freeze))
    resume = command("runs resume", hostile)
    assert resume in paused.out
    with pytest.raises(ScopeFrozen) as frozen, guard.run("trip", id=hostile):
        pay()
    assert resume in str(frozen.value)
    (item,) = [item for item in sagaspan("status", "--json").json if item["kind"] == "freeze"]
    assert item["next"] == resume
    assert sagaspan(*pasted(item["next"])).code == 0

    with pytest.raises(ApprovalPending) as pending, guard.run("trip", id=hostile):
        pay()
    assert command("approvals show", str(pending.value.approval_id)) in str(pending.value)
    guard.close()


@pytest.mark.usefixtures("home")
def test_an_exported_report_names_commands_as_code(pasted: Paste, sagaspan: Sagaspan) -> None:
    """Markdown takes nothing of a command for markup, and what is copied from the report is what it says."""
    hostile = "a_b*c`d`$(touch X)"
    guard = Guard(on_interrupt="hold")

    @guard.tool(effect="write", compensate=lambda: 1 / 0)
    def book() -> None: ...

    with pytest.raises(CompensationFailed), guard.run("trip", id=hostile):
        book()
        raise ValueError("no")
    report = sagaspan(*pasted(command("runs export", hostile))).out
    line = command("compensate", hostile, call=guard.runs.get(hostile).calls[0].id, app="MODULE:GUARD")
    assert f"``{line}``" in report
    assert command("show", hostile) in sagaspan("status", "--json").json[0]["next"]
    guard.close()


# -- none is made elsewhere ------------------------------------------------------------------------------------------

_VERBS = "|".join(_COMMANDS)
_COMPOSED = re.compile(rf"\bsagaspan (?:{_VERBS})\b[\w :-]*(?:\0|%[srd]|\{{)|\bsagaspan (?:{_VERBS})[\w :-]* $")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file, with NUL where a value is put into one; docstrings are no such texts."""
    tree = ast.parse(path.read_text())
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within | alone:
            yield node.lineno, node.value


@pytest.mark.parametrize("root", ["src", "adapters"])
def test_no_text_composes_a_command_line_by_itself(root: str) -> None:
    """A text that says ``sagaspan VERB`` and then a value, by f-string, ``%s``, ``format`` or ``+``, is found here."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in sorted((ROOT / root).rglob("*.py"))
        for line, text in _texts(path)
        if _COMPOSED.search(text)
    ]
    assert not found, "make these lines with sagaspan._commands.command"
