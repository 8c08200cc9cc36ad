"""What a tool is, declared: frozen, strict, checked when it is written down.

``Policy`` fields left out are undecided, so that several sources combine field by field
(``file`` over ``wrap`` over ``guard`` over ``decorator``).
"""

from __future__ import annotations

import functools
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from sagaspan._checks import check_mapping, described
from sagaspan._declared import DeclaredModel
from sagaspan._names import matches, misspelt, nearest
from sagaspan.assurance import Assurance, stricter
from sagaspan.exceptions import ConfigurationError
from sagaspan.expressions import check_syntax
from sagaspan.rate import Rate

_MOST_BYTES: Final = 1024 * 1024
_MOST_PARTS: Final = 16
# The parser takes a time that is the square of a dotted key's parts, and half a minute for 120 KB of them.
_DEEP_KEY: Final = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_PARTS - 1}}}(?=[\w"'-])"""
)

Effect = Literal["read", "idempotent", "write", "irreversible"]
Repeat = Literal["dedupe", "ask", "new"]
Outcome = Literal["failed", "unknown"]
# A field's description is what its error says that it takes.
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number of seconds above 0")]
Settle = Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number of seconds from 0 on")]
Flag = Annotated[bool, Field(description="True or False")]


def _as_types(value: Any) -> Any:
    """One type or a list of them will do where several can be named."""
    return (value,) if isinstance(value, type) else tuple(value) if isinstance(value, list) else value


Types = Annotated[
    tuple[type[BaseException], ...],
    BeforeValidator(_as_types),
    Field(description="an exception type, or several of them in a tuple"),
]


class Retry(DeclaredModel):
    """How often and when a failed attempt is repeated. Times are seconds; ``attempts`` counts the first one too.

    A write is repeated only if it provably did not happen, or on the exception types named in ``on``. For reads
    and idempotent tools ``on`` narrows what is repeated (empty: every ``Exception``).
    """

    attempts: Annotated[int, Field(ge=1, description="a whole number from 1 on")] = 1
    initial_delay: Settle = 1.0
    backoff_factor: Annotated[float, Field(ge=1, allow_inf_nan=False, description="a number from 1 on")] = 2.0
    max_delay: Settle = 60.0
    jitter: Flag = True
    on: Types = ()

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (1 is the first); full jitter over ``random()``."""
        try:
            longest = min(self.max_delay, self.initial_delay * self.backoff_factor ** (attempt - 1))
        except OverflowError:
            longest = self.max_delay
        return longest * random() if self.jitter else longest


class Approval(DeclaredModel):
    """Who must approve, how many, and how long they have; for ``approve=``. ``expires_in`` are seconds (24 h).

    ``approvers`` different people must agree. With ``four_eyes``, or more than one of them, none may be who asked, for
    whom the run works, or who runs the call. Each must have one of ``roles``, if there are any, and it must be at least
    as sure as ``assurance`` who they are: ``"cli"``, ``"link"``, ``"webhook"``, ``"slack"`` or ``"oidc"``; one level
    more where the arguments cannot be shown.
    """

    approvers: Annotated[int, Field(ge=1, description="a whole number from 1 on")] = 1
    roles: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
        Field(description="names of roles, in a list"),
    ] = ()
    four_eyes: Flag = False
    expires_in: Seconds = 24 * 3600.0
    assurance: Annotated[Assurance | None, Field(description="'cli', 'link', 'webhook', 'slack' or 'oidc'")] = None

    def with_(self, other: Approval) -> Approval:
        """What both of them ask for; raises ``ConfigurationError`` if nobody could have a role of each."""
        roles = (
            tuple(sorted({*self.roles} & {*other.roles})) if self.roles and other.roles else self.roles or other.roles
        )
        if self.roles and other.roles and not roles:
            raise ConfigurationError(
                f"approval: one source asks for the roles {', '.join(self.roles)}, another for "
                f"{', '.join(other.roles)}, and nobody's role is in both; name a common one"
            )
        return Approval(
            approvers=max(self.approvers, other.approvers), roles=roles, four_eyes=self.four_eyes or other.four_eyes,
            expires_in=min(self.expires_in, other.expires_in), assurance=stricter(self.assurance, other.assurance),
        )  # fmt: skip


Function = Callable[..., Any]
Name = Annotated[str, Field(min_length=1)]
_FROM_ARGUMENTS = Field(description="a CEL expression over the arguments, or a function of them")
_RETRY = "a Retry, or a number of attempts from 1 on"


def _as_retry(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(attempts=value)
    return Retry(**value) if isinstance(value, Mapping) else value


def _as_approval(value: Any) -> Any:
    return Approval(**value) if isinstance(value, Mapping) else value


def _as_rate(value: Any) -> Any:
    return Rate(value) if isinstance(value, str) else value


def _as_loop(value: Any) -> Any:
    if value == 0 and value is not False:
        raise ValueError("0 equals False, which takes every bound away")
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Policy(DeclaredModel):
    """What one tool is allowed, and how it is protected; every field can be left undecided.

    ==============  ===================================================================================
    ``effect``      ``"read"``, ``"idempotent"``, ``"write"``, ``"irreversible"``; undeclared (None) is protected like
                    a write, but an equal call is a new call. ``compensate``, ``key`` or ``defer`` makes it a write
    ``compensate``  function, or name of a tool, that undoes a call that is done
    ``empty_safe``  ``compensate`` may also be called if the call did not happen: it finds nothing to undo, and its
                    service refuses a call that arrives after it. So a call in doubt is undone, instead of holding its
                    run
    ``approve``     who calls it needs approval: True, CEL over the arguments (``"amount > 100"``), or a function of
                    them; only a plain False of it asks nobody. ``False``: nobody is asked. Sources only add to each
                    other: none takes back what another one asks
    ``approval``    an ``Approval``: how many must approve, in which roles, how long they have
    ``key``         business idempotency key: CEL over the arguments, or a function of them
    ``repeat``      an equal call in the same run, already done: ``"dedupe"``, ``"ask"``, ``"new"``
    ``retry``       a ``Retry``, or a number of attempts
    ``timeout``     seconds a body may take
    ``error_means`` what an exception says of the effect: ``"failed"``, ``"unknown"``, or a function of it
    ``not_applied`` exception types that prove the effect did not happen
    ``probe``       function that finds out whether a call in doubt happened: ``Applied(result)``, ``NotApplied`` or
                    ``Unsure()``; gets the arguments, ``idempotency_key`` and ``call`` by name
    ``settle``      seconds after the attempt's end before a ``NotApplied`` of the probe counts (0)
    ``downstream_dedupes_for``  seconds for which the service does one idempotency key only once; within
                    them a call in doubt is sent again with its key
    ``marks_sending``  the body calls ``current_call().sending()`` right before it sends: what died before has not
                    happened
    ``defer``       the call is only scheduled, and sent when its run completes (or at ``run.commit()``); a run that
                    fails drops it. It is a write unless ``effect`` says otherwise
    ``expect``      function asked before a call is undone: True says that the world is as the call left it, so that
                    undoing overwrites nothing else. Anything else leaves the call to a person
    ``pivot``       the point of no return: starts once no earlier step is open; from its success on the run only goes
                    forward
    ``lock``        semantic locks: CEL over the arguments, or a function of them, that gives a name or a list of names;
                    the run (outside one: the call) holds them until it is over
    ``lock_wait``   seconds to wait for a lock that another one holds (0: ``LockConflict`` at once)
    ``cost``        what a call costs: ``"0.05 USD"``, or a function of arguments and ``result`` that gives US dollars;
                    it is asked before the call for the most it can cost (``result`` is None then), and after it
    ``rate``        ``"10/minute"``: calls of this tool by all processes together; more are refused (``RateLimited``)
    ``max_calls``   at most so many calls of this tool a run; one more ends it, as a budget does (``BudgetExceeded``)
    ``loop``        how many equal calls with equal results in a row a run may make (5); ``False``: any number
    ``redact``      argument and result fields that are never recorded or shown, only a keyed hash of them: ``"card"``,
                    ``"customer.ssn"``, ``"result.token"``, ``"**.password"``; sources only add to each other
    ``critical``    True: a failure stops the agent and compensates; False: it is returned as data
    ==============  ===================================================================================

    Raises ``ConfigurationError`` for an unknown field or a value of the wrong type.
    """

    effect: Annotated[Effect | None, Field(description="'read', 'idempotent', 'write' or 'irreversible'")] = None
    compensate: Annotated[Function | Name | None, Field(description="a function, or the name of a tool")] = None
    approve: Annotated[
        bool | Function | Name | tuple[Function | Name | bool, ...] | None,
        Field(description="True, False, a CEL expression over the arguments, or a function of them"),
    ] = None
    approval: Annotated[Approval | None, BeforeValidator(_as_approval), Field(description="an Approval")] = None
    key: Annotated[Function | Name | None, _FROM_ARGUMENTS] = None
    repeat: Annotated[Repeat | None, Field(description="'dedupe', 'ask' or 'new'")] = None
    retry: Annotated[Retry | None, BeforeValidator(_as_retry), Field(description=_RETRY)] = None
    timeout: Seconds | None = None
    error_means: Annotated[
        Outcome | Callable[[BaseException], Outcome] | None,
        Field(description="'failed', 'unknown', or a function of the exception that gives one of them"),
    ] = None
    not_applied: Types = ()
    probe: Annotated[Function | None, Field(description="a function")] = None
    settle: Settle | None = None
    downstream_dedupes_for: Seconds | None = None
    marks_sending: Flag = False
    defer: Flag = False
    lock: Annotated[Function | Name | None, _FROM_ARGUMENTS] = None
    lock_wait: Settle | None = None
    cost: Annotated[str | Function | None, Field(description="an amount such as '0.05 USD', or a function")] = None
    rate: Annotated[Rate | None, BeforeValidator(_as_rate)] = None
    max_calls: Annotated[int | None, Field(ge=1, description="a whole number from 1 on")] = None
    loop: Annotated[
        Annotated[int, Field(ge=1)] | Literal[False] | None,
        BeforeValidator(_as_loop),
        Field(description="a whole number from 1 on, or False for any number of calls"),
    ] = None
    critical: Flag | None = None
    empty_safe: Flag = False
    expect: Annotated[Function | None, Field(description="a function")] = None
    pivot: Flag = False
    redact: Annotated[
        tuple[str, ...], BeforeValidator(_as_tuple), Field(description="names or dotted paths of fields, in a list")
    ] = ()

    def model_post_init(self, _: Any, /) -> None:
        """Refuse an expression that no tool could have."""
        for field, declared in (("approve", gates_of(self.approve)), ("key", (self.key,)), ("lock", (self.lock,))):
            for expression in declared:
                if isinstance(expression, str):
                    check_syntax(expression, f"Policy field {field!r}")

    @functools.cached_property
    def sources(self) -> Sources:
        """What this policy was combined of, weakest first; empty for one that was declared as it is."""
        return ()

    @classmethod
    def combined(cls, sources: Sources) -> Policy:
        """The policy of several sources, each over those before it; it remembers them."""
        policy = cls()
        for _, source in sources:
            policy = source.over(policy)
        policy = super(cls, policy).replace()  # an object of its own: it may be one of the sources
        policy.__dict__["sources"] = tuple(sources)
        return policy

    def replace(self, **fields: Any) -> Policy:
        """A copy with ``fields`` changed, validated like a new one."""
        changed = super().replace(**fields)
        if self.sources:
            changed.__dict__["sources"] = (*self.sources, ("wrap", Policy(**fields)))
        return changed

    def over(self, base: Policy) -> Policy:
        """This policy's decided fields over those of ``base``; what either redacts is redacted."""
        if not self.model_fields_set:
            return base
        both = {**base._decided(), **self._decided()}
        if base.approve is not None and self.approve is not None:
            both["approve"] = gates_of(base.approve, self.approve) or False
        if base.approval is not None and self.approval is not None:
            both["approval"] = self.approval.with_(base.approval)
        if base.redact and self.redact:
            both["redact"] = tuple(dict.fromkeys((*base.redact, *self.redact)))
        elif base.redact:  # nobody takes back what another source redacts
            both["redact"] = base.redact
        return Policy(**both)

    @property
    def adding(self) -> Policy:
        """Of this policy what counts beside every other: what it asks and what it redacts."""
        return Policy(**{field: value for field, value in self._decided().items() if field in ADDING})

    @property
    def declared_write(self) -> bool:
        """Whether this is a write by declaration: by effect, undo, business key, or as deferred or a pivot."""
        if self.effect in ("write", "irreversible") or self.pivot:
            return True
        return self.effect is None and (self.compensate is not None or self.key is not None or self.defer)

    @property
    def rerunnable(self) -> bool:
        """Whether running it again is harmless whatever happened before: reads and idempotent tools."""
        return self.effect in ("read", "idempotent")

    def may_resend(self, first_us: int, now_us: int) -> bool:
        """Whether the service still does a key only once that it may have first seen at ``first_us``.

        The last tenth of the time, or ``timeout`` if that is longer, is left for the request to arrive.
        """
        if self.downstream_dedupes_for is None:
            return False
        margin = max(self.downstream_dedupes_for / 10, self.timeout or 0.0)
        return 0 <= now_us - first_us < (self.downstream_dedupes_for - margin) * 1e6

    @property
    def repeat_rule(self) -> Repeat:
        """``repeat``, or its default: ``ask`` for irreversible tools, ``dedupe`` for writes, ``new`` for the rest."""
        if self.repeat is not None:
            return self.repeat
        if self.effect == "irreversible":
            return "ask"
        return "dedupe" if self.declared_write else "new"


def gates_of(*sources: Any) -> tuple[Any, ...]:
    """What asks of each source, each once: nothing that says False is among it."""
    found = [gate for source in sources for gate in (source if isinstance(source, tuple) else (source,))]
    return tuple(dict.fromkeys(gate for gate in found if gate is not None and gate is not False))


Sources: TypeAlias = tuple[tuple[str, Policy], ...]
"""Who says what of one tool, weakest first: ``decorator``, ``guard``, ``wrap``, ``file``."""

ADDING: Final = ("approve", "approval", "redact")
"""The fields in which every source counts, not only the strongest."""

Policies = Mapping[str, Policy | Mapping[str, Any]]
"""Name or glob of a tool, and its policy (a ``Policy`` or its fields)."""


class PolicyBook:
    """Policies of one source by name or glob; an exact name wins over globs, of which the first match wins.

    But what any of them asks or redacts counts: none takes that back.
    """

    def __init__(self, policies: Policies | None, *, source: str) -> None:
        self.source = source
        if policies is not None:
            check_mapping(source, policies, "{'pay': Policy(effect='write')}")
        for name in policies or ():
            if not str(name).strip() or not isinstance(name, str):
                raise ConfigurationError(f"{source} names a tool {name!r}; write its name, or a glob such as 'pay_*'")
        self._by_name = {name: _as_policy(name, policy, source) for name, policy in (policies or {}).items()}

    def for_tool(self, *names: str) -> Policy:
        """The policy of the tool of these ``names``, undecided in every field if this source does not name it.

        Of two entries with names of one tool, the one with its canonical name wins.
        """
        exact = [self._by_name[name] for name in dict.fromkeys(names) if name in self._by_name]
        found = list(exact)
        for pattern, policy in self._by_name.items():
            if pattern not in names and matches(pattern, names):
                found.append(policy if not found else policy.adding)
        return functools.reduce(lambda stronger, weaker: stronger.over(weaker), found) if found else _UNDECIDED

    def names_one(self, names: Collection[str]) -> bool:
        """Return whether an entry that is no glob is for the tool of these ``names``."""
        return any(name in self._by_name for name in names)

    def unfit(self, tools: Collection[str]) -> Iterator[tuple[str, str]]:
        """Each name or glob that fits none of ``tools``, with a sentence that has the nearest of them."""
        for name in self._by_name:
            if name != "*" and not matches(name, tools):
                sentence = f"{self.source} has a policy for {name!r}, but this guard has no such tool"
                yield name, f"{sentence}; {nearest(name, tools)}"

    def check_names(self, tools: Collection[str], *, where: str) -> None:
        """Refuse a name or glob that fits none of ``tools``; raises ``ConfigurationError`` with the nearest names."""
        for name, _ in self.unfit(tools):
            raise ConfigurationError(
                f"{self.source} names the tool {name!r}, which {where} does not have; {nearest(name, tools)}"
            )

    def check_misspelt(self, tools: Collection[str], *, where: str, remedy: str) -> list[str]:
        """Refuse a name or glob that fits none of ``tools`` and nearly is one; return the others that fit none.

        Raises ``ConfigurationError`` with the nearest names and the ``remedy``.
        """
        others = [name for name, _ in self.unfit(tools)]
        for name in others:
            # A tool that has an entry of its own is not what another entry was meant for: pay_1, pay_2.
            if near := misspelt(name, [tool for tool in tools if tool not in self._by_name]):
                raise ConfigurationError(
                    f"{self.source} names the tool {name!r}, which {where} does not have; did you mean "
                    f"{', '.join(near)}? {remedy}"
                )
        return others


_UNDECIDED = Policy()


def read_policy_file(path: Path) -> dict[str, Any]:
    """Return the tables of the TOML file at ``path``; raise ``ConfigurationError`` if it cannot be read.

    The time and the memory that this takes are bounded, whatever is at ``path``.
    """
    text = read_policy_text(path)
    if (deep := _DEEP_KEY.search(text)) is not None:
        line = text.count("\n", 0, deep.start()) + 1
        raise ConfigurationError(
            f"the policy file {path} is nested too deep: a key in line {line} has {_MOST_PARTS} parts or more; "
            "its tables are three deep at most"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the policy file {path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(
            f"the policy file {path} is nested too deep; its tables are three deep at most"
        ) from error


def read_policy_text(path: Path) -> str:
    """Return the text of the policy file at ``path``; raise ``ConfigurationError`` if it cannot be read.

    A pipe is refused at once: to read it would wait for a writer.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(_MOST_BYTES + 1) if is_file else b""
    except OSError as error:
        raise ConfigurationError(
            f"the policy file {path} cannot be read ({error.strerror}); check the path, or pass a dict of policies"
        ) from error
    if not is_file:
        raise ConfigurationError(f"the policy file {path} is a pipe, a device or a folder; name a regular file")
    if len(content) > _MOST_BYTES:
        raise ConfigurationError(
            f"the policy file {path} has more than {_MOST_BYTES:,} bytes; take out what is not used"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the policy file {path} is not valid TOML: {error}") from error


def _as_policy(name: str, policy: Policy | Mapping[str, Any], source: str) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, Mapping):
        raise ConfigurationError(f"{source}: the policy of {name!r} is {described(policy)}, not a Policy")
    try:
        return Policy(**policy)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}, tool {name!r}: {error}") from error
