"""Finding the adapter of an object: entry points of the group ``sagaspan.adapters``, imported only on ``wrap``."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol

from sagaspan._checks import described
from sagaspan.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sagaspan._guard import Guard
    from sagaspan.budget import Budget
    from sagaspan.policy import PolicyBook

GROUP: Final = "sagaspan.adapters"


class Adapter(Protocol):
    """What an entry point of the group names. ``knows`` must not import the framework."""

    def knows(self, target: object) -> bool:
        """Whether ``target`` is of this adapter's framework."""

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
        """``target`` guarded; the original stays as it is. Options it cannot honour raise ``ConfigurationError``."""


def find_adapter(target: object) -> Adapter:
    """The first adapter that knows ``target``; raises ``ConfigurationError``."""
    found = entry_points(group=GROUP)
    for point in sorted(found, key=lambda point: point.name == "functions"):  # plain callables last: they know least
        adapter: Adapter = point.load()
        if adapter.knows(target):
            return adapter
    known = ", ".join(sorted(point.name for point in found)) or "none (reinstall sagaspan)"
    raise ConfigurationError(
        f"guard.wrap does not know what {_named(target)} is; adapters installed: {known}. Wrap the agent, a list of "
        "tools, or a function"
    )


def _named(target: object) -> str:
    if isinstance(target, list | tuple):
        kinds = ", ".join(dict.fromkeys(_named(item) for item in target))
        return f"{described(target)} of {kinds or 'nothing'}"
    if inspect.isclass(target) or type(target).__module__ == "builtins":
        return described(target)
    return f"a {type(target).__module__}.{type(target).__qualname__}"
