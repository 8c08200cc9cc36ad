"""Clients of providers and plain functions."""

from __future__ import annotations

from typing import Final

from tests.proofs.rules._rule import Rule

_CLIENTS = "adapters/sagaspan_functions/_clients.py"
_EXCHANGE = "adapters/sagaspan_functions/_exchange.py"
_HTTP = "adapters/sagaspan_functions/_http.py"
_METER = "adapters/sagaspan_functions/_meter.py"

_CUT = "tests/adapters/functions/test_cut.py::"
_CLIENT = "tests/adapters/functions/test_clients.py::"
_TOOLS = "tests/adapters/functions/test_tools.py::"
_LANGCHAIN = "tests/adapters/langchain/test_providers.py::"
_UNREADABLE = "tests/adapters/functions/test_unreadable.py::"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        section="(c) 4",
        rule="An attempt of an SDK that timed out may be billed.",
        file=_HTTP,
        old="                response = super().send(request, **options)\n            except BaseException as error:\n                call.__exit__(type(error), error, None)\n",
        new="                response = super().send(request, **options)\n            except BaseException as error:\n                call.record_usage(input_tokens=0, output_tokens=0)\n                call.__exit__(None, None, None)\n",
        tests=(_CLIENT + "test_an_attempt_that_timed_out_may_be_billed",),
    ),
    Rule(
        section="(c) 4",
        rule="An attempt that the provider refused costs nothing.",
        file=_EXCHANGE,
        old="            call.__exit__(ProviderRefused, ProviderRefused(response.status_code), None)\n",
        new="            call.__exit__(None, None, None)\n",
        tests=(_CLIENT + "test_every_attempt_of_the_sdk_is_a_call_of_its_own",),
    ),
    Rule(
        section="(c) 4",
        rule="A request that was not sent costs nothing.",
        file=_EXCHANGE,
        old="            call.__exit__(NotApplied, _not_sent(error), None)\n",
        new="            call.__exit__(None, None, None)\n",
        tests=(_CLIENT + "test_a_provider_that_cannot_be_reached_costs_nothing",),
    ),
    Rule(
        section="(c) 6",
        rule="A stream that is closed is settled.",
        file=_METER,
        old="                    getattr(self, _METER).end()\n",
        new="                    pass\n",
        tests=(_CLIENT + "test_a_stream_that_is_left_is_settled",),
    ),
    Rule(
        section="(c) 6",
        rule="A stream is asked what it used.",
        file=_EXCHANGE,
        old='"include_usage": True',
        new='"include_usage": False',
        tests=(_CLIENT + "test_a_stream_is_metered_to_its_end",),
    ),
    Rule(
        section="(c) 6",
        rule="The user sees the stream that the user asked for.",
        file=_METER,
        old='return self._hides_usage and data.get("choices") == []',
        new="return False",
        tests=(_CLIENT + "test_a_stream_is_metered_to_its_end",),
    ),
    Rule(
        section="(c) 2",
        rule="What a client made before it was guarded does not go round the guard.",
        file=_CLIENTS,
        old="if not _is_cached(kind, name)",
        new="if name",
        tests=(_CLIENT + "test_the_client_is_what_it_was",),
    ),
    Rule(
        section="(c) 6",
        rule="A stream is metered whatever its label says.",
        file=_EXCHANGE,
        old='labelled or bool(self._arguments.get("stream"))',
        new="labelled",
        tests=(_UNREADABLE + "test_a_stream_is_told_by_its_bytes",),
    ),
    Rule(
        section="(c) 6",
        rule="A stream that goes on past what is reserved for it, and for which there is no more, is cut.",
        file=_METER,
        old="            self.call.cover(tokens)\n",
        new="            pass\n",
        tests=(_CUT + "test_a_stream_that_goes_on_past_its_limit_is_cut", _CUT + "test_helpers_are_cut_too"),
    ),
    Rule(
        section="(c) 4",
        rule="A slash at the end of an address is no way out of metering.",
        file="adapters/sagaspan_functions/_apis.py",
        old='.rstrip("/")',
        new="",
        tests=(_CLIENT + "test_a_slash_at_the_end_is_no_way_out",),
    ),
    Rule(
        section="design 4.6",
        rule="What is no number reaches no tool.",
        file="adapters/sagaspan_functions/_signatures.py",
        old="        _check_plain(arguments)\n",
        new="",
        tests=(_TOOLS + "test_what_is_no_number_is_refused_of_an_api_that_parses_it",),
    ),
    Rule(
        section="design 4.6",
        rule="A field that a model writes twice is not chosen from.",
        file="adapters/sagaspan_functions/_signatures.py",
        old=", object_pairs_hook=_each_once)",
        new=")",
        tests=(_TOOLS + "test_odd_json_of_a_model_is_told_to_it",),
    ),
    Rule(
        section="design 4.6",
        rule="A text that says it is no number is none for a tool.",
        file="adapters/sagaspan_functions/_signatures.py",
        old=", allow_inf_nan=False)",
        new=")",
        tests=(_TOOLS + "test_odd_json_of_a_model_is_told_to_it",),
    ),
    Rule(
        section="(c) 6",
        rule="Options of a request in its extra body count as any.",
        file=_EXCHANGE,
        old='**(getattr(options, "extra_json", None) or {})}',
        new="**{}}",
        tests=(
            _CLIENT + "test_options_of_a_stream_in_the_extra_body",
            _CLIENT + "test_a_limit_in_the_extra_body_is_the_limit",
        ),
    ),
    Rule(
        section="(c) 4",
        rule="A request to an address that nobody knows is named, since nobody counts it.",
        file=_EXCHANGE,
        old="if place is None and (path := unknown(url)):",
        new="if False:",
        tests=(_CLIENT + "test_an_address_that_nobody_knows_is_named",),
    ),
    Rule(
        section="(c) 4",
        rule="An answer that is paid for is never lost to its bookkeeping.",
        file="src/sagaspan/_llm.py",
        old="            self._unread = str(problem)\n            return None\n",
        new="            raise\n",
        tests=("tests/llm/test_metering.py::test_an_answer_that_is_paid_for_is_never_lost_to_its_bookkeeping",),
    ),
    Rule(
        section="(c) 6",
        rule="A request whose reservation was cut to a limit is sent with it.",
        file="adapters/sagaspan_langchain/_requests.py",
        old="return model if most is None or field is None else",
        new="return model if True else",
        tests=(_LANGCHAIN + "test_a_model_without_a_limit_gets_one_that_a_small_budget_can_pay_for",),
    ),
)
