"""The adapter of CrewAI: knows its objects by where their classes come from, and imports it only to wrap one."""

from __future__ import annotations

from typing import Any, Final

from sagaspan import Budget, ConfigurationError, Coverage, Guard
from sagaspan.adapters import PolicyBook, is_from

ROOTS: Final = frozenset({"crewai"})


class CrewAdapter:
    """Knows CrewAI's objects and those of subclasses of its classes, and lists or tuples with one among them."""

    def knows(self, target: object) -> bool:
        """Whether ``target`` is of a class of CrewAI's."""
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
        from sagaspan_crewai import _compat

        _compat.check()
        from sagaspan_crewai import _tools, _twins

        options = {"name": name, "run_id": run_id, "budget": budget, "on_interrupt": on_interrupt}
        if isinstance(target, list | tuple) or _compat.is_tool(target):
            given = [option for option, value in options.items() if value is not None]
            if given:
                raise ConfigurationError(
                    f"a wrapped tool opens no run and keeps its name, so it takes no {given[0]}; wrap the crew or "
                    "agent, or call it within guard.run(...)"
                )
            return _tools.wrap_tools(guard, target, book)
        if _twins.can_guard(target):
            return _twins.wrap(guard, target, book, _twins.Opening(**options))
        raise ConfigurationError(
            f"guard.wrap cannot guard a {type(target).__module__}.{type(target).__qualname__}: wrap the crew, the "
            "agent, the flow, or its tools"
        )

    def coverage(self, target: Any) -> Coverage:
        """What of ``target`` is guarded once it is wrapped, and what nobody can see into."""
        from sagaspan_crewai import _compat

        _compat.check()
        from sagaspan_crewai._finding import found_in

        return found_in(target).coverage()
