"""``sagaspan approvals``: what is shown is what is decided, by the user of the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import Approval, ApprovalPending, Guard
from sagaspan import _owner as owner
from tests.cli.conftest import Sagaspan

Ask = Callable[..., str]


@pytest.fixture
def paid() -> list[Any]:
    """What was paid."""
    return []


@pytest.fixture
def ask(guard: Guard, paid: list[Any]) -> Ask:
    """Pay in a run, which waits for approval: the id of the request."""

    def ask(amount: Any = 500, *, run: str = "a", **policy: Any) -> str:
        @guard.tool("pay", approve=True, **policy)
        def pay(amount: Any) -> None:
            paid.append(amount)

        with guard.override(approver="inbox"):
            try:
                with guard.run("trip", id=run):
                    pay(amount)
            except ApprovalPending as error:
                return error.approval_id
        return ""

    return ask


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Somebody sits at the terminal and types this."""

    def answers(text: str) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda *_: text)

    return answers


def test_what_waits_is_listed_shown_and_approved(sagaspan: Sagaspan, ask: Ask, paid: list[Any], answers: Any) -> None:
    """The terminal shows it and asks; the run goes on when it is entered again."""
    request = ask("x\x1b[31m\u202e")
    listed = sagaspan("approvals", "list")
    assert (listed.code, sagaspan("status").code) == (4, 4)
    assert f"sagaspan approvals show {request}" in sagaspan("status").out
    shown = sagaspan("approvals", "show", request[:24]).out
    assert '"x\\u{1b}[31m\\u{202e}"' in shown
    assert "digest" in shown
    answers("n")
    assert sagaspan("approvals", "approve", request).code == 1
    answers("y")
    approved = sagaspan("approvals", "approve", request)
    assert (approved.code, "is approved" in approved.out) == (0, True)
    assert "\\u{202e}" in approved.err
    assert ask("x\x1b[31m\u202e") == ""
    assert paid == ["x\x1b[31m\u202e"]
    assert sagaspan("approvals", "list").code == 0


def test_a_script_says_what_it_has_seen(sagaspan: Sagaspan, ask: Ask) -> None:
    """``--yes`` without the digest is a usage error, and with another one nothing is decided."""
    request = ask()
    assert sagaspan("approvals", "approve", request).code == 2
    assert sagaspan("approvals", "approve", request, "--yes").code == 2
    assert sagaspan("approvals", "approve", request, "--yes", "--digest", "0" * 64).code == 1
    (data,) = sagaspan("approvals", "list", "--json").json
    done = sagaspan("approvals", "approve", request, "--yes", "--digest", data["digest"], "--json")
    assert (done.code, done.json["state"], done.json["approved_by"]) == (0, "approved", [owner.os_user()])


def test_what_cannot_be_shown_is_not_approved_by_a_script(sagaspan: Sagaspan, ask: Ask) -> None:
    """Somebody has to look at what says UNINSPECTABLE."""
    request = ask(b"\xff")
    data = sagaspan("approvals", "show", request, "--json").json
    assert data["uninspectable"]
    assert "UNINSPECTABLE" in sagaspan("approvals", "show", request).out
    assert sagaspan("approvals", "approve", request, "--yes", "--digest", data["digest"]).code == 2


def test_denied_with_a_reason(sagaspan: Sagaspan, ask: Ask) -> None:
    """It is told to the model, and final."""
    request = ask()
    assert "is denied" in sagaspan("approvals", "deny", request, "--reason", "too much").out
    assert sagaspan("approvals", "deny", request).code == 1
    assert 'denied      "too much"' in sagaspan("approvals", "show", request).out


def test_edited(sagaspan: Sagaspan, ask: Ask, paid: list[Any]) -> None:
    """All arguments anew, as JSON; other names are refused."""
    request = ask()
    digest = sagaspan("approvals", "show", request, "--json").json["digest"]
    none = ("{", "[]", '{"amount": "\\ud800"}', '{"amount": 1e999}', '{"amount": ' + "[" * 5000)
    for wrong, code in (*((text, 2) for text in none), ('{"amout": 5}', 1)):
        assert sagaspan("approvals", "edit", request, wrong, "--yes", "--digest", digest).code == code
    assert sagaspan("approvals", "edit", request, '{"amount": 5}', "--yes", "--digest", digest).code == 0
    assert ask() == ""
    assert paid == [5]


