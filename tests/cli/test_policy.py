"""``sagaspan policy``: what is wrong with a policy file, and what it says of one call."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from sagaspan import Guard, Policy
from sagaspan.rules import LIMITS
from tests.cli.conftest import Sagaspan

pytestmark = pytest.mark.usefixtures("home")

ROOT: Final = Path(__file__).parents[2]
WRONG = """\
[guard]
lop = 3
[tools.pay]
timout = 3
retry = {atempts = 1}

[[rules]]
tools = "pay"
when = "amount >"
action = "deny"

[[rules]]
actoin = "deny"
limits = {effect = "read"}
[bugets]
[budgets]
"usr:1" = "3 USD"
[prices]
x = {inptu = 1}
[[notify]]
url = "https://example.org/hook"
secret_env = "NOT_SET_HERE"
[[notify]]
urll = "x"
"""

RULES = """
[tools.pay]
timeout = 30
redact = ["card"]

[[rules]]
tools = "pay"
when = "tags.env == 'test'"
action = "allow"

[[rules]]
name = "large"
tools = "pay"
when = "amount > 100 && user != 'cfo'"
action = "approve"
reason = "somebody looks"
approval = {approvers = 2}
limits = {timeout = 5}
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """A guard of an application that has ``pay``; gives what ``--app`` takes."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(policies: str) -> str:
        (tmp_path / "policy_shop.py").write_text(
            "from sagaspan import Guard\n"
            f"guard = Guard(policies={policies})\n"
            "@guard.tool(effect='write', approve='amount > 5000', retry=3)\n"
            "def pay(amount, card='none'): ...\n"
        )
        return "policy_shop:guard"

    yield make
    sys.modules.pop("policy_shop", None)


def _check(sagaspan: Sagaspan, text: str, *more: str) -> Any:
    Path("p.toml").write_text(text)
    return sagaspan("policy", "check", "p.toml", "--json", *more)


def test_everything_that_is_wrong_is_named_with_its_line(sagaspan: Sagaspan) -> None:
    """All of it at once, in the order of the file, each with what to write instead."""
    answer = _check(sagaspan, WRONG)
    assert answer.code == 1
    assert [(one["line"], one["where"]) for one in answer.json] == [
        (2, "[guard] lop"), (4, "[tools.pay] timout"), (5, "[tools.pay] retry"), (9, "rule 1"),
        (13, "rule 2 actoin"), (14, "rule 2 limits"), (15, "[bugets]"), (17, "[budgets] usr:1"), (19, "[prices] x"),
        (23, "[[notify]] 2"), (20, "[[notify]] 1"),
    ]  # fmt: skip
    assert "did you mean timeout?" in answer.json[1]["message"]
    assert "stands in [tools.NAME]" in answer.json[5]["message"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [("[tools\n", 1, "not valid TOML"), ("a = " + "[" * 5000, None, "nested too deep"),
     ("tools = 3", 1, "a table"), ("rules = 3", 1, "[[rules]]"),
     ("[[rules]]\nwhen = 'true'", 1, "action"), ("guard = 3", 1, "[guard] is a table")],
)  # fmt: skip
def test_a_file_that_is_none(sagaspan: Sagaspan, text: str, line: int | None, words: str) -> None:
    """What cannot be read at all, and tables that are none."""
    answer = _check(sagaspan, text)
    assert (answer.code, answer.json[0]["line"]) == (1, line)
    assert words in answer.json[0]["message"]


@pytest.mark.parametrize(
    ("text", "line"),
    [("[tools\n", r"p\.toml:1: the policy file p\.toml is not valid TOML: .*"),
     ("[[rules]]\naction='allow'\n[[rules]]\naction='deny'\nwhen='amount >'\n",
      r"p\.toml:5: rule 2: when: 'amount >' is not valid CEL: .*"),
     ("[nope]\n", r"p\.toml:1: \[nope\]: there is no table \[nope\]; .* \[prices\], \[\[notify\]\]")],
)  # fmt: skip
def test_what_is_wrong_is_said_once(sagaspan: Sagaspan, text: str, line: str) -> None:
    """File and line, where, and what: no part twice, and none empty."""
    Path("p.toml").write_text(text)
    assert re.fullmatch(line, sagaspan("policy", "check", "p.toml").out.strip())


def test_a_check_does_not_go_by_the_environment(sagaspan: Sagaspan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that overrules the file hides nothing that is wrong in it."""
    monkeypatch.setenv("SAGASPAN_LOOP", "3")
    assert _check(sagaspan, "[guard]\nloop = -1").code == 1


