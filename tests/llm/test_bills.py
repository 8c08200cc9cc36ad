"""What an error in the block of a model's call proves of its bill: a refusal of that request, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import aiohttp
import botocore.exceptions
import httpx
import openai
import pytest
import requests
from yarl import URL

from sagaspan import Guard, PolicyDenied

RESERVED = Decimal("0.006")


@pytest.fixture
def guard(store_url: str) -> Iterator[Guard]:
    with Guard(store_url, prices={"cheap": {"input": 1, "output": 10}}) as guard:
        yield guard


class Failure(Exception):
    """An error of somebody's own, with a status as many have one."""

    def __init__(self, status: int = 500) -> None:
        super().__init__(status)
        self.status = status


class Timeout(Exception):
    """As LiteLLM's: a class of its own that has an SDK's name and a status."""

    __module__ = "litellm.exceptions"
    status_code = 408


class APIConnectionError(Exception):
    """As LiteLLM's, which says 500 of a line that was cut."""

    __module__ = "litellm.exceptions"
    status_code = 500


def _httpx(status: int, method: str = "POST") -> Exception:
    request = httpx.Request(method, "http://localhost")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def _openai(status: int) -> Exception:
    response = httpx.Response(status, request=httpx.Request("POST", "http://localhost"))
    return openai.APIStatusError("no", response=response, body=None)


def _requests(status: int, method: str = "POST") -> Exception:
    response = requests.Response()
    response.status_code = status
    response.request = requests.Request(method, "http://localhost").prepare()
    return requests.HTTPError(response=response)


def _aiohttp(status: int, method: str = "POST") -> Exception:
    url = URL("http://localhost")
    return aiohttp.ClientResponseError(aiohttp.RequestInfo(url, method, {}, url), (), status=status)  # type: ignore[arg-type]


def _boto(status: int, operation: str) -> Exception:
    response: Any = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {}}
    return botocore.exceptions.ClientError(response, operation)


def _from(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    error.__cause__, error.__context__ = cause, context
    return error


def _spent(guard: Guard, error: Exception) -> Decimal:
    with pytest.raises(type(error)), guard.llm_call("cheap", input_tokens=1000, max_output_tokens=500):
        raise error
    used = guard.usage()
    assert used.reserved == 0
    return used.spent


REFUSALS: dict[str, Callable[[], Exception]] = {
    "the SDK": lambda: _openai(429),
    "httpx": lambda: _httpx(500),
    "requests": lambda: _requests(401),
    "aiohttp": lambda: _aiohttp(503),
    "Bedrock": lambda: _boto(400, "InvokeModel"),
    "wrapped, and said so": lambda: _from(RuntimeError("no model"), cause=_openai(429)),
    "nobody there": lambda: _from(httpx.ConnectError("no"), context=ConnectionRefusedError()),
    "nobody there, bare": ConnectionRefusedError,
}


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_of_the_request_costs_nothing(guard: Guard, error: Callable[[], Exception]) -> None:
    """Whichever client sent it."""
    assert _spent(guard, error()) == 0


OTHERS: dict[str, Callable[[], Exception]] = {
    "a database": Failure,
    "a database that lost something": lambda: Failure(404),
    "a page that is not there": lambda: _httpx(404, "GET"),
    "the same by requests": lambda: _requests(404, "GET"),
    "the same by aiohttp": lambda: _aiohttp(404, "GET"),
    "a file in a bucket": lambda: _boto(404, "GetObject"),
    "a database that cannot be reached": lambda: _from(Failure(0), context=ConnectionRefusedError()),
    "a database after a refusal": lambda: _from(RuntimeError("no table"), context=_openai(429)),
    "another rule of the guard": lambda: PolicyDenied("a tool was not run"),
    "a gateway": lambda: _openai(502),
    "a gateway that waited": lambda: _httpx(504),
    "Cloudflare": lambda: _httpx(520),
    "LiteLLM's timeout": Timeout,
    "LiteLLM's cut line": APIConnectionError,
}


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_what_was_refused_by_something_else_is_no_proof(guard: Guard, error: Callable[[], Exception]) -> None:
    """The answer may have been there already: all that was reserved is booked."""
    assert _spent(guard, error()) == RESERVED
