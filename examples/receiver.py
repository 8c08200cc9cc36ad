"""A receiver for sagaspan's webhook approver: it verifies what comes, shows it, and signs what somebody answers.

    export APPROVALS_SECRET=$(openssl rand -hex 32)
    python examples/receiver.py                       # asks on this terminal, listens on http://127.0.0.1:8808

and in the agent: ``Webhook("http://127.0.0.1:8808", secret=os.environ["APPROVALS_SECRET"], timeout=300)`` as approver.
Only the standard library is used, so that it can be read as the protocol. A real one stands behind TLS, knows the
people who answer (a login, a signed chat message), and is where ``by`` and ``roles`` come from.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import pwd
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOLERANCE_SECONDS = 300
MAX_BYTES = 256 * 1024
COLUMNS = 77

Decide = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What is answered to a question: ``{"decision": "approve" | "deny" | "edit", "by": ..}``, or None: later."""


def signature(secret: str, message: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over ``ID.TIMESTAMP.BODY``, as Standard Webhooks has it."""
    digest = hmac.new(secret.encode(), f"{message}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def sign(secret: str, body: bytes) -> dict[str, str]:
    """The headers of a message with a new id."""
    message, timestamp = secrets.token_hex(16), str(int(time.time()))
    return {
        "content-type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": timestamp,
        "webhook-signature": signature(secret, message, timestamp, body),
    }


class Receiver:
    """Questions that come are verified, put to ``decide`` one at a time, and answered with a signature of ours."""

    def __init__(self, secret: str, decide: Decide) -> None:
        self._secret = secret
        self._decide = decide
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def verified(self, headers: Any, body: bytes) -> dict[str, Any] | None:
        """The question, if it was signed with our secret in the last five minutes and did not come before."""
        message, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        expected = signature(self._secret, message, timestamp, body)
        given = headers.get("webhook-signature", "").split(" ")
        if not any(hmac.compare_digest(one.encode(), expected.encode()) for one in given):
            return None
        now = time.time()
        if not timestamp.isdecimal() or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
            return None
        with self._lock:
            self._seen = {one: at for one, at in self._seen.items() if now - at < 2 * TOLERANCE_SECONDS}
            if message in self._seen:
                return None
            self._seen[message] = now
        question: dict[str, Any] = json.loads(body)
        # What is shown must be what is asked: the digest is the hash of the subject (unless the agent has a codec).
        whole = hashlib.sha256(question["subject"].encode()).hexdigest()
        return question if question["digest"] in (whole, f"keyed:{question['digest'][6:]}") else None

    def answer(self, question: dict[str, Any], message: str) -> dict[str, Any] | None:
        """The reply: bound to the request, to the digest of its arguments and to this very question."""
        with self._lock:
            said = self._decide(question)
        if said is None:
            return None
        bound = {"request": question["request"], "digest": question["digest"], "question": message}
        return {"type": "approval.decision", **bound, **said}

    def serve(self, port: int = 8808, host: str = "127.0.0.1") -> ThreadingHTTPServer:
        """A server for it; call ``serve_forever()``."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(min(length, MAX_BYTES))
                question = receiver.verified(self.headers, body)
                if question is None:
                    self._say(401)
                    return
                reply = receiver.answer(question, self.headers["webhook-id"])
                if reply is None:
                    self._say(202)
                    return
                data = json.dumps(reply).encode()
                self._say(200, data, sign(receiver._secret, data))

            def _say(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {**(headers or {}), "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing: what comes from outside is not written to the terminal."""

        return ThreadingHTTPServer((host, port), Handler)


def ask(question: dict[str, Any]) -> dict[str, Any] | None:
    """Ask whoever sits here, with the text that sagaspan made: it can be shown as it is, in rows of 76 columns."""
    if shutil.get_terminal_size().columns < COLUMNS:
        print(f"make this terminal {COLUMNS} columns wide: folded by it, a part of a value would look like a line")
        return None
    print("\n" + question["text"])
    word = input("[a]pprove, [d]eny, [e]dit or [l]ater? ").strip().lower()
    by = {"by": pwd.getpwuid(os.getuid()).pw_name}
    if word == "a":
        return {"decision": "approve", **by}
    if word == "d":
        return {"decision": "deny", **by, "reason": input("Why? ")}
    if word == "e":
        print(json.dumps(json.loads(question["subject"])["arguments"]))  # ASCII: nothing in it is obeyed
        return {"decision": "edit", **by, "arguments": json.loads(input("All arguments as a JSON object: "))}
    return None


if __name__ == "__main__":
    server = Receiver(os.environ["APPROVALS_SECRET"], ask).serve()
    print(f"listening on http://127.0.0.1:{server.server_address[1]}")
    server.serve_forever()