def test_with_the_app_what_does_not_fit_its_tools(sagaspan: Sagaspan, app: Callable[[str], str]) -> None:
    """Names that a tool does not take are wrong, names of no tool a warning."""
    named = app("None")
    text = "[tools.refnd]\ntimeout = 3\n[[rules]]\ntools = ['pay', 'p?']\nwhen = 'amont > 3'\naction = 'deny'\n"
    answer = _check(sagaspan, text, "--app", named)
    assert answer.code == 1
    assert [(one["line"], one["warning"]) for one in answer.json] == [(5, False), (1, True), (4, True)]
    assert "has(args.amont)" in answer.json[0]["message"]
    assert _check(sagaspan, "[tools.refnd]\ntimeout = 3", "--app", named).code == 0
    assert _check(sagaspan, "[tools.pay]\nkey = 'ordr'", "--app", named).code == 1


def test_with_the_app_what_never_holds_for_its_tools(sagaspan: Sagaspan, app: Callable[[str], str]) -> None:
    """An argument that a rule of several tools looks for and none has; it is an error, with its line."""
    text = "[[rules]]\ntools = '*'\naction = 'deny'\nwhen = 'has(args.amout) && args.amout > 1'\n"
    answer = _check(sagaspan, text, "--app", app("None"))
    (problem,) = answer.json
    assert (answer.code, problem["line"], problem["warning"]) == (1, 4, False)
    assert problem["message"].startswith("looks for the argument 'amout', which none of its tools has")
    assert "did you mean amount?" in problem["message"]


def test_a_good_file_is_said_to_be_so(sagaspan: Sagaspan) -> None:
    """With its version, which does not depend on its spelling."""
    Path("p.toml").write_text(RULES)
    first = sagaspan("policy", "check", "p.toml")
    Path("p.toml").write_text("# other words\n" + RULES.replace("timeout = 30", "timeout   = 30"))
    assert first.out == sagaspan("policy", "check", "p.toml").out
    assert (first.code, "is well: version" in first.out) == (0, True)
    Path("p.toml").write_text(RULES.replace("100", "200"))
    assert first.out != sagaspan("policy", "check", "p.toml").out


def test_a_call_is_explained(sagaspan: Sagaspan, app: Callable[[str], str]) -> None:
    """Which rule decides, why those before it do not, and who says each field."""
    Path("p.toml").write_text(RULES)
    answer = sagaspan("policy", "explain", "pay", '{"amount": 150}', "--user", "ada", "--tag", "env=prod",
                      "--app", app("'p.toml'"), "--json")  # fmt: skip
    said = answer.json
    assert (said["outcome"], said["by"], said["reason"]) == ("ask", ["p.toml, rule 2 ('large')"], "somebody looks")
    assert [(one["found"], one["why"]) for one in said["rules"]] == [
        ("does not hold", "tags.env == 'test'"), ("holds", "amount > 100 && user != 'cfo'"),
    ]  # fmt: skip
    fields = {one["field"]: (one["value"], one["origin"]) for one in said["policy"]}
    rule = "p.toml, rule 2 ('large')"
    assert fields["timeout"] == (5.0, rule)
    assert fields["effect"] == ("write", "decorator")
    assert fields["redact"] == (["card"], "file")
    assert fields["approve"] == (["amount > 5000", True], f"decorator, {rule}")
    assert fields["approval"][0]["approvers"] == 2
    assert fields["retry"][0]["attempts"] == 3
    assert fields["key"] == (None, "default")


