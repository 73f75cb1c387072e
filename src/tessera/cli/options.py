"""Options shared by several commands, and the functions by which commands write files."""

import contextlib
import errno
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tessera.errors import InvalidInput

__all__ = [
    "CommandGroup",
    "FilledOption",
    "Number",
    "PortNumber",
    "Seconds",
    "WholeNumber",
    "check_output",
    "check_outputs",
    "health_option",
    "kubeconfig_option",
    "output_option",
    "policy_option",
    "refuse_beside",
    "refuse_without",
    "with_options",
    "write_output",
    "write_outputs",
]

_Command = TypeVar("_Command", bound=Callable[..., object])

_WHOLE = 1000
"""Longest sentence that is not cut."""
_NO_BOUND = 1e6
"""From here on a bound is that of a number's format, or of what a computer can hold, and help does not name it."""


class CommandGroup(click.Group):
    """A command group whose help has the first sentence of each command in full; click cuts it to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their sentences."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(_WHOLE)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class FilledOption(click.Option):
    """An option whose value cannot be empty, as that of a shell variable that is not set is."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value and its source.

        Raises:
            InvalidInput: it is empty on the command line.

        """
        value, source = super().consume_value(ctx, opts)
        if value == "" and source is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
            option = next(each for each in self.opts if each.startswith("--"))
            raise InvalidInput(option, found="its value is empty", hint="give one, or leave it out")
        return value, source


class WholeNumber(click.IntRange):
    """A whole number between bounds; the type of every option that is one."""

    name = "N"

    def _describe_range(self) -> str:
        return _bounds(self)


class PortNumber(WholeNumber):
    """A TCP port; 0 for any free one, or as the option says."""

    name = "port"

    def __init__(self, least: int = 0) -> None:
        super().__init__(least, 65_535)


class Number(click.FloatRange):
    """A finite number between bounds."""

    name = "number"

    def _describe_range(self) -> str:
        return _bounds(self)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail as click does."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Seconds(Number):
    """A positive, finite time in seconds; the type of every option that is one.

    Args:
        least: the shortest; by default any above 0.
        most: the longest; by default any.

    """

    name = "seconds"

    def __init__(self, least: float | None = None, most: float | None = None) -> None:
        super().__init__(min=least or 0, max=most, min_open=least is None)


def _bounds(kind: click.IntRange | click.FloatRange) -> str:
    """Return the bounds of a number as help names them; empty where they say nothing."""
    least = kind.min if kind.min is not None and abs(kind.min) < _NO_BOUND else None
    most = kind.max if kind.max is not None and kind.max < _NO_BOUND else None
    if least is not None and most is not None and not (kind.min_open or kind.max_open):
        return f"{least:g} to {most:g}"
    from_least = f"{'more than' if kind.min_open else 'at least'} {least:g}" if least or kind.min_open else ""
    to_most = f"{'less than' if kind.max_open else 'at most'} {most:g}" if most is not None else ""
    return ", ".join(filter(None, (from_least, to_most)))


def refuse_beside(option: str, other: str) -> None:
    """Reject an option of the command that `other` would leave without effect; a default does not count as given.

    Raises:
        InvalidInput: both were given, both on the command line or both by the environment, or `option` on the command
            line; one that only the environment gives yields to `other` on the command line.

    """
    given, over = _source(option), _source(other)
    if over is not None and given in {ParameterSource.COMMANDLINE, over}:
        raise InvalidInput(option, found=f"it has no effect with {other}", hint="leave out one of the two")


def refuse_without(option: str, other: str, reason: str = "it has no effect alone") -> None:
    """Reject an option without effect if `other` is not given.

    Args:
        option: what would have no effect.
        other: what it needs.
        reason: why it has none.

    Raises:
        InvalidInput: `option` is on the command line and `other` is nowhere.

    """
    if _source(option) is ParameterSource.COMMANDLINE and _source(other) is None:
        raise InvalidInput(option, found=reason, hint=f"give {other} as well")


def _source(option: str) -> ParameterSource | None:
    """Return how an option of the running command was given; None for its default."""
    source = click.get_current_context().get_parameter_source(option.removeprefix("--").replace("-", "_"))
    return source if source in {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT} else None


def with_options(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options to a command, in the order given."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Kubeconfig file.  [default: KUBECONFIG, else the pod's service account]",
)
"""Adds `--kubeconfig` to a command that runs in a pod or on a node."""


health_option = click.option(
    "--health-port", type=PortNumber(), help="Port that answers GET /healthz and /readyz.  [default: none]"
)
"""Adds `--health-port` to a command that runs in a pod."""


def policy_option(policies: Sequence[str], **extra: Any) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--policy`; its help, not its metavar, has the names, which fill no line alone."""
    *names, last = policies
    text = f"Packing policy: {', '.join(names)} or {last}."
    return click.option(
        "--policy", **{"type": click.Choice(policies), "metavar": "POLICY", "show_default": True, "help": text, **extra}
    )


