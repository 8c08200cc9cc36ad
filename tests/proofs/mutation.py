"""The mutation gate: each safety rule is broken on purpose, and the test that guards it must go red.

    uv run --all-extras python -m tests.proofs.mutation                      # all rules (the full form)
    uv run --all-extras python -m tests.proofs.mutation --seconds 170        # as many as fit, another part each commit
    uv run --all-extras python -m tests.proofs.mutation --only "(b) 3"       # the rules whose section or text says so

Every rule of ``rules`` names a piece of the code, what breaks it, and the tests that stand for it. A patch is
made on a copy of the tree, and only those tests run there; each of them must fail. The gate itself fails if a patch
does not apply exactly once or breaks the import, or if a named test stays green, hangs, or is red without any patch.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.proofs.rules import RULES, Rule

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    "src", "adapters", "tests", "examples", "docs", "dashboards", "otel-collector.yaml", "pyproject.toml", "README.md",
)  # fmt: skip
HUNG_SECONDS: Final = 400
"""A test that guards a rule fails by itself; one that only hangs tells nobody what is broken."""

_FAILED = re.compile(r"^FAILED (tests/\S+?\.py(?:::\w+)+)", re.MULTILINE)


LATE: Final = "red later"
"""Noticed by the second try alone: named for somebody to sharpen the test, as the gate's other runs name a RERUN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one rule: ``red`` as it should be, or why the gate fails."""

    rule: Rule
    word: str
    seconds: float = 0.0
    detail: str = ""

    @property
    def caught(self) -> bool:
        """Whether every named test went red."""
        return self.word in ("red", LATE)


def patched(rule: Rule, text: str) -> str | None:
    """``text`` with the rule broken; None if its place is not found exactly once."""
    return text.replace(rule.old, rule.new) if text.count(rule.old) == 1 and rule.old != rule.new else None


