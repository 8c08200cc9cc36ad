"""Rules of a policy file: for which calls somebody is asked, which are refused, within which limits the others run.

The rules that name a tool are looked at in their order, and the first whose condition holds decides. Rules only add:
what the code asks is asked whatever they say. A condition that cannot be judged never lets a call by: a rule that
denies denies then, any other has somebody asked.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field

from sagaspan._checks import described
from sagaspan._declared import DeclaredModel
from sagaspan._names import is_glob, matches, nearest
from sagaspan.exceptions import ConfigurationError
from sagaspan.expressions import Expression
from sagaspan.policy import Approval, Policy

LIMITS: Final = ("timeout", "retry", "rate", "max_calls", "loop", "cost")
"""The fields of a policy that can be another for each call; all others stand in ``[tools.NAME]``."""

FACTS: Final = (
    "args", "tool", "user", "tenant", "agent", "run", "tags", "spent", "calls", "now", "hour", "weekday",
)  # fmt: skip
"""What a condition can name beside the arguments of the tool; an argument of such a name is ``args.NAME``."""

_CLOCK: Final = {"hour": "now", "weekday": "now"}
"""What is read off the fact ``now``, in the time zone of the rule."""

_OF_RUN: Final = ("id", "name", "conversation")
_MEMBER: Final = re.compile(r"(?<![\w.])args\s*\.\s*([A-Za-z_]\w*)")
_MEMBER_OF_RUN: Final = re.compile(r"(?<![\w.])run\s*\.\s*([A-Za-z_]\w*)")
_OPTIONAL: Final = re.compile(r"\bhas\s*\(\s*args\s*\.\s*([A-Za-z_]\w*)")
_IN_ARGS: Final = re.compile(r"""['"](\w+)['"]\s+in\s+args\b""")
_REMEMBERED: Final = 1000


def _as_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _as_limits(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    for name in value:
        if name not in LIMITS:
            known = f"it stands in [tools.NAME], for every call; limits are {', '.join(LIMITS)}"
            near = difflib.get_close_matches(name, LIMITS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"they are {', '.join(LIMITS)}"
            why = known if name in Policy.model_fields else hint
            raise ConfigurationError(f"Rule field 'limits' has no {name!r}; {why}")
    return Policy(**value)


def _as_approval(value: Any) -> Any:
    return Approval(**value) if isinstance(value, Mapping) else value


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"Rule field 'timezone' takes a name such as 'Europe/Berlin' or 'UTC', and {name!r} is none of this machine"
        ) from error
    return name


_Text = Annotated[str, Field(min_length=1)]


class Rule(DeclaredModel):
    """One ``[[rules]]`` table of a policy file.

    ``tools`` are names or globs (all tools), ``when`` is a CEL expression over the arguments and ``FACTS`` (always).
    ``action``: ``"allow"`` asks nobody beyond what the code asks, ``"deny"`` refuses with ``reason``, ``"approve"``
    has somebody asked as ``approval`` says. ``limits`` hold for the calls that the rule lets run. ``hour`` and
    ``weekday`` are those of ``timezone``. Raises ``ConfigurationError``.
    """

    tools: Annotated[
        tuple[_Text, ...],
        BeforeValidator(_as_names),
        Field(min_length=1, description="a tool's name or glob, or a list"),
    ] = ("*",)
    when: Annotated[_Text | None, Field(description="a CEL expression")] = None
    action: Annotated[Literal["allow", "deny", "approve"], Field(description="'allow', 'deny' or 'approve'")]
    name: Annotated[_Text | None, Field(description="a text")] = None
    reason: Annotated[_Text | None, Field(description="a text")] = None
    approval: Annotated[Approval | None, BeforeValidator(_as_approval), Field(description="fields of an Approval")] = (
        None
    )
    limits: Annotated[
        Policy | None, BeforeValidator(_as_limits), Field(description=f"a table of {', '.join(LIMITS)}")
    ] = None
    timezone: Annotated[str, AfterValidator(_known_zone), Field(description="the name of a time zone")] = "UTC"

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)
        if self.approval is not None and self.action != "approve":
            raise ConfigurationError(f"Rule has approval= and action={self.action!r}, which asks nobody; say 'approve'")
        if self.limits is not None and self.action == "deny":
            raise ConfigurationError(
                "Rule has limits= and action='deny': what is denied has no limits; say one of them"
            )

    @property
    def names_exactly(self) -> bool:
        """Whether all its tools are names, none a glob."""
        return not any(map(is_glob, self.tools))

    def is_about(self, *names: str) -> bool:
        """Whether the rule is one for the tool of these ``names``."""
        return any(matches(pattern, names) for pattern in self.tools)


