"""The span of a run: what it says when it is entered and left, and of one that goes on without its block.

A run that is recovered after a crash, or undone on request, is a new span, linked to the one of its block.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from sagaspan import _metrics as metrics
from sagaspan import _spans as spans
from sagaspan import semconv
from sagaspan._backends import Backend
from sagaspan._clock import now_us
from sagaspan.exceptions import StoreError
from sagaspan.ledger.records import RunRecord, names_of

if TYPE_CHECKING:
    from sagaspan._engine import Engine

T = TypeVar("T")


def opening(record: RunRecord) -> dict[str, str]:
    """Return what the span has from the start; the run of an agent is its ``invoke_agent``."""
    attributes = {
        semconv.RUN_ID: record.id,
        semconv.RUN_NAME: record.name,
        semconv.OPENINFERENCE_SPAN_KIND: semconv.KIND_AGENT if record.agent else semconv.KIND_CHAIN,
    }
    if record.agent:
        attributes[semconv.GEN_AI_OPERATION_NAME] = semconv.OPERATION_INVOKE_AGENT
    optional = (
        (semconv.RUN_PARENT_ID, record.parent_id),
        (semconv.GEN_AI_CONVERSATION_ID, record.conversation),
        (semconv.GEN_AI_AGENT_NAME, record.agent),
        (semconv.USER_ID, spans.user_of(record.user)),
    )
    attributes.update({name: value for name, value in optional if value})
    return attributes


def close(span: Span, record: RunRecord, error: BaseException | None, *, resumed: bool, since_us: int | None) -> None:
    """End it as the run is now; ``since_us`` is when it was entered (None: it was only answered once more)."""
    attributes: dict[str, AttributeValue] = {semconv.RUN_STATE: str(record.state), semconv.RUN_RESUMED: resumed}
    if record.orphans is not None:
        attributes[semconv.RUN_ORPHANS] = len(names_of(record.orphans))
    if record.reason is not None:
        attributes[semconv.RUN_REASON] = record.reason
    spans.end(span, attributes, error)
    if since_us is not None:
        metrics.run_ended(record.name, str(record.state), record.reason, (now_us() - since_us) / 1e6, span)


async def going_on(engine: Engine, run: RunRecord, by: str, backend: Backend, act: Awaitable[T]) -> T:
    """Await ``act``, which goes on with ``run`` (that this process has now), in a span; ``by``: what wanted that."""
    since, error = now_us(), None
    span = spans.start(
        engine.tracer, semconv.SPAN_RUN.format(run=run.name), {**opening(run), semconv.RUN_ENTERED_BY: by},
        links=spans.link_to(run.traceparent, semconv.LINK_RESUMES),
    )  # fmt: skip
    try:
        with spans.current(span):
            return await act
    except BaseException as raised:
        error = raised
        raise
    finally:
        close(span, await _as_it_is(engine, run, backend), error, resumed=True, since_us=since)


async def _as_it_is(engine: Engine, run: RunRecord, backend: Backend) -> RunRecord:
    try:
        return await backend.io(engine.store.get_run, run.namespace, run.id) or run
    except StoreError:
        return run
