"""An ordinary LangChain agent that books a trip; it knows nothing of sagaspan.

The world outside is a file of JSON lines, the books of the airline, the hotel and the bank (``TRIP_WORLD``), so that
what really happened can be counted. ``TRIP_CARD=declined`` makes the bank refuse. Run it: ``python examples/trip.py``.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

TASK = "Book me a trip to Lisbon: a flight, a hotel, and put 540 EUR on my card."


class CardDeclined(Exception):
    """The bank refused; nothing was charged."""


# -- the world outside -----------------------------------------------------------------------------------------


def world() -> Path:
    """The file of the books."""
    return Path(os.environ.get("TRIP_WORLD", "trip-world.jsonl"))


def _write(event: str, kind: str, number: str, **details: Any) -> dict[str, Any]:
    with world().open("a", encoding="utf-8") as books:
        books.write(json.dumps({"event": event, "kind": kind, "id": number, **details}) + "\n")
    return {"id": number, **details}


def bookings() -> dict[str, dict[str, int]]:
    """What the books say, by kind: how many are ``active``, ``cancelled``, and were ever ``booked``."""
    lines = world().read_text(encoding="utf-8").splitlines() if world().exists() else []
    events = [json.loads(line) for line in lines]
    booked = Counter(event["kind"] for event in events if event["event"] == "booked")
    cancelled = Counter(event["kind"] for event in events if event["event"] == "cancelled")
    return {
        kind: {"active": booked[kind] - cancelled[kind], "cancelled": cancelled[kind], "booked": booked[kind]}
        for kind in ("flight", "hotel", "charge")
    }


# -- the agent's tools, and what undoes them -------------------------------------------------------------------


@tool
def book_flight(city: str) -> dict[str, Any]:
    """Book a flight to a city."""
    return _write("booked", "flight", f"F-{uuid.uuid4().hex[:6]}", city=city)


@tool
def book_hotel(city: str, nights: int = 3) -> dict[str, Any]:
    """Book a hotel room in a city."""
    return _write("booked", "hotel", f"H-{uuid.uuid4().hex[:6]}", city=city, nights=nights)


@tool
def charge_card(amount: float) -> dict[str, Any]:
    """Charge the traveller's card."""
    if os.environ.get("TRIP_CARD", "ok") == "declined":
        raise CardDeclined(f"the bank declined {amount:.2f} EUR")
    return _write("booked", "charge", f"C-{uuid.uuid4().hex[:6]}", amount=amount)


def cancel_flight(result: dict[str, Any]) -> None:
    """Cancel the flight that ``book_flight`` returned."""
    _write("cancelled", "flight", result["id"])


def cancel_hotel(result: dict[str, Any]) -> None:
    """Cancel the room that ``book_hotel`` returned."""
    _write("cancelled", "hotel", result["id"])


# -- the agent -------------------------------------------------------------------------------------------------

PLAN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("book_flight", {"city": "Lisbon"}),
    ("book_hotel", {"city": "Lisbon"}),
    ("charge_card", {"amount": 540.0}),
)


class ScriptedModel(BaseChatModel):
    """A chat model without a network: it asks for the next step of the plan, and ends when all are answered."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:  # noqa: ARG002 - it knows its plan
        """The model itself."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - LangChain's signature
        **options: Any,  # noqa: ARG002 - LangChain's signature
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next(messages))])

    def _next(self, messages: list[BaseMessage]) -> AIMessage:
        answered = sum(isinstance(message, ToolMessage) for message in messages)
        if answered >= len(PLAN):
            return _said("Your trip to Lisbon is booked and paid.", messages)
        name, arguments = PLAN[answered]
        # A fresh id every time, as real providers do.
        call = {"name": name, "args": arguments, "id": f"call_{uuid.uuid4().hex[:8]}"}
        return _said("", messages, tool_calls=[call])


def _said(text: str, messages: list[BaseMessage], **more: Any) -> AIMessage:
    """An answer with what it used, as real providers count it: here a token is four characters."""
    read = 20 + sum(len(str(message)) for message in messages) // 4
    written = 10 + len(text + str(more)) // 4
    used = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return AIMessage(text, usage_metadata=used, **more)


def build_agent() -> Any:
    """The agent, as LangChain's documentation builds one."""
    return create_agent(model=ScriptedModel(), tools=[book_flight, book_hotel, charge_card], name="trip")


agent = build_agent()


if __name__ == "__main__":
    print(agent.invoke({"messages": [("user", TASK)]})["messages"][-1].content)
    for kind, counts in bookings().items():
        print(f"{kind:8} {counts['active']} active, {counts['cancelled']} cancelled")
