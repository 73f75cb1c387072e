"""The help of every command: whole sentences, lines that fit 80 columns, an example, words of the field."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tessera import __version__
from tessera.cli import main


def commands(command: click.Command = main, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of every command and group below the root."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield (*path, name)
            yield from commands(found, *path, name)


def help_of(path: tuple[str, ...], columns: int = 80) -> list[str]:
    """Return the lines that a terminal of so many columns shows."""
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="tessera", env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


PATHS = {" ".join(path): path for path in ((), *commands())}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_help_fits_a_terminal_of_80_columns(path: tuple[str, ...]) -> None:
    """No line is folded by the terminal, in the middle of a word or an example."""
    assert [line for line in help_of(path) if len(line) > 80] == []


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_no_sentence_of_help_is_cut(path: tuple[str, ...]) -> None:
    """A list of commands says in full what each does."""
    assert [line for line in help_of(path)[1:] if line.rstrip().endswith("...")] == []


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_value_is_named_by_what_it_is_and_its_bounds_are_read_as_words(path: tuple[str, ...]) -> None:
    """`--gpus COUNT`, and no name of a type in click: `INTEGER RANGE`, `1<=x<=2147483647`."""
    names = re.compile(r"^  -\S+ .*\b(TEXT|INTEGER|FLOAT|RANGE|DIRECTORY)\b|<=?x|x[<>]")
    assert [line for line in help_of(path) if names.search(line)] == []


@pytest.mark.parametrize("path", [path for path in PATHS.values() if path], ids=filter(None, PATHS))
def test_every_command_and_group_has_an_example(path: tuple[str, ...]) -> None:
    """Each shows a call of itself."""
    lines = help_of(path)
    starts = [index for index, line in enumerate(lines) if line.strip() in {"Example:", "Examples:"}]
    assert starts
    assert any(f"tessera {' '.join(path)}" in line for line in lines[starts[0] :])


def test_the_package_is_a_program() -> None:
    """`python -m tessera` is the command line, under its own name."""
    command = [sys.executable, "-m", "tessera", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert result.stdout == f"tessera, version {__version__}\n"
