"""Crews, agents and flows whose kickoffs are runs; the original is left as it is.

A wrapped object is of a subclass of its own class that overrides where its work begins, and shares the original's
state. What CrewAI builds on those (streams, batches, kickoffs in threads) comes through them by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from sagaspan import Budget, ConfigurationError, Guard, Run
from sagaspan.adapters import PolicyBook, traceback_outside
from sagaspan_crewai import _compat
from sagaspan_crewai import _interrupts as interrupts
from sagaspan_crewai import _models as models
from sagaspan_crewai import _steps as steps
from sagaspan_crewai import _streams as streams
from sagaspan_crewai._asked import metered
from sagaspan_crewai._bodies import install
from sagaspan_crewai._finding import found_in, refuse_unknown
from sagaspan_crewai._session import Session, in_force, session_in_force
from sagaspan_crewai._toolbox import Toolbox

_STATE: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_WIRING: Final = "__sagaspan_wiring__"
_COPIES: Final = ("__copy__", "__deepcopy__")
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a wrapped object opens its runs."""

    name: str | None = None
    run_id: str | None = None
    budget: tuple[Budget, ...] | None = None
    on_interrupt: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What a twin knows: its guard, its tools, how it opens runs, and which item of a batch it is."""

    guard: Guard
    tools: Toolbox
    opening: Opening
    agent: str | None
    item: int | None = None


def can_guard(target: Any) -> bool:
    """Whether ``target`` is a crew, an agent or a flow."""
    return isinstance(target, _compat.Crew | _compat.Agent | _compat.Flow)


def wrap(guard: Guard, target: Any, book: PolicyBook, opening: Opening) -> Any:
    """``target`` guarded; raises ``ConfigurationError`` for a policy of a tool it does not have."""
    if hasattr(target, _WIRING):
        raise ConfigurationError(
            f"the {_kind(target)} {_name(target)!r} is guarded already; wrap it once, with all its policies"
        )
    found = found_in(target)
    refuse_unknown(book, found, f"the {_kind(target)} {_name(target)!r}")
    tools = found.tools
    wiring = Wiring(
        guard=guard,
        tools=Toolbox(guard, (book,), tools),
        opening=replace(opening, name=opening.name or _name(target)),
        agent=target.role if isinstance(target, _compat.Agent) else None,
    )
    for tool in tools:
        install(tool)
    kind: Any = type(target)
    return _twin(target, _guarded_class(kind), wiring)


def _kind(target: Any) -> str:
    return "crew" if isinstance(target, _compat.Crew) else "agent" if isinstance(target, _compat.Agent) else "flow"


def _name(target: Any) -> str:
    """The name of its runs: its own, the agent's role, the class of a flow."""
    name = target.role if isinstance(target, _compat.Agent) else getattr(target, "name", None)
    return (str(name or "").strip() or type(target).__name__)[:_LONGEST_NAME]


# -- the class that is made for a class ---------------------------------------------------------------------------


def _twin(target: Any, kind: type, wiring: Wiring) -> Any:
    """An object of ``kind`` with the very state of ``target``: no constructor runs, so nothing of it is lost."""
    twin: Any = object.__new__(kind)
    for name in _STATE:
        object.__setattr__(twin, name, getattr(target, name, None))
    object.__setattr__(twin, _WIRING, wiring)
    return twin


@functools.cache  # pydantic takes a tenth of a second for one
def _guarded_class(base: Any) -> Any:
    # A slot is the twin's own, while it shares all else with the original.
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__slots__": (_WIRING,)}
    copies = {name: _still_wired(getattr(base, name)) for name in _COPIES}
    return type(base)(base.__name__, (base,), {**names, "__doc__": base.__doc__, **copies, **_members(base)})


def _members(base: Any) -> dict[str, Any]:
    if issubclass(base, _compat.Crew):
        batches = {name: _batch(getattr(base, name)) for name in ("kickoff_for_each",)}
        batches |= {name: _abatch(getattr(base, name)) for name in ("kickoff_for_each_async", "akickoff_for_each")}
        return {
            "kickoff": _sync(base.kickoff),
            "kickoff_async": _in_a_thread(base.kickoff_async),
            "akickoff": _async(base.akickoff),
            "replay": _sync(base.replay),
            "copy": _copied(base.copy),
            "from_checkpoint": _restored(base),
            **batches,
        }
    if issubclass(base, _compat.Agent):
        return {
            "kickoff": _sync(base.kickoff),
            "kickoff_async": _async(base.kickoff_async),
            "akickoff": _async(base.akickoff),
            "copy": _still_wired(base.copy),
            "execute_task": _sync(base.execute_task),
            "aexecute_task": _async(base.aexecute_task),
            "from_checkpoint": _restored(base),
        }
    return {
        "kickoff_async": _async(base.kickoff_async),
        "resume_async": _async(base.resume_async),
        "stream_events": _streamed(base.stream_events),
        "astream": _streamed(base.astream),
        "from_checkpoint": _restored(base),
    }


