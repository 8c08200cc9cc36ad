"""From a question to a step: who is asked in which order, and what the answers that are there by now come to.

A task is asked about as a whole, until as many people have agreed as must. An edit to another tool ends that; from then
on the questions and answers are about that tool, by its policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_core import to_jsonable_python

from sagaspan import ApprovalRequest, Approve, Deny, Edit, ResolutionError
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain._approvals import (
    CHANNEL,
    Action,
    Answers,
    Asked,
    Decision,
    Step,
    Tools,
    aasked_about,
    answer_of,
    asked_about,
    decisions_about,
    instead_of,
    interrupted,
    is_other_tool,
    is_whole,
    ours,
    skip,
)
from sagaspan_langchain._marks import guard_of

_log = logging.getLogger("sagaspan")


def ask(tools: Tools, calls: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Step | None:
    """Ask about the calls of a task, if somebody is to be asked; under a checkpointer, which waits for the answer.

    Raises LangGraph's interrupt, and pydantic's ``ValidationError`` for an answer that is none to this question.
    """
    flow, found = _flow(tools, calls, config), None
    try:
        while True:
            do, _ = flow.send(found)
            found = do()
    except StopIteration as end:
        return cast("Step | None", end.value)


async def aask(tools: Tools, calls: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Step | None:
    """As ``ask``, in a running loop."""
    flow, found = _flow(tools, calls, config), None
    try:
        while True:
            _, ado = flow.send(found)
            found = await ado()
    except StopIteration as end:
        return cast("Step | None", end.value)


def _flow(tools: Tools, calls: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> _Flow:
    asked = yield _about(tools, calls)
    if not asked:
        return None
    answers = tasks.next_answers(config)
    shown = (yield (lambda: tasks.shown_to(config), lambda: tasks.ashown_to(config))) if answers else None
    return (yield from _asking(tools, calls, asked, config, answers, ours(asked, answers, shown)))


def _asking(
    tools: Tools,
    calls: Sequence[dict[str, Any]],
    asked: Sequence[Asked],
    config: Mapping[str, Any],
    answers: Sequence[Any],
    given: Sequence[Any],
) -> _Flow:
    """The step that the answers ``given`` to ``asked``, and then to what edits made of it, come to.

    They begin the ``answers`` of the task that are still there.
    """
    at = yield from _replaced_at(tools, asked, given)
    if at is not None:
        return (yield from _asking_instead(tools, calls, asked[0], config, answers, given, at))
    decisions = interrupted(asked, answers, given)
    if decisions is None:
        return _decided(calls, asked)
    if (yield _blocking(lambda: _needs_more(asked, decisions, config))):
        decisions_about((yield _about(tools, [one.call for one in asked])))
    instead: list[Asked | None] = []
    for one, decision in zip(asked, decisions, strict=True):
        found = (yield _about(tools, [instead_of(one, decision)])) if is_other_tool(one, decision) else ()
        instead.append(found[0] if found else None)
    step: Step = yield _blocking(lambda: _step(calls, asked, decisions, config, instead))
    if len(asked) == 1 and (yield _blocking(lambda: _waits(instead[0], config))):
        decisions_about((yield _about(tools, [instead_of(asked[0], decisions[0])])))
    return step


def _asking_instead(
    tools: Tools,
    calls: Sequence[dict[str, Any]],
    one: Asked,
    config: Mapping[str, Any],
    answers: Sequence[Any],
    given: Sequence[Any],
    at: int,
) -> _Flow:
    """What the answers after the one ``at`` come to, by which another tool is called than ``one`` asked for."""
    skip(given[:at])
    decisions = decisions_about([one])
    other, edited = instead_of(one, decisions[0]), _edited([one], decisions)
    made, rest = [other if call is one.call else call for call in calls], given[at + 1 :]
    asked = yield _about(tools, [other])
    if not asked or (asked[0].question.request is None and not rest):
        return Step(calls=made, answers=Answers(by=tasks.principal_of(config)), edited=edited)
    step: Step = yield from _asking(tools, made, asked, config, answers[at + 1 :], rest)
    return replace(step, edited={**edited, **step.edited})


def _replaced_at(tools: Tools, asked: Sequence[Asked], given: Sequence[Any]) -> _Flow:
    """Which of the answers, if any, was an edit to another tool for which a vote is on record by now.

    Only where one call is asked about: the answers after it are then about that tool.
    """
    if len(asked) != 1 or not asked[0].question.denied:
        return None
    for at, answer in enumerate(given):
        decision: Any = answer["decisions"][0] if len(answer["decisions"]) == 1 else {"type": ""}
        if decision["type"] == "edit" and is_whole(decision) and is_other_tool(asked[0], decision):
            found = yield _about(tools, [instead_of(asked[0], decision)])
            if found and (found[0].question.denied or CHANNEL in found[0].question.channels):
                return at
    return None


def _about(tools: Tools, calls: Sequence[dict[str, Any]]) -> _Do:
    return lambda: asked_about(tools, calls), lambda: aasked_about(tools, calls)


def _blocking(do: Callable[[], Any]) -> _Do:
    return do, lambda: asyncio.to_thread(do)


_Do = tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]
_Flow = Generator[_Do, Any, Any]
"""One body for both kinds of callers: what has to wait is yielded, to be called or awaited."""


# -- what was answered -----------------------------------------------------------------------------------------


def _step(
    calls: Sequence[dict[str, Any]],
    asked: Sequence[Asked],
    decisions: Sequence[Decision],
    config: Mapping[str, Any],
    others: Sequence[Asked | None],
) -> Step:
    by = tasks.principal_of(config)
    answers = Answers(by=by)
    made = list(calls)
    for one, decision, other in zip(asked, decisions, others, strict=True):
        request = one.question.request
        if is_other_tool(one, decision) and (request is not None or one.question.denied):
            instead = instead_of(one, decision)
            made[next(at for at, call in enumerate(calls) if call is one.call)] = instead
            guard = guard_of(one.tool)
            assert guard is not None  # noqa: S101 - it was asked about
            if request is not None:  # else it was denied for this before the task was interrupted again, or died
                why = f"{instead['name']!r} is called instead"
                guard.approvals_of(CHANNEL).deny(request.id, why, by=by)
            if other is not None:
                answers.say(other.question.digest, Approve(by=by))
        elif request is not None:
            answers.say(one.question.digest, answer_of(one, decision, by))
            if decision["type"] == "respond":
                answers.responses[one.call["id"]] = decision["message"]
    return Step(calls=made, answers=answers, edited=_edited(asked, decisions))


def _decided(calls: Sequence[dict[str, Any]], asked: Sequence[Asked]) -> Step | None:
    """The step of a task of which all is decided elsewhere; None if it makes the calls as they are."""
    edited = _edited(asked, ())
    return Step(calls=calls, answers=None, edited=edited) if edited else None


def _edited(asked: Sequence[Asked], decisions: Sequence[Decision]) -> dict[str, Action]:
    """What edits make of the calls, by their ids: those of ``decisions``, and those made elsewhere."""
    elsewhere = [
        (one.call, {"name": one.call["name"], "args": to_jsonable_python(one.question.changed)})
        for one in asked
        if one.question.edited is not None
    ]
    edits = [
        *elsewhere,
        *(
            (one.call, instead_of(one, made))
            for one, made in zip(asked, decisions, strict=False)
            if made["type"] == "edit"
        ),
    ]
    return {
        call["id"]: {
            "name": instead["name"],
            # Arguments that an edit of the same call leaves out stay what they were.
            "args": {**(call["args"] if instead["name"] == call["name"] else {}), **instead["args"]},
        }
        for call, instead in edits
        if call["id"]
    }


def _needs_more(asked: Sequence[Asked], decisions: Sequence[Decision], config: Mapping[str, Any]) -> bool:
    """Whether a request still waits that several people must agree to, once this one's vote is recorded."""
    waits = False
    for one, decision in zip(asked, decisions, strict=True):
        request = one.question.request
        if request is None or request.approvers < 2 or is_other_tool(one, decision):
            continue
        answer = answer_of(one, decision, tasks.principal_of(config))
        if isinstance(answer, Deny):
            continue
        guard = guard_of(one.tool)
        assert guard is not None  # noqa: S101 - it was asked about
        waits = _is_pending(guard.approvals_of(CHANNEL), request, answer) or waits
    return waits


def _waits(one: Asked | None, config: Mapping[str, Any]) -> bool:
    """Whether what an edit made still waits for others, once the vote of who edited is recorded."""
    if one is None:
        return False
    request, guard = one.question.request, guard_of(one.tool)
    if request is None or request.approvers < 2 or guard is None:
        return False
    return _is_pending(guard.approvals_of(CHANNEL), request, Approve(by=tasks.principal_of(config)))


def _is_pending(requests: Any, request: ApprovalRequest, answer: Approve | Edit) -> bool:
    try:
        if isinstance(answer, Edit):
            after = requests.edit(request.id, answer.arguments, by=answer.by)
        else:
            after = requests.approve(request.id, by=answer.by, digest=request.digest)
    except ResolutionError as error:  # somebody who may not, or has agreed before: the next one is asked
        _log.warning("%s", error)
        after = requests.get(request.id)
    return after is not None and str(after.state) == "pending"
