"""Runs: who is in one, what a resume answers, orphans, recording that breaks no call (design 3 and 4.6)."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_LEDGER = "src/sagaspan/ledger/ledger.py"
_SQLITE_CHANGES = "src/sagaspan/stores/_sqlite_changes.py"
_OWNER = "src/sagaspan/_owner.py"
_SAGA = "src/sagaspan/_saga.py"
_STEPS = "src/sagaspan/_steps.py"
_RUN = "src/sagaspan/_run.py"
_ENGINE = "src/sagaspan/_engine.py"
_COMPLETION = "src/sagaspan/_completion.py"
_LLM = "src/sagaspan/_llm.py"
_CLAIMING = "src/sagaspan/ledger/claiming.py"
_ANSWERS = "src/sagaspan/ledger/answers.py"
_SETTLING = "src/sagaspan/ledger/settling.py"

_BUDGETS = "tests/ledger/test_budgets.py::"
_CLAIMS = "tests/ledger/test_claims.py::"
_RUNS = "tests/test_runs.py::"
_CLIENT = "tests/adapters/functions/test_clients.py::"
_REAPER = "tests/test_reaper.py::"
_THREADS = "tests/adapters/langchain/test_threads.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="design 3",
        rule="A run that the garbage collector leaves, in the middle of anything, waits for nobody there.",
        file=_RUN,
        old="        reaper.finalize(partial(self._leave_here, error))\n",
        new="        self._leave_here(error)\n",
        tests=(_REAPER + "test_a_run_is_not_left_by_the_thread_that_writes",),
    ),
    Rule(
        section="design 3",
        rule="A call is in the run of its block although a run that was entered before is left meanwhile.",
        file=_RUN,
        old="        while (run := current_run.get()) is not None and run._steps_back():  # noqa: SLF001 - another run\n"
        "            pass\n",
        new="        self._steps_back()\n",
        tests=(_REAPER + "test_a_call_stays_in_its_run_when_an_earlier_one_is_closed",),
    ),
    Rule(
        section="design 3",
        rule="The garbage collector begins nothing.",
        file="src/sagaspan/_backends.py",
        old="    try:\n        reaper.refuse()\n",
        new="    try:\n",
        tests=(_REAPER + "test_what_the_collector_would_begin_is_refused",),
    ),
    Rule(
        section="design 3",
        rule="Who is cancelled while a run is entered leaves it: nothing stays running with nobody in it.",
        file=_RUN,
        old="if isinstance(error, asyncio.CancelledError) and self._may_be_left:",
        new="if False:",
        tests=(_RUNS + "test_who_is_cancelled_while_a_run_is_entered_leaves_it",),
    ),
    Rule(
        section="design 3",
        rule="What was entered is known to whoever was cancelled meanwhile: else nobody would leave it.",
        file=_SAGA,
        old="            return Entered(record=opened, interrupted=held.interrupted)\n",
        new="            if held.interrupted is not None:\n                owner.drop(token(engine.store, opened))\n"
        "                raise held.interrupted\n            return Entered(record=opened)\n",
        tests=(_RUNS + "test_who_is_cancelled_while_a_run_is_entered_leaves_it",),
    ),
    Rule(
        section="design 3",
        rule="A resume on another path starts no write while an earlier one is in doubt.",
        file=_LEDGER,
        old="            if call.resumed and call.tool.policy.declared_write:\n",
        new="            if False:\n",
        tests=(_RUNS + "test_a_resume_on_another_path_starts_no_write_on_a_doubt",),
    ),
    Rule(
        section="design 3",
        rule="Of two entries of one process one is refused.",
        file=_OWNER,
        old="        if token in _alive:\n            return False\n",
        new="",
        tests=(_RUNS + "test_two_aborts_at_once_undo_once",),
    ),
    Rule(
        section="design 3",
        rule="The same run id with another name or input is refused.",
        file=_SAGA,
        old="            _check_identity(existing, wanted, encrypts=engine.codec is not None)\n",
        new="",
        tests=(_RUNS + "test_name_and_input_belong_to_an_id",),
    ),
    Rule(
        section="design 3",
        rule="A run that was rolled back takes no calls until it is reopened.",
        file=_SAGA,
        old="    if not reopen:\n        raise RunClosed(",
        new="    if False:\n        raise RunClosed(",
        tests=(_RUNS + "test_a_rolled_back_run_is_closed_until_reopened",),
    ),
    Rule(
        section="design 3",
        rule="A reopened run tells downstream other keys.",
        file=_SAGA,
        old="        generation=existing.generation + 1,\n",
        new="        generation=existing.generation,\n",
        tests=(_RUNS + "test_a_rolled_back_run_is_closed_until_reopened",),
    ),
    Rule(
        section="design 3",
        rule="A reopened run undoes only what it did itself.",
        file=_SAGA,
        old="        output=None,\n        **over,\n",
        new="        output=None,\n",
        tests=(_RUNS + "test_a_reopened_run_undoes_only_what_it_did_itself",),
    ),
    Rule(
        section="design 3",
        rule="A run with a step still in force is not started over.",
        file=_SAGA,
        old="        open_steps += steps.not_compensable  # still",
        new="        pass  # still",
        tests=("tests/test_identity.py::TestWhatIsSaid::test_a_write_still_in_force_forbids_reopening",),
    ),
    Rule(
        section="design 3",
        rule="A completed run is only replayed: it takes no new calls.",
        file="src/sagaspan/middleware/replay.py",
        old="        if call.replaying:\n",
        new="        if False:\n",
        tests=(_RUNS + "test_a_completed_run_replays_whole",),
    ),
    Rule(
        section="design 3",
        rule="A call that was undone is not run again in its run.",
        file=_ANSWERS,
        old="    if record.state in (CallState.FAILED, CallState.REFUSED) or undone:\n",
        new="    if True:\n",
        tests=(_CLAIMS + "test_an_undone_step_is_not_run_again",),
    ),
    Rule(
        section="design 3",
        rule="A call that would wait for its own ancestor is refused at once.",
        file=_ANSWERS,
        old="        if record.id in call.ancestors:\n",
        new="        if False:\n",
        tests=(_CLAIMS + "test_a_call_that_would_wait_for_itself",),
    ),
    Rule(
        section="design 3",
        rule="A critical failure stops the run, even if somebody swallows it.",
        file=_ENGINE,
        old="            if tool.policy.critical and run is not None:\n                run.doom(error)\n",
        new="",
        tests=(_RUNS + "test_a_critical_failure_stops_the_run",),
    ),
    Rule(
        section="design 4.3",
        rule="A claim under limits that were changed meanwhile is refused.",
        file=_SQLITE_CHANGES,
        old="where controls.namespace = runs.namespace), 0) = ?",
        new="where controls.namespace = runs.namespace), 0) >= ?",
        tests=(_BUDGETS + "test_a_limit_set_at_run_time_holds_at_the_next_claim",),
    ),
    Rule(
        section="design 3",
        rule="Who goes on in a run that stops ends it for what stopped it.",
        file=_RUN,
        old="        return None if refused else error\n",
        new="        return error\n",
        tests=(_BUDGETS + "test_who_goes_on_after_a_stop_ends_for_what_stopped_it",),
    ),
    Rule(
        section="design 3",
        rule="The budget of a run inside another stops that one alone.",
        file=_RUN,
        old=" and not self._is_own(error)\n",
        new="\n",
        tests=(_BUDGETS + "test_the_budget_of_a_run_inside_is_its_own",),
    ),
    Rule(
        section="design 3",
        rule="A third LoopDetected ends a LangChain agent.",
        file="src/sagaspan/_told.py",
        old="    if isinstance(error, LoopDetected) and error.stops:\n",
        new="    if False:\n",
        tests=("tests/adapters/langchain/test_budgets.py::test_a_loop_is_told_and_then_ends_the_agent",),
    ),
    Rule(
        section="design 3",
        rule="Orphans are marked in the commit that decides to complete, so that a crash cannot forget them.",
        file=_COMPLETION,
        old="synced=True, more=marks, completing=True,",
        new="synced=True, more=(), completing=True,",
        tests=("tests/test_orphans.py::test_they_are_undone_if_that_is_wanted",),
    ),
    Rule(
        section="design 3",
        rule="What a run is completing with is finished by whoever enters it.",
        file=_RUN,
        old="        if self.record.completing:\n            await",
        new="        if False:\n            await",
        tests=("tests/test_orphans.py::test_one_that_cannot_be_undone_holds_the_run",),
    ),
    Rule(
        section="(b)",
        rule="A resume that is cancelled while it takes up what was done leaves nobody in the run.",
        file=_RUN,
        old="        except BaseException as error:  # nobody leaves a block that was not entered\n",
        new="        except KeyError as error:\n",
        tests=("tests/test_runs.py::test_nor_is_a_resume_that_was_cancelled",),
    ),
    Rule(
        section="design 3",
        rule="What a replayed step had called is no orphan.",
        file="src/sagaspan/ledger/asked.py",
        old="            if above.id in self._answered:\n",
        new="            if False:\n",
        tests=("tests/test_orphans.py::test_what_a_replayed_step_had_called_was_asked_for_with_it",),
    ),
    Rule(
        section="design 3",
        rule="What was committed is no orphan.",
        file="src/sagaspan/_orphans.py",
        old="in uncommitted([call for call in calls if call.phase is Phase.FORWARD], run)",
        new="in [call for call in calls if call.phase is Phase.FORWARD]",
        tests=("tests/test_orphans.py::test_what_was_committed_is_settled",),
    ),
    Rule(
        section="design 3",
        rule="What a committed deferred call called is not undone by a later error.",
        file=_STEPS,
        old="        if above.scheduled_seq is not None and is_committed(run, above):\n",
        new="        if False:\n",
        tests=("tests/test_orphans.py::test_what_a_committed_deferred_call_called_is_committed_with_it",),
    ),
    Rule(
        section="design 3",
        rule="A resume starts no write on the doubt of a run nested with it.",
        file=_ANSWERS,
        old="        return list(open_family(self._store, outermost(self._store, run)))",
        new="        return self._store.calls_of(run.namespace, run.id)",
        tests=(_RUNS + "test_a_resume_starts_no_write_on_the_doubt_of_a_run_inside",),
    ),
    Rule(
        section="design 3",
        rule="What a write of a resumed run reads does not grow with what the run has done.",
        file="src/sagaspan/ledger/families.py",
        old="    if sifting is not None:\n",
        new="    if False:\n",
        tests=("tests/ledger/test_families.py::test_what_a_write_of_a_resumed_run_reads_does_not_grow_with_its_run",),
    ),
    Rule(
        section="design 3",
        rule="A row that nobody can read is open: what it says may have happened.",
        file="src/sagaspan/stores/_reading.py",
        old="run_id = ? and {_UNSETTLED} order",
        new="run_id = ? and {OPEN} order",
        tests=("tests/ledger/test_families.py::test_a_write_that_nobody_can_read_is_in_doubt",),
    ),
    Rule(
        section="design 3",
        rule="A store that cannot say what is open finds the same doubts.",
        file="src/sagaspan/ledger/families.py",
        old="if call.state not in SETTLED)",
        new="if call.state in SETTLED)",
        tests=("tests/ledger/test_families.py::test_a_store_that_cannot_sift_finds_the_same_doubt",),
    ),
    Rule(
        section="design 3",
        rule="An error of a model's provider undoes nothing where a checkpointer can go on.",
        file="src/sagaspan/_endings.py",
        old="(resumable or isinstance(error, _INTERRUPTIONS))",
        new="isinstance(error, _INTERRUPTIONS)",
        tests=(_THREADS + "test_a_provider_that_fails_interrupts_a_turn_that_can_go_on",),
    ),
    Rule(
        section="design 4.6",
        rule="If the settle cannot be written the caller still gets the result.",
        file=_SETTLING,
        old="            self.leftovers[record.id] = changes, after, kept, spent\n            self._lease.hurry()\n",
        new="            raise\n",
        tests=(_CLAIMS + "test_a_settle_that_fails",),
    ),
    Rule(
        section="design 4.6",
        rule="Nothing else is claimed while a settle is not saved.",
        file=_CLAIMING,
        old="            await call.io(self._settling.settle_leftovers)\n        is_pivot =",
        new="            pass\n        is_pivot =",
        tests=(_CLAIMS + "test_nothing_is_claimed_before_what_ended_is_saved",),
    ),
    Rule(
        section="design 4.6",
        rule="A result that is not saved yet is not taken for a dead call.",
        file=_LEDGER,
        old="            if record.id not in self._settling.leftovers:\n                owner.drop(record.id)",
        new="            owner.drop(record.id)",
        tests=(_CLAIMS + "test_an_unsaved_result_is_not_taken_for_a_dead_one",),
    ),
    Rule(
        section="design 4.6",
        rule="Who only observes changes no limit of a request.",
        file=_LLM,
        old=" and not self._engine.limits.observes:",
        new=":",
        tests=(_CLIENT + "test_who_only_observes_limits_nothing",),
    ),
)
