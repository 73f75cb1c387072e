"""Options that several commands share, and the one place where the commands write files."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from tessera.errors import InvalidInput

__all__ = ["output_option", "write_output"]

_Command = TypeVar("_Command", bound=Callable[..., object])


def output_option(*formats: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `-o/--output`, passed as `output`; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of what is printed.",
    )


def write_output(target: str | Path, content: str | bytes) -> None:
    """Write a whole file or none of it: `target` keeps its former content until the new one is complete.

    `-` is standard output. A device such as `/dev/null` is written to directly, a link is followed.

    Raises:
        InvalidInput: the file cannot be written, with the system's reason.

    """
    data = content.encode() if isinstance(content, str) else content
    if str(target) == "-":
        click.echo(data, nl=False)
        return
    path = Path(target).resolve()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
        else:
            _replace(path, data)
    except OSError as error:
        raise InvalidInput(
            f"output file {target}", found=error.strerror or type(error).__name__, wanted="a file that can be written"
        ) from error


def _replace(path: Path, data: bytes) -> None:
    # Beside the target, because a rename is atomic only within one file system.
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
