"""A gated tool that the code of a node calls itself: asked about where it is called, through LangGraph's interrupt.

No ``ToolNode`` knows its calls before, so there is one question a call. LangGraph matches answers to questions by their
order in the node, so what asked before asks again when the node runs again, and takes its own answer; one counts only
for the question that was shown. The same holds for the code of a tool that is the only call of its task, as in
``create_agent``. Beside other calls, or within a tool that somebody is asked about itself, there is no such order, and
in a thread that lost the context nobody can be asked like this: there the call waits in the ledger
(``ApprovalPending``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.tools import BaseTool

from sagaspan import Deny, Guard
from sagaspan.adapters import Question, approver_here
from sagaspan_langchain import _approvals as approvals
from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain._approvals import Answers, Asked, Decision, Gated
from sagaspan_langchain._bodies import body_behind, is_beside, is_of_message
from sagaspan_langchain._marks import guard_of


@contextlib.contextmanager
def asked(tool: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Whoever must agree to this call of a guarded tool has been asked; raises LangGraph's interrupt until then."""
    found = _gated(tool, args, kwargs, is_async=False)
    if found is None:
        yield
        return
    gated, config = found
    question = gated[4].question(gated[2].tool, gated[3])
    shown = tasks.shown_to(config) if question is not None and tasks.next_answers(config) else None
    with _answered(gated, question, config, shown):
        yield


@contextlib.asynccontextmanager
async def aasked(tool: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """As ``asked``, in a running loop."""
    found = _gated(tool, args, kwargs, is_async=True)
    if found is None:
        yield
        return
    gated, config = found
    question = await gated[4].aquestion(gated[2].tool, gated[3])
    shown = None
    if question is not None and tasks.next_answers(config):
        shown = await tasks.ashown_to(config)
    with _answered(gated, question, config, shown):
        yield


def _gated(
    tool: BaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_async: bool
) -> tuple[Gated, Mapping[str, Any]] | None:
    """The call, if this is the place to ask about it."""
    guard, body = guard_of(tool), body_behind(tool, is_async=is_async)
    if guard is None or body is None or not guard.may_ask(body.tool) or _is_asked_elsewhere(guard):
        return None
    config = tasks.config_here()
    if config is None or tasks.checkpointer_of(config) is None:
        return None
    given = args[0] if args else kwargs.get("tool_input")
    call = {
        "name": tool.name,
        "args": given if isinstance(given, dict) else {"": given},
        "id": kwargs.get("tool_call_id") or "",
    }
    gated = approvals.gated({tool.name: tool}, [call], is_async=is_async)
    return (gated[0], config) if gated else None


def _is_asked_elsewhere(guard: Guard) -> bool:
    if approver_here.get() is not None or is_of_message.get():
        return True
    return guard.current_call() is not None and is_beside.get()


@contextlib.contextmanager
def _answered(gated: Gated, question: Question | None, config: Mapping[str, Any], shown: Any) -> Iterator[None]:
    call, tool, *_ = gated
    if question is None:
        yield
        return
    one = Asked(call=call, tool=tool, question=question)
    decision = _decision(one, tasks.next_answers(config), shown)
    if decision is None:
        yield
        return
    token = approver_here.set(_answers(one, decision, tasks.principal_of(config)))
    try:
        yield
    finally:
        approver_here.reset(token)


def _decision(one: Asked, answers: list[Any], shown: Any) -> Decision | None:
    """The decision about ``one``; None if it needs none. ``answers`` are those to this question and to later ones."""
    given = approvals.ours([one], answers, shown)
    if one.question.request is None:  # its own answers are left behind, or the next question would get them
        approvals.skip([*itertools.takewhile(lambda answer: approvals.is_about([one], answer), given)])
        return None
    decisions = approvals.interrupted([one], answers, given)
    return None if decisions is None else decisions[0]


def _answers(one: Asked, decision: Decision, by: str | None) -> Answers:
    answers = Answers(by=by)
    if decision["type"] == "edit" and decision["edited_action"]["name"] != one.call["name"]:
        why = f"the code that calls {one.call['name']!r} cannot call {decision['edited_action']['name']!r} instead"
        answers.say(one.question.digest, Deny(why, by=by))
        return answers
    answers.say(one.question.digest, approvals.answer_of(one, decision, by))
    if decision["type"] == "respond":
        answers.responses[one.call["id"]] = decision["message"]
    return answers