def output_option(
    *more: str, formats: Sequence[str] = ("table", "wide", "json", "yaml")
) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `-o/--output`, passed as `output`; the first format is the default.

    Args:
        more: formats of this command alone.
        formats: of every command whose output is a table: `wide` is the table at full width.

    """
    return click.option(
        "-o",
        "--output",
        type=click.Choice((*formats, *more)),
        default=formats[0],
        show_default=True,
        help="Output format; wide does not fold lines." if "wide" in formats else "Output format.",
    )


def write_output(target: str | Path, content: str | bytes) -> None:
    """Write a file atomically: `target` keeps its former content until the new one is complete.

    `-` is standard output. A device such as `/dev/null` is written to directly, a link is followed.

    Raises:
        InvalidInput: the file cannot be written, with the system's reason.

    """
    if str(target) == "-":
        click.echo(_bytes(content), nl=False)
        return
    path = Path(target).resolve()
    with _file_refusal(target):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(_bytes(content))
        else:
            _replace({path: _bytes(content)})


def check_output(target: str | Path) -> None:
    """Check before a long run that `write_output` could write there; changes nothing.

    Raises:
        InvalidInput: it could not, with the system's reason.

    """
    if str(target) == "-":
        return
    path = Path(target).resolve()
    with _file_refusal(target):
        if path.is_dir():
            raise _is_a_folder()
        if not path.is_char_device():
            _probe(path.parent)


def check_outputs(folder: str | Path) -> None:
    """Check before a long run that `write_outputs` could write there; changes nothing.

    Raises:
        InvalidInput: it could not, with the system's reason.

    """
    top = Path(folder).resolve()
    made: list[Path] = []
    with _folder_refusal(folder):
        try:
            _make_folder(top, made)
            _probe(top)
        finally:
            _remove(made)


def _probe(folder: Path) -> None:
    """Raise OSError if no file can be created; permissions alone do not tell, as on a read-only file system."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_outputs(folder: str | Path, contents: Mapping[str, str | bytes]) -> None:
    """Write files below `folder`, created if missing; none of them changes until all are complete.

    Args:
        folder: the folder; other files in it are left alone.
        contents: texts by name, which may include sub-folders: `node-a/mig.yaml`.

    Raises:
        InvalidInput: one cannot be written, with the system's reason.

    """
    top = Path(folder).resolve()
    made: list[Path] = []
    with _folder_refusal(folder):
        try:
            for name in contents:
                _make_folder((top / name).parent, made)
            _replace({top / name: _bytes(content) for name, content in contents.items()})
        except OSError:
            _remove(made)
            raise


def _file_refusal(target: str | Path) -> contextlib.AbstractContextManager[None]:
    return _refusal(f"output file {target}", desired="a file that can be written")


def _folder_refusal(folder: str | Path) -> contextlib.AbstractContextManager[None]:
    return _refusal(f"output folder {folder}", desired="a folder that can be written to")


@contextlib.contextmanager
def _refusal(subject: str, *, desired: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInput(subject, found=error.strerror or type(error).__name__, hint=f"name {desired}") from error


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _make_folder(path: Path, created: list[Path]) -> None:
    """Create a folder and its parents, and add the created ones to `created`, the uppermost first."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    for folder in reversed(missing):
        folder.mkdir()
        created.append(folder)


def _remove(created: list[Path]) -> None:
    """Remove the folders created by `_make_folder` that are empty."""
    for path in reversed(created):
        with contextlib.suppress(OSError):
            path.rmdir()


def _is_a_folder() -> IsADirectoryError:
    return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _replace(contents: Mapping[Path, bytes]) -> None:
    # Beside the targets, because a rename is atomic only within one file system.
    scratches = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, scratch in scratches.items():
            if path.is_dir():
                raise _is_a_folder()
            scratch.write_bytes(contents[path])
        for path, scratch in scratches.items():
            scratch.replace(path)
    finally:
        for scratch in scratches.values():
            with contextlib.suppress(OSError):
                scratch.unlink()
