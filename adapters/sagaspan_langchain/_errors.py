"""What an error of the guard becomes in an agent: data for the model, or the end of the run as that very error.

Data is for what the model can act on: nothing ran, or nobody knows. The rest must end the run, and only subclasses of
``GraphBubbleUp`` pass every error handler and retry of LangGraph and LangChain's middleware (langchain.md, fact 3).
"""

from __future__ import annotations

from typing import Final

from langgraph.errors import GraphBubbleUp

from sagaspan_langchain import _compat_tasks as tasks

_ORIGINAL: Final = "__sagaspan_original__"
_WRONG_ANSWER: Final = "__sagaspan_wrong_answer__"


class Leaving(GraphBubbleUp):
    """Carries an error whose type cannot have a second base; a guarded graph raises the error itself."""


def leaving(error: BaseException) -> BaseException:
    """``error`` so that nothing between here and the caller swallows it; still an instance of its own type."""
    if isinstance(error, GraphBubbleUp) or not isinstance(error, Exception):
        return error
    try:
        kind = _with_second_base(type(error))
        # Not through __init__, whose arguments are the type's own business.
        carrier: Exception = kind.__new__(kind, *error.args)
        carrier.args = error.args
        carrier.__dict__.update(error.__dict__)
    except TypeError:
        carrier = Leaving(f"{type(error).__name__}: {error}")
    setattr(carrier, _ORIGINAL, error)
    return carrier.with_traceback(error.__traceback__)


def original(error: BaseException) -> BaseException:
    """The error that ``leaving`` made this one of, or ``error`` itself."""
    found: BaseException = getattr(error, _ORIGINAL, error)
    return found


def wrong_answer(error: Exception) -> BaseException:
    """``error``, to be raised: a person's answer was none to our question, which stays open. Nothing ended by that."""
    setattr(error, _WRONG_ANSWER, True)
    return leaving(error)


def is_wrong_answer(error: BaseException | None) -> bool:
    """Whether ``error`` says only that an answer was refused: by us, or by LangGraph for the schema of its question."""
    return error is not None and (getattr(error, _WRONG_ANSWER, False) is True or tasks.is_invalid_resume(error))


def _with_second_base(kind: type[Exception]) -> type[Exception]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    # What a type keeps outside its attributes, as OSError does, is not copied: the text comes from the error itself.
    return type(kind.__name__, (kind, GraphBubbleUp), {**names, "__str__": lambda self: str(original(self))})