@pytest.mark.parametrize(
    ("arguments", "more", "outcome", "words"),
    [('{"amount": 500}', ("--user", "cfo", "--tag", "env=x"), "allow", ""),
     ('{"amount": 9000}', ("--tag", "env=test"), "ask", "5000"),
     ('{"amount": 1}', (), "ask", "cannot be judged")],
)  # fmt: skip
def test_what_is_explained_is_what_holds(
    sagaspan: Sagaspan, app: Callable[[str], str], arguments: str, more: tuple[str, ...], outcome: str, words: str
) -> None:
    """The gates of the code count too, and so does what cannot be judged."""
    Path("p.toml").write_text(RULES)
    answer = sagaspan("policy", "explain", "pay", arguments, "--app", app("'p.toml'"), "--json", *more)
    assert (answer.json["outcome"], words in " ".join(answer.json["by"])) == (outcome, True)


@pytest.mark.parametrize("said_by", ["code", "file", "environment"])
def test_where_nothing_is_refused_that_is_said(
    sagaspan: Sagaspan, app: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, said_by: str
) -> None:
    """``mode="observe"``, whoever says it: what would ask or deny lets the call run."""
    if said_by == "environment":
        monkeypatch.setenv("SAGASPAN_MODE", "observe")
    Path("p.toml").write_text(("[guard]\nmode = 'observe'\n" if said_by == "file" else "") + RULES)
    known = app("'p.toml', mode='observe'" if said_by == "code" else "'p.toml'")
    for call in (("explain", "pay", '{"amount": 150}', "--user", "ada", "--tag", "env=prod", "--app", known),
                 ("explain", "pay", '{"amount": 150}', "--file", "p.toml")):  # fmt: skip
        if said_by == "code" and "--file" in call:
            continue
        assert sagaspan("policy", *call, "--json").json["mode"] == "observe"
        said = sagaspan("policy", *call).out
        assert ("pay would be asked about" in said, "but mode is observe: it is allowed" in said) == (True, True)
    allowed = sagaspan("policy", "explain", "pay", '{"amount": 1}', "--tag", "env=x", "--app", known)
    assert ("pay is allowed" in allowed.out, "observe" in allowed.out) == (True, False)


def test_without_the_app_as_far_as_the_file_says(sagaspan: Sagaspan) -> None:
    """A denied call, with its reason, in plain words."""
    Path("sagaspan.toml").write_text(
        "[[rules]]\ntools='p*'\nwhen='spent > 2.0 && hour == 3'\naction='deny'\nreason='no'"
    )
    call = ("policy", "explain", "pay", "--spent", "3")
    answer = sagaspan(*call, "--at", "2026-11-20T03:10")
    assert (answer.code, "pay is denied by sagaspan.toml, rule 1" in answer.out) == (0, True)
    assert "as far as the file alone says it" in answer.out
    assert "pay is allowed" in sagaspan(*call, "--at", "2026-11-20T04:10").out


@pytest.mark.parametrize(("more", "loop"), [("", (3, "file, [guard]")), ("[tools.pay]\nloop = false", (False, "file"))])
def test_what_the_file_says_of_all_tools_is_explained_too(
    sagaspan: Sagaspan, app: Callable[[str], str], more: str, loop: tuple[object, str]
) -> None:
    """As the least of those who say it."""
    Path("p.toml").write_text(f"[guard]\nloop = 3\n{more}")
    for known in (("--file", "p.toml"), ("--app", app("'p.toml'"))):
        said = sagaspan("policy", "explain", "pay", '{"amount": 1}', "--json", *known).json
        assert [(one["value"], one["origin"]) for one in said["policy"] if one["field"] == "loop"] == [loop]


