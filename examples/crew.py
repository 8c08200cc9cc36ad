"""An ordinary crew of CrewAI that books a trip; it knows nothing of sagaspan. Run it: ``python examples/crew.py``.

What really happens is printed. ``CREW_CARD=declined`` makes the bank refuse. The model follows a script, offline.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool


class CardDeclined(Exception):
    """The bank refused; nothing was charged."""


@tool("book_flight")
def book_flight(city: str) -> str:
    """Book a flight to a city."""
    print(f"  airline: a seat to {city} is booked")
    return f"flight to {city}"


@tool("cancel_flight")
def cancel_flight(city: str) -> str:
    """Cancel the flight to a city."""
    print(f"  airline: the seat to {city} is free again")
    return "cancelled"


@tool("charge_card")
def charge_card(amount: int) -> str:
    """Charge the traveller's card."""
    if os.environ.get("CREW_CARD") == "declined":
        raise CardDeclined(f"the bank declined {amount} EUR")
    print(f"  bank: {amount} EUR are charged")
    return "charged"


class ScriptedModel(BaseLLM):
    """A model without a network: it asks for one tool after the other, and answers at last."""

    def call(self, messages: Any, *args: Any, **options: Any) -> str:  # noqa: ARG002 - CrewAI's signature
        """The next step."""
        said = json.dumps(messages, default=str)
        for name, arguments in (("book_flight", {"city": "Lisbon"}), ("charge_card", {"amount": 540})):
            if f"Action: {name}" not in said:
                return f"Thought: next\nAction: {name}\nAction Input: {json.dumps(arguments)}"
        return "Thought: done\nFinal Answer: The trip is booked."

    def supports_function_calling(self) -> bool:
        """It speaks text."""
        return False

    def get_context_window_size(self) -> int:
        """Enough."""
        return 100_000


def make_crew() -> Crew:
    """The crew."""
    clerk = Agent(
        role="Travel clerk",
        goal="Book trips",
        backstory="You book trips.",
        llm=ScriptedModel(model="scripted"),
        tools=[book_flight, cancel_flight, charge_card],
    )
    return Crew(
        name="trip",
        agents=[clerk],
        tasks=[Task(name="book", description="Book a trip to Lisbon.", expected_output="A word", agent=clerk)],
    )


if __name__ == "__main__":
    print(make_crew().kickoff().raw)
