"""A chat model that follows a script, and small helpers to read what an agent did."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from sagaspan import CallInfo, Guard

Step = tuple[str, dict[str, Any]]
"""The name of a tool and its arguments."""

_numbers = itertools.count()


class ScriptedModel(BaseChatModel):
    """Makes the tool calls of ``script``, one list a model call since the last human message, then says "done"."""

    script: Sequence[Sequence[Step]]
    ids: str = "fresh"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        last = max(at for at, message in enumerate(messages) if isinstance(message, HumanMessage))
        asked = sum(isinstance(message, AIMessage) for message in messages[last:])
        message = AIMessage("done") if asked >= len(self.script) else self._calls(asked)
        message.usage_metadata = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _calls(self, asked: int) -> AIMessage:
        calls = [
            {"name": name, "args": args, "id": self._id(asked, at)}
            for at, (name, args) in enumerate(self.script[asked])
        ]
        return AIMessage("", tool_calls=calls)

    def _id(self, asked: int, at: int) -> str:
        return f"call_{next(_numbers)}" if self.ids == "fresh" else f"call_{asked}_{at}"


class ForgetfulSaver(InMemorySaver):
    """A checkpointer whose writes are lost while ``down``, as in a crash before they reached the disk."""

    down = False

    def put(self, config: Any, *args: Any) -> Any:
        return config if self.down else super().put(config, *args)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        if not self.down:
            super().put_writes(*args, **kwargs)


def model(*steps: Step | Sequence[Step], ids: str = "fresh") -> ScriptedModel:
    """A model that takes ``steps`` one after the other; a list of steps is one message with parallel calls."""
    return ScriptedModel(script=[[step] if isinstance(step, tuple) else step for step in steps], ids=ids)


def ask(text: str = "go") -> dict[str, Any]:
    """The input of an agent."""
    return {"messages": [("user", text)]}


def on(thread: str) -> dict[str, Any]:
    """The config of a conversation."""
    return {"configurable": {"thread_id": thread}}


def answers(output: dict[str, Any]) -> list[ToolMessage]:
    """The tool messages of an agent's output."""
    return [message for message in output["messages"] if isinstance(message, ToolMessage)]


def essence(messages: Sequence[BaseMessage]) -> list[tuple[Any, ...]]:
    """What messages say, without the ids that differ from run to run."""
    return [
        (type(m).__name__, m.content, getattr(m, "status", None), getattr(m, "artifact", None), m.name)
        for m in messages
    ]


def calls_of(guard: Guard, run_id: str) -> tuple[CallInfo, ...]:
    """The recorded calls of tools in a run."""
    return tuple(call for call in _recorded(guard, run_id) if not call.tool.startswith("chat "))


def model_calls_of(guard: Guard, run_id: str) -> tuple[CallInfo, ...]:
    """The recorded calls of models in a run."""
    return tuple(call for call in _recorded(guard, run_id) if call.tool.startswith("chat "))


def _recorded(guard: Guard, run_id: str) -> tuple[CallInfo, ...]:
    run = guard.runs.get(run_id)
    assert run is not None, f"there is no run {run_id}"
    return run.calls


def steps_of(guard: Guard, run_id: str) -> list[tuple[str, str]]:
    """The recorded calls of a run, by tool and state."""
    return [(call.tool, str(call.state)) for call in calls_of(guard, run_id)]


def states(guard: Guard) -> dict[str, str]:
    """The states of all runs by id."""
    return {run.id: str(run.status) for run in guard.runs.list()}