class Tree:
    """A copy of the tree, on which one rule at a time is broken."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        # By content, not by time: a patch of the same second and length must not find the old code.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "src", quiet=1, invalidation_mode=mode)

    def judge(self, rule: Rule) -> Verdict:
        """Break ``rule``, run its tests, and mend it."""
        started = time.monotonic()
        file = self.folder / rule.file
        sound = file.read_text(encoding="utf-8") if file.is_file() else ""
        broken = patched(rule, sound)
        if broken is None:
            return Verdict(rule=rule, word="NOT APPLIED", detail=f"found {sound.count(rule.old)} times in {rule.file}")
        file.write_text(broken, encoding="utf-8")
        try:
            word, detail = _verdict(rule, *self.test(rule.tests))
            if word == "SURVIVED" and _verdict(rule, *self.test(rule.tests))[0] == "red":
                word = LATE
        finally:
            file.write_text(sound, encoding="utf-8")
        seconds = time.monotonic() - started
        return Verdict(rule=rule, word=word, seconds=seconds, detail=detail)

    def test(self, tests: Sequence[str], seconds: float = HUNG_SECONDS) -> tuple[int | None, set[str], str]:
        """Run ``tests`` here; returns pytest's exit code (None: it hung), the tests that failed, and what it said."""
        paths = [str(self.folder / name) for name in ("src", "adapters", ".")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "--tb=line", "-rf", "--no-header", "-p", "no:cacheprovider", "-n", "0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests], cwd=self.folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return None, set(), "it hung"
        finally:
            _end(process)
        return process.returncode, set(_FAILED.findall(out)), out


def _end(process: subprocess.Popen[str]) -> None:
    """End what a test left behind, too: a broken rule may leave workers that wait for ever."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()


def _verdict(rule: Rule, code: int | None, failed: set[str], out: str) -> tuple[str, str]:
    green = [test for test in rule.tests if test not in failed]
    if code is None:
        return "HUNG", f"after {HUNG_SECONDS} s: {', '.join(rule.tests)}"
    if code not in (0, 1):  # no such test, or nothing can be imported any more: that is not the test's doing
        return "BROKEN", out.strip()[-400:]
    return ("SURVIVED", f"still green: {', '.join(green)}") if green else ("red", "")


def rotated(rules: Sequence[Rule], seed: str) -> list[Rule]:
    """The rules from another place on for another ``seed``, so that a bounded gate sees all of them in time."""
    start = int(seed, 36) % len(rules) if rules else 0
    return [*rules[start:], *rules[:start]]


def judge_all(rules: Sequence[Rule], *, jobs: int, seconds: float, root: Path = ROOT) -> Iterator[Verdict]:
    """The verdicts as they come; none is begun once ``seconds`` are over."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(root, Path(folder) / str(number)))

        def work(rule: Rule) -> Verdict | None:
            if time.monotonic() > deadline:
                return None
            tree = trees.get()
            try:
                return tree.judge(rule)
            finally:
                trees.put(tree)

        yield from (verdict for verdict in pool.map(work, rules) if verdict is not None)


def red_without_a_patch(rules: Sequence[Rule], root: Path = ROOT) -> set[str]:
    """The named tests that fail on the sound tree: their red proves nothing."""
    tests = sorted({test for rule in rules for test in rule.tests})
    with tempfile.TemporaryDirectory() as folder:
        code, failed, out = Tree(root, Path(folder) / "sound").test(tests, seconds=600)
    if code not in (0, 1):
        raise SystemExit(f"the named tests cannot be run:\n{out[-2000:]}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if every rule that was tried has a test that goes red."""
    options = _options(arguments)
    seed = options.seed or _commit()
    wanted = [rule for rule in RULES if options.only in f"{rule.section} {rule.rule} {rule.file}"]
    print(f"{len(wanted)} rules, {options.jobs} at a time, from place {seed}", flush=True)
    started = time.monotonic()
    verdicts = []
    for verdict in judge_all(rotated(wanted, seed), jobs=options.jobs, seconds=options.seconds):
        verdicts.append(verdict)
        rule = verdict.rule
        place = f"[{len(verdicts):>3}/{len(wanted)}]"
        print(f"{place} {verdict.word:<11} {verdict.seconds:5.1f} s  {rule.section:<10} {rule.rule}", flush=True)
        if not verdict.caught:
            print(f"          {rule.file}: {verdict.detail}", flush=True)
    if not options.seconds < float("inf"):
        sound = red_without_a_patch(wanted)
        verdicts = [replace(v, word="RED ANYWAY") if set(v.rule.tests) & sound else v for v in verdicts]
    return _report(verdicts, len(wanted), time.monotonic() - started, options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.proofs.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="rules broken at the same time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further rule after so long")
    parser.add_argument("--seed", default="", help="where to begin (base 36); default: the commit")
    parser.add_argument("--only", default="", help="only rules whose section, text or file contains this")
    parser.add_argument("--json", type=Path, help="write the verdicts here")
    return parser.parse_args(arguments)


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "0"


def _report(verdicts: Sequence[Verdict], wanted: int, seconds: float, json_file: Path | None) -> int:
    caught = sum(verdict.caught for verdict in verdicts)
    left = f"; {wanted - len(verdicts)} left for other commits" if len(verdicts) < wanted else ""
    print(f"\n{caught} of {len(verdicts)} broken rules were noticed in {seconds:.0f} s{left}")
    if json_file is not None:
        rows = [{**asdict(verdict.rule), "verdict": verdict.word, "seconds": round(verdict.seconds, 2),
                 "detail": verdict.detail} for verdict in verdicts]  # fmt: skip
        json_file.write_text(json.dumps({"caught": caught, "tried": len(verdicts), "rules": wanted, "verdicts": rows}))
    return 0 if caught == len(verdicts) and verdicts else 1


if __name__ == "__main__":
    sys.exit(main())