def test_a_name_in_the_environment_is_nobody(sagaspan: Sagaspan, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked cannot approve by calling himself something else."""
    request = ask(approval=Approval(four_eyes=True))
    digest = sagaspan("approvals", "show", request, "--json").json["digest"]
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "alice")
    answer = sagaspan("approvals", "approve", request, "--yes", "--digest", digest)
    assert (answer.code, "asked for" in answer.err) == (1, True)


def test_groups_are_roles(sagaspan: Sagaspan, ask: Ask) -> None:
    """A role is a group of the operating system, not a word that somebody types."""
    request = ask(approval=Approval(roles=("no such group",)))
    digest = sagaspan("approvals", "show", request, "--json").json["digest"]
    assert "none of the roles" in sagaspan("approvals", "approve", request, "--yes", "--digest", digest).err
    mine = ask(run="b", approval=Approval(roles=owner.os_groups()[:1]))
    digest = sagaspan("approvals", "show", mine, "--json").json["digest"]
    assert sagaspan("approvals", "approve", mine, "--yes", "--digest", digest).code == 0


def test_no_such_request(sagaspan: Sagaspan, ask: Ask) -> None:
    """Exit 3, as everywhere."""
    ask()
    assert sagaspan("approvals", "show", "zzz").code == 3


def test_what_follows_an_approval_is_what_happens(sagaspan: Sagaspan, ask: Ask, guard: Guard, paid: list[Any]) -> None:
    """Of a paused run, of a call outside a run, and of a run that is over: no promise that nobody keeps."""

    def approved(request: str) -> str:
        digest = sagaspan("approvals", "show", request, "--json").json["digest"]
        answer = sagaspan("approvals", "approve", request, "--yes", "--digest", digest)
        return answer.out + answer.err

    assert "Its run a goes on when it is entered again with the same id." in approved(ask())
    assert ask() == ""

    @guard.tool(approve=True, compensate=lambda: None)
    def book(seat: int) -> None:
        paid.append(seat)

    with guard.override(approver="inbox"):
        with pytest.raises(ApprovalPending) as caught:
            book(1)
        assert "it runs when it is made again with the same arguments" in approved(caught.value.approval_id)
        book(1)
        with guard.run(id="over") as run:
            guard.tool("note", compensate=lambda: None)(lambda: None)()
            with pytest.raises(ApprovalPending) as caught:
                book(2)
            run.abort("no")
        assert "is superseded; nothing was decided" in approved(caught.value.approval_id)
    assert paid == [500, 1]


def test_all_of_what_the_digest_covers_can_be_seen(sagaspan: Sagaspan, ask: Ask, answers: Any) -> None:
    """What is shown shortened says so, and how to see the rest; before it is approved, too."""
    request = ask({"text": "a" * 500 + "needle" + "a" * 500})

    def shown(*command: str) -> str:
        answer = sagaspan("approvals", *command, request)
        return (answer.out + answer.err).replace("\n  | ", "")

    assert "needle" not in shown("show")
    assert f"shortened   amount.text; all of it: sagaspan approvals show {request} --full" in shown("show")
    assert "needle" in shown("show", "--full")
    assert "needle" in shown("show", "--json")
    answers("n")
    assert "needle" not in shown("approve")
    assert "needle" in shown("approve", "--full")


def test_a_person_who_denies_at_a_terminal_is_asked_why(sagaspan: Sagaspan, ask: Ask, answers: Any) -> None:
    """The model is told; ``--reason`` and no answer leave the question out."""
    reasons = []
    for answer, more in (("too much", []), ("", []), ("unused", ["--reason", "not now"])):
        request = ask(run=f"r{len(reasons)}")
        answers(answer)
        assert sagaspan("approvals", "deny", request, *more).code == 0
        reasons.append(sagaspan("approvals", "show", request, "--json").json["reason"])
    assert reasons == ["too much", None, "not now"]
