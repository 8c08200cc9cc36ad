"""Answers as the providers send them, shortened to what decides about usage."""

from __future__ import annotations

from typing import Any

OPENAI_CHAT: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1_800_000_000, "model": "gpt-4o-2024-08-06",
    "service_tier": "default",
    "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None,
                 "message": {"role": "assistant", "content": "Hello.", "refusal": None}}],
    "usage": {
        "prompt_tokens": 1200, "completion_tokens": 300, "total_tokens": 1500,
        "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 40},
        "completion_tokens_details": {"reasoning_tokens": 128, "audio_tokens": 20, "accepted_prediction_tokens": 0,
                                      "rejected_prediction_tokens": 0},
    },
}  # fmt: skip

OPENAI_RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1_800_000_000.0, "model": "gpt-5-2025-08-07",
    "status": "completed", "service_tier": "priority", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "output": [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "web_search_call", "id": "ws_2", "status": "completed", "action": {"type": "open_page", "url": "https://x"}},
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]},
    ],
    "usage": {
        "input_tokens": 800, "output_tokens": 200, "total_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 512, "cache_write_tokens": 100},
        "output_tokens_details": {"reasoning_tokens": 64},
    },
}  # fmt: skip

OPENAI_EMBEDDINGS: dict[str, Any] = {
    "object": "list", "model": "text-embedding-3-small",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}  # fmt: skip

ANTHROPIC_MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
    "stop_reason": "end_turn", "stop_sequence": None, "content": [{"type": "text", "text": "Hello."}],
    "usage": {
        "input_tokens": 50, "output_tokens": 300, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 700,
        "cache_creation": {"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 200},
        "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0}, "service_tier": "standard",
        "inference_geo": "us",
    },
}  # fmt: skip

LANGCHAIN_USAGE: dict[str, Any] = {
    "input_tokens": 1750, "output_tokens": 300, "total_tokens": 2050,
    "input_token_details": {"cache_read": 1000, "cache_creation": 0, "ephemeral_5m_input_tokens": 500,
                            "ephemeral_1h_input_tokens": 200, "audio": 3},
    "output_token_details": {"reasoning": 128, "audio": 4},
}  # fmt: skip

OLLAMA_CHAT: dict[str, Any] = {
    "model": "llama3.2", "created_at": "2026-08-04T19:22:45.499127Z", "done": True, "done_reason": "stop",
    "message": {"role": "assistant", "content": "Hello."},
    "total_duration": 4883583458, "load_duration": 1334875, "prompt_eval_count": 26, "prompt_eval_duration": 342546000,
    "eval_count": 282, "eval_duration": 4535599000,
}  # fmt: skip

GEMINI: dict[str, Any] = {
    "candidates": [{"index": 0, "finishReason": "STOP",
                    "content": {"role": "model", "parts": [{"text": "Hello."}]}}],
    "usageMetadata": {
        "promptTokenCount": 1000, "cachedContentTokenCount": 600, "candidatesTokenCount": 200, "thoughtsTokenCount": 50,
        "toolUsePromptTokenCount": 30, "totalTokenCount": 1280,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 900}, {"modality": "AUDIO", "tokenCount": 100}],
        "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 560}, {"modality": "AUDIO", "tokenCount": 40}],
        "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 200}],
    },
    "modelVersion": "gemini-2.5-flash", "responseId": "r1",
}  # fmt: skip

BEDROCK_CONVERSE: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello."}]}}, "stopReason": "end_turn",
    "usage": {
        "inputTokens": 25, "outputTokens": 100, "totalTokens": 1925, "cacheReadInputTokens": 300,
        "cacheWriteInputTokens": 1500,
        "cacheDetails": [{"ttl": "1h", "inputTokens": 500}, {"ttl": "5m", "inputTokens": 1000}],
    },
    "metrics": {"latencyMs": 1275},
}  # fmt: skip

COHERE_CHAT: dict[str, Any] = {
    "id": "c1", "finish_reason": "COMPLETE",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
    "usage": {
        "billed_units": {"input_tokens": 5, "output_tokens": 418}, "tokens": {"input_tokens": 71, "output_tokens": 418},
    },
}  # fmt: skip

COHERE_CHAT_V1: dict[str, Any] = {
    "response_id": "r1", "generation_id": "g1", "text": "Hello.", "finish_reason": "COMPLETE",
    "meta": {
        "api_version": {"version": "1"}, "billed_units": {"input_tokens": 5.0, "output_tokens": 418.0},
        "tokens": {"input_tokens": 71.0, "output_tokens": 418.0},
    },
}  # fmt: skip
