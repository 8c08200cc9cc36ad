"""``sagaspan show ANY``."""

from __future__ import annotations

import pytest

from sagaspan import Guard
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

    def test_nothing_of_that_name_is_not_found(self, sagaspan: Sagaspan) -> None:
        """Exit code 3; a wildcard is only a character."""
        assert sagaspan("show", "nothing").code == 3
        assert sagaspan("show", "*").code == 3