def _still_wired(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that makes a copy, which is guarded as its original is: CrewAI knows nothing of a twin's own slot."""

    @functools.wraps(method)
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        copy = method(self, *args, **kwargs)
        object.__setattr__(copy, _WIRING, _wiring(self))
        return copy

    return copied


def _restored(base: Any) -> Any:
    """What CrewAI goes on with from a checkpoint is an object of its own, at work within the same kickoff."""

    def from_checkpoint(_kind: type, config: Any) -> Any:
        session = session_in_force.get()
        if session is not None:
            _refuse_two_records(session.run)
        restored = base.from_checkpoint(config)
        for tool in found_in(restored).tools:
            install(tool)
        return restored

    return classmethod(from_checkpoint)


def _refuse_two_records(run: Run) -> None:
    """Refuse to go on from a checkpoint, or after a human's feedback, in a run that goes on too.

    Raises ``ConfigurationError``. The one skips what it did, the other answers it: an equal call of a later task would
    be answered for one skipped.
    """
    if run.resumed:
        error = ConfigurationError(
            f"a checkpoint of CrewAI's (or a flow that waited for feedback) and the run {run.id!r}, which is resumed, "
            "both say what was done: kick the crew off without the checkpoint, and the run answers what is done; or go "
            "on from the checkpoint, in a run of its own"
        )
        run.can_resume_after(error)
        raise error


def _sync(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _passes(self) or (isinstance(self, _compat.Agent) and _loop_is_running()):
            return streams.ended_by_closing(method(self, *args, **kwargs))
        with _shortened(), interrupts.taken() as errand:
            run, is_own = _run_for(self)
            with run if is_own else contextlib.nullcontext(), _kickoff(_session(self, run, errand)):
                return method(self, *args, **kwargs)

    return guarded


def _streamed(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gives a stream; the work begins, by a guarded method, when that is read."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        return streams.ended_by_closing(method(self, *args, **kwargs))

    return guarded


def _in_a_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does its work in a thread, by the guarded method, and is cancelled with it."""

    @functools.wraps(method)
    async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _passes(self):
            return streams.ended_by_closing(await method(self, *args, **kwargs))
        errand = interrupts.AwaitedErrand()
        with interrupts.sent(errand):
            try:
                return await method(self, *args, **kwargs)
            except asyncio.CancelledError as error:
                await errand.cancel(error)
                raise

    return guarded


def _async(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _passes(self):
            return streams.ended_by_closing(await method(self, *args, **kwargs))
        with _shortened(), interrupts.taken() as errand:
            run, is_own = _run_for(self)
            async with run if is_own else contextlib.nullcontext():
                with _kickoff(_session(self, run, errand)):
                    return await method(self, *args, **kwargs)

    return guarded


@contextlib.contextmanager
def _shortened() -> Iterator[None]:
    """Raise what is raised with the frames of the crew's and the tool's own code (SAGASPAN_TRACEBACKS=full: all)."""
    try:
        yield
    except Exception as error:
        error.__traceback__ = traceback_outside(error, ("crewai",))
        raise


def _passes(self: Any) -> bool:
    """Whether the call begins nothing: it is part of one that began, or gives a stream, which begins later."""
    session = session_in_force.get()
    return (session is not None and session.target is self) or bool(getattr(self, "stream", False))


@contextlib.contextmanager
def _kickoff(session: Session) -> Iterator[None]:
    """What happens within the block happens in ``session``; raises what stopped that, whoever swallowed it."""
    try:
        with (
            _compat.events_end_where_they_began(lambda: session.is_stopping),
            in_force(session),
            steps.kickoff(session, _kind(session.target), _name(session.target)),
            metered(found_in(session.target).models),
        ):
            yield
    except Exception as error:
        shown = session.shown(error)
        if shown is error:
            raise
        raise shown from None
    except BaseException as error:
        session.stop(error)  # what goes on in threads of CrewAI's ends, too
        raise
    finally:
        models.close(session)
    if session.stopped is not None:
        raise session.stopped


def _session(self: Any, run: Run, errand: interrupts.Errand | None) -> Session:
    wiring, outer = _wiring(self), session_in_force.get()
    if getattr(self, "checkpoint_kickoff_event_id", None) is not None or getattr(self, "pending_feedback", None):
        _refuse_two_records(run)
    tools = wiring.tools.within(None if outer is None else outer.tools)
    for tool in found_in(self).tools:  # an item of a batch may have tools of its own, and so has what was added since
        install(tool)
    session = Session(guard=wiring.guard, run=run, target=self, tools=tools, outer=outer)
    if errand is not None:
        errand.begin(session)
    return session


def _run_for(self: Any) -> tuple[Run, bool]:
    """The run of a kickoff that begins, and whether it is one of its own."""
    wiring = _wiring(self)
    opening, item = wiring.opening, wiring.item
    current = wiring.guard.current_run()
    if current is not None and opening.budget is None and item is None:
        return current, False
    run_id = opening.run_id if item is None or opening.run_id is None else f"{opening.run_id}/{item}"
    made = wiring.guard.run(
        opening.name or "crew", id=run_id, agent=wiring.agent, budget=opening.budget, on_interrupt=opening.on_interrupt
    )
    return made, True


def _wiring(self: Any) -> Wiring:
    wiring: Wiring = getattr(self, _WIRING)
    return wiring


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# -- batches: a run for each item --------------------------------------------------------------------------------

_items: ContextVar[list[int] | None] = ContextVar("sagaspan_crewai_items", default=None)


def _batch(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _items.set([])
        try:
            return method(self, *args, **kwargs)
        finally:
            _items.reset(token)

    return guarded


def _abatch(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _items.set([])
        try:
            made = await method(self, *args, **kwargs)
        finally:
            _items.reset(token)
        _compat.let_go(made)  # a stream of its own; closing that cancels the tasks of its items
        return made

    return guarded


def _copied(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def copy(self: Any) -> Any:
        wiring, items = _wiring(self), _items.get()
        if items is not None:
            items.append(len(items) + 1)
            wiring = replace(wiring, item=items[-1])
        return _twin(method(self), type(self), wiring)

    return copy
