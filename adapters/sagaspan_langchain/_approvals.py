"""Approvals through LangGraph's ``interrupt()``: one request a task, asked before any tool of that task starts.

Inside the tools it would be too late: LangGraph matches answers to questions by their order within a task, and tools
that run side by side have none. The request and its answer have the shape of LangChain's human-in-the-loop middleware.
It lists all calls of the task that somebody is asked about, also those decided elsewhere meanwhile, so that positions
stay what they were; the ledger keeps the first decision. An answer counts only for exactly the arguments that were
shown: it goes by the digest of its question.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NotRequired

from annotated_types import Len
from langchain_core.tools import BaseTool
from langgraph.types import interrupt
from typing_extensions import TypedDict

from sagaspan import ApprovalRequest, Approve, Deny, Edit, Guard, ResolutionError
from sagaspan.adapters import Question
from sagaspan.approvers import LATER
from sagaspan_langchain import _compat
from sagaspan_langchain._bodies import Body, body_behind
from sagaspan_langchain._marks import guard_of

Tools = Mapping[str, BaseTool]
Gated = tuple[dict[str, Any], BaseTool, Body, dict[str, Any], Guard]
_log = logging.getLogger("sagaspan")
CHANNEL: Final = "langgraph"
DIGESTS: Final = "digests"
ALLOWED: Final = ("approve", "edit", "reject", "respond")


class Action(TypedDict):
    """The call that shall be made instead."""

    name: str
    args: dict[str, Any]


class ApproveDecision(TypedDict):
    """Yes."""

    type: Literal["approve"]


class EditDecision(TypedDict):
    """Yes, but like this."""

    type: Literal["edit"]
    edited_action: Action


class RejectDecision(TypedDict):
    """No; the message is told to the model."""

    type: Literal["reject"]
    message: NotRequired[str]


class RespondDecision(TypedDict):
    """No call: this is its answer."""

    type: Literal["respond"]
    message: str


Decision = ApproveDecision | EditDecision | RejectDecision | RespondDecision


@dataclass(slots=True, kw_only=True)
class Asked:
    """One call of a task that its policy asks about."""

    call: dict[str, Any]
    tool: BaseTool
    question: Question


@dataclass(slots=True, kw_only=True)
class Answers:
    """What was answered, for the guard: an ``Approver`` of the calls of one task. Each answer is used once."""

    by: str | None = None
    channel: str = CHANNEL
    wait: float = 0.0
    responses: dict[str, str] = field(default_factory=dict)
    _by_digest: dict[str, list[Approve | Deny | Edit]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, digest: str, answer: Approve | Deny | Edit) -> None:
        """``answer`` is that to the question with this digest."""
        self._by_digest.setdefault(digest, []).append(answer)

    def decide(self, request: ApprovalRequest, /) -> Any:
        """The answer to exactly this question; what nobody was shown waits."""
        with self._lock:
            said = self._by_digest.get(request.digest)
            return said.pop(0) if said else LATER


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The calls of a task as they shall be made, who answers for them, and what edits make of them, by their ids.

    ``answers`` is None where all was decided elsewhere.
    """

    calls: Sequence[dict[str, Any]]
    answers: Answers | None
    edited: Mapping[str, Action]


# -- asking ----------------------------------------------------------------------------------------------------


