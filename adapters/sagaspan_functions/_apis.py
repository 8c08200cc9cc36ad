"""The calls that are metered: which addresses of which APIs, what they can cost at most, and who serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagaspan.llm.demand import Demand
from sagaspan.llm.demands import chat_demand, embeddings_demand, messages_demand, responses_demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One way to ask a model. ``limit`` is the argument that limits its answer, None if there is nothing to limit.

    ``asks_for_usage``: a stream only says what it used if the request asks for that. ``operation``: what that is called
    in OpenTelemetry.
    """

    demand: Callable[[Mapping[str, Any]], Demand]
    limit: str | None
    asks_for_usage: bool = False
    operation: str = "chat"


APIS: Final = {
    "/chat/completions": Api(demand=chat_demand, limit="max_completion_tokens", asks_for_usage=True),
    "/responses": Api(demand=responses_demand, limit="max_output_tokens"),
    "/embeddings": Api(demand=embeddings_demand, limit=None, operation="embeddings"),
    "/v1/messages": Api(demand=messages_demand, limit="max_tokens"),
}
"""By the end of the address, as the SDKs write it."""

_UNCOUNTED: Final = (
    "/completions", "/complete", "/images/generations", "/images/edits", "/images/variations", "/audio/speech",
    "/audio/transcriptions", "/audio/translations", "/audio/voices", "/videos", "/videos/edits", "/videos/extensions",
    "/videos/characters", "/videos/*/remix", "/batches", "/responses/compact", "/threads/runs", "/threads/*/runs",
    "/threads/*/runs/*/submit_tool_outputs", "/evals/*/runs", "/fine_tuning/jobs", "/fine_tuning/jobs/*/resume",
    "/graders/run", "/containers", "/vector_stores", "/realtime/calls", "/realtime/calls/*/accept",
    "/realtime/sessions", "/realtime/transcription_sessions", "/realtime/client_secrets",
    "/realtime/translations/client_secrets", "/live/sessions", "/live/sessions/*/accept", "/live/sessions/*/fork",
    "/chatkit/sessions", "/agents/sessions", "/agents/sessions/*/events", "/agents/automations",
    "/agents/automations/*/resume", "/agents/automations/*/invocations", "/decisions", "/v1/sessions",
    "/v1/sessions/*/events", "/v1/deployments", "/v1/deployments/*/run", "/v1/deployments/*/unpause", "/v1/dreams",
)  # fmt: skip
"""What costs money as well, and is not metered, by the end of the address; ``*`` is an id."""

_RESOURCES: Final = frozenset({
    "agents", "assistants", "audio", "batches", "certificates", "chat", "chatkit", "containers", "conversations",
    "environments", "evals", "files", "fine_tuning", "graders", "images", "live", "memory_stores", "messages", "models",
    "moderations", "organization", "projects", "realtime", "responses", "sessions", "skills", "threads", "uploads",
    "user_profiles", "vaults", "vector_stores", "videos", "webhooks",
})  # fmt: skip
"""What the SDKs know by name: of these it is known which addresses cost money."""

_HOSTS: Final = {
    "api.openai.com": "openai", "api.anthropic.com": "anthropic", "openrouter.ai": "openrouter",
    "api.groq.com": "groq", "api.mistral.ai": "mistral", "api.deepseek.com": "deepseek", "api.x.ai": "xai",
    "api.together.xyz": "together", "api.fireworks.ai": "fireworks", "api.perplexity.ai": "perplexity",
    "api.moonshot.ai": "moonshot", "api.cerebras.ai": "cerebras", "generativelanguage.googleapis.com": "google",
}  # fmt: skip
"""Who serves there. Of any other host the name of the model says it, or nobody does."""
_CLOUDS: Final = ("azure", "bedrock", "vertex")
"""Clients of these are classes of their own: ``AzureOpenAI``, ``AsyncAnthropicBedrock``."""


def api_of(url: str) -> Api | None:
    """The API at ``url``, an address or its path; None if it is not metered."""
    path = _path(url)
    return next((api for end, api in APIS.items() if path.endswith(end)), None)


def uncounted(url: str) -> str | None:
    """Which addresses ``url`` is one of that cost money and are not metered; None if it is none of them."""
    path = _path(url)
    if api_of(path) is not None:
        return None
    return next((end for end in _UNCOUNTED if _ends(path, end)), None)


def unknown(url: str) -> str | None:
    """The path of ``url`` if it is of no resource that the SDKs know, so that nobody can say what it costs."""
    path = _path(url)
    segments = [part for part in path.rpartition("://")[2].split("/") if part]
    return None if any(part in _RESOURCES for part in segments) else path


def _path(url: str) -> str:
    """Servers take ``/chat/completions/`` for ``/chat/completions``."""
    return url.partition("?")[0].rstrip("/")


def _ends(path: str, end: str) -> bool:
    segments, wanted = path.split("/"), end.split("/")[1:]
    last = segments[-len(wanted) :]
    return len(last) == len(wanted) and all(want in ("*", found) for found, want in zip(last, wanted, strict=True))


def provider_of(client: Any) -> str | None:
    """Who serves the models of ``client``; None if only their names can say it."""
    names = " ".join(kind.__name__ for kind in type(client).__mro__).lower()
    cloud = next((cloud for cloud in _CLOUDS if cloud in names), None)
    return cloud or _HOSTS.get(str(getattr(client.base_url, "host", "")))


def limit_name(api: Api, provider: str | None) -> str | None:
    """The argument that limits the answer: servers compatible with OpenAI's know the old name of it only."""
    if api.limit == "max_completion_tokens" and provider not in ("openai", "azure"):
        return "max_tokens"
    return api.limit
