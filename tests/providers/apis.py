"""The three ways to talk to a model, each by the clients of its SDK: so that a rule is tested once for all of them."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from sagaspan.llm.demands import chat_demand, messages_demand, responses_demand
from tests.providers.replies import ToolCall
from tests.providers.server import ModelServer

SAY = [{"role": "user", "content": "Say hello to everybody who is here."}]
CHAT = {"model": "gpt-4o", "messages": SAY, "max_tokens": 100}
RESPONSE = {"model": "gpt-5", "input": SAY, "max_output_tokens": 100}
MESSAGE = {"model": "claude-sonnet-5", "messages": SAY, "max_tokens": 100}
PAY = ToolCall(name="pay", arguments={"amount": 20, "card": "c1"}, id="call_7")
TOOLS: dict[str, list[Any]] = {
    "chat": [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}],
    "responses": [{"type": "function", "name": "pay", "parameters": {"type": "object", "properties": {}}}],
    "messages": [{"name": "pay", "input_schema": {"type": "object", "properties": {}}}],
}


class Api:
    """One API by both of its clients: asked, and streamed."""

    def __init__(self, name: str, server: ModelServer) -> None:
        self.name = name
        self.server = server
        self.arguments: dict[str, Any] = {"chat": CHAT, "responses": RESPONSE, "messages": MESSAGE}[name]
        self.demand = {"chat": chat_demand, "responses": responses_demand, "messages": messages_demand}[name]

    def client(self, *, is_async: bool = False, **options: Any) -> Any:
        kind = "anthropic" if self.name == "messages" else "openai"
        return getattr(self.server, f"async_{kind}" if is_async else kind)(**options)

    def resource(self, client: Any) -> Any:
        return {"chat": lambda: client.chat.completions, "responses": lambda: client.responses,
                "messages": lambda: client.messages}[self.name]()  # fmt: skip

    def create(self, **more: Any) -> Any:
        return self.resource(self.client()).create(**self.arguments, **more)

    async def acreate(self, **more: Any) -> Any:
        async with self.client(is_async=True) as client:
            return await self.resource(client).create(**self.arguments, **more)

    def streamed(self) -> dict[str, Any]:
        return {"stream": True, **({"stream_options": {"include_usage": True}} if self.name == "chat" else {})}

    @property
    def errors(self) -> Any:
        return anthropic if self.name == "messages" else openai

    def text(self, response: Any) -> str:
        if self.name == "chat":
            return response.choices[0].message.content
        if self.name == "responses":
            return response.output_text
        return next(block.text for block in response.content if block.type == "text")

    def called(self, response: Any) -> Any:
        if self.name == "chat":
            function = response.choices[0].message.tool_calls[0].function
            return function.name, function.arguments
        if self.name == "responses":
            item = next(item for item in response.output if item.type == "function_call")
            return item.name, item.arguments
        block = next(block for block in response.content if block.type == "tool_use")
        return block.name, block.input
