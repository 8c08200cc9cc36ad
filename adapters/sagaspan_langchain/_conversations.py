"""Which run of a conversation an invocation is: the next turn, or the one that its checkpoint was made in.

A run that is over takes nothing new, so whoever goes on from one of its checkpoints is told what to do instead.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot

from sagaspan import Guard, Run, RunClosed, RunConflict, RunInfo, RunState
from sagaspan_langchain._origins import Origin


def is_to_go_on(asked: Any) -> bool:
    """Whether an invocation with the input ``asked`` means to go on, rather than to begin."""
    return asked is None or (isinstance(asked, Command) and asked.resume is not None)


def may_go_on(asked: Any, config: RunnableConfig) -> bool:
    """Whether it may go on for LangGraph all the same, as the checkpoint will tell."""
    return isinstance(asked, Command) or _request_of(config) is not None


def begins_at(asked: Any, config: RunnableConfig, snapshot: StateSnapshot) -> bool:
    """Whether LangGraph begins at this checkpoint; else it does again what was under way there.

    That it does for every ``Command``, if only to change the state, and for input that is given again under the id of
    its request, as its server does after a crash.
    """
    if asked is None:
        return False
    if snapshot.created_at is None:
        return True
    if isinstance(asked, Command):
        return asked.resume is None and not snapshot.next
    return bool(_request_of(config) != _request_of({"metadata": dict(snapshot.metadata or {})}))


def _request_of(config: RunnableConfig) -> Any:
    return config.get("metadata", {}).get("run_id")


def next_turn(thread: str, turns: Sequence[RunInfo]) -> str:
    """The id of the run that new input opens."""
    number = int(turns[0].id.rpartition("/")[2]) if turns else 0
    return f"{thread}/{number + 1}"


def gone_on_with(guard: Guard, name: str, thread: str, turns: Sequence[RunInfo], origin: Origin) -> str:
    """The id of the run that goes on from a checkpoint; raises ``RunConflict`` if that is not one of this agent's."""
    if origin.run_id is not None:
        return _run_of(guard, name, turns, origin).id
    if origin.unknown is not None and turns:
        raise RunConflict(
            f"nobody can tell in which run of the conversation {thread!r} this checkpoint was made, so nothing ran: "
            f"{_WHY[origin.unknown]}; or give the agent new input, which is its next turn"
        )
    silent = _silent_of(name, turns, origin)
    return next_turn(thread, turns) if silent is None else silent.id


def _silent_of(name: str, turns: Sequence[RunInfo], origin: Origin) -> RunInfo | None:
    """The turn of a checkpoint that names none: one of a version that noted none, or one that has only asked so far."""
    silence = origin.silence
    if silence is None:
        return None
    mine = [turn for turn in turns if turn.name == name]
    around = next((turn for turn in mine if silence.is_of(turn)), None)
    return around or next((turn for turn in mine[:1] if silence.may_be_left_to(turn)), None)


_WHY = {
    "copied": "it was made by hand, and does not say of which other one. Go on from that one (get_state_history)",
    "unsaid": "its checkpointer does not keep the metadata of a config. Go on from the latest one (no checkpoint_id)",
}


def _run_of(guard: Guard, name: str, turns: Sequence[RunInfo], origin: Origin) -> RunInfo:
    found = next((turn for turn in turns if turn.id == origin.run_id), None) or guard.runs.get(origin.run_id or "")
    if found is None or not origin.is_in(found):
        raise RunConflict(
            f"this checkpoint was made in the run {origin.run_id!r} of {origin.created}, which this ledger does not "
            "know, so nothing ran: what was done in it would be done again. Use the store and the namespace that it is "
            "in; or give the agent new input, which is its next turn"
        )
    if found.name != name:
        raise RunConflict(
            f"this checkpoint was made in the run {found.id!r} named {found.name!r}, not in one of {name!r}, so "
            "nothing ran: what was done in it would be done again. Go on with "
            f"guard.run({found.name!r}, id={found.id!r}) around it, or wrap the agent with name={found.name!r}; or "
            "give it new input, which is its next turn"
        )
    return found


@contextlib.contextmanager
def saying_how_to_go_on(run: Run) -> Iterator[None]:
    """Whoever cannot enter a turn that is over is told what to do in a conversation, where nobody chose its id."""
    try:
        yield
    except RunClosed as error:
        raise RunClosed(
            f"{error}. In a conversation: give the agent new input, which is its next turn; or do this turn again, "
            f"from the checkpoint on, with guard.run({run.name!r}, id={run.id!r}, reopen=True) around the invocation",
            status=error.status,
            call=error.call,
        ) from error


def is_interrupted(run: RunInfo | None) -> bool:
    """Whether this is a run that did not end; somebody may still be in it."""
    return run is not None and (
        run.status is RunState.RUNNING or (run.status is RunState.HELD and run.reason == "interrupted")
    )


def is_unknown_to(head: StateSnapshot, run: RunInfo) -> bool:
    """Whether no checkpoint was made since ``run`` was entered, so that the conversation does not know of it."""
    return head.created_at is None or dt.datetime.fromisoformat(head.created_at) <= run.started
