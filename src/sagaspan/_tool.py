"""A tool: a function with its policy, checked when it is declared."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from sagaspan._checks import check_name, signature_of
from sagaspan._compensation import Compensation, compensation_of, is_async_callable, name_of
from sagaspan._cost import Cost, cost_of
from sagaspan._gates import Gate, gates_for
from sagaspan._probe import Probe, probe_of
from sagaspan._sameness import MadeWith, same_callable
from sagaspan.exceptions import ApprovalPending, ConfigurationError
from sagaspan.expressions import Expression
from sagaspan.policy import Policy, PolicyBook
from sagaspan.redaction import RESULT, Redaction, redaction_of

INJECTED = frozenset({"idempotency_key"})
"""Parameters a tool may declare that the guard fills if the caller does not; they are no part of the arguments."""

_RECEIVERS = ("self", "cls")
_PLAIN = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}

MARK = "__sagaspan_tool__"
"""The attribute by which a guarded function names its tool."""


class Reads(Protocol):
    """How a tool reads arguments that a model gives it; raises what it refuses them with."""

    def __call__(self, arguments: Mapping[str, Any], /, *, whole: bool) -> Mapping[str, Any]:
        """``arguments`` as its body gets them; not ``whole``: some of them, each by itself."""


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Tool:
    """What is called: ``name``, ``function`` (unguarded), ``policy``, and the names of its ``parameters``.

    ``context`` are parameters that reach the body but are no part of the call's identity (``self``, injected ones).
    ``plain``: every parameter can be passed by keyword; ``positional``: or by its place. ``receiver`` is the parameter
    that gets the object of a method (``self``), None of a function.
    ``compensation`` is None while the policy's ``compensate`` is a name that is not looked up yet. ``suspends`` are the
    framework's control-flow exceptions: a body they leave has not failed, it will be asked again; ``pauses`` are those
    of them that are nobody's error. ``send`` runs the body of a deferred call with what was recorded of its arguments
    (None: as the function is called). ``reads`` is the schema by which the arguments of an edit are read (None: they
    are taken as they are). ``made_with`` tells the object that ``function`` is a method of from others, where a
    framework's class is the tool (None: it is not). ``known_as`` are all its names, ``name`` first, and ``title`` is
    what people are shown instead of ``name`` (empty: ``name`` itself).
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    policy: Policy
    parameters: tuple[str, ...]
    context: frozenset[str]
    signature: inspect.Signature
    module: str
    description: str
    compensation: Compensation | None
    key_expression: Expression | None
    lock_expression: Expression | None = None
    probe: Probe | None = None
    cost: Cost | None = None
    gates: tuple[Gate, ...] = ()
    suspends: tuple[type[BaseException], ...] = ()
    pauses: tuple[type[BaseException], ...] = ()
    send: Callable[[Mapping[str, Any]], Any] | None = None
    reads: Reads | None = None
    redaction: Redaction | None = None
    made_with: MadeWith | None = None
    known_as: tuple[str, ...] = ()
    title: str = ""
    plain: bool = dataclasses.field(init=False)
    positional: bool = dataclasses.field(init=False)
    names: frozenset[str] = dataclasses.field(init=False)
    receiver: str | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """What every call asks of the signature is asked of it once."""
        kinds = {parameter.kind for parameter in self.signature.parameters.values()}
        object.__setattr__(self, "known_as", self.known_as or (self.name,))
        object.__setattr__(self, "plain", kinds <= _PLAIN)
        object.__setattr__(self, "names", frozenset(self.parameters))
        object.__setattr__(self, "receiver", _receiver(self.signature))
        object.__setattr__(self, "positional", kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD})

    def is_same(self, other: Tool) -> bool:
        """Whether both do the same: equal calls of them are one."""
        if self is other:
            return True
        one, another = self.made_with, other.made_with
        is_same_object = one is another if one is None or another is None else one.is_same(another)
        return is_same_object and same_callable(self.function, other.function)

    def only_waits(self, error: BaseException | None) -> bool:
        """Whether ``error`` says that a body will be asked again, and nothing went wrong."""
        return isinstance(error, (ApprovalPending, *self.pauses))

    def reads_redacted(self, field: str) -> bool:
        """Whether ``key`` or ``lock`` reads an argument with redacted fields: then only a hash of it is recorded."""
        if self.redaction is None:
            return False
        value, expression = getattr(self.policy, field), getattr(self, f"{field}_expression")
        return bool(_read_by(value, expression) & (self.redaction.partly | self.redaction.whole))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments by name with defaults, apart from the context ones; raises ``TypeError`` as the function would."""
        # All are given, in one of the two ways that nearly all calls are: no need to ask the signature.
        if not self.context and len(args) + len(kwargs) == len(self.parameters):
            if not kwargs and self.positional:
                return dict(zip(self.parameters, args, strict=True)), {}
            if not args and self.plain and kwargs.keys() == self.names:
                return {name: kwargs[name] for name in self.parameters}, {}
        bound = self.signature.bind(*args, **self._injected(args, kwargs), **kwargs)
        bound.apply_defaults()
        arguments: dict[str, Any] = {}
        context: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            (context if name in self.context else arguments)[name] = value
        return arguments, context

    def _injected(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, None]:
        """Stand-ins for the parameters the guard fills, so that those the caller forgot are still noticed."""
        names = self.context & INJECTED
        if not names:
            return {}
        given = self.signature.bind_partial(*args, **kwargs).arguments
        return {name: None for name in names if name not in given}

    def locks_of(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the locks that a call with ``arguments`` takes; raises ``ConfigurationError``."""
        try:
            if self.lock_expression is not None:
                value = self.lock_expression.evaluate(arguments)
            else:
                function: Any = self.policy.lock
                value = function(**{name: arguments[name] for name in inspect.signature(function).parameters})
        except Exception as error:
            raise ConfigurationError(
                f"tool {self.name!r} did not run: its lock failed: {type(error).__name__}: {error}"
            ) from error
        if not value or not isinstance(value, str | list | tuple | set | frozenset):
            raise ConfigurationError(
                f"tool {self.name!r} did not run: its lock came out as {value!r}; it must be a name, or a list of names"
            )
        return (value,) if isinstance(value, str) else tuple(value)

    def invoke(self, arguments: Mapping[str, Any]) -> Any:
        """Call the unguarded function with bound arguments (an awaitable if it is async)."""
        if self.plain:
            return self.function(**arguments)
        bound = inspect.BoundArguments(self.signature, arguments)  # type: ignore[arg-type] # any mapping does
        return self.function(*bound.args, **bound.kwargs)


