"""The private names of LangGraph's tasks that this adapter leans on: their answers, their place, their checkpoints.

Those of LangChain's tools and models are in ``_compat``, which checks both.
"""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph import errors as graph_errors
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import UUID
from langgraph.types import StateSnapshot, interrupt

try:
    from langgraph._internal._config import ensure_config, merge_configs
    from langgraph._internal._constants import (
        CONFIG_KEY_CHECKPOINT_NS,
        CONFIG_KEY_CHECKPOINTER,
        CONFIG_KEY_RESUMING,
        CONFIG_KEY_SCRATCHPAD,
        CONFIG_KEY_SEND,
        CONFIG_KEY_TASK_ID,
        INTERRUPT,
        RESUME,
        RETURN,
    )
    from langgraph._internal._scratchpad import PregelScratchpad
    from langgraph.config import get_config
    from langgraph.pregel import _retry
    from langgraph.pregel._algo import LazyAtomicCounter, _scratchpad
    from langgraph.pregel._loop import PregelLoop

    missing: str | None = None
except ImportError as _error:  # said when something is wrapped, where it can be acted on
    missing = str(_error)


def is_invalid_resume(error: BaseException) -> bool:
    """Whether LangGraph refused an answer for the schema of its question; older versions do not say so."""
    is_it: Any = getattr(graph_errors, "is_invalid_resume", None)
    return is_it is not None and bool(is_it(error))


def lacking() -> Iterator[str]:
    """What is not as we think, of what could be imported."""
    if not {"resume", "get_null_resume", "subgraph_counter", "step"} <= set(PregelScratchpad.__annotations__):
        yield "the scratchpad of LangGraph's tasks has changed"
    latest = _scratchpad(None, [], "", "", None, 0, 0).get_null_resume
    if not {"null_resume_write", "parent_scratchpad", "pending_writes"} <= {*latest.__code__.co_freevars}:
        yield "what LangGraph keeps of answers has changed"
    if not {"CONFIG_KEY_SEND", "RESUME"} <= {*interrupt.__code__.co_varnames}:
        yield "how LangGraph keeps an answer has changed"
    counter = LazyAtomicCounter()
    if [_count_of(counter), counter(), counter(), _count_of(counter)] != [0, 0, 1, 2]:
        yield "the counter of LangGraph's interrupts has changed"
    if not hasattr(PregelLoop, "_first") or not hasattr(_retry, "run_with_retry"):
        yield "LangGraph looks at its input elsewhere"


def is_before_the_first_step(error: BaseException) -> bool:
    """Whether LangGraph raised ``error`` over the input of a graph, before any task of that began."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == _retry.__name__:
            return False  # in a task: it is the input of a graph within
        if frame.f_code.co_name == "_first" and frame.f_globals.get("__name__") == PregelLoop.__module__:
            return True
    return False


def checkpointer_of(config: Mapping[str, Any]) -> Any:
    """What saves the graph in whose task this config is in force, or None."""
    found = config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINTER)
    return found if isinstance(found, BaseCheckpointSaver) else None


def task_of(config: Mapping[str, Any]) -> str | None:
    """The id of the task in force, the same whenever LangGraph runs it again; None outside of one."""
    found: str | None = config.get("configurable", {}).get(CONFIG_KEY_TASK_ID)
    return found


def answers_to(config: Mapping[str, Any]) -> list[Any]:
    """The answers that the questions of the task in force get, in their order, as far as they are given."""
    scratchpad = config.get("configurable", {}).get(CONFIG_KEY_SCRATCHPAD)
    if scratchpad is None:
        return []
    latest = _untaken(scratchpad)
    return [*scratchpad.resume, *([] if latest is None else [latest])]


def _untaken(scratchpad: Any) -> Any:
    """The answer that no question has taken yet, or None.

    LangGraph still shows one that was taken, of the same task or of another one within the same node.
    """
    held = _held_by(scratchpad.get_null_resume)
    write = held["null_resume_write"]
    if write is None:
        around = held["parent_scratchpad"]
        return None if around is None else _untaken(around)
    return write[2] if any(one is write for one in held["pending_writes"]) else None


def _held_by(function: Any) -> dict[str, Any]:
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    }


def keep_answer(answer: Any) -> None:
    """Let LangGraph keep ``answer`` in the place of the one that the latest question of the task in force has got."""
    configurable = get_config()["configurable"]
    scratchpad = configurable[CONFIG_KEY_SCRATCHPAD]
    count = _count_of(scratchpad.interrupt_counter)
    scratchpad.resume[count - 1] = answer
    configurable[CONFIG_KEY_SEND]([(RESUME, scratchpad.resume[:count])])


def next_answers(config: Mapping[str, Any]) -> list[Any]:
    """Of the answers that the task in force got, those to the question that is asked next and to later ones."""
    scratchpad = config["configurable"].get(CONFIG_KEY_SCRATCHPAD)
    return [] if scratchpad is None else answers_to(config)[_count_of(scratchpad.interrupt_counter) :]


def _count_of(counter: Any) -> int:
    """How often LangGraph's counter has counted, without counting."""
    begun = counter._counter  # noqa: SLF001 - the reason for this module
    return 0 if begun is None else int(repr(begun.__self__).removeprefix("count(").removesuffix(")"))


