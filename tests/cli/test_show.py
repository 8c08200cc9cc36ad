"""``sagaspan show ANY``."""

from __future__ import annotations

import contextlib

import pytest

from sagaspan import ApprovalPending, Guard
from tests.cli.conftest import Sagaspan


@pytest.mark.usefixtures("day")
class TestShow:
    """Over a day's work."""

    def test_a_run_by_prefix(self, sagaspan: Sagaspan) -> None:
        """Its id from any log line is enough."""
        assert "run paid-1  completed" in sagaspan("show", "paid-").out

    def test_a_call_by_id_has_its_history(self, sagaspan: Sagaspan, guard: Guard) -> None:
        """Every transition of it, in order."""
        call = guard.runs.get("lost-1").calls[0]
        answer = sagaspan("show", call.id)
        assert answer.code == 0
        assert [line.split()[1] for line in answer.out.split("history")[1].splitlines()[2:]] == [
            "claim", "succeed", "compensate", "compensation_succeeded",
        ]  # fmt: skip

    def test_a_call_by_the_key_downstream_was_told(self, sagaspan: Sagaspan, guard: Guard) -> None:
        """The key on a payment provider's page leads back to the call, and so does a business key."""
        pay = guard.runs.get("paid-1").calls[1]
        for key in (pay.idempotency_key, pay.idempotency_key[:20], "order-17"):
            assert sagaspan("show", key, "--json").json["id"] == pay.id

    def test_a_trace_by_prefix(self, sagaspan: Sagaspan, guard: Guard) -> None:
        """As a tree: the compensation names the tool it undoes."""
        trace_id = guard.runs.get("lost-1").traceparent.split("-")[1]
        answer = sagaspan("show", trace_id[:12])
        assert answer.code == 0
        assert "sagaspan trip" in answer.out
        assert "undoes book" in answer.out

    def test_an_ambiguous_prefix_lists_what_it_could_be(self, sagaspan: Sagaspan, guard: Guard) -> None:
        """Nobody has to guess which."""
        with guard.run("trip", id="paid-2"):
            pass
        answer = sagaspan("show", "paid-")
        assert answer.code == 3
        assert "paid-1" in answer.out
        assert "paid-2" in answer.out
        assert {match["id"] for match in sagaspan("show", "paid-", "--json").json["matches"]} == {"paid-1", "paid-2"}

    def test_of_too_many_the_first_are_listed(self, sagaspan: Sagaspan, guard: Guard) -> None:
        """And it is said that there are more."""
        for number in range(12):
            with guard.run("trip", id=f"many-{number}"):
                pass
        for command in (["show"], ["runs", "show"]):
            answer = sagaspan(*command, "many-", "--json")
            assert (answer.code, len(answer.json["matches"])) == (3, 10)
            assert "more than 10" in answer.json["error"]

    def test_what_needs_a_person_has_its_commands(self, sagaspan: Sagaspan, guard: Guard) -> None:
        """A step that could not be undone: try again, or say that somebody did it; then the run is closed."""
        call = guard.runs.get("stuck-1").calls[0].id
        for shown in (sagaspan("show", "stuck-1").out, sagaspan("show", call).out):
            assert f"sagaspan compensate stuck-1 --call {call} --app MODULE:GUARD" in shown
            assert f"sagaspan calls resolve {call} compensated --note WHY" in shown
        done = sagaspan("calls", "resolve", call, "compensated", "--note", "by phone")
        assert "Its run stuck-1 is compensated." in done.out
        assert sagaspan("status").code == 0
        assert "what needs you" not in sagaspan("show", "stuck-1").out

    def test_nothing_of_that_name_is_not_found(self, sagaspan: Sagaspan) -> None:
        """Exit code 3; a wildcard is only a character."""
        assert sagaspan("show", "nothing").code == 3
        assert sagaspan("show", "*").code == 3


