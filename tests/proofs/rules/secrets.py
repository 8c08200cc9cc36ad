"""What is redacted or encrypted is read by nobody, anywhere (rule book, section 5)."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_SQLITE = "src/sagaspan/stores/sqlite.py"
_SAGA = "src/sagaspan/_saga.py"
_RECOVERY = "src/sagaspan/_recovery.py"
_SEAL = "src/sagaspan/ledger/seal.py"
_ENCRYPTION = "src/sagaspan/ledger/encryption.py"
_SECRET = "src/sagaspan/_secret.py"
_TOOL = "src/sagaspan/_tool.py"
_REPLAYS = "src/sagaspan/ledger/replays.py"
_CALL_KEYS = "src/sagaspan/_call_keys.py"
_MAKING = "src/sagaspan/_making.py"
_KNOWN_TOOLS = "src/sagaspan/_known_tools.py"
_SPELLING = "src/sagaspan/_spelling.py"

_STORE = "tests/stores/test_sqlite.py::"
_REDACT = "tests/test_redact.py::"
_CODEC = "tests/test_codec.py::"
_SCREEN = "tests/cli/test_terminal.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="5.15",
        rule="The ledger is readable by its owner only.",
        file=_SQLITE,
        old="os.O_CREAT | os.O_RDWR, 0o600)",
        new="os.O_CREAT | os.O_RDWR, 0o644)",
        tests=(_STORE + "test_files_are_private",),
    ),
    Rule(
        section="5.15",
        rule="A folder made for the ledger is its owner's only.",
        file=_SQLITE,
        old="self.path.parent.mkdir(mode=0o700,",
        new="self.path.parent.mkdir(mode=0o755,",
        tests=(_STORE + "test_files_are_private",),
    ),
    Rule(
        section="5.15",
        rule="A .sagaspan folder of somebody else takes in nobody's records.",
        file="src/sagaspan/_home.py",
        old="        if candidate.is_dir() and _is_ours(candidate):\n",
        new="        if candidate.is_dir():\n",
        tests=(_STORE + "test_a_home_of_somebody_else_is_passed_over",),
    ),
    Rule(
        section="5.5",
        rule="What is said to type next has no password in it.",
        file="src/sagaspan/cli/_options.py",
        old="self.store and without_password(self.store)",
        new="self.store",
        tests=("tests/cli/test_status.py::test_what_to_type_next_has_no_password_in_it",),
    ),
    Rule(
        section="5.6",
        rule="A tag that is not on the list is refused; nothing is looked up by a stored name.",
        file="src/sagaspan/codecs.py",
        old="    if tag not in _DECODERS:\n",
        new="    if found := __import__('pydoc').locate(tag):\n        return found\n    if tag not in _DECODERS:\n",
        tests=("tests/test_codecs.py::test_unknown_tags_are_refused",),
    ),
    Rule(
        section="5.5",
        rule="Redacted arguments are not recorded.",
        file=_SPELLING,
        old="            plain = tool.redaction.arguments(plain, hide)\n",
        new="            pass\n",
        tests=(_REDACT + "test_a_canary_goes_through_every_path_and_is_nowhere",),
    ),
    Rule(
        section="5.5",
        rule="Redacted fields of a result are not recorded.",
        file=_SEAL,
        old="            if record.result is not None:\n",
        new="            if False:\n",
        tests=(
            _REDACT + "test_what_a_person_says_it_returned_is_redacted_too",
            _REDACT + "test_paths_reach_into_everything",
        ),
    ),
    Rule(
        section="5.5",
        rule="Error texts are cleaned of redacted values.",
        file=_SEAL,
        old='            changes["error_message"] = live.scrubbed(record.error_message)\n',
        new="            pass\n",
        tests=(_REDACT + "test_what_others_say_of_a_call_is_cleaned_too",),
    ),
    Rule(
        section="5.5",
        rule="What an exception says is cleaned of redacted values before it is logged, or put on a span.",
        file="src/sagaspan/_spans.py",
        old='    text = live.scrubbed(text.encode("utf-8", "backslashreplace").decode())\n',
        new='    text = text.encode("utf-8", "backslashreplace").decode()\n',
        tests=(_REDACT + "test_a_canary_goes_through_every_path_and_is_nowhere",),
    ),
    Rule(
        section="5.5",
        rule="The audit trail is cleaned of redacted values.",
        file=_SEAL,
        old="            audit = replace(audit, detail=live.scrubbed(audit.detail))\n",
        new="            pass\n",
        tests=(_REDACT + "test_what_others_say_of_a_call_is_cleaned_too",),
    ),
    Rule(
        section="5.5",
        rule="What stands for a redacted value cannot be found by trying all values.",
        file=_SEAL,
        old="        return codecs.redacted(secret.keyed_hash(self.key(namespace), text)[:_DIGITS])\n",
        new='        return codecs.redacted(secret.keyed_hash(b"", text)[:_DIGITS])\n',
        tests=(_REDACT + "test_the_hash_is_no_hash_of_the_value_alone",),
    ),
    Rule(
        section="5.5",
        rule="A replay never gives a result with fields left out.",
        file=_REPLAYS,
        old="    if record.result is not None and codecs.holds_redacted(record.result):\n",
        new="    if False:\n",
        tests=(_REDACT + "test_a_secret_is_redacted_by_itself",),
    ),
    Rule(
        section="5.5",
        rule="A compensation, expectation or probe that needs what is never recorded is refused where it is declared.",
        file=_TOOL,
        old="    check_handlers(redaction, tool.compensation, tool.probe, where)\n",
        new="",
        tests=(_REDACT + "test_what_cannot_work_is_refused_at_definition",),
    ),
    Rule(
        section="5.5",
        rule="A compensation named by a string that needs what is never recorded is refused before the body.",
        file=_KNOWN_TOOLS,
        old="                check_handlers(tool.redaction, compensation, None, where)\n",
        new="                pass\n",
        tests=(_REDACT + "test_a_compensation_named_by_a_string_is_refused_before_the_body",),
    ),
    Rule(
        section="5.5",
        rule="A key or lock that needs a redacted argument is refused.",
        file=_TOOL,
        old="        needed = sorted(_read_by(value, expression) & redaction.whole)\n",
        new="        needed = []\n",
        tests=(_REDACT + "test_what_cannot_work_is_refused_at_definition",),
    ),
    Rule(
        section="5.5",
        rule="What was done before a field was redacted is not done again.",
        file=_CALL_KEYS,
        old="    spelt = [plain] if tool.redaction is None else [plain, plain_data(tool, arguments, codecs.blank)]\n",
        new="    spelt = [plain]\n",
        tests=(_REDACT + "test_what_was_done_before_a_field_was_redacted_is_not_done_again",),
    ),
    Rule(
        section="5.15",
        rule="A secret that is gone is not made anew.",
        file=_SEAL,
        old="        if key is None and known is not None:\n",
        new="        if False:\n",
        tests=(_REDACT + "test_a_secret_that_is_gone_is_not_made_anew",),
    ),
    Rule(
        section="5.15",
        rule="Another secret than that of the ledger is refused.",
        file=_SEAL,
        old="        if key is not None and known not in (None, _mark(key)):\n",
        new="        if False:\n",
        tests=(_REDACT + "test_processes_share_the_secret_of_the_environment",),
    ),
    Rule(
        section="5.15",
        rule="A secret that others can read is refused.",
        file=_SECRET,
        old="    if mode & 0o077:\n",
        new="    if False:\n",
        tests=(_REDACT + "test_a_secret_that_others_can_read_is_refused",),
    ),
    Rule(
        section="5.5",
        rule="Content is encrypted under a codec.",
        file=_ENCRYPTION,
        old="for name, text in texts.items() if _is_content(text)}\n",
        new="for name, text in texts.items() if False}\n",
        tests=(_CODEC + "test_a_canary_goes_through_every_path_and_is_nowhere",),
    ),
    Rule(
        section="5.5",
        rule="The audit trail is encrypted under a codec.",
        file=_ENCRYPTION,
        old='AuditRow: ("detail",),\n',
        new="AuditRow: (),\n",
        tests=(_CODEC + "test_a_canary_goes_through_every_path_and_is_nowhere",),
    ),
    Rule(
        section="5.5",
        rule="What merely looks encrypted is encrypted.",
        file=_ENCRYPTION,
        old="text not in WORDS and not isinstance(text, Sealed)\n",
        new="text not in WORDS and not is_encrypted(text)\n",
        tests=(_CODEC + "test_what_looks_encrypted_is_encrypted_too",),
    ),
    Rule(
        section="5.5",
        rule="Keys and fingerprints under a codec cannot be found by trying all values.",
        file=_SPELLING,
        old="        return fingerprint(data) if self.codec is None else self._seal.encryption[self._namespace].digest(data)\n",
        new="        return fingerprint(data)\n",
        tests=(_CODEC + "test_nothing_in_the_ledger_can_be_found_by_trying",),
    ),
    Rule(
        section="5.5",
        rule="What was done before there was a codec is not done again.",
        file=_MAKING,
        old="    changes = tool.redaction is not None or engine.codec is not None",
        new="    changes = tool.redaction is not None",
        tests=(_CODEC + "test_what_was_done_before_is_read_and_not_done_again",),
    ),
    Rule(
        section="5.5",
        rule="Under another codec than that of the ledger nothing is written.",
        file=_ENCRYPTION,
        old="            if isinstance(text, Sealed) or not text.startswith(_KEY):\n                raise ConfigurationError(",
        new="            if isinstance(text, Sealed) or not text.startswith(_KEY):\n                return secrets.token_bytes(32)\n                raise ConfigurationError(",
        tests=(_CODEC + "test_a_guard_with_another_key_writes_nothing",),
    ),
    Rule(
        section="5.5",
        rule="A change is not written before the codec is proved to be that of the ledger.",
        file=_ENCRYPTION,
        old="        self.prove()\n        told",
        new="        told",
        tests=(_CODEC + "test_a_guard_with_another_key_writes_nothing",),
    ),
    Rule(
        section="5.5",
        rule="What no key reads is written back as it is.",
        file=_ENCRYPTION,
        old="            return Sealed(text)\n",
        new='            return "null"\n',
        tests=(_CODEC + "test_what_no_key_reads_any_more_is_kept_and_not_repeated",),
    ),
    Rule(
        section="5.5",
        rule="A run that was recorded under a codec is not entered without it.",
        file=_SAGA,
        old='        check_fingerprint(existing.input_fingerprint, f"the run {wanted.id!r}")\n',
        new="        return\n",
        tests=(_CODEC + "test_a_run_that_was_recorded_under_a_codec_is_not_entered_without_it",),
    ),
    Rule(
        section="5.5",
        rule="Nothing is undone with ciphertext.",
        file=_KNOWN_TOOLS,
        old="        hidden = hides(call, found) or (found.expect is not None and hides(call, found.expect))\n",
        new="        hidden = False\n",
        tests=(
            _CODEC + "test_an_undo_waits_for_the_codec",
            _CODEC + "test_whatever_reads_content_waits",
        ),
    ),
    Rule(
        section="5.5",
        rule="An expectation that reads content waits for the codec as the undo does.",
        file=_KNOWN_TOOLS,
        old="hides(call, found) or (found.expect is not None and hides(call, found.expect))\n",
        new="hides(call, found)\n",
        tests=(_CODEC + "test_whatever_reads_content_waits",),
    ),
    Rule(
        section="5.5",
        rule="A compensation that is told of the whole call waits for the codec.",
        file=_ENCRYPTION,
        old='    return "call" in asked or (',
        new="    return (",
        tests=(_CODEC + "test_whatever_reads_content_waits",),
    ),
    Rule(
        section="5.5",
        rule="Nothing is sent with ciphertext.",
        file=_KNOWN_TOOLS,
        old="        if is_locked(call.arguments):\n",
        new="        if False:\n",
        tests=(_CODEC + "test_a_deferred_call_waits_for_the_codec",),
    ),
    Rule(
        section="5.5",
        rule="A probe is not asked about ciphertext, and nobody is called for that.",
        file=_KNOWN_TOOLS,
        old="        return None if found is None or hides(call, found, about=()) else found\n",
        new="        return found\n",
        tests=(_CODEC + "test_a_probe_is_not_asked_about_ciphertext",),
    ),
    Rule(
        section="5.5",
        rule="Nobody writes a result in clear into a ledger that is encrypted.",
        file=_SEAL,
        old="        if OF_CODEC in facts and namespace not in self.encryption:\n",
        new="        if False:\n",
        tests=(_CODEC + "test_a_decision_is_not_written_in_clear_by_who_has_no_codec",),
    ),
    Rule(
        section="5.5",
        rule="A codec that does not read what it wrote is refused before anything is written.",
        file=_ENCRYPTION,
        old="        if self._opened(sealed) != text:\n",
        new="        if False:\n",
        tests=(_CODEC + "test_a_codec_that_does_not_read_itself_is_refused",),
    ),
    Rule(
        section="4.6",
        rule="A codec that fails after a call takes nothing from its caller.",
        file=_ENCRYPTION,
        old="            raise StoreUnavailable(\n",
        new="            raise ConfigurationError(\n",
        tests=(_CODEC + "test_a_codec_that_fails_after_the_call_loses_nothing",),
    ),
    Rule(
        section="5.5",
        rule="Recovery with another codec than that of the ledger is an error, not the state of each run.",
        file=_RECOVERY,
        old="            await self._engine.spelling.prove_codec(self._backend)\n",
        new="            pass\n",
        tests=(_CODEC + "test_a_guard_with_another_key_writes_nothing",),
    ),
    Rule(
        section="5.5",
        rule="What a compensation is given is not on its span where its tool redacts it.",
        file="src/sagaspan/_call_content.py",
        old="return arguments if redaction is None else ",
        new="return arguments if True else ",
        tests=("tests/middleware/test_telemetry.py::test_content_of_a_compensation_is_that_of_a_call",),
    ),
    Rule(
        section="5.5",
        rule="What a tool or a compensation returns is not on its span where it is redacted.",
        file="src/sagaspan/_call_content.py",
        old="plain if redaction is None else redaction.result(plain, codecs.blank)",
        new="plain",
        tests=(
            "tests/middleware/test_telemetry.py::test_content_of_a_compensation_is_that_of_a_call",
            _REDACT + "test_a_canary_goes_through_every_path_and_is_nowhere",
        ),
    ),
    Rule(
        section="5.4",
        rule="What is shown of a call forges no line.",
        file="src/sagaspan/cli/show.py",
        old='            emit_block(f"  {name:<16} {visible(value)}")',
        new='            say(f"  {name:<16} {visible(value)}")',
        tests=(_SCREEN + "test_a_call_that_is_shown_forges_no_line",),
    ),
)