def config_here() -> Mapping[str, Any] | None:
    """The config of the node whose code runs here; None outside of one."""
    try:
        return get_config()
    except RuntimeError:
        return None


def task_here() -> tuple[str, int, str] | None:
    """The task whose code runs here: its name, the step of its graph, and which one it is; None outside of one."""
    configurable = (config_here() or {}).get("configurable", {})
    task, scratchpad = configurable.get(CONFIG_KEY_TASK_ID), configurable.get(CONFIG_KEY_SCRATCHPAD)
    if task is None or scratchpad is None:
        return None
    place: str = configurable.get(CONFIG_KEY_CHECKPOINT_NS, "")
    return place.rpartition("|")[2].partition(":")[0], scratchpad.step, task


def path_here() -> str | None:
    """The tasks around the code that runs here, outermost first, the same whenever they run again; None outside."""
    return (config_here() or {}).get("configurable", {}).get(CONFIG_KEY_CHECKPOINT_NS) or None


def is_within(path: str, tasks: Collection[str]) -> bool:
    """Whether what was made on this path was made in one of ``tasks``, by their ids."""
    return any(task.rpartition(":")[2] in tasks for task in path.split("|"))


def shown_to(config: Mapping[str, Any]) -> Any:
    """What the task in force asked when it paused, as its checkpoint has it; None if it did not."""
    return _shown(config, checkpointer_of(config).get_tuple(_saved_under(config)))


async def ashown_to(config: Mapping[str, Any]) -> Any:
    """As ``shown_to``, in a running loop."""
    return _shown(config, await checkpointer_of(config).aget_tuple(_saved_under(config)))


def _saved_under(config: Mapping[str, Any]) -> RunnableConfig:
    configurable = config["configurable"]
    within = configurable.get(CONFIG_KEY_CHECKPOINT_NS, "").rpartition("|")[0]
    return {"configurable": {"thread_id": configurable["thread_id"], CONFIG_KEY_CHECKPOINT_NS: within}}


def _shown(config: Mapping[str, Any], saved: Any) -> Any:
    task = config["configurable"].get(CONFIG_KEY_TASK_ID)
    writes = [] if saved is None else saved.pending_writes or []
    asked = [value for task_id, channel, value in writes if task_id == task and channel == INTERRUPT]
    last = asked[-1] if asked else None
    last = last[-1] if isinstance(last, list | tuple) and last else last
    return getattr(last, "value", None)


def returned_in(saver: Any, config: RunnableConfig) -> frozenset[str]:
    """The ids of the tasks that had returned what ``saver`` has beside the checkpoint of ``config``.

    They are those that the code of a node calls (``@task``): it is answered with what they returned, unless its
    attempts are numbered otherwise.
    """
    return _returned(saver.get_tuple(config))