def tool_of(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    title: str = "",
    policy: Policy,
    signature: inspect.Signature | None = None,
    is_async: bool | None = None,
    context: frozenset[str] = frozenset(),
    description: str | None = None,
    suspends: tuple[type[BaseException], ...] = (),
    pauses: tuple[type[BaseException], ...] = (),
    send: Callable[[Mapping[str, Any]], Any] | None = None,
    reads: Reads | None = None,
    made_with: MadeWith | None = None,
) -> Tool:
    """``function`` as a tool under ``policy``; raises ``ConfigurationError`` for anything declared wrongly."""
    name = name_of(function) if name is None else name
    check_name("name", name)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"tool {name!r} is a generator: its effect would come after its claim was settled; return a list instead"
        )
    signature = signature or signature_of(function, f"tool {name!r}")
    parameters, context = _split(signature, context)
    _check_policy(name, policy, function)
    if policy.defer and (hidden := sorted(context - INJECTED)):
        raise ConfigurationError(
            f"tool {name!r} has defer=True, so it is sent from its record, perhaps by another process, where nobody "
            f"fills {hidden[0]!r}; let it take plain arguments only"
        )
    where = f"tool {name!r}"
    redaction = redaction_of(policy.redact, parameters, where=where)
    tool = Tool(
        name=name,
        function=function,
        is_async=is_async_callable(function) if is_async is None else is_async,
        policy=policy,
        parameters=parameters,
        context=context,
        signature=signature,
        module=getattr(function, "__module__", None) or "",
        description=description or inspect.getdoc(function) or "",
        compensation=_compensation(policy, parameters, where),
        key_expression=_expression(policy.key, "key", (*parameters, *_told_to_key(policy, signature)), where),
        lock_expression=_expression(policy.lock, "lock", parameters, where),
        probe=_probe(policy, parameters, where),
        cost=cost_of(policy.cost, parameters, where=where),
        gates=gates_for(policy, parameters, where),
        suspends=suspends,
        pauses=pauses,
        send=send,
        reads=reads,
        redaction=redaction,
        made_with=made_with,
        known_as=tuple(dict.fromkeys((name, *aliases))),
        title=title,
    )
    if redaction is not None:
        _check_redaction(tool, redaction, where)
    return tool


