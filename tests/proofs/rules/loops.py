"""Agents in circles, rates, retries and timeouts (rule book (f) and (g))."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_BACKENDS = "src/sagaspan/_backends.py"
_ATTEMPTS = "src/sagaspan/ledger/attempts.py"
_RUN = "src/sagaspan/_run.py"
_POLICY = "src/sagaspan/policy.py"
_RATE = "src/sagaspan/rate.py"
_LOOPS = "src/sagaspan/loops.py"

_LOOP = "tests/middleware/test_loop.py::"
_BODIES = "tests/ledger/test_bodies.py::"
_RUNS = "tests/test_runs.py::"
_LOOPS_TESTS = "tests/test_loops.py::"
_BRANCHES = "tests/adapters/langchain/test_branches.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="(g) 2",
        rule="A timeout is unknown, not failed.",
        file=_ATTEMPTS,
        old="        return Ended(state=CallState.UNKNOWN, error=error, given_up=running.watched)",
        new="        return Ended(state=CallState.FAILED, error=error, given_up=running.watched)",
        tests=(_RUNS + "test_a_timeout_and_its_late_result",),
    ),
    Rule(
        section="(g) 1",
        rule="A write is repeated only where that is harmless: a doubt is not retried by a guess.",
        file=_POLICY,
        old="is None:\n            return False\n        margin =",
        new="is None:\n            return True\n        margin =",
        tests=("tests/ledger/test_attempts.py::test_what_is_repeated",),
    ),
    Rule(
        section="(g) 3",
        rule="A body that swallows its cancellation does not keep its caller.",
        file=_BACKENDS,
        old="            task.cancel()\n            await asyncio.wait([task], timeout=CANCEL_SECONDS)\n    except",
        new="            task.cancel()\n            await asyncio.wait([task])\n    except",
        tests=(_BODIES + "test_a_body_that_swallows_its_cancellation_is_given_up",),
    ),
    Rule(
        section="(f) 3",
        rule="The third refusal of a loop stops the run.",
        file=_RUN,
        old="(isinstance(error, LoopDetected) and error.stops)",
        new="False",
        tests=("tests/middleware/test_loop.py::test_the_third_refusal_stops_the_run",),
    ),
    Rule(
        section="(f)",
        rule="A run that is resumed knows in which branch an equal call was made before.",
        file="src/sagaspan/_signals.py",
        old="in_branch(_asked(call), branches.get(call.id))",
        new="_asked(call)",
        tests=(_BRANCHES + "test_a_resumed_run_knows_the_branches_of_before",),
    ),
    Rule(
        section="(g) 5",
        rule="No period sees more than the burst and the count of a rate.",
        file=_RATE,
        old="    full = rate.burst * rate.interval_ns\n",
        new="    full = (rate.burst + 1) * rate.interval_ns\n",
        tests=("tests/test_rate.py::test_no_period_sees_more_than_the_burst_and_the_count",),
    ),
    Rule(
        section="(g) 5",
        rule="A clock that was set back blocks nobody for long.",
        file=_RATE,
        old="    arrival = min(max(arrival_ns or now_ns, now_ns), now_ns + full)\n",
        new="    arrival = max(arrival_ns or now_ns, now_ns)\n",
        tests=("tests/test_rate.py::test_a_clock_that_was_set_back_blocks_nobody_for_long",),
    ),
    Rule(
        section="(f) 2",
        rule="Equal arguments with changing results are polling, never a loop.",
        file=_LOOPS,
        old="        and one.result == other.result\n",
        new="",
        tests=(
            _LOOPS_TESTS + "test_openmono_47_polling_a_job_that_moves_on",
            _LOOPS_TESTS + "test_what_never_answers_twice_alike_is_never_refused",
        ),
    ),
    Rule(
        section="(f) 2",
        rule="Only the tail counts: a stale repeat accuses nobody.",
        file=_LOOPS,
        old="    while length < len(tail) and holds(len(tail) - 1 - length):\n        length += 1\n    return length\n",
        new="    return sum(holds(index) for index in range(len(tail)))\n",
        tests=(_LOOPS_TESTS + "test_openclaw_71671_a_stale_repeat_accuses_nobody",),
    ),
    Rule(
        section="(f) 2",
        rule="Cycles of up to eight calls are found.",
        file=_LOOPS,
        old="range(2, 9)",
        new="range(2, 8)",
        tests=(_LOOPS_TESTS + "test_every_cycle_is_found_whatever_came_before",),
    ),
    Rule(
        section="(f) 3",
        rule="The third refusal stops the run.",
        file=_LOOPS,
        old="refusals + 1 >= REFUSALS",
        new="refusals + 1 > REFUSALS",
        tests=(_LOOPS_TESTS + "test_codeframe_740_the_third_refusal_stops_the_run",),
    ),
    Rule(
        section="(f)",
        rule="The third refusal of check_loop stops the run.",
        file="src/sagaspan/_guard.py",
        old="                    run.doom(error)\n                raise\n",
        new="                    pass\n                raise\n",
        tests=("tests/middleware/test_loop.py::test_the_third_refusal_of_check_loop_stops_the_run",),
    ),
    Rule(
        section="(f) 2",
        rule="What check_loop counted is on record.",
        file="src/sagaspan/_loops.py",
        old="        return signals.keep(engine.store, run, entry)",
        new="        signals.refusals += entry is None\n        return True",
        tests=(_LOOP + "test_what_check_loop_counted_counts_after_a_restart",),
    ),
    Rule(
        section="(f) 2",
        rule="Refusals for a loop are counted over all incarnations of a run.",
        file="src/sagaspan/middleware/loop.py",
        old="        await call.io(self._keep, call, None)",
        new="        signals.refusals += 1",
        tests=(_LOOP + "test_refusals_of_all_incarnations_stop_the_run",),
    ),
    Rule(
        section="(f) 2",
        rule="What is only replayed is never refused as a loop.",
        file="src/sagaspan/middleware/loop.py",
        old="            if served is not None and _is_earlier(call, served):",
        new="            if False:",
        tests=(_LOOP + "test_what_is_replayed_is_never_refused",),
    ),
    Rule(
        section="(f) 2",
        rule="Calls of models hide no loop of a resumed run.",
        file="src/sagaspan/_signals.py",
        old="            and call.key_source != KeySource.UNIQUE\n",
        new="",
        tests=(_LOOP + "test_calls_of_models_hide_no_loop_after_a_restart",),
    ),
    Rule(
        section="(f)",
        rule="A method of many objects, or under many keys, is no loop.",
        file="src/sagaspan/middleware/loop.py",
        old="        signals, args = call.signals, _asked(call)\n",
        new="        signals, args = call.signals, call.key.fingerprint\n",
        tests=(_LOOP + "test_a_method_of_many_objects_is_no_loop",),
    ),
    Rule(
        section="(f) 2",
        rule="What check_loop counted is counted once, however often its run is resumed.",
        file="src/sagaspan/_loops.py",
        old="        if signals.is_repeated(tool, digest):",
        new="        if False:",
        tests=(_LOOP + "test_a_resumed_run_counts_what_it_checks_again_once",),
    ),
)
