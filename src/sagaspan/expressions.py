"""CEL expressions in policies: compiled and checked against the tool's arguments when they are declared.

Common Expression Language: no loops, no input or output, microseconds an evaluation. The library takes 0.3 s to
import, so it is imported with the first expression.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from sagaspan.exceptions import ConfigurationError

_MACRO: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
_TEXT: Final = re.compile(
    r"""(?<!\w)[bB]?(?:[rR](?P<raw>'{3}|"{3}|['"]).*?(?P=raw)|(?P<quote>'{3}|"{3}|['"])(?:\\.|(?!(?P=quote)).)*(?P=quote))""",
    re.DOTALL,
)


_MOST_CHARACTERS: Final = 20_000
_MOST_OPERATORS: Final = 500
_OPERATOR: Final = re.compile(r"&&|\|\||[=!<>]=|[-+*/%!<>?.(\[{]|\bin\b")


class Expression:
    """A compiled expression; ``variables`` are the top-level names it reads, ``code`` is it without its texts."""

    def __init__(self, source: str, *, where: str) -> None:
        import cel

        self.code = _code_of(source, where)
        try:
            self._program = cel.compile(source)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ConfigurationError(f"{where}: {source!r} is not valid CEL: {reason}") from error
        self.source = source
        self.where = where
        # A macro binds a variable of its own, which is listed too: xs.all(x, x > 0).
        self.variables = frozenset(self._program.references()["variables"]) - set(_only_bound(self.code))

    def check(self, names: Collection[str]) -> None:
        """Refuse variables that are not among ``names``; raises ``ConfigurationError`` with the nearest ones."""
        for unknown in sorted(self.variables - set(names)):
            near = difflib.get_close_matches(unknown, list(names), n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"it can use {', '.join(sorted(names)) or 'nothing'}"
            raise ConfigurationError(
                f"{self.where}: {self.source!r} names {unknown!r}, which the tool does not take; {hint}"
            )

    def names_field(self, path: Collection[str]) -> bool:
        """Whether the source names this field of an argument: ``customer.ssn`` or ``customer["ssn"]``."""
        first, *more = path
        if not more or first not in self.variables:
            return False
        step = r"""(?:\s*\.\s*{0}\b|\s*\[\s*['"]{0}['"]\s*\])"""
        return (
            re.search(rf"\b{re.escape(first)}" + "".join(step.format(re.escape(name)) for name in more), self.source)
            is not None
        )

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The expression's value over ``values``; raises what CEL raises (``ValueError``, ``RuntimeError``, ...)."""
        # Only what it reads: another argument may be an object that CEL has no type for.
        return self._program.execute({name: value for name, value in values.items() if name in self.variables})


@functools.lru_cache(1024)
def check_syntax(source: str, where: str) -> None:
    """Refuse what is no expression, whatever tool it is for; raises ``ConfigurationError``."""
    Expression(source, where=where)


def _code_of(source: str, where: str) -> str:
    """Return the source without its texts; refuse one that the compiler, which is recursive, has no stack for."""
    code = ""
    if len(source) <= _MOST_CHARACTERS:
        code = _TEXT.sub(lambda text: "'" + " " * (len(text[0]) - 2) + "'", source)
    if len(source) > _MOST_CHARACTERS or len(_OPERATOR.findall(code)) > _MOST_OPERATORS:
        raise ConfigurationError(
            f"{where}: the expression {source[:40]!r}... is too large: it may have {_MOST_CHARACTERS:,} characters "
            f"and {_MOST_OPERATORS} operators; divide it into several rules, or write a function"
        )
    return code


def _only_bound(code: str) -> Iterator[str]:
    """The names that macros bind and nothing else means: an argument of such a name may be read beside the macro."""
    within: dict[str, list[range]] = {}
    for macro in _MACRO.finditer(code):
        within.setdefault(macro[1], []).append(range(macro.start(1), _end_of(code, macro.start(1))))
    for name, parts in within.items():
        used = [found.start(1) for found in re.finditer(rf"(?<![\w.])({name})\b", code)]
        if all(any(at in part for part in parts) for at in used):
            yield name


def _end_of(code: str, at: int) -> int:
    """Where the parenthesis around ``at`` is closed."""
    depth = 1
    for end in range(at, len(code)):
        depth += (code[end] == "(") - (code[end] == ")")
        if depth == 0:
            return end
    return len(code)
