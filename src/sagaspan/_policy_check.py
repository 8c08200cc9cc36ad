"""Everything that is wrong with a policy file, each with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sagaspan._defaults import defaults_of
from sagaspan._policy_file import TABLES, PolicyFile
from sagaspan._tool import Tool, redefined
from sagaspan.exceptions import ConfigurationError
from sagaspan.llm.prices import Prices
from sagaspan.notify import hooks_of
from sagaspan.policy import Approval, Policy, read_policy_file, read_policy_text
from sagaspan.rules import Numbered, Rule
from sagaspan.scopes import BudgetBook

_LINE: Final = re.compile(r"\bline (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """``where`` is the table and key, ``line`` its number (None if it is not found); a warning is no error."""

    line: int | None
    where: str
    message: str
    warning: bool = False


def check_policy_file(path: Path, tools: Sequence[Tool] | None = None) -> list[Problem]:
    """All that is wrong with the file at ``path``, in its order; ``tools`` are those it is for, if that is known."""
    try:
        tables = read_policy_file(path)
    except ConfigurationError as error:
        found = _LINE.search(str(error))
        return [Problem(line=int(found[1]) if found else None, where="", message=str(error))]
    lines = Lines(read_policy_text(path))
    problems = [*_unknown(tables, lines), *_guard(tables, lines), *_tools(tables, lines), *_rules(tables, path, lines),
                *_budgets(tables, lines), *_prices(tables, lines), *_notify(tables, lines)]  # fmt: skip
    if tools is not None and not problems:
        problems = [*_for_tools(PolicyFile.read(path), tools, lines)]
    return sorted(problems, key=lambda problem: (problem.warning, problem.line or 0))


# -- what is wrong -------------------------------------------------------------------------------------------------


def _unknown(tables: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    for name in tables:
        if name not in TABLES:
            message = (
                f"there is no table [{name}]; a policy file has [tools.NAME], [[rules]], [guard], [budgets], [prices], "
                "[[notify]]"
            )
            yield Problem(line=lines.of((name,)), where=f"[{name}]", message=message)


def _guard(tables: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    table = tables.get("guard", {})
    of_file = partial(defaults_of, source="file", environment={})
    if not isinstance(table, Mapping):
        yield from _tried("[guard]", lines.of(("guard",)), partial(of_file, {"guard": table}))
        return
    for name, value in table.items():
        attempt = partial(of_file, {"guard": {name: value}})
        yield from _tried(f"[guard] {name}", lines.of(("guard",), name), attempt)


def _tools(tables: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    tools = tables.get("tools", {})
    if not isinstance(tools, Mapping):
        yield Problem(
            line=lines.of(("tools",)), where="[tools]", message="every policy is a table [tools.NAME] of fields"
        )
        return
    for name, fields in tools.items():
        where = f"[tools.{name}]"
        if not isinstance(fields, Mapping):
            yield Problem(
                line=lines.of(("tools",), name), where=where, message="a policy is a table [tools.NAME] of fields"
            )
            continue
        yield from _of_model(Policy, fields, where, partial(lines.of, ("tools", name)))


def _rules(tables: Mapping[str, Any], path: Path, lines: Lines) -> Iterator[Problem]:
    rules = tables.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        message = "rules are tables [[rules]], one after the other"
        yield Problem(line=lines.of(("rules",)), where="[[rules]]", message=message)
        return
    for number, fields in enumerate(rules, 1):
        line = partial(lines.of, ("rules",), number=number)
        problems = [*_of_model(Rule, fields, f"rule {number}", line)]
        yield from problems
        if not problems:
            attempt = partial(Numbered.of, Rule(**fields), number, str(path))
            yield from _of_rule(number, str(path), line("when"), attempt)


def _budgets(tables: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    yield from _entries(tables, "budgets", lines, BudgetBook)


def _prices(tables: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    yield from _entries(tables, "prices", lines, Prices)


def _notify(tables: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    hooks = tables.get("notify", [])
    numbered = enumerate(hooks, 1) if isinstance(hooks, list) else ()
    found = [
        problem
        for number, hook in numbered
        for problem in _tried(
            f"[[notify]] {number}", lines.of(("notify",), number=number), partial(hooks_of, None, [hook], "file")
        )
    ]
    # The secret is where the agents run, not where the file is written.
    yield from (replace(one, warning=True) if one.message.endswith("is not set") else one for one in found)
    if not found:
        yield from _tried("[[notify]]", lines.of(("notify",)), partial(hooks_of, None, hooks, "file"))


def _entries(tables: Mapping[str, Any], table: str, lines: Lines, read: Callable[[Any], object]) -> Iterator[Problem]:
    entries = tables.get(table, {})
    if not isinstance(entries, Mapping):
        yield from _tried(f"[{table}]", lines.of((table,)), partial(read, entries))
        return
    for name, value in entries.items():
        at = lines.of((table,), name) or lines.of((table, name))
        yield from _tried(f"[{table}] {name}", at, partial(read, {name: value}))


def _of_model(
    model: type[Policy | Rule], fields: Mapping[str, Any], where: str, line: Callable[[str | None], int | None]
) -> Iterator[Problem]:
    """Every field that ``model`` does not take, or else why it does not take them together."""
    needed = {} if model is Policy else {"action": "approve"}
    found = [
        problem
        for name, value in fields.items()
        for problem in _tried(f"{where} {name}", line(name) or line(None), partial(model, **{**needed, name: value}))
    ]
    yield from found
    if not found:
        yield from _tried(where, line(None), partial(model, **fields))


def _tried(where: str, line: int | None, attempt: Callable[[], object]) -> Iterator[Problem]:
    try:
        attempt()
    except ConfigurationError as error:
        yield Problem(line=line, where=where, message=str(error))


def _of_rule(number: int, source: str, line: int | None, attempt: Callable[[], object]) -> Iterator[Problem]:
    """As ``_tried``; a rule says itself of which file it is, and which one, which is said here already."""
    where = f"rule {number}"
    for problem in _tried(where, line, attempt):
        said = problem.message.removeprefix(f"{source}, {where}")
        yield replace(problem, message=said.removeprefix(",").removeprefix(":").strip())


def _for_tools(file: PolicyFile, tools: Sequence[Tool], lines: Lines) -> Iterator[Problem]:
    """What is wrong with the file for these tools."""
    for tool in tools:
        for one in file.rules.of(*tool.known_as):
            at = lines.of(("rules",), "when", one.number)
            checked = partial(one.check, tool.known_as, tool.parameters, _approval_of(tool, file))
            yield from _of_rule(one.number, one.source, at, checked)
        at = lines.of(("tools", tool.name))
        yield from _tried(f"[tools.{tool.name}]", at, partial(redefined, tool, file.tools))
    yield from _unused(file, {tool.known_as: tool.parameters for tool in tools}, lines)


def _approval_of(tool: Tool, file: PolicyFile) -> Approval | None:
    """What ``tool`` asks under this file beside its rules; what does not go together is told of its table."""
    try:
        return redefined(tool, file.tools).policy.approval
    except ConfigurationError:
        return None


def _unused(file: PolicyFile, tools: Mapping[tuple[str, ...], Collection[str]], lines: Lines) -> Iterator[Problem]:
    names = {name for known_as in tools for name in known_as}
    for name, sentence in file.tools.unfit(names):
        yield Problem(line=lines.of(("tools", name)), where=f"[tools.{name}]", message=sentence, warning=True)
    for one, sentence in file.rules.unfit(names):
        at = lines.of(("rules",), "tools", one.number)
        yield Problem(line=at, where=f"rule {one.number}", message=sentence, warning=True)
    for one, sentence in file.rules.never_held(tools):
        at = lines.of(("rules",), "when", one.number)
        yield Problem(line=at, where=f"rule {one.number}", message=sentence.removeprefix(one.says).strip())


# -- lines ---------------------------------------------------------------------------------------------------------

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")
_PART: Final = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


class Lines:
    """Where the tables and keys of a TOML text stand; what is spelt in a rare way is not found, and has no line."""

    def __init__(self, text: str) -> None:
        self._tables: dict[tuple[tuple[str, ...], int], int] = {}
        self._keys: dict[tuple[tuple[str, ...], int, str], int] = {}
        table: tuple[str, ...] = ()
        count = 0
        counts: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.fullmatch(line):
                table = _parts(header[2])
                counts[table] = count = counts.get(table, 0) + 1
                self._tables[table, count] = number
            elif key := _KEY.match(line):
                first, *more = _parts(key[1])
                path = (*table, first, *more)
                self._keys.setdefault((path[:-1], count, path[-1]), number)
                self._keys.setdefault((table, count, first), number)

    def of(self, table: tuple[str, ...], key: str | None = None, number: int = 1) -> int | None:
        """The line of ``key`` in the table, or of its header; ``number`` of an array of tables."""
        if key is not None:
            return self._keys.get((table, number, key)) or self._tables.get(((*table, key), 1))
        return self._tables.get((table, number)) or self._keys.get(((), 0, table[0]))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(next(part for part in found if part) for found in _PART.findall(text) if any(found))
