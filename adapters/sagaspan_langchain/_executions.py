"""When the code of a task begins: LangChain tells its callbacks, for each attempt, in whichever graph and way.

What is invoked within a task tells them too, under the same name; only what is not in its parent's task begins one.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, Self, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from sagaspan import Guard

_PLACE: Final = "langgraph_checkpoint_ns"


class Executions(BaseCallbackHandler):
    """Tells the run in force of ``guard`` of each begin of the code of a task."""

    run_inline = True  # or else the code may be ahead of it
    ignore_llm = ignore_chat_model = ignore_retriever = ignore_agent = ignore_custom_event = True

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._places: dict[UUID, str] = {}

    @classmethod
    def here(cls, guard: Guard) -> Self:
        """The one that is told here already, or a new one."""
        known = executions_here.get()
        return known if isinstance(known, cls) and known.guard is guard else cls(guard)

    def on_chain_start(
        self,
        serialized: Any,  # noqa: ARG002 - LangChain's signature
        inputs: Any,  # noqa: ARG002 - as above
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **details: Any,  # noqa: ARG002 - as above
    ) -> None:
        place = str((metadata or {}).get(_PLACE) or "")
        around = None if parent_run_id is None else self._places.get(parent_run_id)
        self._places[run_id] = place
        if around is not None and place not in ("", around):
            run = self.guard.current_run()
            if run is not None:
                run.task_begins(place)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **details: Any) -> None:  # noqa: ARG002 - LangChain's signature
        self._places.pop(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **details: Any) -> None:  # noqa: ARG002 - as above
        self._places.pop(run_id, None)


executions_here: Final[ContextVar[Executions | None]] = ContextVar("sagaspan_langchain_executions", default=None)
"""Who is told: LangChain adds it to the callbacks of all that is invoked in this context."""

register_configure_hook(cast("ContextVar[Any | None]", executions_here), inheritable=True)
