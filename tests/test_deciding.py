"""Who may decide, and what proves it: levels of assurance, links, grants, and the text that was shown."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sagaspan import (
    Approval,
    ApprovalDenied,
    ApprovalPending,
    ApprovalRequest,
    Approve,
    ConfigurationError,
    Deny,
    Edit,
    Guard,
    ResolutionError,
)
from sagaspan._console import Console
from sagaspan._owner import os_groups
from sagaspan.assurance import LEVELS, raised, reaches, stricter, weaker
from sagaspan.keys import fingerprint
from sagaspan.ledger.approvals import votes_of
from sagaspan.testing import frozen_clock

Ask = Callable[..., ApprovalRequest]


@pytest.fixture
def guard(store_url: str) -> Guard:
    """A guard whose requests wait in the ledger."""
    return Guard(store_url, approver="inbox")


@pytest.fixture
def paid() -> list[Any]:
    """What was paid."""
    return []


@pytest.fixture
def ask(guard: Guard, paid: list[Any]) -> Ask:
    """Pay in a run, which waits for approval: the request."""

    def ask(amount: Any = 500, *, run: str = "order", tool: str = "pay", **approval: Any) -> ApprovalRequest:
        @guard.tool(tool, approve=True, effect="write", approval=Approval(**approval))
        def pay(amount: Any) -> None:
            paid.append(amount)

        with pytest.raises(ApprovalPending) as caught, guard.run("order", id=run, user="ulla"):
            pay(amount)
        request = guard.approvals.get(caught.value.approval_id)
        assert request is not None
        return request

    return ask


# -- assurance -----------------------------------------------------------------------------------------------------


def test_levels_are_in_order() -> None:
    """cli < link < webhook = slack < oidc; an unknown word is no level."""
    order: list[Any] = [None, "cli", "link", "webhook", "oidc"]
    for low, one in enumerate(order):
        for high, other in enumerate(order):
            assert reaches(other, one) == (high >= low)
            assert stricter(one, other) == order[max(low, high)]
            assert weaker(one, other) == order[min(low, high)]
    assert reaches("slack", "webhook")
    assert reaches("webhook", "slack")
    assert not reaches("sms", "cli")
    assert not reaches("oidc", "sms")
    assert not reaches("sms", None)
    assert [raised(level) for level in (None, *LEVELS)] == ["cli", "link", "webhook", "oidc", "oidc", "oidc"]


@pytest.mark.parametrize("level", [None, "cli", "link"])
def test_who_is_not_known_surely_enough_cannot_agree(guard: Guard, ask: Ask, level: Any) -> None:
    """Nor edit; a no counts from everybody."""
    request = ask(assurance="webhook")
    assert "known by webhook or surer" in request.text
    with pytest.raises(ResolutionError, match="known by webhook"):
        guard.approvals.approve(request.id, by="alice", assurance=level)
    with pytest.raises(ResolutionError, match="known by webhook"):
        guard.approvals.edit(request.id, {"amount": 1}, by="alice", assurance=level)
    assert guard.approvals.get(request.id).state == "pending"
    assert guard.approvals.deny(request.id, by="alice").state == "denied"


@pytest.mark.parametrize("level", ["webhook", "slack", "oidc"])
def test_who_is_known_surely_enough_agrees(guard: Guard, ask: Ask, level: Any) -> None:
    """What the web app states is recorded with the decision."""
    request = ask(assurance="webhook")
    guard.approvals.approve(request.id, by="alice", assurance=level)
    (vote,) = votes_of(guard._engine.store.approval(request.id))
    assert (vote.by, vote.assurance) == ("alice", level)


@pytest.mark.parametrize("approver", [lambda _: True, lambda _: Approve(by="alice"), "auto-approve"])
def test_a_function_is_no_surer_than_the_user_of_its_process(guard: Guard, ask: Ask, paid: Any, approver: Any) -> None:
    """Unless it says how it knows; a name in what it says proves nothing."""
    ask(assurance="link")  # declares the tool
    with guard.override(approver=approver), pytest.raises(ApprovalPending), guard.run(id="b"):
        _pay(guard)(7)
    assert paid == []
    sure = lambda _: Approve(by="alice", assurance="oidc")  # noqa: E731
    with guard.override(approver=sure), guard.run(id="c"):
        _pay(guard)(7)


def _pay(guard: Guard) -> Callable[..., Any]:
    tool = guard._engine.known.tools["pay"]
    return guard.tool("pay", **tool.policy._decided())(tool.function)


def test_nobody_agrees_automatically_where_somebody_must_be_known(guard: Guard, ask: Ask, paid: list[Any]) -> None:
    """auto-approve is no person."""
    ask(assurance="cli")
    with guard.override(approver="auto-approve"), pytest.raises(ApprovalPending), guard.run(id="b"):
        _pay(guard)(7)
    assert paid == []


def test_what_cannot_be_shown_asks_for_one_level_more(guard: Guard, ask: Ask) -> None:
    """Bytes that are no text say nothing to anybody."""
    request = ask(b"\xff\xfe", assurance="cli")
    with pytest.raises(ResolutionError, match=r"known by link.*cannot be shown"):
        guard.approvals.approve(request.id, by="alice")
    plain = ask(b"\xff\xfe", run="b", tool="plain")
    with pytest.raises(ResolutionError, match="known by cli"):
        guard.approvals.approve(plain.id, by="alice", assurance=None)
    assert guard.approvals.approve(request.id, by="alice", assurance="link").state == "approved"


def test_of_two_sources_the_surer_level_holds() -> None:
    """As for the other fields."""
    assert Approval(assurance="link").with_(Approval(assurance="oidc")).assurance == "oidc"
    assert Approval(assurance="link").with_(Approval()).assurance == "link"
    with pytest.raises(ConfigurationError, match="assurance"):
        Approval(assurance="sms")


# -- what was shown ------------------------------------------------------------------------------------------------


def test_the_hash_of_the_text_that_was_shown_is_recorded(guard: Guard, ask: Ask) -> None:
    """With the request when it was made, and with each decision as it was then."""
    request = ask(approvers=2)
    assert request.shown == fingerprint(request.text)
    assert guard._engine.store.approval(request.id).shown == request.shown
    guard.approvals.approve(request.id, by="alice", shown=request.shown)
    second = guard.approvals.get(request.id)
    assert second.shown != request.shown  # it says now that alice agrees
    guard.approvals.approve(request.id, by="carol", shown=second.shown)
    votes = votes_of(guard._engine.store.approval(request.id))
    assert [vote.shown for vote in votes] == [request.shown, second.shown]


def test_a_decision_is_of_the_text_that_was_shown(guard: Guard, ask: Ask) -> None:
    """What says something else by now is looked at again, also by an editor."""
    request = ask(approvers=3)
    guard.approvals.approve(request.id, by="alice")
    with pytest.raises(ResolutionError, match="something else"):
        guard.approvals.approve(request.id, by="carol", shown=request.shown)
    with pytest.raises(ResolutionError, match="something else"):
        guard.approvals.edit(request.id, {"amount": 1}, by="carol", shown=request.shown)
    assert guard.approvals.get(request.id).approved_by == ("alice",)


def test_the_digest_is_the_hash_of_the_subject(ask: Ask) -> None:
    """So that a receiver can check it for itself."""
    request = ask()
    assert fingerprint(json.loads(request.subject)) == request.digest


# -- links ---------------------------------------------------------------------------------------------------------


def test_a_link_decides_once_as_whom_it_was_made_for(guard: Guard, ask: Ask) -> None:
    """Whoever opens it is that person, known by a link."""
    request = ask(assurance="link", roles=("finance",))
    token = guard.approvals.link(request.id, by="alice", roles=["finance"])
    assert guard.approvals.linked(token).id == request.id
    assert guard.approvals.redeem(token, Approve(by="eve")).approved_by == ("alice",)
    (vote,) = votes_of(guard._engine.store.approval(request.id))
    assert (vote.channel, vote.assurance, vote.roles) == ("link", "link", ("finance",))


def test_a_link_is_used_once(guard: Guard, ask: Ask) -> None:
    """Of eight who open it at the same moment one decides; the nonce goes with the decision."""
    request = ask(approvers=2)
    token = guard.approvals.link(request.id, by="alice")
    barrier, outcomes = threading.Barrier(8), []

    def redeem() -> None:
        barrier.wait()
        try:
            outcomes.append(guard.approvals.redeem(token, Approve()).state)
        except ResolutionError:
            outcomes.append("refused")

    threads = [threading.Thread(target=redeem) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["pending", *["refused"] * 7]
    edited = ask(600, run="b")
    token = guard.approvals.link(edited.id, by="alice")
    assert guard.approvals.redeem(token, Edit({"amount": 5})).state == "approved"
    with pytest.raises(ResolutionError):
        guard.approvals.redeem(token, Deny())


def test_a_used_link_is_of_no_use_for_another_answer(guard: Guard, ask: Ask) -> None:
    """Also where the request is still open."""
    request = ask(approvers=3)
    token = guard.approvals.link(request.id, by="alice")
    guard.approvals.redeem(token, Approve())
    with pytest.raises(ResolutionError, match="only once"):
        guard.approvals.redeem(token, Deny("changed my mind"))
    assert guard.approvals.get(request.id).state == "pending"


def test_a_link_is_about_the_request_as_it_was(guard: Guard, ask: Ask) -> None:
    """Edited meanwhile it is another one; and it ends with it, or before."""
    request = ask()
    token = guard.approvals.link(request.id, by="alice")
    guard.approvals.edit(request.id, {"amount": 5}, by="carol")
    with pytest.raises(ResolutionError, match="superseded"):
        guard.approvals.redeem(token, Approve())
    with frozen_clock() as clock:
        short = guard.approvals.link(ask(run="b").id, by="alice", expires_in=60)
        long = guard.approvals.link(ask(run="c").id, by="alice", expires_in=10**6)
        clock.advance(61)
        with pytest.raises(ResolutionError, match="is over"):
            guard.approvals.redeem(short, Approve())
        clock.advance(24 * 3600)
        with pytest.raises(ResolutionError, match="is over"):
            guard.approvals.redeem(long, Approve())


def test_who_asked_does_not_agree_by_a_link_either(guard: Guard, ask: Ask) -> None:
    """Four eyes count people, not channels."""
    request = ask(four_eyes=True)
    with pytest.raises(ResolutionError, match="asked for"):
        guard.approvals.redeem(guard.approvals.link(request.id, by="ulla"), Approve())


def _tampered(token: str, **changes: Any) -> str:
    """``token`` with other contents and its old signature."""
    kind, body, signature = token.split(".")
    data = {**json.loads(base64.urlsafe_b64decode(body + "==")), **changes}
    return f"{kind}.{base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip('=')}.{signature}"


def test_a_link_cannot_be_made_up(guard: Guard, ask: Ask, tmp_path: Any) -> None:
    """Guessed, changed, of another ledger, or another kind of token."""
    request = ask()
    token = guard.approvals.link(request.id, by="alice")
    other = Guard(f"sqlite:///{tmp_path / 'other' / 'ledger.db'}", approver="inbox")
    grant = guard.approvals.delegate("alice", by="bob")
    kind, body, signature = token.split(".")
    made_up = [
        "", "alice", request.id, "..", f"{kind}.{body}", f"{kind}.{body}.", f"{kind}.{body}.{signature[:-1]}",
        f"{kind}.{body}.{signature}x", f"sgg1.{body}.{signature}", grant, "ä.ö.ü", f"{kind}..{signature}",
        _tampered(token, by="bob"), _tampered(token, expires_us=2**60), _tampered(token, roles=["finance"]),
        _tampered(token, digest="0" * 64), other.approvals.delegate("alice", by="bob"),
    ]  # fmt: skip
    for wrong in made_up:
        with pytest.raises(ResolutionError, match="no link that this ledger"):
            guard.approvals.redeem(wrong, Approve())
    with pytest.raises(ResolutionError, match="no link that this ledger"):
        other.approvals.redeem(token, Approve())
    assert guard.approvals.get(request.id).state == "pending"
    assert len({guard.approvals.link(request.id, by="alice") for _ in range(50)}) == 50


# -- grants --------------------------------------------------------------------------------------------------------


def test_a_grant_lets_another_one_agree(guard: Guard, ask: Ask) -> None:
    """With the roles of who gave it; both are named in the decision."""
    request = ask(roles=("finance",))
    grant = guard.approvals.delegate("bob", by="alice", roles=["finance"], tools="pa*", when="amount <= 1000")
    with pytest.raises(ResolutionError, match="roles"):
        guard.approvals.approve(request.id, by="bob")
    decided = guard.approvals.approve(request.id, by="bob", grant=grant)
    assert "bob for alice (api)" in decided.text
    rows = guard._engine.store.audit_of("default", "order")
    assert any("by api for alice" in (row.detail or "") and row.actor == "bob" for row in rows)


def test_a_grant_makes_no_second_person(guard: Guard, ask: Ask) -> None:
    """Neither who gave it nor who used it has another vote, and who asked has none through it."""
    request = ask(approvers=2)
    grant = guard.approvals.delegate("bob", by="alice")
    guard.approvals.approve(request.id, by="bob", grant=grant)
    for by, how in (("bob", {}), ("alice", {}), ("bob", {"grant": guard.approvals.delegate("bob", by="carol")})):
        with pytest.raises(ResolutionError, match="already"):
            guard.approvals.approve(request.id, by=by, **how)
    own = ask(run="b", four_eyes=True)
    for giver, taker in (("ulla", "bob"), ("bob", "ulla")):
        with pytest.raises(ResolutionError, match="asked for"):
            guard.approvals.approve(own.id, by=taker, grant=guard.approvals.delegate(taker, by=giver))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [({"to": "carol"}, "is for 'carol'"), ({"tools": "refund*"}, "not about"), ({"when": "amount < 500"}, "not about"),
     ({"when": "amount"}, "not about"), ({"when": "other > 5"}, "not about")],
)  # fmt: skip
def test_a_grant_is_for_one_person_and_these_calls(guard: Guard, ask: Ask, what: Any, sentence: str) -> None:
    """Also a condition that cannot be judged, or is no plain yes, covers nothing."""
    request = ask(500)
    grant = guard.approvals.delegate(**{"to": "bob", "by": "alice", **what})
    with pytest.raises(ResolutionError, match=sentence):
        guard.approvals.approve(request.id, by="bob", grant=grant)


def test_a_grant_ends_and_cannot_be_changed(guard: Guard, ask: Ask) -> None:
    """It is signed with the secret of the ledger, and is as sure as the less sure of two."""
    request = ask(assurance="webhook")
    grant = guard.approvals.delegate("bob", by="alice", assurance="oidc")
    for wrong in (_tampered(grant, to="eve"), _tampered(grant, tools="*", roles=["x"]),
                  guard.approvals.link(request.id, by="bob")):  # fmt: skip
        with pytest.raises(ResolutionError, match="no grant"):
            guard.approvals.approve(request.id, by="eve", grant=wrong)
    weak = guard.approvals.delegate("bob", by="alice", assurance="cli")
    for token, level in ((grant, "cli"), (weak, "oidc")):
        with pytest.raises(ResolutionError, match="known by webhook"):
            guard.approvals.approve(request.id, by="bob", grant=token, assurance=level)
    with frozen_clock() as clock:
        short = guard.approvals.delegate("bob", by="alice", expires_in=60, assurance="oidc")
        clock.advance(61)
        with pytest.raises(ResolutionError, match="is over"):
            guard.approvals.approve(request.id, by="bob", grant=short, assurance="oidc")
    assert guard.approvals.approve(request.id, by="bob", grant=grant, assurance="oidc").state == "approved"


@pytest.mark.parametrize(
    "what",
    [{"expires_in": 31 * 24 * 3600.0}, {"expires_in": 0},
     {"to": "alice"}, {"to": ""}, {"when": "amount >"}, {"assurance": "sms"},
     {"expires_in": float("nan")}],
)  # fmt: skip
def test_a_grant_that_makes_no_sense_is_refused(guard: Guard, what: Any) -> None:
    """When it is given, not when it is used."""
    with pytest.raises(ConfigurationError):
        guard.approvals.delegate(**{"to": "bob", "by": "alice", **what})


def test_a_no_by_a_link_is_told_to_the_model(guard: Guard, ask: Ask, paid: list[Any]) -> None:
    """And is final, like any other."""
    request = ask()
    guard.approvals.redeem(guard.approvals.link(request.id, by="alice"), Deny("not now"))
    with pytest.raises(ApprovalDenied, match="not now"), guard.run("order", id="order", user="ulla"):
        _pay(guard)(500)
    assert paid == []


# -- namespaces ----------------------------------------------------------------------------------------------------


def test_a_guard_decides_only_requests_of_its_namespace(
    guard: Guard, ask: Ask, store_url: str, paid: list[Any]
) -> None:
    """However it is asked to, and whoever tells it the id."""
    request, other = ask(), Guard(store_url, namespace="other").approvals
    asked: list[Callable[[], Any]] = [
        lambda: other.approve(request.id, by="alice"), lambda: other.deny(request.id, by="alice"),
        lambda: other.edit(request.id, {"amount": 1}, by="alice"), lambda: other.link(request.id, by="alice"),
        lambda: other.linked(guard.approvals.link(request.id, by="alice")),
        lambda: other.redeem(guard.approvals.link(request.id, by="alice"), Approve()),
    ]  # fmt: skip
    for decide in asked:
        with pytest.raises(ResolutionError):
            decide()
    assert other.get(request.id) is None
    assert guard.approvals.get(request.id) == request


# -- answers -------------------------------------------------------------------------------------------------------

_WRONG: list[Callable[[], Any]] = [
    lambda: Deny({"why": "too much"}),  # type: ignore[arg-type]
    lambda: Deny(by=5),  # type: ignore[arg-type]
    lambda: Approve(by=5),  # type: ignore[arg-type]
    lambda: Approve(by="  "),
    lambda: Approve(roles="finance"),  # type: ignore[arg-type]
    lambda: Approve(assurance="god"),  # type: ignore[arg-type]
    lambda: Edit({1: 2}),  # type: ignore[dict-item]
    lambda: Edit("amount"),  # type: ignore[arg-type]
    lambda: Deny("half \ud800"),
    lambda: Approve(by="\ud800"),
]


@pytest.mark.parametrize(
    ("answer", "said"), [("approve", "'approve'"), ("later", "'later'"), (1, "int"), (None, "NoneType")]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_no_decision_is_named(store_url: str, answer: Any, said: str, is_async: bool) -> None:
    """A word is none, and a function cannot leave it to others; the sentence says what is one."""

    async def later(_: Any) -> Any:
        return answer

    guard = Guard(store_url, approver=later if is_async else lambda _: answer)
    pay = guard.tool("pay", approve=True)(lambda amount: amount)
    with pytest.raises(ApprovalDenied, match=f"answered {said}, which is no decision"), guard.run("order", id="order"):
        pay(500)


@pytest.mark.parametrize("wrong", _WRONG)
def test_an_answer_of_a_wrong_type_is_a_no(store_url: str, wrong: Callable[[], Any]) -> None:
    """It is refused where it is made; from an approver it denies, with the reason."""
    with pytest.raises(ConfigurationError):
        wrong()
    guard = Guard(store_url, approver=lambda _: wrong())
    pay = guard.tool("pay", approve=True)(lambda amount: amount)
    with pytest.raises(ApprovalDenied, match="is no decision"), guard.run("order", id="order"):
        pay(500)
    assert [one.state for one in guard.approvals.list(status=[])] == ["denied"]


@pytest.mark.parametrize(
    "how",
    [{"by": 5}, {"by": "   "}, {"roles": "finance"}, {"roles": [5]}, {"assurance": "god"}],
)
def test_a_decision_by_nobody_is_refused(guard: Guard, ask: Ask, how: Any) -> None:
    """By name, before anything is written."""
    request = ask()
    with pytest.raises(ConfigurationError, match=next(iter(how))):
        guard.approvals.approve(request.id, **how)
    with pytest.raises(ConfigurationError, match=next(iter(how))):
        guard.approvals.edit(request.id, {"amount": 1}, **how)
    assert guard.approvals.get(request.id) == request


def test_what_is_no_text_is_refused(guard: Guard, ask: Ask) -> None:
    """Ids, reasons, names of arguments, and bodies."""
    request, api = ask(), guard.approvals
    wrong: list[Callable[[], Any]] = [
        lambda: api.approve(None), lambda: api.deny(request.id, 5), lambda: api.deny(request.id, by=5),
        lambda: api.edit(request.id, {1: 2}), lambda: api.receive({}, "body", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILQ=="),
        lambda: api.link(request.id, by="alice", roles="finance"), lambda: api.delegate("bob", by=" "),
    ]  # type: ignore[arg-type,dict-item,list-item] # fmt: skip
    for decide in wrong:
        with pytest.raises(ConfigurationError):
            decide()
    assert api.get(request.id) == request


def test_a_function_may_hand_on_what_an_async_one_answers(store_url: str) -> None:
    """An approver that gives an awaitable is waited for, by every kind of caller."""

    async def yes(_: ApprovalRequest) -> bool:
        return True

    guard = Guard(store_url, approver=lambda request: yes(request))
    pay = guard.tool("pay", approve=True)(lambda amount: amount)

    async def apay(amount: int) -> int:
        return amount

    guarded = guard.tool("apay", approve=True)(apay)
    assert (pay(500), asyncio.run(guarded(500))) == (500, 500)


def _typing(*answers: str) -> Console:
    left = iter(answers)
    return Console(read=lambda _: next(left))


def test_the_console_has_the_groups_of_the_user(store_url: str) -> None:
    """As the command line has: who sits there can approve what asks for one of them."""
    groups = os_groups()
    for answers, paid in ((["a"], 500), (["e", '{"amount": 3}'], 3)):
        guard = Guard(store_url, approver=_typing(*answers))
        pay = guard.tool("pay", approve=True, approval=Approval(roles=groups[:1]))(lambda amount: amount)
        assert pay(500) == paid
    nobody = Guard(store_url, namespace="b", approver=_typing("a", "l"))
    pay = nobody.tool("pay", approve=True, approval=Approval(roles=["no such group"]))(lambda amount: amount)
    with pytest.raises(ApprovalPending):
        pay(500)
