"""CrewAI under a guard: crews, agents, flows and single tools, as they are.

Importing this package imports no framework; that happens when an object of CrewAI is wrapped.
"""

from __future__ import annotations

from sagaspan_crewai._adapter import CrewAdapter

adapter = CrewAdapter()

__all__ = ["CrewAdapter", "adapter"]
