"""The crew, tasks and agents of a kickoff: their spans, and when one begins anew.

CrewAI tells of them in the context they run in, so a span that begins there is the current one of all that follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from sagaspan import semconv
from sagaspan.adapters import end_span, start_span
from sagaspan_crewai._session import Session, Step

_BEGIN: Final = {"task_started": "task", "agent_execution_started": "agent"}
_END: Final = {
    "task_completed": "task",
    "task_failed": "task",
    "agent_execution_completed": "agent",
    "agent_execution_error": "agent",
}


def on_event(session: Session, event: Any) -> None:
    """Begin or end a task, or an agent's work on one; CrewAI begins it again after an error, and for a guardrail."""
    if event.type == "lite_agent_execution_started":
        session.attempts.pop(str(event.agent_info["id"]), None)  # an agent alone begins; it owes nothing to last time
    elif event.type == "llm_guardrail_completed" and not event.success and event.agent_id and not event.task_id:
        session.starts(event.agent_id)  # sent back to work once more, without a word of its beginning
    kind = _BEGIN.get(event.type)
    if kind is not None and event.task is not None:
        task = str(event.task.id)
        if kind == "agent":
            session.starts(task)
        _begin(session, (kind, task), _opening(kind, event))
        return
    kind = _END.get(event.type)
    if kind is not None and getattr(event, "task", None) is not None:
        error = None if event.type.endswith("completed") else RuntimeError(str(getattr(event, "error", "")))
        _end(session, (kind, str(event.task.id)), error)


def _opening(kind: str, event: Any) -> dict[str, str]:
    if kind == "task":
        # Its description may hold what the user gave in: that is content.
        return {semconv.TASK_NAME: str(event.task.name or "task"), semconv.OPENINFERENCE_SPAN_KIND: "CHAIN"}
    return {
        semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
        semconv.GEN_AI_AGENT_NAME: str(event.agent.role),
        semconv.OPENINFERENCE_SPAN_KIND: "AGENT",
    }


def _begin(session: Session, key: tuple[str, str], attributes: dict[str, str]) -> None:
    _end(session, key, None)  # begun again without a word of its end
    named = attributes.get(semconv.GEN_AI_AGENT_NAME)
    name = (
        semconv.SPAN_AGENT.format(agent=named)
        if named
        else semconv.SPAN_TASK.format(task=attributes[semconv.TASK_NAME])
    )
    around = trace.get_current_span()
    span = start_span(session.guard.tracer, name, {**attributes, semconv.RUN_ID: session.run.id})
    session.steps[key] = Step(span, around)
    otel_context.attach(trace.set_span_in_context(span))


def _end(session: Session, key: tuple[str, str], error: BaseException | None) -> None:
    step = session.steps.pop(key, None)
    if step is not None:
        end_span(step.span, {}, error)
        otel_context.attach(trace.set_span_in_context(step.around))


@contextlib.contextmanager
def kickoff(session: Session, kind: str, name: str) -> Iterator[None]:
    """The span of the whole kickoff; what its tasks left open ends with it."""
    if kind == "agent":
        title, operation = semconv.SPAN_AGENT.format(agent=name), semconv.OPERATION_INVOKE_AGENT
    else:
        title, operation = semconv.SPAN_WORKFLOW.format(workflow=name), semconv.OPERATION_INVOKE_WORKFLOW
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: operation,
        semconv.RUN_ID: session.run.id,
        semconv.OPENINFERENCE_SPAN_KIND: "AGENT" if kind == "agent" else "CHAIN",
    }
    span = start_span(session.guard.tracer, title, attributes)
    token = otel_context.attach(trace.set_span_in_context(span))
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = session.shown(error)
        raise
    finally:
        while session.steps:
            _, step = session.steps.popitem()
            end_span(step.span, {}, failure)
        otel_context.detach(token)
        end_span(span, {}, failure or session.stopped)
