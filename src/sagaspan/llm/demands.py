"""What a request can use at most, read from the arguments of the SDK's call, without a tokenizer.

**A token is at least one byte.** The tokenizers of all providers work on bytes, or fall back to them; some normalise
the text first, which can make it longer, so the longer of both forms counts. Around every message, part and schema
field providers put a few tokens of their own, and a page of instructions around tools. So the bound is about four times
what English text really takes; it is only reserved, never billed. Who has counted better says so (``input_tokens=``).

Images have a bound each, audio has one by its length. A file by reference, a stored conversation or a PDF can fill the
model's context; tools that the provider runs itself can read on and on, and have no bound at all (``open_ended``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sagaspan.llm.demand import Demand

IMAGE_TOKENS: Final = {"openai": 50_000, "anthropic": 5_000}
"""The most that one image counts for: a small model of OpenAI's bills 48,169 tokens for one of the largest."""
_FRAME: Final = 8
"""Tokens around each message, part, field and value."""
_INSTRUCTIONS: Final = 1000
"""What providers add once there are tools, and once around everything else."""
_AUDIO_BYTES: Final = 50
"""Of base64, a token of audio at least: ten tokens a second, and the poorest MP3 has a thousand bytes."""
_UNLIMITED_SEARCHES: Final = 10


def text_tokens(text: str) -> int:
    """The most tokens ``text`` can be."""
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


def chat_demand(arguments: Mapping[str, Any]) -> Demand:
    """The demand of ``chat.completions.create(**arguments)``."""
    content = _Content("openai").read(arguments, "messages", "tools", "functions", "response_format")
    limit = _limit(arguments, "max_completion_tokens", "max_tokens")
    if limit is not None and arguments.get("prediction"):
        # What was predicted and not used is billed as output.
        limit += _Content("openai").read(arguments, "prediction").tokens
    return replace(
        content.demand(arguments),
        output_tokens=limit,
        choices=_whole(arguments.get("n"), 1),
        caches=True,
        speaks="audio" in (arguments.get("modalities") or ()),
        **_chat_search(arguments, content),
    )


def responses_demand(arguments: Mapping[str, Any]) -> Demand:
    """The demand of ``responses.create(**arguments)``."""
    content = _Content("openai").read(arguments, "input", "instructions", "tools", "text")
    stored = any(arguments.get(name) for name in ("previous_response_id", "conversation", "prompt"))
    return replace(
        content.demand(arguments),
        output_tokens=_limit(arguments, "max_output_tokens"),
        caches=True,
        fills_context=content.fills_context or stored,
    )


def embeddings_demand(arguments: Mapping[str, Any]) -> Demand:
    """The demand of ``embeddings.create(**arguments)``: text, or tokens already."""
    content = _Content("openai", takes_tokens=True).read(arguments, "input")
    return replace(content.demand(arguments), output_tokens=0)


def messages_demand(arguments: Mapping[str, Any]) -> Demand:
    """The demand of Anthropic's ``messages.create(**arguments)``."""
    content = _Content("anthropic").read(arguments, "messages", "system", "tools", "output_config", "mcp_servers")
    limit = _limit(arguments, "max_tokens")
    thinking = arguments.get("thinking")
    budget = _whole(thinking.get("budget_tokens"), 0) if isinstance(thinking, Mapping) else 0
    if limit is not None and budget >= limit:
        limit += budget  # interleaved thinking has a budget beside the limit
    served = replace(content.demand(arguments), output_tokens=limit, caches=content.caches, caches_1h=content.caches_1h)
    return replace(served, speed=_text(arguments.get("speed")), geo=_text(arguments.get("inference_geo")))


def likely_input(demand: Demand) -> int:
    """What a request mostly takes in: a token for four bytes, where ``demand`` counts one for each."""
    return max(demand.input_tokens - _INSTRUCTIONS, 0) // 4


