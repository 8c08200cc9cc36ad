"""Why a call would be allowed, asked about or refused: the rules that were looked at, and who says each field."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagaspan._backends import run_sync
from sagaspan._compensation import name_of
from sagaspan._defaults import Mode
from sagaspan._gates import gates_said
from sagaspan._policy_file import PolicyFile
from sagaspan._tool import Tool
from sagaspan.exceptions import ConfigurationError
from sagaspan.middleware.rules import amended
from sagaspan.policy import ADDING, Policy
from sagaspan.rules import Ruling, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is assumed of the run: ``spent`` in US dollars."""

    user: str | None = None
    tenant: str | None = None
    agent: str | None = None
    run: str = "run"
    tags: Mapping[str, Any] = field(default_factory=dict)
    spent: float = 0.0
    calls: int = 0
    at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A rule that was looked at: ``found`` is ``"holds"``, ``"does not hold"`` or ``"cannot be judged"``."""

    rule: str
    action: str
    found: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOf:
    """One field of the policy in force, and who says so."""

    field: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``outcome`` is ``"allow"``, ``"ask"`` or ``"deny"``, ``by`` are the rule or the gates it comes from.

    Where the ``mode`` is ``"observe"``, it is only noted.
    """

    tool: str
    outcome: str
    mode: Mode
    by: tuple[str, ...]
    reason: str | None
    version: str | None
    rules: tuple[Looked, ...]
    policy: tuple[FieldOf, ...]


def explain(
    file: PolicyFile | None,
    name: str,
    arguments: Mapping[str, Any],
    facts: Facts,
    *,
    tool: Tool | None = None,
    mode: Mode = "enforce",
) -> Explanation:
    """What becomes of a call of the tool ``name`` with ``arguments``; without ``tool`` as far as ``file`` says it.

    ``mode`` is that of the guard.

    Raises ``ConfigurationError`` for arguments that the tool does not take.
    """
    known_as = (name,) if tool is None else tool.known_as
    rules = () if file is None else file.rules.of(*known_as)
    if tool is not None:
        arguments = _bound(tool, arguments)
    values = _values(name, arguments, facts)

    async def more(names: frozenset[str]) -> Mapping[str, Any]:
        return {fact: values[fact] for fact in names}

    ruling = run_sync(judge(rules, arguments, more))
    if tool is None:
        policy = Policy() if file is None else Policy.combined((("file", file.tools.for_tool(name)),))
        gates = gates_said(policy, str(file.path) if file else name)
    else:
        policy, gates = tool.policy, tool.gates
    asked = tuple(gate.says for gate in gates if gate.asks(arguments))
    by_rule = () if ruling.rule is None else (ruling.rule.says,)
    unsure = tuple(f"{step.rule.says} cannot be judged" for step in ruling.unsure) if ruling.asks else ()
    asks = ruling.asks or bool(asked)
    outcome = "deny" if ruling.action == "deny" else "ask" if asks else "allow"
    return Explanation(
        tool=name, outcome=outcome, mode=mode, reason=None if ruling.rule is None else ruling.rule.rule.reason,
        by=by_rule if outcome == "deny" else (*by_rule, *unsure, *(f"approve: {says}" for says in asked)),
        version=None if file is None else file.version,
        rules=tuple(
            Looked(rule=step.rule.says, action=step.rule.rule.action, found=step.found, why=step.why)
            for step in ruling.steps
        ),
        policy=tuple(_fields(policy, ruling, tool, {} if file is None else file.tables.get("guard", {}))),
    )  # fmt: skip


def _bound(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the defaults of those that are left out, as a call has them."""
    try:
        bound, _ = tool.bind((), arguments)
    except TypeError as error:
        raise ConfigurationError(
            f"tool {tool.name!r} takes {', '.join(tool.parameters) or 'nothing'}: {error}"
        ) from error
    return bound


def _values(name: str, arguments: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    run = {"id": facts.run, "name": facts.run, "conversation": None}
    return {
        "args": dict(arguments), "tool": name, "user": facts.user, "tenant": facts.tenant, "agent": facts.agent,
        "run": run, "tags": dict(facts.tags), "spent": facts.spent, "calls": facts.calls, "now": facts.at,
    }  # fmt: skip


def _fields(policy: Policy, ruling: Ruling, tool: Tool | None, defaults: Mapping[str, Any]) -> Iterator[FieldOf]:
    sources = list(policy.sources or (("decorator", policy),))
    if ruling.rule is not None and ruling.action != "deny":
        said = ruling.limits or Policy()
        approval = ruling.rule.rule.approval
        if ruling.action == "approve":
            said = said.replace(approve=True, **({} if approval is None else {"approval": approval}))
        sources.append((ruling.rule.says, said))
    in_force = policy if tool is None or ruling.action == "deny" else amended(tool, ruling).policy
    if tool is None:
        in_force = Policy.combined(tuple(sources))
    for name in Policy.model_fields:
        says = [source for source, one in sources if name in one.model_fields_set]
        if not says and name in defaults:
            yield FieldOf(field=name, value=_plain(defaults[name]), origin="file, [guard]")
            continue
        origin = ", ".join(says if name in ADDING else says[-1:]) or "default"
        yield FieldOf(field=name, value=_plain(getattr(in_force, name)), origin=origin)


def _plain(value: Any) -> Any:
    """A field as JSON data."""
    if callable(value):
        return name_of(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return str(value) if type(value).__str__ is not type(value).__base__.__str__ else _dumped(value)
    return value


def _dumped(value: Any) -> dict[str, Any]:
    return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
