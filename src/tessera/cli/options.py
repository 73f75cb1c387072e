"""Options that several commands share, and the one place where the commands write files."""

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import click

from tessera.errors import InvalidInput

__all__ = ["output_option", "write_output", "write_outputs"]

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
    if str(target) == "-":
        click.echo(_bytes(content), nl=False)
        return
    path = Path(target).resolve()
    with _refusal(f"output file {target}", wanted="a file that can be written"):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(_bytes(content))
        else:
            _replace({path: _bytes(content)})


def write_outputs(folder: str | Path, contents: Mapping[str, str | bytes]) -> None:
    """Write files below `folder`, which is made where it is missing; none of them changes until all are complete.

    Args:
        folder: where to write; what else lies there is left alone.
        contents: what to write by name, which may lead into folders below: `node-a/mig.yaml`.

    Raises:
        InvalidInput: one cannot be written, with the system's reason.

    """
    top = Path(folder).resolve()
    made: list[Path] = []
    with _refusal(f"output folder {folder}", wanted="a folder that can be written to"):
        try:
            for name in contents:
                _make_folder((top / name).parent, made)
            _replace({top / name: _bytes(content) for name, content in contents.items()})
        except OSError:
            for path in reversed(made):
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise


@contextlib.contextmanager
def _refusal(subject: str, *, wanted: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(subject, found=error.strerror or type(error).__name__, wanted=wanted) from error


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _make_folder(path: Path, made: list[Path]) -> None:
    """Make a folder and those above it, and note in `made` which were not there, the uppermost first."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    for folder in reversed(missing):
        folder.mkdir()
        made.append(folder)


def _replace(contents: Mapping[Path, bytes]) -> None:
    # Beside the targets, because a rename is atomic only within one file system.
    scratches = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, scratch in scratches.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            scratch.write_bytes(contents[path])
        for path, scratch in scratches.items():
            scratch.replace(path)
    finally:
        for scratch in scratches.values():
            with contextlib.suppress(OSError):
                scratch.unlink()
