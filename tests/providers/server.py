"""The provider itself: an HTTP server on the loopback that real SDKs talk to, in threads of its own.

It answers from a script, keeps true books of what it generated (also of streams that nobody read to the end), and
misbehaves on order: errors, hanging, lines that break. Requests that the real providers refuse it refuses as well.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.providers import anthropic_wire, openai_wire
from tests.providers.replies import Answer, Reply


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asked for."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def streams(self) -> bool:
        """Whether the answer was wanted as a stream."""
        return bool(self.body.get("stream"))


@dataclass(kw_only=True)
class Bill:
    """What one call really used, and whether the client got all of it."""

    path: str
    model: str
    input_tokens: int
    output_tokens: int
    delivered: bool = False


class ModelServer:
    """``with ModelServer() as server: server.say(Reply(...)); client = server.openai()``."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bills: list[Bill] = []
        self.output_limits: dict[str, int] = {}
        self.default = Reply()
        self.answers: Callable[[Request], Reply] | None = None
        self.most_at_once = 0
        self.compresses = False
        self._script: deque[Reply] = deque()
        self._at_once = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._clients: list[Any] = []
        self._connections: set[socket.socket] = set()
        self._http = _Http(("127.0.0.1", 0), _handler(self))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for client in self._clients:
            client.close()
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens: ``base_url`` of Anthropic's SDK; OpenAI's takes it with ``/v1``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def say(self, *replies: Reply) -> None:
        """The next answers, in order; after them ``default`` again. ``answers`` decides by the request instead."""
        self._script.extend(replies)

    @property
    def input_tokens(self) -> int:
        """All that was read."""
        return sum(bill.input_tokens for bill in self.bills)

    @property
    def output_tokens(self) -> int:
        """All that was generated, whoever read it."""
        return sum(bill.output_tokens for bill in self.bills)

    def _ours(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def wait_for(self, condition: Callable[[ModelServer], bool]) -> None:
        """Block until ``condition`` of this server holds; raises ``TimeoutError`` after a minute."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout=60):
                raise TimeoutError("the provider did not get there")

    def openai(self, **options: Any) -> Any:
        """A client of this server: OpenAI's, synchronous. It does not retry unless ``options`` say so.

        Synchronous clients are closed with the server, asynchronous ones by ``async with``.
        """
        from openai import OpenAI

        return self._ours(OpenAI(base_url=f"{self.url}/v1", api_key="test", **{"max_retries": 0, **options}))

    def async_openai(self, **options: Any) -> Any:
        """A client of this server: OpenAI's, asynchronous."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="test", **{"max_retries": 0, **options})

    def anthropic(self, **options: Any) -> Any:
        """A client of this server: Anthropic's, synchronous."""
        from anthropic import Anthropic

        return self._ours(Anthropic(base_url=self.url, api_key="test", **{"max_retries": 0, **options}))

    def async_anthropic(self, **options: Any) -> Any:
        """A client of this server: Anthropic's, asynchronous."""
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(base_url=self.url, api_key="test", **{"max_retries": 0, **options})

    # -- what the handler asks ----------------------------------------------------------------------------------

    def _next(self, request: Request) -> Reply:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            if self.answers is not None:
                return self.answers(request)
            return self._script.popleft() if self._script else self.default

    def _book(self, bill: Bill) -> None:
        with self._changed:
            self.bills.append(bill)
            self._changed.notify_all()

    def _count(self, bill: Bill, tokens: int) -> None:
        with self._changed:
            bill.output_tokens += tokens
            self._changed.notify_all()

    @contextlib.contextmanager
    def _delivering(self, bill: Bill) -> Iterator[None]:
        """The last bytes go out. Booked before: the client may look at the books as soon as it has them."""
        bill.delivered = True
        try:
            yield
        except BaseException:
            bill.delivered = False
            raise

    def _wait(self, event: threading.Event) -> bool:
        """Wait for ``event``; False if the server closes before."""
        while not event.wait(0.01):
            if self._closing.is_set():
                return False
        return True

    def _paced(self, pace: threading.Semaphore | None) -> bool:
        while pace is not None and not pace.acquire(timeout=0.01):
            if self._closing.is_set():
                return False
        return True

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        with self._changed:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._at_once -= 1
                self._changed.notify_all()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Dropped(Exception):
    """The script says that the line breaks here."""


_WIRES: dict[str, Any] = {
    "/v1/chat/completions": (
        openai_wire.chat_answer, lambda said, body: openai_wire.chat(said), openai_wire.chat_events,
    ),
    "/v1/completions": (
        openai_wire.completion_answer, lambda said, body: openai_wire.completion(said), openai_wire.completion_events,
    ),
    "/v1/responses": (
        openai_wire.response_answer, lambda said, body: openai_wire.response(said),
        lambda said, body: openai_wire.response_events(said),
    ),
    "/v1/embeddings": (openai_wire.embeddings_answer, openai_wire.embeddings, None),
    "/v1/messages": (
        anthropic_wire.message_answer, lambda said, body: anthropic_wire.message(said),
        lambda said, body: anthropic_wire.message_events(said),
    ),
}  # fmt: skip


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True  # a header and a body in two packets would wait 40 ms for each other
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server._connections.add(self.connection)

        def finish(self) -> None:
            server._connections.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def log_message(self, *args: object) -> None:
            """The test says what is worth saying."""

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = {} if headers.get("content-type", "").startswith("multipart/") else json.loads(data or b"{}")
            path = self.path.partition("?")[0]
            request = Request(path=path, body=body, headers=headers)
            try:
                with server._serving():
                    self._respond(request)
            except _Dropped:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _respond(self, request: Request) -> None:
            refusal = _refusal(server, request)
            reply = server._next(request)
            if reply.until is not None and not server._wait(reply.until):
                raise _Dropped
            if refusal is not None or reply.status != 200:
                status, message = refusal or (reply.status, f"scripted {reply.status}")
                self._send_json(status, _error(request.path, status, message), reply.headers)
                return
            read, whole, stream = _WIRES[request.path]
            said = read(request.body, reply)
            bill = Bill(path=request.path, model=said.model, input_tokens=said.input_tokens, output_tokens=0)
            server._book(bill)
            if request.streams:
                self._stream(said, stream(said, request.body), bill)
                return
            # Generated is generated: whether the answer arrives is another matter.
            server._count(bill, said.output_tokens)
            if reply.drop_after is not None:
                raise _Dropped
            with server._delivering(bill):
                self._send_json(200, whole(said, request.body), reply.headers)

        def _send_json(self, status: int, body: Any, headers: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.send_header("request-id", "req_1")
            self.send_header("x-request-id", "req_1")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, said: Answer, events: Iterable[openai_wire.Event], bill: Bill) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self._zip = zlib.compressobj(wbits=31) if server.compresses else None
            if self._zip is not None:
                self.send_header("content-encoding", "gzip")
            self.end_headers()
            script = list(events)
            hidden = max(0, said.output_tokens - sum(tokens for _, _, tokens in script))
            for number, (name, data, tokens) in enumerate(script):
                if number == said.reply.drop_after or not server._paced(said.reply.paced_by):
                    raise _Dropped
                if number == said.reply.error_after:
                    self._event(*_stream_error(bill.path))
                    self._last_chunk()
                    return
                # Made before it is sent: a client that is gone has it on its bill all the same.
                server._count(bill, tokens)
                if number < len(script) - 1:
                    self._event(name, data)
            server._count(bill, hidden)
            with server._delivering(bill):
                self._event(*script[-1][:2])
                self._last_chunk()

        def _event(self, name: str | None, data: Any) -> None:
            text = data if isinstance(data, str) else json.dumps(data)
            data = (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
            if self._zip is not None:
                data = self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)
            self._chunk(data)

        def _last_chunk(self) -> None:
            if self._zip is not None:
                self._chunk(self._zip.flush())
            self._chunk(b"")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Handler


def _refusal(server: ModelServer, request: Request) -> tuple[int, str] | None:
    """What the real providers refuse: no key, no such address, no messages, more output than the model can give."""
    body, headers = request.body, request.headers
    if not (headers.get("authorization", "").startswith("Bearer ") or headers.get("x-api-key")):
        return 401, "no API key"
    if request.path not in _WIRES:
        return 404, f"no such address: {request.path}"
    needed = {"/v1/messages": ("model", "messages", "max_tokens"), "/v1/embeddings": ("model", "input"),
              "/v1/completions": ("model", "prompt"), "/v1/responses": ("model",),
              }.get(request.path, ("model", "messages"))  # fmt: skip
    lacking = [name for name in needed if body.get(name) is None]
    if lacking:
        return 400, f"Missing required parameter: '{lacking[0]}'"
    asked = next(
        (body[name] for name in ("max_completion_tokens", "max_tokens", "max_output_tokens") if body.get(name)), None
    )
    limit = server.output_limits.get(body["model"])
    if asked is not None and limit is not None and asked > limit:
        return 400, f"max_tokens is too large: {asked}. This model supports at most {limit} completion tokens"
    return None


def _error(path: str, status: int, message: str) -> dict[str, Any]:
    wire = anthropic_wire if path == "/v1/messages" else openai_wire
    return wire.error(status, message)


def _stream_error(path: str) -> tuple[str | None, dict[str, Any]]:
    if path == "/v1/messages":
        return "error", anthropic_wire.error(529, "Overloaded")
    if path == "/v1/responses":
        return "error", {"type": "error", "code": "server_error", "message": "scripted", "param": None,
                         "sequence_number": 99}  # fmt: skip
    return None, openai_wire.error(500, "scripted")