class Found(StrEnum):
    """What a condition comes to for a call."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    CANNOT_BE_JUDGED = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A rule with its place in its file (from 1 on) and its condition, compiled. ``says`` names it for people."""

    rule: Rule
    number: int
    source: str
    condition: Expression | None

    @classmethod
    def of(cls, rule: Rule, number: int, source: str) -> Self:
        """``rule`` as the one of this number; raises ``ConfigurationError`` if its condition does not compile."""
        where = f"{source}, rule {number}"
        condition = None if rule.when is None else Expression(rule.when, where=f"{where}, when")
        for unknown in set(() if condition is None else _MEMBER_OF_RUN.findall(condition.code)) - set(_OF_RUN):
            raise ConfigurationError(
                f"{where}, when: {rule.when!r} names 'run.{unknown}'; a run has run.{', run.'.join(_OF_RUN)}"
            )
        return cls(rule=rule, number=number, source=source, condition=condition)

    @property
    def says(self) -> str:
        """How people find it."""
        name = f" ({self.rule.name!r})" if self.rule.name else ""
        return f"{self.source}, rule {self.number}{name}"

    @property
    def variables(self) -> frozenset[str]:
        """The names that its condition reads."""
        return frozenset() if self.condition is None else self.condition.variables

    def look(self, values: Mapping[str, Any]) -> tuple[Found, str]:
        """What its condition comes to over ``values``, and why: only a plain True holds, only False does not."""
        if self.condition is None:
            return Found.HOLDS, "it has no condition"
        try:
            if self.variables & _CLOCK.keys():
                values = {**values, **_on_the_wall(values["now"], self.rule.timezone)}
            value = self.condition.evaluate(values)
        except Exception as error:  # noqa: BLE001 - what cannot be judged lets nothing by
            return Found.CANNOT_BE_JUDGED, f"{self.rule.when}: {_first_line(error)}"
        if value is True or value is False:
            return (Found.HOLDS if value else Found.DOES_NOT_HOLD), str(self.rule.when)
        return Found.CANNOT_BE_JUDGED, f"{self.rule.when}: it comes to {described(value)}, not to true or false"

    @property
    def looked_for(self) -> set[str]:
        """The arguments that its condition looks for: they may not be there, and then it does not hold."""
        if self.condition is None:
            return set()
        return {*_OPTIONAL.findall(self.condition.code), *_IN_ARGS.findall(self.condition.source)}

    def check(self, names: tuple[str, ...], parameters: Collection[str], approval: Approval | None = None) -> None:
        """Refuse what the tool of these ``names`` does not take, and an ``approval`` that nobody could give together.

        Raises ``ConfigurationError``.
        """
        tool = names[0]
        self._check_roles(tool, approval)
        if self.condition is None:
            return
        members: set[str] = set()
        if self.rule.names_exactly:
            members = set(_MEMBER.findall(self.condition.code)) - self.looked_for
        if len(self.rule.tools) == 1 and self.rule.tools[0] in names:  # no other tool can have it
            members |= self.looked_for
        for unknown in sorted((self.variables - set(FACTS) - set(parameters)) | (members - set(parameters))):
            near = difflib.get_close_matches(unknown, [*parameters, *FACTS], n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"it takes {', '.join(parameters) or 'nothing'}"
            glob = "" if self.rule.names_exactly else (
                f"; for tools that may not have it, write has(args.{unknown}) && args.{unknown} ..., or name the tools"
            )  # fmt: skip
            raise ConfigurationError(
                f"{self.says}: {self.condition.source!r} names {unknown!r}, which the tool {tool!r} does not take; "
                f"{hint}{glob}"
            )

    def _check_roles(self, tool: str, approval: Approval | None) -> None:
        """Who calls ``tool`` under this rule is asked for by both: found here, not when somebody waits."""
        if approval is None or self.rule.approval is None:
            return
        try:
            self.rule.approval.with_(approval)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.says}, for the tool {tool!r}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rule that was looked at for a call: what its condition came to, and why."""

    rule: Numbered
    found: Found
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What rules say of one call.

    ``rule`` is the one that decided (None: no rule did), ``action`` what it says. ``steps`` are all that were looked
    at, that one last; ``unsure`` those that do not decide and could not be judged, of which somebody is asked.
    """

    rule: Numbered | None = None
    action: Literal["allow", "deny", "approve"] = "allow"
    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def unsure(self) -> tuple[Step, ...]:
        """What nobody could judge and did not decide: rules that would have let the call by."""
        return tuple(step for step in self.steps if step.found is Found.CANNOT_BE_JUDGED and step.rule is not self.rule)

    @property
    def asks(self) -> bool:
        """Whether somebody is asked."""
        return self.action == "approve" or (self.action == "allow" and bool(self.unsure))

    @property
    def limits(self) -> Policy | None:
        """What holds for this call over its tool's policy."""
        return None if self.rule is None else self.rule.rule.limits


