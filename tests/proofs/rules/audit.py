"""The audit chain: what was altered, put in or taken out is found (rule book (d) 8)."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_CHAIN = "src/sagaspan/ledger/chain.py"
_CONTENTS = "src/sagaspan/ledger/contents.py"
_VERIFYING = "src/sagaspan/ledger/verifying.py"
_HISTORIES = "src/sagaspan/ledger/histories.py"
_FORGETTING = "src/sagaspan/stores/_forgetting.py"
_SQLITE_AUDIT = "src/sagaspan/stores/_sqlite_audit.py"
_AUDIT = "src/sagaspan/_audit.py"
_ANCHORS = "src/sagaspan/_anchors.py"
_CLI_OF_AUDIT = "src/sagaspan/cli/audit.py"
_SQLITE_CHANGES = "src/sagaspan/stores/_sqlite_changes.py"
_ENCRYPTION = "src/sagaspan/ledger/encryption.py"

_CHAINS = "tests/ledger/test_chain.py::"
_AUDITED = "tests/test_audit.py::"
_CLI_AUDIT = "tests/cli/test_audit.py::"
_PRUNED = "tests/test_prune.py::"
_POISONED = "tests/faults/test_poisoned_rows.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="(d) 8",
        rule="Each audit row is bound to the one before it in its run.",
        file=_CHAIN,
        old="sha256(before[1] + (content or _NOTHING) + text.encode())",
        new="sha256(_NOTHING + (content or _NOTHING) + text.encode())",
        tests=(
            _CHAINS + "test_every_transition_is_a_link_of_its_run",
            _CHAINS + "test_a_changed_column_changes_the_hash",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="Each audit row is bound to what was recorded with it.",
        file=_CHAIN,
        old="sha256(before[1] + (content or _NOTHING) + text.encode())",
        new="sha256(before[1] + _NOTHING + text.encode())",
        tests=(
            _CHAINS + "test_every_transition_is_a_link_of_its_run",
            _CHAINS + "test_a_changed_column_changes_the_hash",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="The arguments of a call are in the hash of what was recorded.",
        file=_CONTENTS,
        old='        ("tool", "arguments", "key_source",',
        new='        ("tool", "key_source",',
        tests=(_AUDITED + "test_a_record_that_is_not_what_its_history_says_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="What a record is made of once is what its first row says.",
        file=_HISTORIES,
        old="    begun = () if first.format == 0 else first.unlike(record)\n",
        new="    begun: tuple[str, ...] = ()\n",
        tests=(_AUDITED + "test_whatever_is_written_into_a_column_of_a_record_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="Every row of a request says what it was about when it was written.",
        file=_HISTORIES,
        old="for content in every if content.format for column",
        new="for content in every[:0] if content.format for column",
        tests=(_AUDITED + "test_who_asked_cannot_be_changed_for_the_moment_of_a_decision",),
    ),
    Rule(
        section="(d) 8",
        rule="A freeze that was taken away by hand is found.",
        file="src/sagaspan/ledger/standing.py",
        old="            if name not in in_force:\n",
        new="            if False:\n",
        tests=(_AUDITED + "test_what_operators_did_not_set_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="A limit that was changed by hand is found.",
        file="src/sagaspan/ledger/standing.py",
        old="            elif said[name] != in_force[name]:\n",
        new="            elif False:\n",
        tests=(_AUDITED + "test_what_operators_did_not_set_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="A content in a format that is not known is not taken for one that is.",
        file=_CONTENTS,
        old="        getters = _GETTERS.get(content[0]) if content else None\n",
        new="        getters = _GETTERS.get(content[0], _NOW) if content else None\n",
        tests=(_AUDITED + "test_a_content_of_no_known_format_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="Who remembers a chain sees what others appended to it since.",
        file=_SQLITE_AUDIT,
        old="        if seq != known:\n            self._heads.clear()\n            before = None\n",
        new="",
        tests=(
            _CHAINS + "test_two_connections_that_take_turns_keep_the_chains_whole",
            _CHAINS + "test_two_processes_append_to_one_chain",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="What is rolled back leaves no hole in its chain.",
        file=_SQLITE_CHANGES,
        old="            chains.forget()  # what it appended is rolled back\n",
        new="",
        tests=(_CHAINS + "test_what_is_rolled_back_is_remembered_by_nobody",),
    ),
    Rule(
        section="(d) 8",
        rule="A run is not forgotten without a row that says so.",
        file=_FORGETTING,
        old="                self._append(connection, _said(*whose, gaps, actor))\n",
        new="",
        tests=(
            _PRUNED + "test_what_is_settled_is_forgotten_with_its_history",
            _AUDITED + "test_what_was_pruned_is_no_change",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="Calls outside a run are not forgotten without a row that says so.",
        file=_FORGETTING,
        old="                self._append(connection, _said(namespace, run_id, gaps, actor))\n",
        new="",
        tests=(
            _PRUNED + "test_calls_outside_a_run_go_one_by_one",
            _AUDITED + "test_a_deletion_that_says_it_was_a_prune_must_say_so",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="A row that was altered, or put in, is found.",
        file=_VERIFYING,
        old="return chain.link(before, row.seq, row.row, row.content)[1] == row.hash",
        new="return True",
        tests=(
            _CLI_AUDIT + "test_what_is_well_is_0_and_what_is_not_is_4",
            _AUDITED + "test_a_row_that_was_put_in_is_found",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="A row that was taken out is missed, unless a row says that it was pruned.",
        file=_VERIFYING,
        old="            if number > first:\n                self._find_missing(first, number - 1)\n",
        new="",
        tests=(
            _AUDITED + "test_a_deletion_that_says_it_was_a_prune_must_say_so",
            _AUDITED + "test_a_dropped_row_is_missed",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="A row without a place in the chain is only one from before there were chains.",
        file=_VERIFYING,
        old="if row.seq < self._chained_from and",
        new="if",
        tests=(_AUDITED + "test_rows_from_before_there_were_chains_are_outside",),
    ),
    Rule(
        section="(d) 8",
        rule="An anchor tells of a chain that was written anew.",
        file=_VERIFYING,
        old="row.number == self._anchor[0] and row.hash != self._anchor[1]:",
        new="row.number == self._anchor[0] and False:",
        tests=(_AUDITED + "test_a_chain_that_was_written_anew_needs_an_anchor",),
    ),
    Rule(
        section="(d) 8",
        rule="An anchor tells of a chain that lost its end.",
        file=_VERIFYING,
        old="        if number > self.head[0]:\n",
        new="        if False:\n",
        tests=(_AUDITED + "test_an_end_that_was_taken_away_with_its_records_needs_an_anchor",),
    ),
    Rule(
        section="(d) 8",
        rule="An anchor tells of a run that is gone.",
        file=_AUDIT,
        old="        for name, (number, _) in self._heads.items():\n",
        new="        for name, (number, _) in ():\n",
        tests=(
            _AUDITED + "test_a_removed_run_needs_an_anchor",
            _CLI_AUDIT + "test_an_anchor_tells_of_a_run_that_is_gone",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="No anchor is written of what is not as it was.",
        file=_AUDIT,
        old="                if verifying.findings:\n",
        new="                if False:\n",
        tests=(_AUDITED + "test_no_anchor_is_written_of_what_is_not_well",),
    ),
    Rule(
        section="(d) 8",
        rule="An anchor that lost its end is none.",
        file=_ANCHORS,
        old=' or json.loads(last) != {"chains": len(heads)}',
        new="",
        tests=(_AUDITED + "test_what_is_no_anchor_is_refused",),
    ),
    Rule(
        section="(d) 8",
        rule="The state of a record is where its history ends.",
        file=_HISTORIES,
        old="        if told.state != record.state:\n",
        new="        if False:\n",
        tests=(_AUDITED + "test_a_record_that_is_not_what_its_history_says_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="The end of a history cannot be cut off while its record stays.",
        file=_HISTORIES,
        old="        if told.count != record.version and",
        new="        if False and",
        tests=(_AUDITED + "test_a_record_that_is_not_what_its_history_says_is_found",),
    ),
    Rule(
        section="(d) 8",
        rule="What is recorded is what was recorded.",
        file=_HISTORIES,
        old="            if columns:\n",
        new="            if False:\n",
        tests=(
            _AUDITED + "test_a_record_that_is_not_what_its_history_says_is_found",
            _AUDITED + "test_what_is_encrypted_is_verified_without_its_key",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="A run, call or request whose whole history was taken away is found.",
        file=_AUDIT,
        old="        self._find_records_without_history()\n",
        new="",
        tests=(
            _AUDITED + "test_a_record_that_is_not_what_its_history_says_is_found",
            _AUDITED + "test_a_call_or_request_outside_runs_cannot_be_taken_away_or_moved_unseen",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="A call or request that has a history and is not in the ledger is found, outside runs too.",
        file=_HISTORIES,
        old="            if told.is_whole and id_ not in self._pruned:\n",
        new="            if told.is_whole and kind is RunRecord:\n",
        tests=(_AUDITED + "test_a_call_or_request_outside_runs_cannot_be_taken_away_or_moved_unseen",),
    ),
    Rule(
        section="(d) 8",
        rule="A prune takes the rows of those calls alone that it forgot itself.",
        file=_FORGETTING,
        old="row[3] in forgotten or row[4] in forgotten]",
        new="(row[3] or row[4]) and self.get_call(row[3] or '') is None]",
        tests=(_AUDITED + "test_a_call_that_was_taken_away_is_not_covered_up_by_a_prune",),
    ),
    Rule(
        section="(d) 8",
        rule="What is not as it was is exit code 4.",
        file=_CLI_OF_AUDIT,
        old="    context.exit(0 if report.ok else NEEDS_PERSON)\n",
        new="    context.exit(0)\n",
        tests=(_CLI_AUDIT + "test_what_is_well_is_0_and_what_is_not_is_4",),
    ),
    Rule(
        section="(d) 8",
        rule="What an approval says of itself is readable without a codec.",
        file=_ENCRYPTION,
        old="told.audit if told.audit.approval_id is not None else self._closed(told.audit, is_new=True)",
        new="self._closed(told.audit, is_new=True)",
        tests=(_AUDITED + "test_what_is_encrypted_is_verified_without_its_key",),
    ),
    Rule(
        section="(d) 8",
        rule="A limit that is set is in a chain.",
        file=_SQLITE_CHANGES,
        old="    if isinstance(change, _AUDITED):\n",
        new="    if isinstance(change, _AUDITED) and not isinstance(change, LimitChange):\n",
        tests=(_CHAINS + "test_every_transition_is_a_link_of_its_run",),
    ),
    Rule(
        section="(d) 8",
        rule="Where a call stands in the order of undoing is in the hash of what was recorded.",
        file=_CONTENTS,
        old='.and_changes("scheduled_seq", "owner",',
        new='.and_changes("owner",',
        tests=(
            _AUDITED + "test_nobody_moves_a_call_behind_the_line_of_a_commit",
            _AUDITED + "test_every_column_of_every_table_is_covered_or_named_as_not",
        ),
    ),
    Rule(
        section="(d) 8",
        rule="A call stands in the order of claims where its last claim is.",
        file=_HISTORIES,
        old="        if takes_place(row.row):\n",
        new="        if True:\n",
        tests=(_AUDITED + "test_nobody_moves_a_call_behind_the_line_of_a_commit",),
    ),
    Rule(
        section="(d) 8",
        rule="Rows of an older format are read as they were written.",
        file=_CONTENTS,
        old="        return COLUMNS[self.format][kind], _GETTERS[self.format][kind]\n",
        new="        return COLUMNS[FORMAT][kind], _GETTERS[FORMAT][kind]\n",
        tests=(_AUDITED + "test_a_ledger_of_an_older_format_is_verified",),
    ),
    Rule(
        section="(d) 8",
        rule="A request in a state that nobody knows can be looked at.",
        file="src/sagaspan/stores/_columns.py",
        old='        values["state"] = ApprovalState(values["state"])\n',
        new='        values["state"] = ApprovalState(values["state"])\n    values["state"] = ApprovalState(values["state"])\n',
        tests=(_POISONED + "test_a_request_in_a_state_that_nobody_knows",),
    ),
    Rule(
        section="(d) 8",
        rule="An anchor takes the place of a regular file alone.",
        file=_ANCHORS,
        old="    if os.path.lexists(path) and not path.is_file():",
        new="    if False:",
        tests=(_CLI_AUDIT + "test_an_anchor_takes_the_place_of_a_regular_file_alone",),
    ),
    Rule(
        section="(d) 8",
        rule="A link is followed to where the anchor is kept.",
        file=_ANCHORS,
        old="    path = Path(os.path.realpath(path))\n",
        new="    path = path.absolute()\n",
        tests=(_CLI_AUDIT + "test_an_anchor_takes_the_place_of_a_regular_file_alone",),
    ),
)
