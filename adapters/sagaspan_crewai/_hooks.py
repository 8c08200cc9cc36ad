"""What CrewAI tells while a guarded kickoff goes on, and where it is stopped.

CrewAI swallows an error of a hook and goes on, so each of these fails closed: what cannot be handled ends the kickoff.
"""

from __future__ import annotations

from typing import Any

from sagaspan_crewai import _compat
from sagaspan_crewai import _models as models
from sagaspan_crewai import _steps as steps
from sagaspan_crewai._bodies import install_late
from sagaspan_crewai._session import Decision, Session, decision_in_force, session_in_force


def before_tool(hook: Any) -> bool | None:
    """A model decided to call a tool: guard its body, if nobody did yet; False blocks the call."""
    session = session_in_force.get()
    if session is None:
        return None
    if session.is_stopping and not session.waits:  # while it waits, a call of the same turn may ask as well
        return False
    try:
        structured = hook.tool
        tool = None if structured is None else structured._original_tool or structured  # noqa: SLF001 - see _bodies
        decision_in_force.set(Decision(tool=tool, agent=_role(hook.agent), work=_work(hook)))
        if tool is not None:
            session.tools.meet(_compat.tools_beside(hook))
            install_late(tool, structured)
    except Exception as error:  # noqa: BLE001 - a tool that cannot be guarded does not run
        session.stop(error)
        return False
    return None


def after_tool(hook: Any) -> str | None:  # noqa: ARG001 - CrewAI's signature
    """The call is over; raises what ended the kickoff meanwhile."""
    session = session_in_force.get()
    if session is not None:
        decision_in_force.set(None)
        session.check()
    return None


def before_model(hook: Any) -> None:  # noqa: ARG001 - CrewAI's signature
    """A model is asked next: not any more in a kickoff that stops."""
    session = session_in_force.get()
    if session is not None:
        session.check()


def on_event(source: Any, event: Any) -> None:
    """Something happened: in the thread, and under the context, of whom it happened to."""
    session = session_in_force.get()
    if session is not None:
        session.or_stop(lambda: _listen(session, source, event))


def _listen(session: Session, source: Any, event: Any) -> None:
    steps.on_event(session, event)
    models.on_event(session, source, event)
    if event.type == "lite_agent_execution_completed":  # its memory asks models yet, which a run that is over refuses
        _compat.wait_for_saves(source)


def _role(agent: Any) -> str | None:
    return getattr(agent, "role", None)


def _work(hook: Any) -> str | None:
    """What a call is made for, and may be made again for: a task, or what an agent alone was asked."""
    at_work = hook.task or hook.agent
    return None if at_work is None else str(at_work.id)
