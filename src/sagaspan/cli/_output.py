"""Where an answer goes that is asked for as a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click


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
