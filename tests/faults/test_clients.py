"""The exception rule against real clients: a landed effect is never called ``failed``, a clean refusal always is.

A server in another process applies the effect and then hangs, drops the line, or answers in a way the client breaks
on; or it refuses. Run with ``-s`` to see the matrix.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import boto3
import botocore.config
import httpx
import pytest
import requests
import stripe
import urllib3

from sagaspan import Guard

# Old versions of the clients leave sockets to the collector.
pytestmark = [
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket"),
]


@pytest.fixture(autouse=True, scope="module")
def _collected() -> Iterator[None]:
    """What the clients left behind is collected here, where it is expected, and not in a test of another file."""
    yield
    gc.collect()


SERVER = """
import json, socket, struct, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
effects = {}
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, status, body, kind="application/json", length=None):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length or len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        self.close_connection = True
    def do_GET(self):
        self.answer(200, json.dumps(effects.get(self.path.split("/")[1], 0)))
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, mode, number, *_ = self.path.split("/")
        if mode in ("402", "404", "422"):
            return self.answer(int(mode), json.dumps({"error": {"message": "no", "type": "card_error"}}))
        effects[number] = effects.get(number, 0) + 1
        if mode == "hang":
            time.sleep(3)
        elif mode in ("drop", "reset"):
            if mode == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()
            self.close_connection = True
        elif mode == "truncated":
            self.answer(200, '{"id": "p', length=500)
        elif mode == "html":
            self.answer(200, "<html>maintenance</html>", "text/html")
        elif mode == "shape":
            self.answer(200, json.dumps({"data": []}))
        elif mode == "ok":
            self.answer(200, json.dumps({"id": "p-1", "object": "payment_intent", "MessageId": "m-1",
                                         "MD5OfMessageBody": "5d41402abc4b2a76b9719d911017c592"}))
        else:
            self.answer(int(mode), json.dumps({"error": {"message": "oops"}}))
    def do_PUT(self): self.do_POST()
class Server(ThreadingHTTPServer):
    def handle_error(self, request, address): pass
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""

LANDED = ["hang", "drop", "reset", "truncated", "500", "503", "409", "408", "html", "shape"]
REFUSED = ["402", "404", "422", "refused"]
TIMEOUT = 0.4


class PaymentFailed(Exception):
    """The error of a tool that translates what its client says."""


# -- the tools: each is written as its client's documentation would write it ------------------------------------


def with_httpx(url: str) -> Any:
    with httpx.Client(timeout=TIMEOUT) as client:
        response = client.post(url, json={"amount": 5})
        response.raise_for_status()
        return response.json()["id"]


def with_httpx_translating(url: str) -> Any:
    try:
        response = httpx.post(url, json={"amount": 5}, timeout=TIMEOUT)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise PaymentFailed("the payment failed") from error
    return response.json()["id"]


def with_httpx_checking(url: str) -> Any:
    response = httpx.post(url, json={"amount": 5}, timeout=TIMEOUT)
    if response.status_code != 200:
        raise PaymentFailed(response.text)
    return response.json()["id"]


def with_requests(url: str) -> Any:
    with requests.Session() as session:
        response = session.post(url, json={"amount": 5}, timeout=TIMEOUT)
        response.raise_for_status()
        return response.json()["id"]


def with_requests_translating(url: str) -> Any:
    try:
        response = requests.post(url, json={"amount": 5}, timeout=TIMEOUT)
        response.raise_for_status()
        return response.json()["id"]
    except Exception as error:
        raise PaymentFailed(str(error)) from None


def with_urllib3(url: str) -> Any:
    with urllib3.PoolManager(retries=False, timeout=TIMEOUT) as pool:
        response = pool.request("POST", url, json={"amount": 5})
        if response.status >= 400:
            raise PaymentFailed(response.status)
        return json.loads(response.data)["id"]


def with_urllib3_retrying(url: str) -> Any:
    with urllib3.PoolManager(retries=urllib3.Retry(connect=2, read=0, backoff_factor=0), timeout=TIMEOUT) as pool:
        response = pool.request("POST", url, json={"amount": 5})
        if response.status >= 400:
            raise PaymentFailed(response.status)
        return response.json()["id"]


