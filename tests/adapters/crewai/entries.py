"""Every way in which work of CrewAI's begins: what is wrapped, and how it is entered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from crewai import Crew, Process, Task
from crewai.flow.flow import Flow, start

from tests.adapters.crewai.scripts import Say, agent_of, ask, crew_of

Make = Callable[[Sequence[Any], Sequence[Any], bool], Any]
Enter = Callable[[Any], Any]
DELEGATE = ask("delegate_work_to_coworker", task="book", context="none", coworker="Clerk")


class Office(Flow[Any]):
    """A flow that kicks off what it is given."""

    crew: Any = None

    @start()
    def work(self) -> Any:
        """Begin."""
        return self.crew.kickoff().raw


def in_flow(script: Sequence[Any], tools: Sequence[Any], native: bool = True) -> Office:
    return Office(crew=crew_of(script, tools, native))


def delegated(script: Sequence[Any], tools: Sequence[Any], native: bool = True) -> Crew:
    """A manager who delegates, again and again."""
    clerk = agent_of(script, tools, native)
    boss = agent_of([DELEGATE] * 4, (), native, role="Boss", allow_delegation=True)
    job = Task(description="do", expected_output="x")
    return Crew(agents=[clerk], tasks=[job], manager_agent=boss, process=Process.hierarchical)


def asynchronous(script: Sequence[Any], tools: Sequence[Any], native: bool = True) -> Crew:
    """A crew that works in a thread of CrewAI's, and waits for it in the end."""
    clerk = agent_of(script, tools, native)
    first = Task(description="do", expected_output="x", agent=clerk, async_execution=True)
    last = Task(description="sum up", expected_output="x", agent=agent_of([], (), native, role="Last"))
    return Crew(agents=[clerk], tasks=[first, last])


def again(script: Sequence[Any], tools: Sequence[Any], native: bool = True) -> Crew:
    """A crew that worked once, without a word of its tools, so that its second task can be replayed."""
    clerk = agent_of([Say(), *script], tools, native)
    first = Task(description="begin", expected_output="x", agent=agent_of([Say()], (), native, role="First"))
    return Crew(agents=[clerk], tasks=[first, Task(description="do", expected_output="x", agent=clerk)])


def with_a_limit_of_time(script: Sequence[Any], tools: Sequence[Any], native: bool = True) -> Crew:
    """A crew whose agent works in a thread that CrewAI waits for."""
    return crew_of(script, tools, native, agent={"max_execution_time": 60})


def streamed(script: Sequence[Any], tools: Sequence[Any], native: bool = True) -> Crew:
    return crew_of(script, tools, native, stream=True)


def _replay(crew: Crew) -> Any:
    return crew.replay(str(crew.tasks[1].id))


def _consume(stream: Any) -> Any:
    for _ in stream:
        pass
    return stream.result


async def _aconsume(stream: Any) -> Any:
    async for _ in stream:
        pass
    return stream.result


def _alone(name: str) -> Enter:
    async def entered(agent: Any) -> Any:
        return await getattr(agent, name)("go")

    return lambda agent: asyncio.run(entered(agent))


def _awaited(name: str, *args: Any) -> Enter:
    return lambda target: asyncio.run(getattr(target, name)(*args))


def _streaming(name: str) -> Enter:
    async def entered(crew: Any) -> Any:
        return await _aconsume(await getattr(crew, name)())

    return lambda crew: asyncio.run(entered(crew))


ENTRIES: dict[str, tuple[Make, Enter]] = {
    "crew-kickoff": (crew_of, lambda crew: crew.kickoff()),
    "crew-kickoff_async": (crew_of, _awaited("kickoff_async")),
    "crew-akickoff": (crew_of, _awaited("akickoff")),
    "crew-kickoff_for_each": (crew_of, lambda crew: crew.kickoff_for_each([{}])),
    "crew-kickoff_for_each_async": (crew_of, _awaited("kickoff_for_each_async", [{}])),
    "crew-akickoff_for_each": (crew_of, _awaited("akickoff_for_each", [{}])),
    "crew-stream-kickoff": (streamed, lambda crew: _consume(crew.kickoff())),
    "crew-stream-kickoff_async": (streamed, _streaming("kickoff_async")),
    "crew-stream-akickoff": (streamed, _streaming("akickoff")),
    "crew-replay": (again, _replay),
    "delegated": (delegated, lambda crew: crew.kickoff()),
    "delegated-akickoff": (delegated, _awaited("akickoff")),
    "asynchronous-task": (asynchronous, lambda crew: crew.kickoff()),
    "asynchronous-task-akickoff": (asynchronous, _awaited("akickoff")),
    "limit-of-time": (with_a_limit_of_time, lambda crew: crew.kickoff()),
    "agent-kickoff": (agent_of, lambda agent: agent.kickoff("go")),
    "agent-kickoff-in-a-loop": (agent_of, _alone("kickoff")),
    "agent-kickoff_async": (agent_of, _alone("kickoff_async")),
    "agent-akickoff": (agent_of, _alone("akickoff")),
    "flow-kickoff": (in_flow, lambda flow: flow.kickoff()),
    "flow-kickoff_async": (in_flow, _awaited("kickoff_async")),
    "flow-akickoff": (in_flow, _awaited("akickoff")),
}


def prepared(name: str, target: Any) -> None:
    """What must have happened before the entry ``name``, unguarded: a replay needs a kickoff."""
    if name == "crew-replay":
        with contextlib.suppress(Exception):
            target.kickoff()
