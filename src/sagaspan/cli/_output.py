"""In what form an answer is given, and where it goes that is asked for as a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

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
    """The file ``output``, or standard output."""
    if output is None:
        yield sys.stdout
        return
    try:
        with output.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error


def copy_to_file(index: Any, statement: str, output: Path, **more: Any) -> None:
    """Write Parquet beside ``output`` and give it that name when it is whole."""
    part = output.absolute().with_name(f".{output.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch()  # here the system says why it cannot be; nobody would know what to do with DuckDB's sentence
        rows = index.copy(statement, part, **more)
        part.replace(output)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
    click.echo(f"{rows:,} rows in {output}", err=True)
