"""The adapter of LangChain: knows its objects by where their classes come from, and imports it only to wrap one."""

from __future__ import annotations

from typing import Any, Final

from sagaspan import Budget, ConfigurationError, Coverage, Guard
from sagaspan.adapters import PolicyBook, is_from

ROOTS: Final = frozenset({"langchain", "langchain_core", "langchain_classic", "langgraph"})


class LangChainAdapter:
    """Knows LangChain's and LangGraph's objects, and lists or tuples with a tool among them."""

    def knows(self, target: object) -> bool:
        """Whether ``target`` is of a class of LangChain's or LangGraph's; a plain function may stand beside tools."""
        return is_from(target, ROOTS)

    def wrap(
        self,
        guard: Guard,
        target: Any,
        book: PolicyBook,
        *,
        name: str | None,
        run_id: str | None,
        budget: tuple[Budget, ...] | None,
        on_interrupt: Any,
    ) -> Any:
        """``target`` guarded, of the same type; raises ``ConfigurationError`` for anything it cannot guard."""
        from sagaspan_langchain import _compat, _tools

        _compat.check()
        options = (name, run_id, budget, on_interrupt)
        if _compat.is_model(target):
            _refuse("a wrapped model", *options)
            return _wrap_model(guard, target, book)
        if isinstance(target, list | tuple) or _compat.is_tool(target):
            _refuse("a wrapped tool", *options)
            return _tools.wrap_tools(guard, target, book)
        if _compat.is_graph(target) or _compat.is_runnable(target):
            from sagaspan_langchain import _graphs, _runnables

            opening = _graphs.Opening(name=name, run_id=run_id, budget=budget, on_interrupt=on_interrupt)
            wrap = _graphs.wrap_graph if _compat.is_graph(target) else _runnables.wrap_runnable
            return wrap(guard, target, book, opening)
        raise ConfigurationError(
            f"guard.wrap cannot guard a {type(target).__module__}.{type(target).__qualname__} yet: wrap the agent or "
            "graph (what create_agent or StateGraph.compile returns), or its tools"
        )

    def coverage(self, target: Any) -> Coverage:
        """What of ``target`` is guarded once it is wrapped, and what nobody can see into."""
        from sagaspan_langchain import _compat

        _compat.check()
        from sagaspan_langchain._finding import found_in

        return found_in(*_members(target)).coverage()


def _members(target: Any) -> list[Any]:
    return list(target) if isinstance(target, list | tuple) else [target]


def _wrap_model(guard: Guard, model: Any, book: PolicyBook) -> Any:
    from langchain_core.embeddings import Embeddings

    from sagaspan_langchain._embeddings import asks_others, guarded_embeddings
    from sagaspan_langchain._marks import guard_of
    from sagaspan_langchain._models import guarded_model

    if guard_of(model) is not None:
        raise ConfigurationError(f"the model {type(model).__qualname__} is guarded already; wrap it once")
    book.check_names([], where="a model, which has no tools,")
    if not isinstance(model, Embeddings):
        return guarded_model(guard, model)
    if asks_others(model):
        raise ConfigurationError(
            f"{type(model).__qualname__} asks other embeddings; wrap those, and give it the wrapped ones"
        )
    return guarded_embeddings(guard, model)


def _refuse(what: str, *options: Any) -> None:
    if any(option is not None for option in options):
        raise ConfigurationError(
            f"{what} opens no run and keeps its name, so it takes no name, run_id, budget or on_interrupt; wrap the "
            "agent, or call it within guard.run(...)"
        )
