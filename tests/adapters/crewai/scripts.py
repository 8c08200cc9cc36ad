"""Scripted models for CrewAI: they ask for tools and answer, in the provider's protocol or in text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import llm_call_context
from pydantic import PrivateAttr

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Scripted(BaseLLM):
    """Says what its script says, one line a call, and keeps what it was asked."""

    native: bool = True
    _script: list[Any] = PrivateAttr(default_factory=list)
    _seen: list[Any] = PrivateAttr(default_factory=list)

    def __init__(self, script: Sequence[Any], native: bool = True, model: str = "gpt-4o") -> None:
        super().__init__(model=model)
        self.native = native
        self._script = list(script)

    @property
    def seen(self) -> list[Any]:
        """The messages of each call."""
        return self._seen

    @property
    def heard(self) -> str:
        """All that the model was told, as one text."""
        return json.dumps(self._seen, default=str)

    def supports_function_calling(self) -> bool:
        return self.native

    def supports_stop_words(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000

    def get_input_tokens_count(self, *args: Any, **kwargs: Any) -> int:
        return 10

    def call(
        self, messages: Any, tools: Any = None, from_task: Any = None, from_agent: Any = None, **kwargs: Any
    ) -> Any:
        with llm_call_context():
            self._emit_call_started_event(messages=messages, tools=tools, from_task=from_task, from_agent=from_agent)
            self._seen.append(json.loads(json.dumps(messages, default=str)))
            line = self._script.pop(0)
            if isinstance(line, Exception):
                self._emit_call_failed_event(error=str(line))
                raise line
            if callable(line):
                line = line(messages)
            if self.stream:
                self._emit_stream_chunk_event(chunk="said")
            self._track_token_usage_internal(USAGE)
            self._emit_call_completed_event(response=str(line), call_type=LLMCallType.LLM_CALL, usage=USAGE)
            return self._spoken(line)

    def _spoken(self, line: Any) -> Any:
        if isinstance(line, Say):
            return line.text if self.native else f"Thought: x\nFinal Answer: {line.text}"
        if isinstance(line, list):
            return [each.native(number) for number, each in enumerate(line)] if self.native else line[0].text
        return line


class Ask:
    """A call of a tool, in a script."""

    def __init__(self, name: str, **arguments: Any) -> None:
        self.name = name
        self.arguments = json.dumps(arguments)

    def native(self, number: int) -> dict[str, Any]:
        return {"id": f"c{number}", "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @property
    def text(self) -> str:
        return f"Thought: x\nAction: {self.name}\nAction Input: {self.arguments}"


class Say:
    """A final answer, in a script."""

    def __init__(self, text: str = "done") -> None:
        self.text = text


def ask(name: str, **arguments: Any) -> list[Ask]:
    """A line of a script that calls one tool."""
    return [Ask(name, **arguments)]


def agent_of(script: Sequence[Any], tools: Sequence[Any] = (), native: bool = True, **options: Any) -> Agent:
    """An agent that follows ``script``."""
    llm = Scripted([*script, Say()], native)
    return Agent(**{"role": "Clerk", "goal": "g", "backstory": "b", "llm": llm, "tools": list(tools), **options})


def crew_of(
    script: Sequence[Any], tools: Sequence[Any] = (), native: bool = True, *, task: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None, **options: Any,
) -> Crew:  # fmt: skip
    """A crew of one agent with one task; its script ends with an answer."""
    clerk = agent_of(script, tools, native, **(agent or {}))
    job = Task(description="do", expected_output="x", agent=clerk, **(task or {}))
    return Crew(agents=[clerk], tasks=[job], **options)


def model_of(crew: Crew) -> Scripted:
    """The model of a crew's first agent."""
    llm = crew.agents[0].llm
    assert isinstance(llm, Scripted)
    return llm
