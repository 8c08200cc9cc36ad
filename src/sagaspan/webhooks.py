"""The webhook approver: a request is sent to a service of yours, signed, and only a signed answer to it decides.

The protocol is in ``docs/approvals.md``, a receiver in ``examples/receiver.py``. Nothing else decides anything: where
the service cannot be reached, or what it says is forged, late, or about another request, the request goes on waiting.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sagaspan import _fork as fork
from sagaspan import codecs
from sagaspan._checks import check_seconds
from sagaspan._clock import monotonic, now_us
from sagaspan._post import Unsent, check_url, post
from sagaspan.approvers import LATER, ApprovalRequest, Approve, Deny, Edit
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.grants import new_nonce
from sagaspan.signing import Refused as Refused
from sagaspan.signing import key_of as key_of
from sagaspan.signing import signed
from sagaspan.signing import verified as verified

_log = logging.getLogger("sagaspan")
QUESTION: Final = "approval.request"
ANSWER: Final = "approval.decision"
_LATER_STATUS: Final = (202, 204)
_REMEMBERED: Final = 1000
_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 60.0
_FIELDS: Final = {"type", "request", "digest", "question", "decision", "by", "roles", "reason", "arguments"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a receiver answered: about which request and digest, and who it was, as the receiver has made sure."""

    request: str
    digest: str
    question: str | None
    by: str
    roles: tuple[str, ...]
    answer: Approve | Deny | Edit


class Webhook:
    """Asks a service at ``url``, with which the ``secret`` is shared.

    It answers at once, within ``timeout`` seconds; or says 202, and the request waits for a reply that comes later
    (``guard.approvals.receive``) or for anybody else's decision, in the call for ``wait`` seconds at most.

    ``trust_env=True`` uses the proxies and the ``.netrc`` of the environment, but never for this machine.
    """

    channel = "webhook"
    is_async = False

    def __init__(
        self, url: str, *, secret: str, timeout: float = 10.0, wait: float = 0.0, trust_env: bool = False
    ) -> None:
        self._url = check_url(url, "Webhook(url)")
        self._key = key_of(secret)
        check_seconds("timeout", timeout)
        check_seconds("wait", wait)
        self._timeout = timeout
        self._trust_env = trust_env
        self.wait = wait
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._lock = fork.new_lock()

    def decide(self, request: ApprovalRequest, /) -> Any:
        """The answer of the service; ``LATER`` if it gave none that counts."""
        asked = self._of(request)
        if monotonic() < asked.again_at:
            return LATER
        question = new_nonce()
        body = json.dumps(question_of(request)).encode()
        try:
            headers = signed(question, body, self._key, now_us() / 1e6)
            answer = post(self._url, body, headers, seconds=self._timeout, trust_env=self._trust_env)
            if answer.status in _LATER_STATUS:
                asked.again_at = float("inf")
                return LATER
            if answer.status != 200:
                raise Unsent(f"it answered with the status {answer.status}")
            reply = reply_of(verified(answer.headers, answer.body, self._key, now_us() / 1e6)[1])
            _check_answers(reply, request, question)
        except (Unsent, Refused) as problem:
            asked.failed()
            _log.warning(
                "the webhook approver decided nothing about request %s, which goes on waiting: %s", request.id, problem
            )
            return LATER
        return reply.answer

    def _of(self, request: ApprovalRequest) -> _Asked:
        """What is known of having asked about it: while a call waits, it is not asked about again and again."""
        with self._lock:
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
            return self._asked.setdefault(f"{request.id} {request.version}", _Asked())


@dataclass(slots=True)
class _Asked:
    again_at: float = 0.0
    pause: float = _FIRST_PAUSE

    def failed(self) -> None:
        """Ask again, but not at once."""
        self.again_at = monotonic() + self.pause
        self.pause = min(self.pause * 2, _LONGEST_PAUSE)


def question_of(request: ApprovalRequest) -> dict[str, Any]:
    """What is sent about a request: ``text`` is safe to show, ``subject`` the bytes that ``digest`` is the hash of."""
    return {
        "type": QUESTION, "request": request.id, "digest": request.digest, "text": request.text, "shown": request.shown,
        "subject": request.subject, "tool": request.tool, "title": request.title, "namespace": request.namespace,
        "run": request.run_id, "uninspectable": request.uninspectable, "approvers": request.approvers,
        "roles": list(request.roles), "four_eyes": request.four_eyes, "requested_by": list(request.requested_by),
        "approved_by": list(request.approved_by), "edits": request.edits, "created": request.created.isoformat(),
        "expires": request.expires.isoformat(),
    }  # fmt: skip


def reply_of(data: Mapping[str, Any]) -> Reply:
    """The reply that is written in ``data``; raises ``Refused`` if that is none."""
    unknown = sorted(data.keys() - _FIELDS)
    if data.get("type") != ANSWER or unknown:
        raise Refused(f"it has an unknown field {unknown[0]!r}" if unknown else f"its type is not {ANSWER!r}")
    roles = data.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise Refused("its roles are no list of names")
    by = _text(data, "by")
    try:
        answer = _answer(data, by, tuple(roles))
    except ConfigurationError as problem:
        raise Refused(str(problem)) from problem
    return Reply(
        request=_text(data, "request"), digest=_text(data, "digest"), by=by, roles=tuple(roles),
        question=_text(data, "question") if "question" in data else None, answer=answer,
    )  # fmt: skip


def _answer(data: Mapping[str, Any], by: str, roles: tuple[str, ...]) -> Approve | Deny | Edit:
    decision, arguments = data.get("decision"), data.get("arguments")
    if decision == "approve" and arguments is None:
        return Approve(by=by, roles=roles, assurance="webhook")
    if decision == "deny" and arguments is None:
        return Deny(_text(data, "reason") if data.get("reason") else None, by=by)
    if decision == "edit" and isinstance(arguments, dict):
        try:
            values = {name: codecs.decode(codecs.dump(value)) for name, value in arguments.items()}
            for name, value in values.items():
                codecs.to_json(value, name)
        except ValueError as problem:
            raise Refused(f"its arguments cannot be recorded ({problem})") from problem
        return Edit(values, by=by, roles=roles, assurance="webhook")
    raise Refused("its decision is not 'approve', 'deny', or 'edit' with all arguments")


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"it has no {name!r}")
    return value


def _check_answers(reply: Reply, request: ApprovalRequest, question: str) -> None:
    if reply.request != request.id or reply.question != question:
        raise Refused("it answers another question")
    if reply.digest != request.digest:
        raise Refused("it is about other arguments")