class TestNamespaces:
    """Several applications in one store."""

    @pytest.fixture(autouse=True)
    def _both(self, home: object) -> None:
        for namespace in ("shop", "travel"):
            with Guard(namespace=namespace) as guard, guard.run("trip", id="same"):
                guard.tool("pay", effect="write", key="order")(lambda order: order)("o-1")

    def test_tables_name_them_where_there_are_several(self, sagaspan: Sagaspan) -> None:
        """Only then, and not where one is asked for."""
        for command in (["runs", "list"], ["calls", "list", "--all"]):
            assert sagaspan(*command).out.splitlines()[0].split()[0] == "namespace"
            rows = sagaspan(*command, "--namespace", "shop").out.splitlines()
            assert (rows[0].split()[0] != "namespace", len(rows)) == (True, 2)
            assert {row["namespace"] for row in sagaspan(*command, "--json").json} == {"shop", "travel"}
        assert "namespace" in sagaspan("show", "same", "--namespace", "shop").out

    def test_one_id_in_two_is_ambiguous(self, sagaspan: Sagaspan) -> None:
        """Neither is shown in silence; the answer says what to add."""
        for command in (["show", "same"], ["runs", "show", "same"], ["show", "o-1"]):
            answer = sagaspan(*command)
            assert answer.code == 3
            assert "namespace travel" in answer.out
            chosen = sagaspan(*command, "--namespace", "travel", "--json")
            assert (chosen.code, chosen.json["namespace"]) == (0, "travel")
        assert "--namespace" in sagaspan("show", "same").err

    def test_status_says_which(self, sagaspan: Sagaspan) -> None:
        """The next command is about that one."""
        with Guard(namespace="shop") as guard, guard.run("trip", id="same-2") as run:
            run.pause()
        with Guard(namespace="travel") as guard, guard.run("trip", id="same-2"):
            pass
        (item,) = sagaspan("status", "--json").json
        assert (item["namespace"], item["next"]) == ("shop", "sagaspan show same-2 --namespace shop")
        assert sagaspan(*item["next"].split()[1:]).code == 0
        assert sagaspan("status", "--namespace", "travel").code == 0

    def test_a_guard_sees_its_own(self) -> None:
        """What another application calls the same is another run."""
        with Guard(namespace="other") as guard:
            assert guard.runs.get("same") is None
            assert guard.runs.list() == []
            assert guard.calls.list(open=False) == []
        with Guard(namespace="shop") as guard:
            assert [run.namespace for run in guard.runs.list()] == ["shop"]
            assert [call.namespace for call in guard.calls.list(open=False)] == ["shop"]


class TestApprovals:
    """Who approved what, when, by which channel, for which digest."""

    @pytest.fixture(autouse=True)
    def _approved(self, guard: Guard) -> None:
        pay = guard.tool("pay", effect="write", approve=True)(lambda amount: amount)
        with guard.override(approver="inbox"):
            for _ in range(2):
                with contextlib.suppress(ApprovalPending), guard.run("job", id="order-1"):
                    pay(5)
                for request in guard.approvals.list():
                    guard.approvals.approve(request.id, by="alice")
        (self.request,) = guard.approvals.list(status=())

    def test_a_request_by_prefix_has_its_history(self, sagaspan: Sagaspan) -> None:
        """Asked, approved, used: with who did it."""
        assert self.request.state == "consumed"
        out = sagaspan("show", self.request.id[:20]).out
        assert self.request.digest in out
        assert "approval.approve" in out
        told = sagaspan("show", self.request.id, "--json").json
        assert [(row["event"], row["digest"]) for row in told["history"]] == [
            (f"approval.{event}", self.request.digest) for event in ("ask", "approve", "consume")
        ]
        assert told["history"][1]["actor"] == "alice"

    def test_a_call_says_who_approved_it(self, sagaspan: Sagaspan) -> None:
        """With the digest of what was approved, and the request's history among its own."""
        out = sagaspan("show", self.request.call_id).out
        assert "alice (api" in out
        assert self.request.digest in out
        told = sagaspan("calls", "show", self.request.call_id, "--json").json
        assert [row["event"] for row in told["history"]] == [
            "approval.ask", "approval.approve", "claim", "approval.consume", "succeed",
        ]  # fmt: skip
        assert told["approvals"][0]["digest"] == self.request.digest

    def test_a_run_lists_its_requests(self, sagaspan: Sagaspan) -> None:
        """Each with who decided it."""
        assert "alice (api" in sagaspan("show", "order-1").out
        (told,) = sagaspan("runs", "show", "order-1", "--json").json["approvals"]
        assert (told["id"], told["state"], told["digest"]) == (self.request.id, "consumed", self.request.digest)