@pytest.mark.parametrize(
    ("approve", "arguments", "outcome", "by"),
    [("'amount > 100'", '{"amount": 50}', "allow", []),
     ("'amount > 100'", '{"amount": 150}', "ask", ["approve: amount > 100"]),
     ("'amount > 100'", "{}", "ask", ["approve: amount > 100"]), ("true", "{}", "ask", ["approve: always"]),
     ("false", "{}", "allow", [])],
)  # fmt: skip
def test_without_the_app_a_condition_of_the_file_is_looked_at(
    sagaspan: Sagaspan, approve: str, arguments: str, outcome: str, by: list[str]
) -> None:
    """It asks about the calls that it holds for, and about those that it cannot judge."""
    Path("sagaspan.toml").write_text(f"[tools.pay]\napprove = {approve}\n")
    said = sagaspan("policy", "explain", "pay", arguments, "--json").json
    assert (said["outcome"], said["by"]) == (outcome, by)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [(("pay", '{"a": 1, "a": 2}'), 2, "twice"), (("pay", '{"a": ' + "[" * 5000), 2, "nested too deep"),
     (("pay", '{"a": 1e999}'), 2, "too large"),
     (("pay", "5"), 2, "one JSON object"), (("pay", "{"), 2, "no JSON"), (("pya", "{}"), 3, "did you mean pay"),
     (("pay", '{"amont": 5}'), 1, "takes amount, card"), (("pay", "{}", "--tag", "env"), 2, "KEY=VALUE")],
)  # fmt: skip
def test_what_cannot_be_explained(
    sagaspan: Sagaspan, app: Callable[[str], str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    """Arguments that are none, and a tool that nobody has."""
    answer = sagaspan("policy", "explain", *arguments, "--app", app("None"))
    assert (answer.code, words in answer.err) == (code, True)


def test_the_schema_says_what_a_file_can_say(sagaspan: Sagaspan) -> None:
    """Every field of a policy that is no matter of code, every field of a rule, and nothing else."""
    schema = sagaspan("policy", "schema").json
    tables = schema["properties"]
    assert sorted(tables) == ["budgets", "guard", "notify", "prices", "rules", "tools"]
    fields = set(tables["tools"]["additionalProperties"]["properties"])
    assert set(Policy.model_fields) - fields == {"probe", "expect", "not_applied"}
    assert set(tables["rules"]["items"]["properties"]["limits"]["properties"]) == set(LIMITS)
    assert tables["rules"]["items"]["required"] == ["action"]


def test_the_files_that_the_docs_show_fit_the_schema_and_are_well(sagaspan: Sagaspan) -> None:
    """An editor that goes by it marks nothing in them, and marks a misspelt field."""
    schema = sagaspan("policy", "schema").json
    jsonschema.Draft202012Validator.check_schema(schema)
    fits = jsonschema.Draft202012Validator(schema).is_valid
    shown = [(ROOT / "examples" / "sagaspan.toml").read_text()]
    for page in sorted((ROOT / "docs").glob("*.md")):
        shown += re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(shown) > 3
    for text in shown:
        assert fits(tomllib.loads(text)), text
        Path("p.toml").write_text(text)
        assert sagaspan("policy", "check", "p.toml").code == 0, text
    for wrong in ("[tools.pay]\ntimout = 3", "[tools.pay]\nloop = 0", "[[rules]]\ntools = 'pay'", "[bugets]"):
        assert not fits(tomllib.loads(wrong)), wrong


def test_the_sources_of_a_policy_are_kept_when_an_adapter_changes_it() -> None:
    """What it was combined of is known afterwards too."""
    guard = Guard(policies={"pay": {"timeout": 3}})
    policy = guard.policy_for("pay", Policy(effect="write")).replace(compensate=print)
    assert [source for source, _ in policy.sources] == ["decorator", "guard", "wrap"]
    assert policy == Policy(effect="write", timeout=3, compensate=print)
