"""What a node of guarded tools does with an input: somebody is asked first, and a task that runs again repeats nothing.

LangGraph runs a task again as a whole, after a retry policy's pause or an interrupt: its calls are those of before, and
what was done is answered from the ledger. Equal calls of another task are calls of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode

from sagaspan import Guard, Run
from sagaspan_langchain import _compat
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain._approvals import Action
from sagaspan_langchain._asking import aask, ask
from sagaspan_langchain._bodies import edited_in_task, is_beside, is_of_message, may_ask
from sagaspan_langchain._marks import guard_of
from sagaspan_langchain._revised import with_message
from sagaspan_langchain._wrapped import answered_by, wrapped


def run_step(
    node: ToolNode, given: Any, config: Any, runtime: Any, *, merges: bool, guarded: Callable[[BaseTool], BaseTool]
) -> Any:
    """What ``node`` answers; ``merges``: the state it is in replaces a message by one with its id."""
    step = None
    with _task(node, given, config):
        asks = wrapped(node, given, config, guarded, is_async=False) if _is_saved(config) else None
        if asks is not None:
            with _noting_edits() as noted:
                output = _compat.run_node(asks.asking(), given, config, runtime)
            edited = {**_made(node, given, noted), **asks.edited} if merges else {}
            return with_message(node, given, config, output, edited, _run_of(node))
        if _is_saved(config):
            step = ask(_compat.tools_of(node), _compat.calls_of(node, given), config)
        if step is None:
            with _noting_edits() as noted:
                output = _compat.run_node(node, given, config, runtime)
            edited = _made(node, given, noted) if merges and noted else {}
            return with_message(node, given, config, output, edited, _run_of(node))
        with answered_by(step):
            output = _compat.run_node(_compat.with_calls(node, given, step.calls), given, config, runtime)
        return with_message(node, given, config, output, step.edited, _run_of(node)) if merges else output


async def arun_step(
    node: ToolNode, given: Any, config: Any, runtime: Any, *, merges: bool, guarded: Callable[[BaseTool], BaseTool]
) -> Any:
    """As ``run_step``, in a running loop."""
    step = None
    with _task(node, given, config):
        asks = wrapped(node, given, config, guarded, is_async=True) if _is_saved(config) else None
        if asks is not None:
            with _noting_edits() as noted:
                output = await _compat.arun_node(asks.asking(), given, config, runtime)
            edited = {**_made(node, given, noted), **asks.edited} if merges else {}
            return with_message(node, given, config, output, edited, _run_of(node))
        if _is_saved(config):
            step = await aask(_compat.tools_of(node), _compat.calls_of(node, given), config)
        if step is None:
            with _noting_edits() as noted:
                output = await _compat.arun_node(node, given, config, runtime)
            edited = _made(node, given, noted) if merges and noted else {}
            return with_message(node, given, config, output, edited, _run_of(node))
        with answered_by(step):
            output = await _compat.arun_node(_compat.with_calls(node, given, step.calls), given, config, runtime)
        return with_message(node, given, config, output, step.edited, _run_of(node)) if merges else output


@contextlib.contextmanager
def _noting_edits() -> Iterator[dict[str, dict[str, Any]]]:
    """What approvers make of the calls within the block, where nobody is asked about them beforehand."""
    noted: dict[str, dict[str, Any]] = {}
    token = edited_in_task.set(noted)
    try:
        yield noted
    finally:
        edited_in_task.reset(token)


def _made(node: ToolNode, given: Any, edited: Mapping[str, Mapping[str, Any]]) -> dict[str, Action]:
    """The calls that were made instead of those of the model, by their ids."""
    return {
        call["id"]: {"name": call["name"], "args": {**call["args"], **edited[call["id"]]}}
        for call in _compat.calls_of(node, given)
        if call["id"] in edited
    }


@contextlib.contextmanager
def _task(node: ToolNode, given: Any, config: Any) -> Iterator[None]:
    """One execution of a task: the calls are those of a message, whoever made them before."""
    if _run_of(node) is None or tasks.task_of(config) is None:
        yield
        return
    token = is_of_message.set(True)
    beside = is_beside.set(_asks_elsewhere(node, given))
    try:
        yield
    finally:
        is_beside.reset(beside)
        is_of_message.reset(token)


def _asks_elsewhere(node: ToolNode, given: Any) -> bool:
    """Whether the code of a tool that ``node`` calls for ``given`` is not the only one that asks in this task."""
    calls = _compat.calls_of(node, given)
    if len(calls) != 1:
        return True
    return may_ask(_compat.tools_of(node).get(calls[0]["name"]))


def _is_saved(config: Any) -> bool:
    return tasks.checkpointer_of(config) is not None


def _run_of(node: ToolNode) -> Run | None:
    guards: Iterator[Guard | None] = (guard_of(tool) for tool in _compat.tools_of(node).values())
    guard = next((guard for guard in guards if guard is not None), None)
    return None if guard is None else guard.current_run()
