"""A hand-written agent without any framework: a help desk that looks orders up and refunds them, guarded fully.

The loop is the ten lines of ``answer``. What the model costs is reserved before each request, refunds are done once, a
desk that fails takes back what it did, and a model that goes in circles is stopped. Run it with an OpenAI key:
``OPENAI_API_KEY=... python examples/desk.py``.
"""

from __future__ import annotations

from typing import Any

from sagaspan import Guard
from sagaspan_functions import FunctionTools

ORDERS = {"order-17": {"amount": 20.0, "card": "c1"}, "order-18": {"amount": 950.0, "card": "c2"}}
REFUNDS: list[tuple[str, float]] = []

guard = Guard(budget="2 USD")


@guard.tool(effect="read")
def find_order(order: str) -> dict[str, Any]:
    """Look up an order: what was paid, and by which card."""
    return ORDERS[order]


def take_back(order: str, amount: float) -> None:
    """Charge again what was refunded."""
    REFUNDS.append((order, -amount))


@guard.tool(compensate=take_back)
def refund(order: str, amount: float) -> str:
    """Pay an order back, or a part of it."""
    REFUNDS.append((order, amount))
    return f"{amount} refunded"


tools = FunctionTools(guard, [find_order, refund])


def answer(client: Any, question: str, ticket: str) -> str:
    """What the desk says to ``question``; the same ``ticket`` again refunds nothing twice."""
    client, messages = guard.wrap(client), [{"role": "user", "content": question}]
    with guard.run("desk", id=ticket):
        while True:
            response = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools.schemas("chat"))
            message = response.choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages += [message, *tools.run(message)]


if __name__ == "__main__":
    from openai import OpenAI

    print(answer(OpenAI(), "My order order-17 never came. Please pay it back.", ticket="ticket-1"))
