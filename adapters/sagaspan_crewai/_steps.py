"""The tasks and agents of a kickoff: when one begins anew."""

from __future__ import annotations

from typing import Any

from sagaspan_crewai._session import Session


def on_event(session: Session, source: Any, event: Any) -> None:  # noqa: ARG001 - one signature for all that listens
    """Note where a task begins; CrewAI begins it again after an error of a model, and for a guardrail."""
    if event.type == "agent_execution_started" and event.task is not None:
        session.starts(str(event.task.id))