async def areturned_in(saver: Any, config: RunnableConfig) -> frozenset[str]:
    """As ``returned_in``, in a running loop."""
    return _returned(await saver.aget_tuple(config))


def _returned(saved: Any) -> frozenset[str]:
    writes = [] if saved is None else saved.pending_writes or []
    return frozenset(task_id for task_id, channel, _ in writes if channel == RETURN)


def principal_of(config: Mapping[str, Any]) -> str | None:
    """Who answers, if LangGraph's server knows that: a name in a request would be no identity."""
    found = config.get("configurable", {}).get("langgraph_auth_user_id")
    return found if isinstance(found, str) and found else None


def merged(*configs: RunnableConfig | None) -> RunnableConfig:
    """``configs`` merged as LangGraph does, without filling in what they leave open."""
    return merge_configs(*configs)


def in_force(*configs: RunnableConfig | None) -> RunnableConfig:
    """``configs`` merged over the config of the node that runs here, as a graph invoked with them sees it."""
    return ensure_config(*configs)


def is_nested(config: RunnableConfig) -> bool:
    """Whether a graph invoked with this config (see ``in_force``) runs inside another graph's node."""
    return CONFIG_KEY_TASK_ID in config.get("configurable", {})


def place_of(config: RunnableConfig, graph: Any) -> str | None:
    """Where a graph that is invoked with this config in another's node has its checkpoints; None if it has none."""
    if checkpointer_of(config) is None or getattr(graph, "checkpointer", None) is False:
        return None
    place: str = config["configurable"].get(CONFIG_KEY_CHECKPOINT_NS, "")
    before = _count_of(config["configurable"][CONFIG_KEY_SCRATCHPAD].subgraph_counter)
    return f"{place}|{before}" if before else place


def at(config: RunnableConfig, place: str) -> RunnableConfig:
    """``config`` for the checkpoints at a ``place_of``."""
    return {**config, "configurable": {**config["configurable"], CONFIG_KEY_CHECKPOINT_NS: place}}


def named_in(config: RunnableConfig) -> str | None:
    """The checkpoint that a config names, or None."""
    found: str | None = config.get("configurable", {}).get("checkpoint_id")
    return found or None


def latest(config: RunnableConfig) -> RunnableConfig:
    """``config`` for the latest checkpoint, whichever it names."""
    configurable = {key: value for key, value in config.get("configurable", {}).items() if key != "checkpoint_id"}
    return {**config, "configurable": configurable}


def place_in(config: RunnableConfig) -> str:
    """The place that a config is ``at``."""
    return str(config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINT_NS, ""))


def read_step_start(snapshot: StateSnapshot) -> dt.datetime | None:
    """Return when the step after a checkpoint began; those before it had ended. None if its id does not say it.

    ``created_at`` is when the checkpoint was saved. With ``durability="exit"`` that is later than what the step did.
    """
    try:
        made = UUID(hex=named_in(snapshot.config))
    except (TypeError, ValueError):  # no checkpoint, or an id that LangGraph did not make
        return None
    return _UUID_EPOCH + dt.timedelta(microseconds=made.time // 10) if made.version == 6 else None


_UUID_EPOCH: Final = dt.datetime(1582, 10, 15, tzinfo=dt.UTC)


def keeps_ended_tasks(config: RunnableConfig) -> bool:
    """Whether a graph that goes on from the checkpoint at ``config`` lets no task run again that had ended."""
    is_within = bool(config.get("configurable", {}).get(CONFIG_KEY_CHECKPOINT_NS))
    return not is_within or hasattr(PregelLoop, "_reapplies_pending_writes")


def is_resuming(config: RunnableConfig) -> bool:
    """Whether the graph around the one that is invoked with this config goes on, rather than begins."""
    return bool(config["configurable"].get(CONFIG_KEY_RESUMING))
