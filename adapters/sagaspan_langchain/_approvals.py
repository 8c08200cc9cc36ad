"""Approvals through LangGraph's ``interrupt()``: one request a task, asked before any tool of that task starts.

Inside the tools it would be too late: LangGraph matches answers to questions by their order within a task, and tools
that run side by side have none. The request and its answer have the shape of LangChain's human-in-the-loop middleware.
It lists all calls of the task that somebody is asked about, also those decided elsewhere meanwhile, so that positions
stay what they were; the ledger keeps the first decision. An answer counts only for exactly the arguments that were
shown: it goes by the digest of its question.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NotRequired

from annotated_types import Len
from langchain_core.tools import BaseTool
from langgraph.types import interrupt
from pydantic import BeforeValidator
from typing_extensions import TypedDict

from sagaspan import ApprovalRequest, Approve, Deny, Edit, Guard, ResolutionError
from sagaspan.adapters import Question
from sagaspan.approvers import LATER
from sagaspan_langchain import _compat
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain import _errors as errors
from sagaspan_langchain._bodies import Body, body_behind
from sagaspan_langchain._inbox import as_decisions, check_accepted
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


def asked_about(tools: Tools, calls: Sequence[dict[str, Any]]) -> list[Asked]:
    """Those of ``calls`` that somebody is asked about, with the questions."""
    found = [
        (call, tool, guard.question(body.tool, args))
        for call, tool, body, args, guard in gated(tools, calls, is_async=False)
    ]
    return [Asked(call=call, tool=tool, question=question) for call, tool, question in found if question is not None]


async def aasked_about(tools: Tools, calls: Sequence[dict[str, Any]]) -> list[Asked]:
    """As ``asked_about``, in a running loop."""
    found = [
        (call, tool, await guard.aquestion(body.tool, args))
        for call, tool, body, args, guard in gated(tools, calls, is_async=True)
    ]
    return [Asked(call=call, tool=tool, question=question) for call, tool, question in found if question is not None]


def waits(asked: Sequence[Asked]) -> bool:
    """Whether somebody is still to answer."""
    return any(one.question.request is not None for one in asked)


def ours(asked: Sequence[Asked], answers: Sequence[Any], shown: Any) -> list[Any]:
    """Those of a task's ``answers`` that are to our questions; they come before those to what its tools ask themselves.

    One that was taken says to which question it was. The newest is to what was ``shown`` last.
    """
    taken = [*itertools.takewhile(lambda answer: digests_of(answer) is not None, answers)]
    if len(taken) + 1 != len(answers) or digests_of(shown) is None:
        return taken
    newest = as_decisions(answers[-1], [one.question.arguments for one in asked])
    if _has_shape(newest):
        return [*taken, {**newest, DIGESTS: digests_of(shown)}]
    return [*taken, {"decisions": [], DIGESTS: digests_of(shown) if waits(asked) else []}]


def digests_of(said: Any) -> Any:
    """Which questions were asked by this request, or answered by this answer; None if it is none of ours."""
    return said.get(DIGESTS) if isinstance(said, dict) else None


def is_about(asked: Sequence[Asked], said: Any) -> bool:
    """Whether a request or an answer is about exactly what is asked now."""
    return bool(digests_of(said) == [one.question.digest for one in asked])


def _has_shape(answer: Any) -> bool:
    decisions = answer.get("decisions") if isinstance(answer, dict) else None
    return isinstance(decisions, list) and all(
        isinstance(one, dict) and one.get("type") in ALLOWED for one in decisions
    )


def interrupted(asked: Sequence[Asked], answers: Sequence[Any], given: Sequence[Any]) -> list[Decision] | None:
    """The decisions; raises LangGraph's interrupt until one is ``given`` that is about what is ``asked`` now.

    None if nobody is to answer any more. ``given`` are those of the ``answers`` that are ``ours``.
    """
    is_answered = bool(given) and is_about(asked, given[-1])
    if not is_answered and not waits(asked):
        skip(given)
        return None
    skip(given[:-1] if is_answered else answers)  # to something else: calls that have changed since
    return decisions_about(asked)


def skip(answers: Sequence[Any]) -> None:
    """Leave ``answers`` that are there behind, as those to other questions."""
    for _ in answers:
        if digests_of(interrupt(None)) is None:
            tasks.keep_answer({"decisions": [], DIGESTS: []})


def decisions_about(asked: Sequence[Asked]) -> list[Decision]:
    """The next decisions that LangGraph has; raises its interrupt if there are none."""
    try:
        answer: Any = interrupt(_request(asked), response_schema=_response_to(asked))
        decisions = [_as_read(one, decision) for one, decision in zip(asked, answer["decisions"], strict=True)]
    except ValueError as error:  # a ValidationError of either pydantic
        raise errors.wrong_answer(error) from None
    except ResolutionError as error:  # an edit that cannot be: by the schema's own error, if it is that
        cause = error.__cause__
        raise errors.wrong_answer(cause if isinstance(cause, ValueError) else error) from None
    # When the task runs again, tools of it may have asked in the same format.
    tasks.keep_answer({**answer, DIGESTS: [one.question.digest for one in asked]})
    return decisions


def _response_to(asked: Sequence[Asked]) -> Any:
    """The type of an answer: a decision for each call, as LangChain writes them or as Agent Inbox does."""
    exactly = Annotated[list[Decision], Len(len(asked), len(asked))]
    HITLResponse = TypedDict("HITLResponse", {"decisions": exactly})  # noqa: UP013 - made for this question
    calls = [(one.call["name"], one.question.arguments) for one in asked]

    def read(answer: Any) -> Any:
        check_accepted(answer, calls)
        return as_decisions(answer, [args for _, args in calls])

    return Annotated[HITLResponse, BeforeValidator(read)]


def _as_read(one: Asked, decision: Decision) -> Decision:
    """``decision`` with what an edit changes as the tool's schema reads it; raises what it refuses it with.

    LangChain has read the model's arguments by now, and reads those of another tool later; nobody reads these. What an
    edit leaves out, or gives back as it was shown, stays what it is: so does what is redacted.
    """
    if decision["type"] != "edit" or is_other_tool(one, decision):
        return decision
    args = one.question.changes(decision["edited_action"]["args"])
    return {"type": "edit", "edited_action": {**decision["edited_action"], "args": args}}


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


def answer_of(one: Asked, decision: Decision, by: str | None) -> Approve | Deny | Edit:
    """``decision`` as the guard takes it."""
    if decision["type"] == "approve":
        return Approve(by=by)
    if decision["type"] == "edit":
        return Edit(one.question.with_changes(decision["edited_action"]["args"]), by=by)
    if decision["type"] == "respond":
        return Deny("a person answered in the place of the tool", by=by)
    return Deny(decision.get("message"), by=by)


def is_whole(decision: Mapping[str, Any]) -> bool:
    """Whether what says that it is an edit has one; nobody has checked the answers that are looked at beforehand."""
    action = decision.get("edited_action")
    return isinstance(action, dict) and isinstance(action.get("name"), str) and isinstance(action.get("args"), dict)


def is_other_tool(one: Asked, decision: Decision) -> bool:
    """Whether it is an edit to another tool."""
    return decision["type"] == "edit" and decision["edited_action"]["name"] != one.call["name"]


def instead_of(one: Asked, decision: Decision) -> dict[str, Any]:
    """The call that an edit makes of that of ``one``."""
    assert decision["type"] == "edit"  # noqa: S101 - see the caller
    return {**one.call, **decision["edited_action"]}