class Rules:
    """The rules of one file, in their order."""

    def __init__(self, tables: object, *, source: str) -> None:
        if not isinstance(tables, list):
            raise ConfigurationError(f"{source}: rules are tables [[rules]], one after the other")
        self.rules = tuple(self._read(table, number, source) for number, table in enumerate(tables, 1))
        self._of: dict[tuple[str, ...], tuple[Numbered, ...]] = {}

    @staticmethod
    def _read(table: object, number: int, source: str) -> Numbered:
        if not isinstance(table, Mapping):
            raise ConfigurationError(f"{source}: rules are tables [[rules]], one after the other")
        try:
            rule = Rule(**table)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}, rule {number}: {error}") from error
        return Numbered.of(rule, number, source)

    def __len__(self) -> int:
        return len(self.rules)

    def of(self, *names: str) -> tuple[Numbered, ...]:
        """The rules that are about the tool of these ``names``."""
        found = self._of.get(names)
        if found is None:
            if len(self._of) >= _REMEMBERED:
                self._of.clear()
            found = self._of[names] = tuple(one for one in self.rules if one.rule.is_about(*names))
        return found

    def check(self, names: tuple[str, ...], parameters: Collection[str], approval: Approval | None = None) -> None:
        """Refuse a rule that does not fit the tool of these ``names`` and the ``approval`` of its own.

        Raises ``ConfigurationError``.
        """
        for one in self.of(*names):
            one.check(names, parameters, approval)

    def never_held(self, tools: Mapping[tuple[str, ...], Collection[str] | None]) -> Iterator[tuple[Numbered, str]]:
        """For every argument that a rule looks for and none of the tools that it is about has, the rule and a sentence
        with the nearest; ``tools`` are what each takes, by its names (None: nobody knows).
        """
        for one in self.rules:
            concerned = [parameters for names, parameters in tools.items() if one.rule.is_about(*names)]
            known = {parameter for parameters in concerned for parameter in parameters or ()}
            for wanted in sorted(one.looked_for - known if concerned and None not in concerned else ()):
                never = (
                    f"{one.says} looks for the argument {wanted!r}, which none of its tools has, so it is never there"
                )
                yield one, f"{never}; {nearest(wanted, known)}"

    def unfit(self, tools: Collection[str]) -> Iterator[tuple[Numbered, str]]:
        """For every name or glob of a rule that fits none of ``tools``, the rule and a sentence with the nearest."""
        for one in self.rules:
            for name in one.rule.tools:
                if name != "*" and not matches(name, tools):
                    yield one, f"{one.says} names {name!r}, but there is no such tool; {nearest(name, tools)}"


More = Callable[[frozenset[str]], Awaitable[Mapping[str, Any]]]
"""Gives the values of the facts of these names; what costs something is read only if a condition names it."""


async def judge(rules: Sequence[Numbered], values: Mapping[str, Any], more: More) -> Ruling:
    """What ``rules`` say of a call with the arguments ``values``; ``more`` gives the facts that they name."""
    # What is told of a call comes before what its caller says: an argument called "user" is no user.
    known: dict[str, Any] = {name: value for name, value in values.items() if name not in FACTS}
    steps: list[Step] = []
    for one in rules:
        wanted = {_CLOCK.get(name, name) for name in one.variables if name in FACTS} - known.keys()
        if wanted:
            known.update(await more(frozenset(wanted)))
        found, why = one.look(known)
        steps.append(Step(rule=one, found=found, why=why))
        decides = found is Found.HOLDS or (found is Found.CANNOT_BE_JUDGED and one.rule.action != "allow")
        if decides:
            return Ruling(rule=one, action=one.rule.action, steps=tuple(steps))
    return Ruling(steps=tuple(steps))


def _on_the_wall(now: dt.datetime, timezone: str) -> dict[str, int]:
    there = now.astimezone(ZoneInfo(timezone))
    return {"hour": there.hour, "weekday": there.isoweekday()}


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
