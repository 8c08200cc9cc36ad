"""The making of a call: its arguments as they are recorded, its key, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import INVALID_SPAN, Span

from sagaspan import codecs
from sagaspan._backends import Backend
from sagaspan._call import Call
from sagaspan._call_keys import former_keys, key_of
from sagaspan._clock import new_id, now_us
from sagaspan._context import current_call, task_here
from sagaspan._repeats import Asking
from sagaspan._spelling import check_comes_back, plain_data
from sagaspan._tool import Tool
from sagaspan.keys import CallKey, KeySource, fingerprint, idempotency_key, run_scope
from sagaspan.scopes import scope_of_run

if TYPE_CHECKING:
    from sagaspan._engine import Engine
    from sagaspan._run import Run

Equal = tuple[tuple[str, str, str | None], int]
"""Which of the equal calls of a run one is."""
Invoke = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a framework's call comes from, for its span and record; ``asked`` notes which call of its run it was.

    ``is_same``: run again by its framework it is the same call whatever became of it (see ``sagaspan._repeats``).
    ``branch``: which of those that run side by side, where equal calls of several are no loop. ``span``: the one that
    another instrumentation opened for this very call.
    """

    tool_call_id: str | None = None
    agent: str | None = None
    asked: list[Equal] | None = None
    branch: str | None = None
    is_same: bool = False
    span: Span = INVALID_SPAN


NOWHERE: Final = Origin()


def make_call(
    engine: Engine,
    tool: Tool,
    arguments: Mapping[str, Any],
    context: Mapping[str, Any],
    invoke: Invoke,
    backend: Backend,
    origin: Origin,
    run: Run | None,
) -> Call:
    """A call of ``tool`` in ``run``, or (None) the session; raises ``ConfigurationError`` or ``StoreUnavailable``."""
    record = engine.session.record_for(tool) if run is None else run.record
    secrets: tuple[str, ...] = ()
    try:
        plain = plain_data(tool, arguments) if tool.redaction is None else None
    except codecs.SecretFound:
        plain = None
    if plain is None:
        plain, secrets = engine.spelling.redacted(tool, arguments)
    encoded = codecs.dump(plain)
    if tool.policy.defer:
        check_comes_back(tool, arguments, encoded)
    parent = current_call.get()
    if parent is not None and parent.run.namespace != engine.namespace:
        parent = None
    sent_with = None if parent is None else parent.sent_with if parent.scheduled is None else parent.id
    told = arguments if tool.receiver is None else {**arguments, tool.receiver: context.get(tool.receiver)}
    asking = None
    if run is not None:
        asking = Asking.here(run.repeats, None if parent is None else parent.id, is_same=origin.is_same)
    key, occurrence = key_of(engine.spelling, tool, told, plain, record, run, sent_with, asking)
    if origin.asked is not None and key.source is KeySource.CONTENT:
        origin.asked.append(((tool.name, key.fingerprint, sent_with), occurrence))
    task = task_here.get() if key.source is KeySource.CONTENT else None
    resumed = run is not None and run.goes_on_from_before
    changes = tool.redaction is not None or engine.codec is not None  # equal calls had another key before
    return Call(
        id=new_id(now_us()),
        tool=tool,
        arguments=arguments,
        context=context,
        invoke=invoke,
        encoded=encoded,
        key=key,
        generation=0,
        idempotency_key=idempotency_key(engine.namespace, key.scope, tool.name, key.value, 0),
        run=record,
        under=_under(run, parent),
        purse=((scope_of_run(record.id), engine.budget),) if run is None else run.purse,
        signals=engine.signals if run is None else run.signals,
        resumed=resumed,
        replaying=run is not None and run.replaying,
        occurrence=occurrence,
        backend=backend,
        tool_call_id=origin.tool_call_id,
        agent=origin.agent,
        branch=origin.branch,
        task=None if task is None else task(),
        asked=None if asking is None else asking.asked,
        again=asking is not None and asking.again,
        span=origin.span,
        ancestors=() if parent is None else (*parent.ancestors, parent.id),
        sent_with=sent_with,
        secrets=secrets,
        policy=engine.in_force.version,
        former=former_keys(engine.spelling, tool, told, plain, key, resumed=resumed) if changes else (),
    )


def make_model_call(engine: Engine, tool: Tool, model: str, arguments: Mapping[str, Any], backend: Backend) -> Call:
    """A call of a model, which is never answered from the ledger; raises what ``run_in_force`` does."""
    engine.in_force.look()
    run = engine.run_in_force(backend, tool)
    over = run.record if run is not None and run.replaying else None
    if over is not None:  # what answers a completed run once more is no step of it
        run = None
    record = engine.session.record_for(tool) if run is None else run.record
    if over is not None:  # but it is asked, and paid, for the same people
        record = replace(record, user=over.user, tenant=over.tenant, agent=over.agent, conversation=over.conversation)
    scope, value, id_ = run_scope(record.id, record.generation), new_id(now_us()), new_id(now_us())
    parent = current_call.get()
    return Call(
        id=id_,
        tool=tool,
        arguments=arguments,
        invoke=tool.invoke,
        encoded=codecs.dump(arguments),
        key=CallKey(source=KeySource.UNIQUE, scope=scope, value=value, fingerprint=fingerprint([tool.name, value])),
        generation=0,
        idempotency_key=idempotency_key(engine.namespace, scope, tool.name, value, 0),
        run=record,
        purse=((scope_of_run(record.id), engine.budget),) if run is None else run.purse,
        backend=backend,
        model=model,
        policy=engine.in_force.version,
        ancestors=() if parent is None else (*parent.ancestors, parent.id),
    )


def _under(run: Run | None, parent: Call | None) -> str | None:
    """The run whose locks a call works under that ``parent`` makes in ``run``."""
    if run is not None:
        return run.id
    return None if parent is None else parent.under
