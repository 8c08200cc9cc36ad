"""Notices to services: sent until they are taken, and no thread held by who does not take them."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_SQLITE_CHANGES = "src/sagaspan/stores/_sqlite_changes.py"
_NOTIFIER = "src/sagaspan/_notifier.py"

_NOTIFIED = "tests/test_notifications.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="notifications",
        rule="What is not taken is sent again.",
        file=_NOTIFIER,
        old="        if problem is None:\n",
        new="        if True:\n",
        tests=(
            _NOTIFIED + "test_what_is_not_taken_is_sent_again_under_the_same_id",
            _NOTIFIED + "test_what_is_never_taken_is_a_dead_letter",
        ),
    ),
    Rule(
        section="notifications",
        rule="A repetition has the id of the first.",
        file=_NOTIFIER,
        old="signed(record.id, body",
        new='signed(f"{record.id} {now_us()}", body',
        tests=(_NOTIFIED + "test_what_is_not_taken_is_sent_again_under_the_same_id",),
    ),
    Rule(
        section="notifications",
        rule="What was read, and is to be sent, is kept in one commit.",
        file=_NOTIFIER,
        old="[*moves, *(DeliveryChange(record) for record in found)]",
        new="moves",
        tests=(_NOTIFIED + "test_who_dies_before_it_is_taken_away_has_it_sent_again",),
    ),
    Rule(
        section="notifications",
        rule="Who answers a byte now and then holds no thread.",
        file="src/sagaspan/_deadline.py",
        old="                connection.shutdown(socket.SHUT_RDWR)\n",
        new="                connection.fileno()\n",
        tests=("tests/test_webhooks.py::test_who_answers_a_byte_now_and_then_holds_nobody",),
    ),
    Rule(
        section="notifications",
        rule="An answer that was cut off at the deadline is none.",
        file="src/sagaspan/_post.py",
        old="    if over:  # what was cut off may look whole\n",
        new="    if False:\n",
        tests=("tests/test_webhooks.py::test_who_answers_a_byte_now_and_then_holds_nobody",),
    ),
    Rule(
        section="notifications",
        rule="A compressed answer is not unpacked.",
        file="src/sagaspan/_post.py",
        old='        if response.headers.get("content-encoding", "identity") != "identity":\n',
        new="        if False:\n",
        tests=("tests/test_webhooks.py::test_a_compressed_answer_is_not_unpacked",),
    ),
    Rule(
        section="notifications",
        rule="Soft limits are on record with the spending that crosses them.",
        file=_SQLITE_CHANGES,
        old="                    chains.append(connection, mark.audit)\n",
        new="                    pass\n",
        tests=(_NOTIFIED + "test_a_soft_limit_is_told_of_when_it_is_crossed",),
    ),
    Rule(
        section="(d)",
        rule="What was refused is sent again, although nothing happens any more.",
        file=_NOTIFIER,
        old="if not may_happen and again_us is None and begun",
        new="if not may_happen and begun",
        tests=(_NOTIFIED + "test_what_was_refused_is_sent_again_by_a_process_in_which_nothing_happens_any_more",),
    ),
    Rule(
        section="(d)",
        rule="What happens under a lease that is fresh still is told of.",
        file=_NOTIFIER,
        old="monotonic() + self._unannounced",
        new="monotonic()",
        tests=(_NOTIFIED + "test_what_happens_after_a_while_in_which_nothing_did_is_told_of",),
    ),
    Rule(
        section="(d)",
        rule="A receiver that does not answer keeps no other from being told.",
        file=_NOTIFIER,
        old="                failed.add(record.hook)",
        new="                break",
        tests=(_NOTIFIED + "test_who_does_not_answer_holds_up_others_for_one_attempt",),
    ),
    Rule(
        section="notifications",
        rule="The thread that tells of trouble outlives what it does not expect.",
        file=_NOTIFIER,
        old="        except Exception as error:  # noqa: BLE001 - whatever it is: the thread that tells of trouble goes on\n",
        new="        except OSError as error:\n",
        tests=(_NOTIFIED + "test_the_thread_survives_what_it_does_not_expect",),
    ),
    Rule(
        section="notifications",
        rule="How far a receiver was told is kept for each kind of event.",
        file=_NOTIFIER,
        old='    return f"{hook.name} {event}"\n',
        new="    return hook.name\n",
        tests=(_NOTIFIED + "test_processes_tell_one_receiver_of_different_events",),
    ),
)
