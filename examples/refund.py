"""A refund agent that waits for approval, dies, and goes on: each line of this story may be another process.

    python examples/refund.py "refund order 7"     # looks the order up, then waits: somebody must approve
    python examples/refund.py approve              # or: reject "too late", edit 20
    python examples/refund.py resume               # after a crash: goes on where the checkpoint stands

``REFUND_DIES=1`` kills the process in the middle of the refund, right after the bank has booked it and before the
agent knows. Resumed, the guard asks the bank instead of paying again: there is one line in ``bank.jsonl``, however
often it dies. The checkpoint is LangGraph's own file, ``conversation.db``; the ledger is in ``.sagaspan``. The model
is a script, so this runs offline: pip install "sagaspan[langchain]" langgraph-checkpoint-sqlite
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolArg, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from sagaspan import Applied, Guard, NotApplied

BANK = Path("bank.jsonl")
THREAD = {"configurable": {"thread_id": "order-7"}}


# -- the agent, as one has it ----------------------------------------------------------------------------------


@tool
def look_up(order: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "paid": 50.0}


@tool
def refund(order: str, amount: float, idempotency_key: Annotated[str, InjectedToolArg] = "") -> str:
    """Pay money back."""
    with BANK.open("a", encoding="utf-8") as books:
        books.write(json.dumps({"order": order, "amount": amount, "key": idempotency_key}) + "\n")
    if os.environ.get("REFUND_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"refunded {amount:.2f}"


class Clerk(BaseChatModel):
    """A model that follows a script: looks the order up, refunds it, and says what came of it."""

    @property
    def _llm_type(self) -> str:
        return "clerk"

    def bind_tools(self, tools: Any, **options: Any) -> Any:  # noqa: ARG002 - as every chat model has it
        """Its script knows the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:  # noqa: ARG002
        done = [message for message in messages if isinstance(message, ToolMessage)]
        asks = [("look_up", {"order": "7"}), ("refund", {"order": "7", "amount": 50.0})]
        if len(done) < len(asks):
            name, args_ = asks[len(done)]
            message = AIMessage("", tool_calls=[{"name": name, "args": args_, "id": f"call_{len(done)}"}])
        else:
            message = AIMessage(f"Done: {done[-1].text}")
        message.usage_metadata = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30}
        return ChatResult(generations=[ChatGeneration(message=message)])


# -- what the guard adds ---------------------------------------------------------------------------------------


def was_booked(order: str, idempotency_key: str) -> Applied | NotApplied:
    """Ask the bank whether a refund that nobody heard of again was booked."""
    for line in BANK.read_text(encoding="utf-8").splitlines() if BANK.exists() else ():
        booked = json.loads(line)
        if booked["key"] == idempotency_key:
            return Applied(f"refunded {booked['amount']:.2f}")
    return NotApplied(f"no refund of order {order}")


guard = Guard(prices={"clerk": {"input": 0, "output": 0}})
POLICIES = {"refund": {"effect": "write", "approve": "amount > 10", "probe": was_booked}}


def given(words: list[str]) -> Any:
    """What the agent is invoked with."""
    match words:
        case ["resume"]:
            return None
        case ["approve"]:
            decision: dict[str, Any] = {"type": "approve"}
        case ["reject", *why]:
            decision = {"type": "reject", "message": " ".join(why)}
        case ["edit", amount]:
            action = {"name": "refund", "args": {"order": "7", "amount": float(amount)}}
            decision = {"type": "edit", "edited_action": action}
        case _:
            return {"messages": [("user", " ".join(words) or "refund order 7")]}
    return Command(resume={"decisions": [decision]})


def main(words: list[str]) -> None:
    """One invocation."""
    with SqliteSaver.from_conn_string("conversation.db") as saver:
        agent = guard.wrap(create_agent(Clerk(), [look_up, refund], checkpointer=saver, name="clerk"), POLICIES)
        output = agent.invoke(given(words), THREAD, durability="sync")
    for question in output.get("__interrupt__", ()):
        for action in question.value["action_requests"]:
            print(f"waits for approval: {action['name']} {action['args']}")
    if "__interrupt__" not in output:
        print(output["messages"][-1].text)


if __name__ == "__main__":
    main(sys.argv[1:])