def redefined(tool: Tool, file: PolicyBook) -> Tool:
    """``tool`` under the policies of another ``file``; itself if they say the same. Raises ``ConfigurationError``."""
    said = file.for_tool(*tool.known_as)
    sources = tuple(
        (source, said if source == "file" else policy)
        for source, policy in tool.policy.sources or (("decorator", tool.policy),)
    )
    if not any(source == "file" for source, _ in sources):
        sources = (*sources, ("file", said))
    policy = Policy.combined(tuple((source, one) for source, one in sources if one.model_fields_set))
    if policy == tool.policy:
        return tool
    return tool_of(
        tool.function, name=tool.name, aliases=tool.known_as[1:], title=tool.title, policy=policy,
        signature=tool.signature, is_async=tool.is_async,
        context=tool.context, description=tool.description, suspends=tool.suspends, pauses=tool.pauses,
        send=tool.send, reads=tool.reads,
    )  # fmt: skip


def _told_to_key(policy: Policy, signature: inspect.Signature) -> tuple[str, ...]:
    """What a key can ask for beside the arguments: a function is given the object of a method."""
    receiver = _receiver(signature)
    return (receiver,) if receiver and not isinstance(policy.key, str) else ()


def tool_behind(function: Any) -> Tool | None:
    """The tool of a guarded function, or None."""
    tool = getattr(function, MARK, None)
    return tool if isinstance(tool, Tool) else None


