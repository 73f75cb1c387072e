"""Options that several commands share: numbers that are numbers, files written whole or not at all."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tessera.cli import COMMANDS, main
from tessera.cli.options import Number, PortNumber, Seconds, WholeNumber, output_option, write_output, write_outputs
from tessera.errors import InvalidInput

BOUNDS: dict[str, tuple[click.ParamType[Any], str]] = {
    "both": (WholeNumber(1, 100), "--given N  [1 to 100]"),
    "the least": (WholeNumber(1), "--given N  [at least 1]"),
    "the least, and what a number's format can hold": (WholeNumber(1, (1 << 31) - 1), "--given N  [at least 1]"),
    "none below 0": (WholeNumber(0, 1 << 31), "--given N"),
    "those of a format": (WholeNumber(-(1 << 31), (1 << 31) - 1), "--given N"),
    "a port": (PortNumber(1), "--given PORT  [1 to 65535]"),
    "any time": (Seconds(), "--given SECONDS  [more than 0]"),
    "a time": (Seconds(0.1, 31_536_000), "--given SECONDS  [at least 0.1]"),
    "open below": (Number(0, 100, min_open=True), "--given NUMBER  [more than 0, at most 100]"),
    "open above": (Number(0, 100, max_open=True), "--given NUMBER  [less than 100]"),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_help_names_a_number_and_the_bounds_that_say_something(case: str) -> None:
    kind, want = BOUNDS[case]
    command = click.Command("it", params=[click.Option(["--given"], type=kind)])
    (line,) = (each for each in CliRunner().invoke(command, ["--help"]).output.splitlines() if "--given" in each)
    assert line.strip() == want


def test_a_file_is_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    write_output(target, "<svg/>\n")
    write_output(target, b"<svg>\xff</svg>\n")
    assert target.read_bytes() == b"<svg>\xff</svg>\n"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "want").write_text("")
    write_output(tmp_path / "got", "x")
    assert stat.S_IMODE((tmp_path / "got").stat().st_mode) == stat.S_IMODE((tmp_path / "want").stat().st_mode)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_output(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_a_device_is_written_to_directly() -> None:
    write_output(os.devnull, "x")
    assert not Path(os.devnull).is_file()


def test_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_output("-", "a\n")
    assert capfdbinary.readouterr().out == b"a\n"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("folder", "Is a directory", id="a folder"),
        pytest.param("absent/plan.svg", "No such file or directory", id="in no folder"),
        pytest.param("file/plan.svg", "Not a directory", id="below a file"),
    ],
)
def test_what_cannot_be_written_is_wrong_input_and_leaves_nothing(name: str, want: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InvalidInput, match=f"{want}"):
        write_output(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_of_files_is_made_and_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").write_text("kept")
    (tmp_path / "out" / "labels.yaml").write_text("old")
    write_outputs(tmp_path / "out", {"labels.yaml": "new", "node-a/mig.yaml": b"version: v1\n"})
    write_outputs(tmp_path / "deep" / "out", {"a": "1"})
    got = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert got == {
        "out/other": "kept",
        "out/labels.yaml": "new",
        "out/node-a/mig.yaml": "version: v1\n",
        "deep/out/a": "1",
    }


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(["a", "new/b", "folder"], "Is a directory", id="one of them is a folder"),
        pytest.param(["a", "new/b", "file/c"], "File exists|Not a directory", id="one of them lies below a file"),
    ],
)
def test_of_a_folder_of_files_all_are_written_or_none(names: list[str], want: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InvalidInput, match=f"({want})"):
        write_outputs(tmp_path, dict.fromkeys(names, "x"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"


def test_the_first_format_is_the_default() -> None:
    @click.command()
    @output_option("table", "json")
    def show(output: str) -> None:
        click.echo(output)

    assert CliRunner().invoke(show).stdout == "table\n"
    assert CliRunner().invoke(show, ["-o", "json"]).stdout == "json\n"
    assert CliRunner().invoke(show, ["-o", "xml"]).exit_code == 2


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Parameter]]:
    """Yield every parameter of a command and of those below it, with the command's words."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _options(below, click.Context(below, parent=context, info_name=name))
    else:
        yield from ((context.command_path, each) for each in command.params)


NUMBERS: dict[str, click.ParamType[float]] = {
    f"{path} {each.opts[0]}": each.type
    for path, each in _options(main, click.Context(main, info_name="tessera"))
    if isinstance(each.type, click.types.FloatParamType)
}


def test_all_commands_are_looked_at() -> None:
    assert {name.split()[1] for name in NUMBERS} <= set(COMMANDS)
    assert {"tessera agent --pending-s", "tessera mig apply --timeout", "tessera plan --limit"} <= set(NUMBERS)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "x", ""])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_finite_number_is_refused_by_every_option(name: str, text: str) -> None:
    assert isinstance(NUMBERS[name], Number)
    with pytest.raises(click.BadParameter):
        NUMBERS[name].convert(text, None, None)


@pytest.mark.parametrize("name", [each for each, kind in NUMBERS.items() if isinstance(kind, Seconds)])
def test_no_time_is_none_or_less(name: str) -> None:
    kind = NUMBERS[name]
    assert isinstance(kind, Seconds)
    for text in ("0", "-1"):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    enough = max(2.5, kind.min or 0.0)
    assert kind.convert(str(enough), None, None) == enough


def test_every_option_in_seconds_is_of_that_type() -> None:
    seconds = {name for name in NUMBERS if name.endswith(("-s", "--timeout", "--limit")) and "--create-s" not in name}
    assert seconds == {name for name, kind in NUMBERS.items() if isinstance(kind, Seconds)}
