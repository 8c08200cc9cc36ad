"""Answers to LangChain's own human-in-the-loop middleware, looked at before it takes them.

It takes an answer first and reads it then: one of a wrong shape is an error of the agent, and stays on the checkpoint,
so that the right one comes too late. Here it is refused while the question is still open, as one to ours is. What the
middleware itself could read is never refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, Union

from pydantic import BaseModel, Discriminator, create_model
from typing_extensions import TypedDict

from sagaspan_langchain import _compat_tasks as tasks
from sagaspan_langchain import _errors as errors

_MODULE: Final = "langchain.agents.middleware.human_in_the_loop"
_INSTALLED: Final = "__sagaspan_looks__"


class _Action(TypedDict):
    name: str
    args: dict[str, Any]


class _Approve(TypedDict):
    type: Literal["approve"]


class _Edit(TypedDict):
    type: Literal["edit"]
    edited_action: _Action


class _Reject(TypedDict):
    type: Literal["reject"]
    message: NotRequired[Any]


class _Respond(TypedDict):
    type: Literal["respond"]
    message: Any


_READS: Final[Mapping[str, Any]] = {"approve": _Approve, "edit": _Edit, "reject": _Reject, "respond": _Respond}


def install(is_guarded: Callable[[], bool]) -> None:
    """Look at the answers to that middleware where ``is_guarded()``, if it is there; once a process."""
    module = sys.modules.get(_MODULE)
    original = getattr(module, "interrupt", None)  # without it the middleware asks in a way that nobody here knows
    if module is None or original is None or hasattr(original, _INSTALLED):
        return

    @functools.wraps(original)
    def interrupt(value: Any, *args: Any, **options: Any) -> Any:
        if is_guarded() and not args and not options:
            _check(value)
        return original(value, *args, **options)

    setattr(interrupt, _INSTALLED, True)
    vars(module)["interrupt"] = interrupt


def _check(asked: Any) -> None:
    """Raise for an answer to ``asked``, a ``HITLRequest``, that the middleware could not read."""
    config = tasks.config_here()
    answers = [] if config is None else tasks.next_answers(config)
    if not answers or not isinstance(asked, dict) or "review_configs" not in asked:
        return
    try:
        _answer_to(asked["review_configs"]).model_validate(answers[0])
    except ValueError as error:
        raise errors.wrong_answer(error) from None


def _answer_to(reviews: Sequence[Mapping[str, Any]]) -> type[BaseModel]:
    """What an answer must have: for each call, in its order, what a decision that is allowed for it is made of."""
    each = tuple(_one_of(dict.fromkeys(review["allowed_decisions"])) for review in reviews)
    return create_model("HITLResponse", decisions=(tuple[each], ...))  # type: ignore[valid-type] # made for this question


def _one_of(names: Collection[str]) -> Any:
    if not _READS.keys() >= {*names}:  # there are others by now, which the middleware reads itself
        return dict[str, Any]
    kinds = tuple(_READS[name] for name in names)
    return Annotated[Union[kinds], Discriminator("type")] if len(kinds) > 1 else Union[kinds]  # noqa: UP007 - not known before