def _split(signature: inspect.Signature, context: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    names = list(signature.parameters)
    receiver = _receiver(signature)
    hidden = context | (INJECTED & set(names)) | ({receiver} if receiver else set())
    return tuple(name for name in names if name not in hidden), frozenset(hidden)


def _receiver(signature: inspect.Signature) -> str | None:
    first = next(iter(signature.parameters), None)
    return first if first in _RECEIVERS else None


def _check_policy(name: str, policy: Policy, function: Callable[..., Any]) -> None:
    if policy.compensate is not None and (policy.compensate == name or policy.compensate is function):
        raise ConfigurationError(
            f"tool {name!r} is to compensate itself, which would do it once more; name the function that undoes it"
        )
    if policy.effect == "irreversible" and policy.approve is None and not (policy.defer or policy.pivot):
        raise ConfigurationError(
            f"tool {name!r} is irreversible: nothing can undo it, so it says approve=True to have somebody asked, "
            "defer=True to wait for the end of its run, pivot=True if its run only goes forward after it, or "
            "approve=False itself if nobody need be asked"
        )
    if policy.pivot and (why := _no_pivot(policy)) is not None:
        raise ConfigurationError(f"tool {name!r} has pivot=True and {why}")
    if policy.defer and policy.effect == "read":
        raise ConfigurationError(f"tool {name!r} has effect='read' and defer=True: a read is for now, or it is no read")
    if policy.effect in ("read", "irreversible") and policy.compensate is not None:
        raise ConfigurationError(f"tool {name!r} has effect={policy.effect!r} and compensate=: one of them is wrong")
    if policy.empty_safe and policy.compensate is None:
        raise ConfigurationError(f"tool {name!r} has empty_safe=True but no compensate= that it could be said of")
    if policy.expect is not None and policy.compensate is None:
        raise ConfigurationError(f"tool {name!r} has expect= but no compensate= before which it could be asked")
    if policy.lock_wait is not None and policy.lock is None:
        raise ConfigurationError(f"tool {name!r} has lock_wait= but no lock= to wait for; say which lock it takes")


def _no_pivot(policy: Policy) -> str | None:
    """Why a tool cannot be the point of no return."""
    if policy.compensate is not None:
        return "compensate=: what can be undone is no point of no return; run.commit() draws a line after it"
    if policy.effect == "read":
        return "effect='read': what changes nothing is no point of no return"
    if policy.defer:
        return "defer=True: what is sent when its run has ended well needs no pivot, nothing is undone after it"
    return None


def _compensation(policy: Policy, parameters: tuple[str, ...], where: str) -> Compensation | None:
    if policy.compensate is None or isinstance(policy.compensate, str):
        return None
    behind = tool_behind(policy.compensate)
    function = behind.function if behind else policy.compensate
    return compensation_of(
        function, parameters, where=where, name=behind.name if behind else None, empty_safe=policy.empty_safe,
        expect=expectation(policy), timeout=behind.policy.timeout if behind else None,
    )  # fmt: skip


def expectation(policy: Policy) -> Callable[..., Any] | None:
    """The function that is asked before a call is undone."""
    behind = tool_behind(policy.expect)
    return behind.function if behind else policy.expect


def check_handlers(redaction: Redaction, compensation: Compensation | None, probe: Probe | None, where: str) -> None:
    """Refuse functions that are told later of a call and need what is not recorded of it."""
    handlers = [("compensation", compensation), ("expectation", compensation and compensation.expect), ("probe", probe)]
    for what, handler in handlers:
        if handler is None:
            continue
        lacking = redaction.whole | ({"compensation_data"} if _no_compensation_data(redaction) else frozenset())
        if needed := sorted(handler.declared & lacking):
            raise ConfigurationError(
                f"{where}: its {what} {handler.name!r} needs {needed[0]!r}, which is redacted and so never recorded; "
                "let it do without, by an id that the tool returns, or do not redact that"
            )
        if handler.takes_all and (hidden := sorted(lacking - {RESULT, "compensation_data"})):
            raise ConfigurationError(
                f"{where}: its {what} {handler.name!r} takes all arguments (**kwargs), but {hidden[0]!r} is redacted; "
                "name those that it needs"
            )


def _no_compensation_data(redaction: Redaction) -> bool:
    return (RESULT,) in redaction.paths or (RESULT, "compensation_data") in redaction.paths


def _check_redaction(tool: Tool, redaction: Redaction, where: str) -> None:
    """Refuse what needs a redacted field after the call, and names that are made of one."""
    check_handlers(redaction, tool.compensation, tool.probe, where)
    for field, expression in (("key", tool.key_expression), ("lock", tool.lock_expression)):
        value = getattr(tool.policy, field)
        needed = sorted(_read_by(value, expression) & redaction.whole)
        if expression is not None and not needed:
            needed = [".".join(path) for path in redaction.paths if expression.names_field(path)]
        if needed:
            raise ConfigurationError(
                f"{where}: its {field} needs {needed[0]!r}, which is redacted: a {field} is recorded; make it of other "
                "arguments"
            )
    if tool.policy.defer and (hidden := [path for path in redaction.paths if path[0] != RESULT]):
        raise ConfigurationError(
            f"{where}: it has defer=True, so it is sent from its record, but {'.'.join(hidden[0])!r} is redacted and "
            "never recorded"
        )


def _read_by(value: str | Callable[..., Any] | None, expression: Expression | None) -> frozenset[str]:
    """The arguments that a ``key`` or ``lock`` reads."""
    if expression is not None:
        return expression.variables
    return frozenset() if value is None else frozenset(inspect.signature(value).parameters)  # type: ignore[arg-type] # no text


def _probe(policy: Policy, parameters: tuple[str, ...], where: str) -> Probe | None:
    if policy.probe is None:
        return None
    behind = tool_behind(policy.probe)
    function = behind.function if behind else policy.probe
    return probe_of(function, parameters, where=where, timeout=policy.timeout, settle=policy.settle or 0.0)


def _expression(
    value: str | Callable[..., Any] | None, field: str, parameters: tuple[str, ...], where: str
) -> Expression | None:
    """The compiled expression of ``field``; None if it is a function, which is checked too, or nothing."""
    if value is None:
        return None
    if isinstance(value, str):
        expression = Expression(value, where=f"{where}, {field}")
        expression.check(parameters)
        return expression
    if is_async_callable(value):
        raise ConfigurationError(f"{where}: its {field} function is async, but it is called without a loop; use def")
    unknown = [name for name in signature_of(value, f"{where}: its {field}").parameters if name not in parameters]
    if unknown:
        raise ConfigurationError(
            f"{where}: nothing can fill the parameter {unknown[0]!r} of its {field} function; "
            f"it can take {', '.join(parameters) or 'nothing'}"
        )
    return None