class _Content:
    """Counts what is in a request, part by part."""

    def __init__(self, dialect: str, *, takes_tokens: bool = False) -> None:
        self.takes_tokens = takes_tokens
        self.image_tokens = IMAGE_TOKENS[dialect]
        self.tokens = 0
        self.audio_tokens = 0
        self.images = False
        self.caches = False
        self.caches_1h = False
        self.fills_context = False
        self.open_ended: str | None = None
        self.web_searches = 0
        self.file_searches = 0

    def read(self, arguments: Mapping[str, Any], *names: str) -> _Content:
        """Count the arguments called ``names``."""
        self.tokens += _INSTRUCTIONS * (1 + bool(arguments.get("tools") or arguments.get("functions")))
        for tool in _items(arguments.get("tools")):
            self._tool(tool)
        if "mcp_servers" in names and arguments.get("mcp_servers"):
            self.open_ended = "the provider calls tools of MCP servers"
        # A stack, not recursion: a schema may be nested deeper than Python goes.
        todo: list[Any] = [arguments.get(name) for name in names]
        while todo:
            self._value(_plain(todo.pop()), todo)
        return self

    def demand(self, arguments: Mapping[str, Any]) -> Demand:
        """What was counted, and the terms that ``arguments`` ask for."""
        return Demand(
            input_tokens=self.tokens + self.audio_tokens,
            audio_tokens=self.audio_tokens,
            images=self.images,
            fills_context=self.fills_context,
            open_ended=self.open_ended,
            web_searches=self.web_searches,
            file_searches=self.file_searches,
            service_tier=_text(arguments.get("service_tier")),
        )

    def _value(self, value: Any, todo: list[Any]) -> None:
        if isinstance(value, str):
            self.tokens += text_tokens(value) + _FRAME
        elif isinstance(value, Mapping):
            self._mapping(value, todo)
        elif isinstance(value, list | tuple):
            self.tokens += len(value)
            todo.extend(value)
        elif isinstance(value, int):
            # A token already, or so many digits; the text of a huge number is not made, Python refuses to.
            self.tokens += 1 if self.takes_tokens else _FRAME + value.bit_length() // 3 + 1
        elif value is not None:
            self.tokens += _FRAME + len(str(value))

    def _mapping(self, part: Mapping[Any, Any], todo: list[Any]) -> None:
        if part.get("cache_control"):
            self.caches = True
            ttl = part["cache_control"].get("ttl") if isinstance(part["cache_control"], Mapping) else None
            self.caches_1h = self.caches_1h or ttl == "1h"
        kind = part.get("type")
        if kind in _IMAGES:
            self.images = True
            self.tokens += self.image_tokens
        elif kind == "input_audio":
            sound = part.get("input_audio")
            data = sound.get("data") if isinstance(sound, Mapping) else None
            self.audio_tokens += len(data) // _AUDIO_BYTES + 100 if isinstance(data, str) else 0
        elif kind in _FILES and not _is_text_document(part):
            self.fills_context = True
        else:
            for name, value in part.items():
                self.tokens += text_tokens(str(name)) + _FRAME
                todo.append(value)

    def _tool(self, tool: Any) -> None:
        tool = _plain(tool)
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str) or kind in ("function", "custom") or kind.startswith(_RUN_HERE):
            return
        self.open_ended = f"the provider runs the tool {kind!r} itself, and reads what it returns"
        uses = _whole(tool.get("max_uses"), _UNLIMITED_SEARCHES)
        if kind.startswith("web_search"):
            self.web_searches += uses
        elif kind.startswith("file_search"):
            self.file_searches += uses


_IMAGES: Final = ("image_url", "input_image", "image", "image_file")
_FILES: Final = ("file", "input_file", "document", "container_upload")
_RUN_HERE: Final = ("bash", "text_editor", "memory", "computer", "local_shell", "shell", "apply_patch")
"""Tools whose definition is the provider's, and whose work is done by the caller."""


def _chat_search(arguments: Mapping[str, Any], content: _Content) -> dict[str, Any]:
    if not isinstance(arguments.get("web_search_options"), Mapping):
        return {}
    return {"web_searches": content.web_searches + 1, "open_ended": "the provider searches the web"}


def _is_text_document(part: Mapping[Any, Any]) -> bool:
    source = part.get("source")
    return isinstance(source, Mapping) and source.get("type") in ("text", "content")


def _plain(value: Any) -> Any:
    """An object of an SDK that is sent back as it came, or a model that becomes a schema, as a dict."""
    if isinstance(value, type):
        schema = getattr(value, "model_json_schema", None)
        return schema() if callable(schema) else value
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True, warnings=False) if callable(dump) else value


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _limit(arguments: Mapping[str, Any], *names: str) -> int | None:
    """The largest of the limits ``names``: which of two a server heeds is its own. What is none the API refuses."""
    given = (arguments.get(name) for name in names)
    return max((limit for limit in given if type(limit) is int and limit >= 0), default=None)


def _whole(value: Any, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
