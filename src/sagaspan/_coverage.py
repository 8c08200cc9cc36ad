"""``Coverage``: what of an agent goes through its guard, and what nobody can see into."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What ``guard.coverage`` found: names of ``tools`` and ``models`` that are guarded; ``opaque``: what is not."""

    tools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()

    @property
    def guarded(self) -> tuple[str, ...]:
        """The names of all that is guarded."""
        return (*self.tools, *self.models)
