"""What a checkpoint says of the calls on record: which of them it answers, so that they are not made again."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import PregelTask, StateSnapshot

from sagaspan import Run
from sagaspan_langchain import _compat_tasks as tasks


@dataclass(frozen=True, slots=True)
class Seen:
    """A graph as its checkpoint has it, and beside that the tasks of its code (``@task``) that had ``returned``."""

    snapshot: StateSnapshot
    returned: frozenset[str]


def seen(graph: Any, where: RunnableConfig, saver: Any) -> Seen:
    """What the checkpoint at ``where`` says of a graph; ``saver`` keeps it."""
    snapshot = graph.get_state(where)
    return Seen(snapshot, tasks.returned_in(saver, snapshot.config))


async def aseen(graph: Any, where: RunnableConfig, saver: Any) -> Seen:
    """As ``seen``, in a running loop."""
    snapshot = await graph.aget_state(where)
    return Seen(snapshot, await tasks.areturned_in(saver, snapshot.config))


def take_up(run: Run | None, graph: Any, config: RunnableConfig | None) -> None:
    """Let ``run`` know what a graph within another one, which goes on from a checkpoint of its own, has of answers."""
    where = _where(run, graph, config)
    if run is not None and where is not None:
        _take_up(run, seen(graph, where, tasks.checkpointer_of(where)), where)


async def atake_up(run: Run | None, graph: Any, config: RunnableConfig | None) -> None:
    """As ``take_up``, in a running loop."""
    where = _where(run, graph, config)
    if run is not None and where is not None:
        found = await aseen(graph, where, tasks.checkpointer_of(where))
        await asyncio.to_thread(_take_up, run, found, where)


def _take_up(run: Run, found: Seen, where: RunnableConfig) -> None:
    is_over = _made_within(found, where)
    if is_over is not None:
        run.tasks_are_over(is_over)
    if run.goes_on_from_before:
        run.answered_elsewhere(answered(found.snapshot), is_over=is_over)


def _made_within(found: Seen, where: RunnableConfig) -> Callable[[str], bool] | None:
    """What tells whether a call was made in a task of this graph that is not done again: of an earlier step, or ended.

    None where the checkpoint is named: all that came after that is done again. Nor where there is none, because with
    ``durability="exit"`` LangGraph saves nothing of a graph within another one that ended: it begins anew.
    """
    if found.snapshot.metadata is None or where.get("configurable", {}).get("checkpoint_id") is not None:
        return None
    place = f"{tasks.place_in(where)}|"
    keeps = tasks.keeps_ended_tasks(where)
    again = {task.id for task in found.snapshot.tasks if not (keeps and _has_ended(task))}

    def is_over(path: str) -> bool:
        within = path.removeprefix(place)
        _, is_task, task = within.partition("|")[0].partition(":")
        if within == path or not is_task:
            return False
        return task not in again or (keeps and tasks.is_within(within, found.returned))

    return is_over


def _where(run: Run | None, graph: Any, config: RunnableConfig | None) -> RunnableConfig | None:
    if run is None:
        return None
    seen = tasks.in_force(getattr(graph, "config", None), config)
    place = tasks.place_of(seen, graph) if tasks.is_nested(seen) and tasks.is_resuming(seen) else None
    return None if place is None else tasks.at(seen, place)


def ended_steps(snapshot: StateSnapshot) -> dt.datetime | None:
    """When the steps had ended that are not done again; None if a person made the checkpoint, amid a step."""
    is_made_after_a_step = (snapshot.metadata or {}).get("source") == "loop"
    return tasks.read_step_start(snapshot) if is_made_after_a_step else None


def ended_tasks(found: Seen, config: RunnableConfig) -> Callable[[str], bool] | None:
    """What tells whether a call was made in a task that is not done again: one of the paused step that had ended.

    Or one that the code of such a step had called and that had returned. None if there is none; nor where
    ``config`` names the checkpoint: from an earlier one all of its tasks run again, as older versions of LangGraph let
    those of a graph within another one.
    """
    if not tasks.keeps_ended_tasks(config):
        return None
    ended = {task.id for task in found.snapshot.tasks if _has_ended(task)} | found.returned
    if not ended or config.get("configurable", {}).get("checkpoint_id") is not None:
        return None
    return lambda path: tasks.is_within(path, ended)


def _has_ended(task: PregelTask) -> bool:
    """Whether a task of the step is over for certain: one that asked twice has a result too, an empty one."""
    has_output = bool(task.result) or (task.result is not None and not task.interrupts)
    return has_output and task.error is None


def answers_until(snapshot: StateSnapshot) -> dt.datetime:
    """Up to when nothing is asked again that was done.

    Of a step that was interrupted, what is saved beside the checkpoint is not asked again either: the tasks that ended,
    and a graph of its own that goes on from its own checkpoint.
    """
    in_step = any(task.result is not None or task.state is not None for task in snapshot.tasks)
    start = None if in_step else tasks.read_step_start(snapshot)
    return dt.datetime.now(dt.UTC) if start is None else start


def answered(snapshot: StateSnapshot) -> set[str]:
    """The ids of the tool calls that the checkpoint answers; one that a provider used again is open again."""
    answered: set[str] = set()
    for message in _messages(snapshot.values):
        if isinstance(message, AIMessage):
            answered -= {call["id"] for call in message.tool_calls if call["id"] is not None}
        elif isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
    return answered


def _messages(values: Any) -> Iterator[Any]:
    for value in values.values() if isinstance(values, dict) else [values]:
        if isinstance(value, list):
            yield from value
