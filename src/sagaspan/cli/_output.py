"""In what form an answer is given, and where it goes that is asked for as a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import click


def form_of(asked: str | None, output: Path | None, forms: Sequence[str], *, as_json: bool, default: str) -> str:
    """The form that was ``asked`` for, else the one that the name of the file says, else ``default``.

    Raises ``UsageError`` where two of them, or ``--json``, ask for two answers.
    """
    if as_json and asked not in (None, "json"):
        raise click.UsageError(f"--json and --format {asked} ask for two answers; leave one out")
    asked = "json" if as_json else asked
    suffix = "" if output is None else output.suffix.lower().removeprefix(".")
    named = suffix if suffix in forms else None
    if asked and named and asked != named:
        raise click.UsageError(f"{output} is the name of {named}, and {asked} is asked for; leave one out")
    return asked or named or default


@contextlib.contextmanager
def writing(output: Path | None) -> Iterator[IO[str]]:
    """The file ``output``, which only its owner can read if it is new, or standard output."""
    if output is None:
        yield sys.stdout
        return
    try:
        with open(output, "w", encoding="utf-8", newline="", opener=_open_private) as file:
            yield file
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def copy_to_file(output: Path, copy: Callable[[Path], int]) -> None:
    """Let ``copy`` write Parquet beside ``output``, and give it that name when it is whole."""
    part = output.absolute().with_name(f".{output.name}.part")
    try:
        part.unlink(missing_ok=True)
        # The system's own error says why the file cannot be written; DuckDB's does not.
        part.touch(mode=0o600, exist_ok=False)
        rows = copy(part)
        part.replace(output)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
    click.echo(f"{rows:,} rows in {output}", err=True)
