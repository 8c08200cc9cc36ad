"""Policies: files, rules, conditions and freezes (design 3 and 6)."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_SQLITE_BUDGETS = "src/sagaspan/stores/_sqlite_budgets.py"
_ENDINGS = "src/sagaspan/_endings.py"
_POLICY = "src/sagaspan/policy.py"
_ENGINE = "src/sagaspan/_engine.py"
_COMPLETION = "src/sagaspan/_completion.py"
_RULES = "src/sagaspan/rules.py"
_BY_RULES = "src/sagaspan/middleware/rules.py"
_CLAIMING = "src/sagaspan/ledger/claiming.py"
_POLICY_IN_FORCE = "src/sagaspan/_policy_in_force.py"

_BUDGETS = "tests/ledger/test_budgets.py::"
_APPROVALS = "tests/test_approvals.py::"
_FREEZES = "tests/test_freezes.py::"
_RELOADS = "tests/test_policy_reload.py::"
_OBSERVES = "tests/test_observe.py::"
_RULE_TESTS = "tests/test_rules.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="(d) 3",
        rule="No source takes back what another one asks.",
        file=_POLICY,
        old='both["approve"] = gates_of(base.approve, self.approve) or False',
        new='both["approve"] = self.approve',
        tests=(_APPROVALS + "test_no_source_takes_back_what_another_one_asks",),
    ),
    Rule(
        section="design 3",
        rule="A condition that cannot be judged lets nothing by.",
        file=_RULES,
        old='return Found.CANNOT_BE_JUDGED, f"{self.rule.when}: {_first_line(error)}"',
        new='return Found.DOES_NOT_HOLD, f"{self.rule.when}: {_first_line(error)}"',
        tests=(_RULE_TESTS + "test_what_cannot_be_judged_lets_nothing_by",),
    ),
    Rule(
        section="design 3",
        rule="What a caller says is no fact of the run.",
        file=_RULES,
        old="{name: value for name, value in values.items() if name not in FACTS}",
        new="dict(values)",
        tests=(_RULE_TESTS + "test_what_a_condition_can_read",),
    ),
    Rule(
        section="design 3",
        rule="The arguments that a rule looked at are those that the body gets.",
        file=_BY_RULES,
        old="return replace(call, arguments={**call.arguments, **copies})",
        new="return call",
        tests=(_RULE_TESTS + "test_what_was_judged_is_what_runs",),
    ),
    Rule(
        section="design 3",
        rule="A rule only adds to what the code asks.",
        file=_BY_RULES,
        old="gates=(*tool.gates, *gates)",
        new="gates=tuple(gates)",
        tests=(_RULE_TESTS + "test_no_rule_takes_back_what_the_code_asks",),
    ),
    Rule(
        section="design 6",
        rule="What is frozen is not claimed.",
        file=_CLAIMING,
        old="if self._limits.frozen(call) is not None:",
        new="if False:",
        tests=(
            _FREEZES + "test_a_frozen_scope_begins_nothing_more",
            _FREEZES + "test_a_failed_call_is_claimed_again_only_when_it_is_not_frozen",
        ),
    ),
    Rule(
        section="design 6",
        rule="A freeze holds from the next claim on, in a process that knew nothing of it.",
        file=_SQLITE_BUDGETS,
        old="        execute(_MOVE_CONTROLS, (frozen.namespace,))\n",
        new="",
        tests=(_FREEZES + "test_no_claim_slips_through", _FREEZES + "test_a_frozen_scope_begins_nothing_more"),
    ),
    Rule(
        section="design 6",
        rule="A paused run is not undone.",
        file=_ENDINGS,
        old="isinstance(error, ScopeFrozen) and error.pauses and not aborted",
        new="False",
        tests=(_FREEZES + "test_a_paused_run_is_not_undone",),
    ),
    Rule(
        section="design 6",
        rule="A run that can be entered again is not undone because of a freeze.",
        file=_ENDINGS,
        old="GeneratorExit, SystemExit, ScopeFrozen)",
        new="GeneratorExit, SystemExit)",
        tests=(_FREEZES + "test_a_run_of_ones_own_is_held_and_goes_on",),
    ),
    Rule(
        section="design 6",
        rule="What was deferred and is frozen is not given up, also where nothing rests on it.",
        file=_COMPLETION,
        old=" and not stopped.refused",
        new="",
        tests=(_FREEZES + "test_what_was_deferred_is_not_sent",),
    ),
    Rule(
        section="design 3",
        rule="A content of the policy file that does not fit is not put in force.",
        file=_ENGINE,
        old="            check_adoptable(self.known.tools, before, tool, file)\n",
        new="            pass\n",
        tests=(_RELOADS + "test_a_broken_edit_keeps_the_old_one_and_says_so",),
    ),
    Rule(
        section="design 3",
        rule="Tools that were declared before go by the changed file too.",
        file=_POLICY_IN_FORCE,
        old="        return self._redefined.get(tool, tool)\n",
        new="        return tool\n",
        tests=(_RELOADS + "test_a_changed_file_holds_from_the_next_call_on",),
    ),
    Rule(
        section="design 3",
        rule="A freeze holds also where everything else is only observed, and so does a key.",
        file=_CLAIMING,
        old="            if self._limits.frozen(call) is not None:",
        new="            if self._limits.frozen(call) is not None and not self._limits.observes:",
        tests=(_OBSERVES + "test_what_protects_effects_holds",),
    ),
    Rule(
        section="design 3",
        rule="Only who was told to observe lets a call by that a budget or a rate refuses.",
        file=_CLAIMING,
        old="        if not self._limits.observes:\n            raise error\n",
        new="",
        tests=(_BUDGETS + "test_a_rate_is_shared",),
    ),
    Rule(
        section="(d)",
        rule="A policy file does not hold while it is written.",
        file="src/sagaspan/_policy_watch.py",
        old="if stamp != self._stamp and (stamp == seen or _is_at_rest(stamp)):",
        new="if stamp != self._stamp:",
        tests=("tests/test_policy_reload.py::test_what_is_being_written_does_not_hold",),
    ),
    Rule(
        section="(d)",
        rule="A policy file does not hold that was written while it was read.",
        file="src/sagaspan/_policy_watch.py",
        old="            if stamp_of(path) != stamp:",
        new="            if False:",
        tests=("tests/test_policy_reload.py::test_what_is_written_while_it_is_read_waits",),
    ),
    Rule(
        section="(d)",
        rule="A policy file that is empty lifts nothing: it does not hold.",
        file="src/sagaspan/_policy_watch.py",
        old="    if not file.tables and not read_policy_text",
        new="    if False and not read_policy_text",
        tests=("tests/test_policy_reload.py::test_a_file_that_stays_empty_keeps_what_it_said",),
    ),
    Rule(
        section="(d)",
        rule="A glob's gate is not lifted by an entry that is more exact.",
        file="src/sagaspan/policy.py",
        old="                found.append(policy if not found else policy.adding)\n",
        new="                found = found or [policy]\n",
        tests=("tests/test_policy.py::test_no_entry_of_a_source_takes_back_what_another_asks_or_redacts",),
    ),
    Rule(
        section="(d)",
        rule="A rule holds for the tool that it names, whatever characters are in the name.",
        file="src/sagaspan/_names.py",
        old="    return pattern in names or (is_glob(pattern)",
        new="    return (is_glob(pattern)",
        tests=("tests/test_rules.py::test_a_rule_is_about_the_tool_that_it_names",),
    ),
    Rule(
        section="(d)",
        rule="A name or glob fits a tool by each of its names: its author's and the one models see.",
        file="src/sagaspan/_names.py",
        old="    return pattern in names or (is_glob(pattern) and any(fnmatch.fnmatchcase(name, pattern) for name in names))",
        new="    names = list(names)[:1]\n    return pattern in names or (is_glob(pattern) and any(fnmatch.fnmatchcase(name, pattern) for name in names))",
        tests=("tests/test_names.py::test_a_policy_names_a_tool_either_way",),
    ),
    Rule(
        section="(d)",
        rule="A policy in code whose name is a slip is refused before any tool runs.",
        file="src/sagaspan/_guard.py",
        old="        self._book.check_misspelt(self._all_names",
        new="        dict(names=self._all_names",
        tests=("tests/test_names.py::test_a_policy_that_fits_no_tool_is_refused_in_code",),
    ),
    Rule(
        section="(a)",
        rule="A compensation that no tool has is refused before its tool runs.",
        file="src/sagaspan/_engine.py",
        old="        if self.known.unresolved:\n            self.known.resolve_names(tool)\n        if len(tool.known_as)",
        new="        if len(tool.known_as)",
        tests=("tests/test_policy.py::test_an_unknown_compensation_stops_its_own_tool",),
    ),
    Rule(
        section="(d)",
        rule="A rule of one tool looks for nothing that the tool cannot have.",
        file="src/sagaspan/rules.py",
        old="            members |= self.looked_for\n",
        new="            pass\n",
        tests=("tests/test_rules.py::test_a_condition_is_checked_against_the_tools_it_is_about",),
    ),
    Rule(
        section="(d)",
        rule="What no tool of a rule has is named.",
        file="src/sagaspan/rules.py",
        old="            for wanted in sorted(one.looked_for - known if",
        new="            for wanted in sorted(one.looked_for - one.looked_for if",
        tests=("tests/test_rules.py::test_an_argument_that_no_tool_of_a_rule_has_is_named",),
    ),
    Rule(
        section="(d)",
        rule="An argument is read though a macro of the condition has a variable of its name.",
        file="src/sagaspan/expressions.py",
        old="        if all(any(at in part for part in parts) for at in used):\n",
        new="        if True:\n",
        tests=("tests/test_rules.py::test_a_variable_of_a_macro_may_have_the_name_of_an_argument",),
    ),
    Rule(
        section="(d)",
        rule="A broken edit of the policy file is told to other processes.",
        file="src/sagaspan/_policy_watch.py",
        old="            self._tell(self._file, self.problem)\n",
        new="            pass\n",
        tests=(
            _RELOADS + "test_other_processes_see_that_a_broken_edit_is_not_in_force",
            "tests/cli/test_status.py::test_a_broken_edit_of_the_policy_file_needs_a_person",
        ),
    ),
    Rule(
        section="(d)",
        rule="A paused run is that one, though its id looks like a glob.",
        file="src/sagaspan/ledger/freezes.py",
        old='    return RUN + _WILD.sub(r"[\\1]", id_)\n',
        new="    return RUN + id_\n",
        tests=("tests/test_freezes.py::test_one_run_is_paused_though_its_id_looks_like_a_glob",),
    ),
    Rule(
        section="(d)",
        rule="A policy file nested too deep is a broken one.",
        file="src/sagaspan/policy.py",
        old="    except RecursionError as error:\n",
        new="    except MemoryError as error:\n",
        tests=("tests/cli/test_policy.py::test_a_file_that_is_none",),
    ),
    Rule(
        section="(d)",
        rule="A bound of no loop at all is no switch that turns every bound off.",
        file="src/sagaspan/policy.py",
        old="    if value == 0 and value is not False:\n",
        new="    if False:\n",
        tests=("tests/test_policy.py::test_wrong_fields_are_refused_in_plain_words",),
    ),
    Rule(
        section="(d) 2",
        rule="A deferred call that is sent a second time is judged again: by the rules, its budgets and who approves.",
        file="src/sagaspan/_engine.py",
        old="send = self._sending_again if again else self._sending",
        new="send = self._sending",
        tests=(
            "tests/test_deferred.py::test_a_second_sending_obeys_the_rules_of_now",
            "tests/test_deferred.py::test_a_second_sending_needs_an_approval_of_its_own",
        ),
    ),
)
