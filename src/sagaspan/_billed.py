"""What an exception says of a model's bill: only a proof that nothing was answered makes a call free.

Providers bill for answers. So a request that was never sent costs nothing, and neither does one that an HTTP status
refused. That status must be of the request, though: much else can fail within ``with guard.llm_call(...)`` once the
answer is there, and a database has its own 404. Only the errors of HTTP clients and of providers' SDKs are proof, and
whatever is in doubt is booked as reserved.
"""

from __future__ import annotations

from typing import Any, Final

from sagaspan._chains import chain_of, never_sent, status_of, was_lost
from sagaspan.exceptions import NotApplied

_HTTP: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "urllib", "aiohttp"})
_SDKS: Final = frozenset({
    "openai", "anthropic", "litellm", "mistralai", "cohere", "groq", "together", "fireworks", "ollama", "replicate",
    "huggingface_hub", "cerebras", "xai_sdk", "botocore", "sagaspan_functions",
})  # fmt: skip
_GATEWAYS: Final = frozenset({408, 499, 502, 504, 598, 599, *range(520, 528)})
"""What a gateway answers while the provider behind it may go on, or has answered already, and bills."""
_NO_ANSWER: Final = "APIConnectionError"
"""LiteLLM says 500 of a line that was cut."""
_CALLS_OF_MODELS: Final = ("Invoke", "Converse")
"""How the operations of Bedrock begin."""


def costs_nothing(error: BaseException, handling: BaseException | None) -> bool:
    """Whether ``error``, which left the block of a model's call, proves that nothing is billed.

    ``handling`` is what was being handled before the model was asked: it is of another request.
    """
    try:
        return _proves_no_bill(error, handling)
    except Exception:  # noqa: BLE001 - an error's own property that breaks proves nothing
        return False


def _proves_no_bill(error: BaseException, handling: BaseException | None) -> bool:
    of_request = True  # as far as we know: what a client wraps is of its request, what others wrap is anything
    for link in chain_of(error, handling):  # the outermost that says anything decides, as of a tool
        is_client = _is_of_client(link)
        if isinstance(link, NotApplied):
            return True
        if never_sent(link) and (is_client or of_request):
            return True
        status = None if _is_named(link, _NO_ANSWER) else status_of(link)
        if status is not None and status >= 400:
            return is_client and status not in _GATEWAYS and _may_ask_a_model(link)
        if was_lost(link):
            return False
        of_request = is_client or (of_request and type(link).__module__ == "builtins" and link is not error)
        if not of_request and link.__cause__ is None:
            return False  # what it was raised in the handling of may be over, and another request answered
    return False


def _is_of_client(error: BaseException) -> bool:
    modules = {kind.__module__ for kind in type(error).__mro__}
    return any(module.partition(".")[0] in _HTTP | _SDKS for module in modules) or any(
        module.startswith("google.genai.") for module in modules
    )


def _is_named(error: BaseException, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _may_ask_a_model(error: Any) -> bool:
    """Whether the refused request can be one to a model: all of them are POSTs, and Bedrock's have a name."""
    operation = getattr(error, "operation_name", None)
    if operation is not None:
        return str(operation).startswith(_CALLS_OF_MODELS)
    request = _request_of(error)
    method = getattr(request, "method", None)
    return method is None or str(method).upper() == "POST"


def _request_of(error: Any) -> Any:
    """The request, where httpx, requests and aiohttp keep it; httpx raises a RuntimeError where there is none."""
    for source, name in ((error, "request"), (error, "request_info"), (getattr(error, "response", None), "request")):
        try:
            found = getattr(source, name, None)
        except RuntimeError:
            continue
        if found is not None:
            return found
    return None
