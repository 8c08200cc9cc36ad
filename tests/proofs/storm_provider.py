"""A payment provider that behaves badly, in a process of its own, and the clients that talk to it.

It drops connections before or after it applied, answers 500 after it applied and 503 before, answers late, applies
late, and gets requests twice. What it does with the n-th request for a step of an order is decided by the seed alone.
Its books say what was really applied, in order.

Three kinds: ``dedupes`` does each idempotency key once; ``status`` does not, but can be asked what it applied;
``neither`` does neither. Requests come twice by the network's doing only at the kind that dedupes: at the others no
client could help. Undoing dedupes at all of them, because a compensation is at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

KINDS: Final = ("dedupes", "status", "neither")
LATE_SECONDS: Final = 0.7
"""How much later it answers or applies; a client gives up before."""

CLIENT_SECONDS: Final = 3.0
UNDO: Final = "undo-"

_FAULTS: Final = (
    ("well", 60), ("drop before", 8), ("drop after", 8), ("500 after", 6), ("503 before", 4), ("answer late", 6),
    ("apply late", 5), ("twice", 3),
)  # fmt: skip
_UNDO_FAULTS: Final = (("well", 82), ("drop before", 6), ("drop after", 6), ("500 after", 6))


class Declined(Exception):
    """The provider refuses this order: 402."""

    status_code = 402


class Trouble(Exception):
    """Any other answer than success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived: to do ``what`` for an order, under a key."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    key: str
    body: Mapping[str, Any]

    @property
    def step(self) -> tuple[str, str]:
        """What, for which order."""
        return self.path.rpartition("/")[2], str(self.body.get("order"))


@dataclass
class Provider:
    """The provider's books and its moods."""

    seed: int
    kind: str
    declined: frozenset[str]
    books: list[dict[str, str]] = field(default_factory=list)
    applied: dict[tuple[str, str], str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)
    arrivals: Counter[tuple[str, str]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        """Answer until the parent is gone; requests are read in their order, so that ``pending`` is no guess."""
        parent = os.getppid()
        listener.settimeout(1.0)
        while os.getppid() == parent:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            request = _read(connection)
            if request is None:
                connection.close()
                continue
            if request.method == "POST":
                with self.lock:
                    self.pending[request.key] += 1
            threading.Thread(target=self._answer, args=(connection, request), daemon=True).start()

    def _answer(self, connection: socket.socket, request: Request) -> None:
        with contextlib.suppress(OSError), connection:
            if request.method == "GET":
                _send(connection, 200, self._told(request))
                return
            try:
                status = self._do(request)
            finally:
                with self.lock:
                    self.pending[request.key] -= 1
            if status is not None:
                _send(connection, status, {"id": self.applied.get((request.step[0], request.key), "")})

    def _do(self, request: Request) -> int | None:
        """The status to answer; None: the connection is dropped."""
        what, order = request.step
        if what == "ship" and order in self.declined:
            return 402
        fault = self._fault(what, order)
        if fault in ("drop before", "503 before"):
            return None if fault == "drop before" else 503
        if fault == "apply late":
            time.sleep(LATE_SECONDS)
        for _ in range(2 if fault == "twice" else 1):
            self._apply(what, order, request.key)
        if fault == "answer late":
            time.sleep(LATE_SECONDS)
        return {"drop after": None, "500 after": 500}.get(fault, 200)

    def _fault(self, what: str, order: str) -> str:
        with self.lock:
            self.arrivals[what, order] += 1
            number = self.arrivals[what, order]
            moods = dict(_UNDO_FAULTS if what.startswith(UNDO) else _FAULTS)
            if self.kind != "dedupes":
                moods.pop("twice", None)
            seeded = random.Random(f"{self.seed}:{self.kind}:{what}:{order}:{number}")
            fault = seeded.choices(list(moods), list(moods.values()))[0]
            self.faults[fault] += 1
            return fault

    def _apply(self, what: str, order: str, key: str) -> None:
        with self.lock:
            known = (what, key) in self.applied
            if known and (self.kind == "dedupes" or what.startswith(UNDO)):
                return
            self.applied[what, key] = f"{what}-{order}"
            self.books.append({"what": what, "order": order, "key": key})

    def _told(self, request: Request) -> dict[str, Any]:
        if request.path == "/books":
            with self.lock:
                return {"books": self.books, "faults": self.faults}
        (what,), (key,) = request.query["what"], request.query["key"]
        with self.lock:
            return {"id": self.applied.get((what, key)), "pending": self.pending[key] > 0}


def start(seed: int, kind: str, declined: frozenset[str]) -> tuple[int, int]:
    """Fork a provider; returns its pid and its port. It ends with its parent."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        try:
            Provider(seed, kind, declined).serve(listener)
        finally:
            os._exit(0)
    listener.close()
    return pid, port


def _read(connection: socket.socket) -> Request | None:
    connection.settimeout(1.0)
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            data += (more := connection.recv(65536))
            if not more:
                return None
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        while len(body) < int(headers.get("content-length", 0)):
            body += (more := connection.recv(65536))
            if not more:
                return None
    except OSError:
        return None
    method, target, _ = lines[0].split(" ")
    url = urlsplit(target)
    return Request(method, url.path, parse_qs(url.query), headers.get("idempotency-key", ""), json.loads(body or "{}"))


def _send(connection: socket.socket, status: int, data: Any) -> None:
    body = json.dumps(data).encode()
    head = f"HTTP/1.0 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


# -- clients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to the provider at ``port``, as anybody's HTTP client would."""

    port: int

    def do(self, what: str, order: str, key: str | None = None) -> str:
        """Have a step done; a key of its own for each request if none is given. Raises what an HTTP client raises."""
        body, headers = json.dumps({"order": order}), {"Idempotency-Key": key or uuid.uuid4().hex}
        return _result(*self._ask("POST", f"/do/{what}", body, headers))

    def find(self, what: str, key: str) -> dict[str, Any]:
        """What the provider says of a step under a key: ``id`` (None: not applied) and ``pending``."""
        status, text = self._ask("GET", f"/status?what={what}&key={key}", None, {})
        found: dict[str, Any] = json.loads(text)
        return found if status == 200 else {"id": None, "pending": True}

    def books(self) -> dict[str, Any]:
        """All that was applied, in order, and how often it behaved how."""
        books: dict[str, Any] = json.loads(self._ask("GET", "/books", None, {})[1])
        return books

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CLIENT_SECONDS)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    async def ado(self, what: str, order: str, key: str) -> str:
        """As ``do``, on the running loop: cancelled, its connection is closed."""
        body = json.dumps({"order": order}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"POST /do/{what} HTTP/1.0\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(), CLIENT_SECONDS)
        finally:
            writer.close()
        if not answer:
            raise ConnectionResetError("the provider dropped the line")
        head, _, text = answer.decode().partition("\r\n\r\n")
        return _result(int(head.split(" ")[1]), text.encode())


def _result(status: int, text: bytes) -> str:
    if status == 402:
        raise Declined
    if status != 200:
        raise Trouble(status)
    return str(json.loads(text)["id"])