def with_urllib(url: str) -> Any:
    request = urllib.request.Request(url, b"{}", method="POST")
    with contextlib.ExitStack() as stack:
        try:
            response = stack.enter_context(urllib.request.urlopen(request, timeout=TIMEOUT))
        except urllib.error.HTTPError as error:
            stack.enter_context(error)
            raise
        return json.load(response)["id"]


def with_stripe(url: str) -> Any:
    http = stripe.RequestsClient(timeout=TIMEOUT, session=requests.Session())
    client = stripe.StripeClient("sk_test_x", base_addresses={"api": url}, http_client=http, max_network_retries=0)
    try:
        return client.v1.payment_intents.create({"amount": 5, "currency": "eur"}).id
    finally:
        http.close()


def with_boto3(url: str) -> Any:
    config = botocore.config.Config(
        connect_timeout=TIMEOUT, read_timeout=TIMEOUT, retries={"total_max_attempts": 1}, region_name="eu-central-1"
    )
    session = boto3.session.Session(aws_access_key_id="x", aws_secret_access_key="y")
    client = session.client("sqs", endpoint_url=url, config=config)
    try:
        return client.send_message(QueueUrl=url, MessageBody="hello")["MessageId"]
    finally:
        client.close()


async def with_httpx_async(url: str) -> Any:
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        response = await client.post(url, json={"amount": 5})
        response.raise_for_status()
        return response.json()["id"]


async def with_aiohttp(url: str) -> Any:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
        session.post(url, json={"amount": 5}) as response,
    ):
        return (await response.json())["id"]


async def with_aiohttp_checking(url: str) -> Any:
    timeout = aiohttp.ClientTimeout(sock_read=TIMEOUT, sock_connect=TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json={}) as response:
        if response.status != 200:
            raise PaymentFailed(response.status)
        return (await response.json())["id"]


TOOLS: list[Callable[[str], Any]] = [
    with_httpx, with_httpx_translating, with_httpx_checking, with_requests, with_requests_translating, with_urllib3,
    with_urllib3_retrying, with_urllib, with_stripe, with_boto3, with_httpx_async, with_aiohttp, with_aiohttp_checking,
]  # fmt: skip


# -- the server -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the service, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


_matrix: dict[tuple[str, str], tuple[str, int]] = {}
_numbers = iter(range(1, 10_000))


def _landed(server: str, number: int) -> int:
    with urllib.request.urlopen(f"{server}/{number}") as response:
        count: int = json.load(response)
        return count


def _outcome(guard: Guard, body: Callable[[str], Any], url: str) -> str:
    """The state of a call of ``body``, sync or async."""
    tool = guard.tool(body.__name__, effect="write")(body)
    if asyncio.iscoroutinefunction(body):

        async def job() -> None:
            async with guard.run(id=url):
                await tool(url)

        with contextlib.suppress(Exception):
            asyncio.run(job())
    else:
        with contextlib.suppress(Exception), guard.run(id=url):
            tool(url)
    return str(guard.runs.get(url).calls[0].state)


@pytest.mark.parametrize("mode", ["ok", *LANDED, *REFUSED])
@pytest.mark.parametrize("body", TOOLS, ids=lambda body: body.__name__)
def test_what_a_client_s_error_means(
    guard: Guard, server: str, nobody: str, body: Callable[[str], Any], mode: str
) -> None:
    """What landed is done or unknown, never failed; what the service refused, or never got, is failed."""
    number = next(_numbers)
    url = f"{nobody if mode == 'refused' else server}/{mode}/{number}"
    state = _outcome(guard, body, url)
    landed = _landed(server, number)
    _matrix[body.__name__, mode] = (state, landed)
    assert landed == (mode not in REFUSED)
    if mode == "ok":
        assert state == "done"
    elif landed:
        assert state in ("unknown", "done")
    else:
        assert state == "failed"


def test_the_matrix() -> None:
    """The claim of the docs, counted over all clients; the table is printed."""
    modes = ["ok", *LANDED, *REFUSED]
    print()
    print(f"{'':28}" + "".join(f"{mode:>10}" for mode in modes))
    for body in TOOLS:
        row = [_matrix.get((body.__name__, mode), ("-", 0)) for mode in modes]
        print(f"{body.__name__:28}" + "".join(f"{state + '*' * landed:>10}" for state, landed in row))
    print("* the effect landed")
    wrong = [key for key, (state, landed) in _matrix.items() if landed and state == "failed"]
    assert wrong == []
