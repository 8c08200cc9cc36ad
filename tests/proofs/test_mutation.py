"""The mutation gate itself: its table fits the code, and its verdicts are true."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.proofs.mutation import LATE, ROOT, judge_all, patched, rotated
from tests.proofs.rules import RULES, Rule

TOY = Rule(
    section="toy",
    rule="One and one are two.",
    file="src/toy.py",
    old="return one + other",
    new="return one - other",
    tests=("tests/test_toy.py::test_sum",),
)


@cache
def _tests_in(file: str) -> frozenset[str]:
    found = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{one.name}" for one in inside if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return frozenset(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_every_rule_can_be_broken(rule: Rule) -> None:
    """Its text stands in the code exactly once, what takes its place compiles, and its tests are there.

    If you rewrote the code of a rule, rewrite the patch in ``rules`` with it.
    """
    text = (ROOT / rule.file).read_text(encoding="utf-8")
    broken = patched(rule, text)
    assert broken is not None, f"found {text.count(rule.old)} times in {rule.file}:\n{rule.old}"
    if rule.file.endswith(".py"):
        compile(broken, rule.file, "exec")
    assert rule.tests
    for test in rule.tests:
        file, _, name = test.partition("::")
        assert name in _tests_in(file), f"{test} is no test any more"


def test_no_rule_stands_there_twice() -> None:
    """Each sentence and each patch is one rule."""
    assert len({rule.rule for rule in RULES}) == len({(rule.file, rule.old, rule.new) for rule in RULES}) == len(RULES)


def test_the_verdicts(tmp_path: Path) -> None:
    """A broken rule that a test notices is red; everything else fails the gate, by its name."""
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/toy.py").write_text("def total(one, other):\n    return one + other\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_toy.py").write_text(
        "from toy import total\n"
        "def test_sum():\n    assert total(1, 1) == 2\n"
        "def test_blind():\n    assert total(1, 0) == 1\n"
        "def test_slow_to_see():\n    from pathlib import Path\n    seen = Path('seen').exists()\n"
        "    Path('seen').touch()\n    assert total(1, 1) == 2 or not seen\n"
    )
    blind = "tests/test_toy.py::test_blind"
    rules = [
        TOY,
        replace(TOY, tests=(blind,)),
        replace(TOY, tests=(*TOY.tests, blind)),
        replace(TOY, old="return two"),
        replace(TOY, new="return one +"),
        replace(TOY, tests=("tests/test_toy.py::test_gone",)),
        replace(TOY, tests=("tests/test_toy.py::test_slow_to_see",)),
        TOY,
    ]
    verdicts = list(judge_all(rules, jobs=2, seconds=100, root=tmp_path))
    assert [verdict.rule for verdict in verdicts] == rules
    assert [verdict.word for verdict in verdicts] == [
        "red", "SURVIVED", "SURVIVED", "NOT APPLIED", "BROKEN", "BROKEN", LATE, "red"
    ]  # fmt: skip
    assert list(judge_all(rules, jobs=2, seconds=0, root=tmp_path)) == []


def test_a_bounded_gate_comes_round() -> None:
    """Another commit begins elsewhere, and no rule is left out."""
    for seed in ("0", "5f49cc3", "zz"):
        assert sorted(map(id, rotated(RULES, seed))) == sorted(map(id, RULES))
    assert rotated(RULES, "1") == [*RULES[1:], RULES[0]]
