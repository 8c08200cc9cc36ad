"""Which run a checkpoint was made in: it says so itself, in its metadata.

Nothing else can be trusted to tell. The last run of a conversation need not be that of the checkpoint that is gone on
from: somebody may have named an earlier one, or another agent of the same name has had a turn in the same conversation,
with a checkpointer of its own. What a person makes of a checkpoint (``update_state``) is of the run of that one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import StateSnapshot

from sagaspan import Run, RunInfo, RunState

_RUN: Final = "sagaspan_run"
_CREATED: Final = "sagaspan_run_created"
_NOT_OVER: Final = (RunState.RUNNING, RunState.PAUSED, RunState.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """When a checkpoint was ``made`` that names no run, and since when which runs are ``named`` in its thread.

    Versions that noted none made such checkpoints, and so did whoever was not guarded. A run that goes on from one and
    pauses at once has made none of its own.
    """

    made: dt.datetime
    named: Mapping[tuple[str, str], dt.datetime]

    def is_of(self, run: RunInfo) -> bool:
        """Whether ``run`` was under way when it was made, and had not named itself in any before."""
        since = self.named.get(_name_of(run))
        is_under_way = run.created <= self.made and (run.ended is None or self.made <= run.ended)
        return is_under_way and (since is None or self.made < since)

    def may_be_left_to(self, run: RunInfo) -> bool:
        """Whether ``run`` began after it, is not over, and has made no checkpoint of its own."""
        return self.made < run.created and run.status in _NOT_OVER and _name_of(run) not in self.named


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a checkpoint comes from: a run, by its id and when that was first entered; no run; or nobody knows.

    ``unknown``: why not. A copy does not name what it was copied from, and some checkpointers keep no metadata.
    ``silence``: what else is known of one that names no run.
    """

    run_id: str | None = None
    created: str | None = None
    unknown: Literal["copied", "unsaid"] | None = None
    silence: Silence | None = None

    def is_in(self, run: RunInfo) -> bool:
        """Whether that is this very run, not one of the same id in another ledger, or from before it was forgotten."""
        return self.run_id == run.id and self.created == run.created.isoformat()


def _name_of(run: RunInfo) -> tuple[str, str]:
    return run.id, run.created.isoformat()


def marks(run: Run) -> RunnableConfig:
    """The config that makes LangGraph note ``run`` in each checkpoint; nothing for a run that is on no record."""
    created = run.created
    return {} if created is None else {"metadata": {_RUN: run.id, _CREATED: created.isoformat()}}


def origin_of(saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot) -> Origin | None:
    """Where the checkpoint of ``snapshot`` comes from; None if there is no checkpoint."""
    search = _search(saver, snapshot)
    try:
        wanted = next(search)
        while True:
            wanted = search.send(saver.get_tuple(wanted))
    except StopIteration as found:
        origin: Origin | None = found.value
    if origin is None or origin.silence is None:
        return origin
    return _told(origin.silence, list(saver.list(_thread_of(snapshot))))


async def aorigin_of(saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot) -> Origin | None:
    """As ``origin_of``, in a running loop."""
    search = _search(saver, snapshot)
    try:
        wanted = next(search)
        while True:
            wanted = search.send(await saver.aget_tuple(wanted))
    except StopIteration as found:
        origin: Origin | None = found.value
    if origin is None or origin.silence is None:
        return origin
    return _told(origin.silence, [saved async for saved in saver.alist(_thread_of(snapshot))])


def _thread_of(snapshot: StateSnapshot) -> RunnableConfig:
    where = snapshot.config["configurable"]
    return {"configurable": {name: where[name] for name in ("thread_id", "checkpoint_ns") if name in where}}


def _told(silence: Silence, thread: Sequence[CheckpointTuple]) -> Origin:
    named: dict[tuple[str, str], dt.datetime] = {}
    for saved in thread:
        metadata: Mapping[str, Any] = saved.metadata
        if _RUN in metadata:
            name, made = (str(metadata[_RUN]), str(metadata.get(_CREATED))), _moment(saved.checkpoint["ts"])
            named[name] = min(made, named.get(name, made))
    return Origin(silence=Silence(made=silence.made, named=named))


_moment = dt.datetime.fromisoformat
_Search = Generator[RunnableConfig, CheckpointTuple | None, Origin | None]


def _search(saver: BaseCheckpointSaver[Any], snapshot: StateSnapshot) -> _Search:
    """Asks for the checkpoints that have to be looked at, each the one before the last."""
    if snapshot.created_at is None:
        return None
    metadata: Mapping[str, Any] = snapshot.metadata or {}
    before, made = snapshot.parent_config, snapshot.created_at
    while _RUN not in metadata and metadata.get("source") == "update" and before is not None:
        saved = yield before
        if saved is None:
            return Origin(unknown="copied")
        metadata, before, made = saved.metadata, saved.parent_config, saved.checkpoint["ts"]
    if _RUN in metadata:
        return Origin(run_id=str(metadata[_RUN]), created=str(metadata.get(_CREATED)))
    # What a person gave as input stands beside the work that was under way.
    if metadata.get("source") == "fork" or (metadata.get("source") == "input" and before is not None):
        return Origin(unknown="copied")
    return Origin(silence=Silence(made=_moment(made), named={})) if _keeps_metadata(saver) else Origin(unknown="unsaid")


def _keeps_metadata(saver: BaseCheckpointSaver[Any]) -> bool:
    """Whether a checkpointer is known to save the metadata of a config, as LangGraph's own do."""
    kinds = [kind for kind in type(saver).__mro__ if kind is not BaseCheckpointSaver]
    return any(kind.__module__.startswith("langgraph.checkpoint.") for kind in kinds)