def ask(tools: Tools, calls: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Step | None:
    """Ask about the calls of a task, if somebody is to be asked; under a checkpointer, which waits for the answer.

    Raises LangGraph's interrupt, and pydantic's ``ValidationError`` for an answer that is none to this question.
    """
    asked = _asked(tools, calls)
    if not _is_needed(asked, config):
        return _decided(calls, asked)
    given_to_us = _ours(config)
    decisions = _interrupt(asked, len(given_to_us), _compat.shown_to(config) if given_to_us else None)

    if _needs_more(asked, decisions, config):
        decisions_about(_asked(tools, calls))

    def judge(call: dict[str, Any]) -> Question | None:
        found = gated(tools, [call], is_async=False)
        return next((guard.question(body.tool, args) for _, _, body, args, guard in found), None)

    return _step(calls, asked, decisions, config, judge)


async def aask(tools: Tools, calls: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Step | None:
    """As ``ask``, in a running loop."""
    asked = await _aasked(tools, calls)
    if not _is_needed(asked, config):
        return _decided(calls, asked)
    given_to_us = _ours(config)
    decisions = _interrupt(asked, len(given_to_us), await _compat.ashown_to(config) if given_to_us else None)
    if await asyncio.to_thread(_needs_more, asked, decisions, config):
        decisions_about(await _aasked(tools, calls))
    judged: dict[str, Question | None] = {}
    for one, decision in zip(asked, decisions, strict=True):
        if _is_other_tool(one, decision):
            for call, _, body, args, guard in gated(tools, [_instead(one, decision)], is_async=True):
                judged[call["id"]] = await guard.aquestion(body.tool, args)
    return _step(calls, asked, decisions, config, lambda call: judged.get(call["id"]))


def gated(tools: Tools, calls: Sequence[dict[str, Any]], *, is_async: bool) -> list[Gated]:
    """The calls of tools that this guard runs, with the arguments their bodies would get; wrong ones fail later."""
    found: list[Gated] = []
    for call in calls:
        tool = tools.get(call["name"])
        guard, body = guard_of(tool), None if tool is None else body_behind(tool, is_async=is_async)
        if tool is None or guard is None or body is None or not guard.may_ask(body.tool):
            continue
        args = _compat.parsed(tool, call["args"], call["id"])
        if args is not None:
            found.append((call, tool, body, body.shape.split(*args)[0], guard))
    return found


def _asked(tools: Tools, calls: Sequence[dict[str, Any]]) -> list[Asked]:
    found = [
        (call, tool, guard.question(body.tool, args))
        for call, tool, body, args, guard in gated(tools, calls, is_async=False)
    ]
    return [Asked(call=call, tool=tool, question=question) for call, tool, question in found if question is not None]


async def _aasked(tools: Tools, calls: Sequence[dict[str, Any]]) -> list[Asked]:
    found = [
        (call, tool, await guard.aquestion(body.tool, args))
        for call, tool, body, args, guard in gated(tools, calls, is_async=True)
    ]
    return [Asked(call=call, tool=tool, question=question) for call, tool, question in found if question is not None]


def _is_needed(asked: Sequence[Asked], config: Mapping[str, Any]) -> bool:
    """Whether to interrupt: something waits, or an answer does, which else some tool's own question would get."""
    if not asked:
        return False
    return any(one.question.request is not None for one in asked) or bool(_ours(config))


def _ours(config: Mapping[str, Any]) -> list[Any]:
    """The answers that are for this task's approvals: they come before those to what its tools ask themselves."""
    return list(itertools.takewhile(is_ours, _compat.answers_to(config)))


def is_ours(answer: Any) -> bool:
    decisions = answer.get("decisions") if isinstance(answer, dict) else None
    return isinstance(decisions, list) and all(
        isinstance(one, dict) and one.get("type") in ALLOWED for one in decisions
    )


def _interrupt(asked: Sequence[Asked], answers: int, shown: Any) -> list[Decision]:
    """The decisions; raises LangGraph's interrupt until the last of the ``answers`` is one to what was ``shown``."""
    if isinstance(shown, dict) and DIGESTS in shown:
        is_shown = shown[DIGESTS] == [one.question.digest for one in asked]
    else:  # what was shown is answered, and the tools have asked something else since
        is_shown = all(CHANNEL in one.question.channels for one in asked if one.question.request is not None)
    for _ in range(answers - is_shown):  # to something else: calls that have changed since
        skip()
    return decisions_about(asked)


def skip() -> None:
    """Leave an answer that is there behind, as that to another question."""
    interrupt(None)


def decisions_about(asked: Sequence[Asked]) -> list[Decision]:
    """The next decisions that LangGraph has; raises its interrupt if there are none."""
    exactly = Annotated[list[Decision], Len(len(asked), len(asked))]
    HITLResponse = TypedDict("HITLResponse", {"decisions": exactly})  # noqa: UP013 - made for this question
    answer: Any = interrupt(_request(asked), response_schema=HITLResponse)
    decisions: list[Decision] = answer["decisions"]
    return decisions


def _request(asked: Sequence[Asked]) -> dict[str, Any]:
    """The question, as LangChain's ``HITLRequest``; clients ignore the names that this has beside those."""
    return {
        "action_requests": [
            {
                "name": one.call["name"],
                "args": one.question.arguments,
                "description": "decided already" if one.question.request is None else one.question.request.text,
            }
            for one in asked
        ],
        "review_configs": [{"action_name": one.call["name"], "allowed_decisions": list(ALLOWED)} for one in asked],
        "action_ids": [one.call["id"] for one in asked],
        "approval_ids": [None if one.question.request is None else one.question.request.id for one in asked],
        DIGESTS: [one.question.digest for one in asked],
    }


# -- what was answered -----------------------------------------------------------------------------------------


def _step(
    calls: Sequence[dict[str, Any]],
    asked: Sequence[Asked],
    decisions: Sequence[Decision],
    config: Mapping[str, Any],
    judge: Callable[[dict[str, Any]], Question | None],
) -> Step:
    by = _compat.principal_of(config)
    answers = Answers(by=by)
    made = list(calls)
    for one, decision in zip(asked, decisions, strict=True):
        request = one.question.request
        if _is_other_tool(one, decision) and (request is not None or one.question.denied):
            instead = _instead(one, decision)
            made[next(at for at, call in enumerate(calls) if call is one.call)] = instead
            guard = guard_of(one.tool)
            assert guard is not None  # noqa: S101 - it was asked about
            if request is not None:  # else it was denied for this before the task was interrupted again, or died
                why = f"{instead['name']!r} is called instead"
                guard.approvals_of(CHANNEL).deny(request.id, why, by=by)
            if (question := judge(instead)) is not None:
                answers.say(question.digest, Approve(by=by))
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
        (one.call, {"name": one.call["name"], "args": one.question.edited})
        for one in asked
        if one.question.edited is not None
    ]
    edits = [
        *elsewhere,
        *(
            (one.call, _instead(one, made))
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
        if request is None or request.approvers < 2 or _is_other_tool(one, decision):
            continue
        answer = answer_of(one, decision, _compat.principal_of(config))
        if isinstance(answer, Deny):
            continue
        guard = guard_of(one.tool)
        assert guard is not None  # noqa: S101 - it was asked about
        waits = _is_pending(guard.approvals_of(CHANNEL), request, answer) or waits
    return waits


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


def answer_of(one: Asked, decision: Decision, by: str | None) -> Approve | Deny | Edit:
    if decision["type"] == "approve":
        return Approve(by=by)
    if decision["type"] == "edit":
        return Edit({**one.question.arguments, **decision["edited_action"]["args"]}, by=by)
    if decision["type"] == "respond":
        return Deny("a person answered in the place of the tool", by=by)
    return Deny(decision.get("message"), by=by)


def _is_other_tool(one: Asked, decision: Decision) -> bool:
    return decision["type"] == "edit" and decision["edited_action"]["name"] != one.call["name"]


def _instead(one: Asked, decision: Decision) -> dict[str, Any]:
    assert decision["type"] == "edit"  # noqa: S101 - see the caller
    return {**one.call, **decision["edited_action"]}
