"""The root command: help, exit codes, one line an error, environment names."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

import tessera.cli
from tessera import __version__
from tessera.cli import COMMANDS, main
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported


class Sorry(Conflict):
    """A conflict of a particular kind."""


ERRORS: dict[str, tuple[Callable[[], BaseException], int, str]] = {
    "wrong input": (
        lambda: InvalidInput("pod a", found="-1", expected="a count"),
        2,
        "error: pod a: -1 is not a count\n",
    ),
    "impossible here": (
        lambda: Unsupported("gpu 0", found="T4", expected="MIG"),
        3,
        "error: gpu 0: T4 is not MIG\n",
    ),
    "no answer": (
        lambda: Unavailable("api", found="silence", expected="nodes"),
        4,
        "error: api: silence is not nodes\n",
    ),
    "world changed": (lambda: Conflict("node a", found="v2", expected="v1"), 5, "error: node a: v2 is not v1\n"),
    "a kind of a branch": (lambda: Sorry("node a", found="v2", expected="v1"), 5, "error: node a: v2 is not v1\n"),
    "the root of the tree": (lambda: TesseraError("x", found="y", expected="z"), 1, "error: x: y is not z\n"),
    "lines are joined": (
        lambda: InvalidInput("pod", found="a\n  b", expected="c"),
        2,
        "error: pod: a b is not c\n",
    ),
    "wrong use, from inside": (
        lambda: click.BadParameter("no such policy"),
        2,
        "error: Invalid value: no such policy; try `tessera fail --help`\n",
    ),
    "a defect": (
        lambda: ZeroDivisionError("division by zero"),
        1,
        "error: unexpected ZeroDivisionError: division by zero; run `tessera --debug ...` and report what it prints\n",
    ),
    "the disk is full": (
        lambda: OSError(errno.ENOSPC, "No space left on device"),
        4,
        "error: the operating system: No space left on device: try again\n",
    ),
    "the user may not": (
        lambda: PermissionError(errno.EACCES, "Permission denied", "/mnt/models/.tessera"),
        2,
        "error: /mnt/models/.tessera: Permission denied: run it as a user with access to it, or as root\n",
    ),
    "interrupted": (KeyboardInterrupt, 130, "\n"),
    "the reader went away": (lambda: BrokenPipeError(errno.EPIPE, "broken pipe"), 141, ""),
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Put a command `fail` beside the others, which raises what the test wants."""
    raised: list[BaseException] = []

    @click.command()
    @click.option("--gpus", type=int, default=0)
    def fail(gpus: int) -> None:
        click.echo(f"gpus {gpus}")
        if raised:
            raise raised[0]

    monkeypatch.setitem(COMMANDS, "fail", "Fail.")
    get_command = main.get_command
    monkeypatch.setattr(main, "get_command", lambda ctx, name: fail if name == "fail" else get_command(ctx, name))
    return raised.append


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_and_an_exit_code(case: str, failing: Callable[[BaseException], None]) -> None:
    make, want_code, want_text = ERRORS[case]
    failing(make())
    result = CliRunner().invoke(main, ["fail"], prog_name="tessera")
    assert (result.exit_code, result.stderr) == (want_code, want_text)


@pytest.mark.parametrize("arguments", [["profiles"], ["profiles", "-o", "json"], ["--help"], ["plan", "--help"]])
def test_a_command_ends_quietly_as_others_do_whose_output_is_read_no_more(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-c", "from tessera.cli import main; main()", *arguments]
    ended = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


CLOSED = {
    "standard error, and all is well": ("plan --gpus T4 2>&-", 0),
    "standard error, where an error is printed": ("plan --gpus T4 -f nothing.yaml 2>&-", 2),
    "standard input, which is read": ("plan --gpus T4 -f - <&-", 0),
    "standard output": ("plan --gpus T4 >&-", 0),
    "all": ("plan --gpus T4 -f - <&- >&- 2>&-", 0),
}


@pytest.mark.parametrize("case", CLOSED)
def test_a_stream_that_is_closed_is_no_defect(case: str) -> None:
    arguments, want = CLOSED[case]
    program = f"{sys.executable} -c 'from tessera.cli import main; main()' {arguments}"
    ended = subprocess.run(["bash", "-c", program], capture_output=True, check=False, timeout=60)
    assert (ended.returncode, b"unexpected" in ended.stderr) == (want, False), ended.stderr


def test_the_traceback_of_a_defect_is_printed_when_asked_for(failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError("division by zero"))
    by_flag = CliRunner().invoke(main, ["--debug", "fail"])
    by_environment = CliRunner().invoke(main, ["fail"], env={"TESSERA_DEBUG": "1"})
    for result in (by_flag, by_environment):
        assert result.exit_code == 1
        assert "Traceback" in result.stderr
        assert "\nerror: unexpected ZeroDivisionError" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "want"),
    [
        pytest.param([], {}, "gpus 0\n", id="default"),
        pytest.param([], {"TESSERA_FAIL_GPUS": "3"}, "gpus 3\n", id="environment over default"),
        pytest.param(["--gpus", "2"], {"TESSERA_FAIL_GPUS": "3"}, "gpus 2\n", id="flag over environment"),
    ],
)
@pytest.mark.usefixtures("failing")
def test_every_option_has_an_environment_name(arguments: list[str], environment: dict[str, str], want: str) -> None:
    result = CliRunner().invoke(main, ["fail", *arguments], env=environment)
    assert (result.exit_code, result.stdout) == (0, want)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["nope"], "error: No such command 'nope'; try `tessera --help`\n", id="unknown command"),
        pytest.param(
            ["plam"],
            "error: No such command 'plam'. Did you mean 'plan'? Try `tessera --help`\n",
            id="a command mistyped",
        ),
        pytest.param(
            ["plan", "--polcy", "x"],
            "error: No such option '--polcy'. Did you mean '--policy'? Try `tessera plan --help`\n",
            id="an option mistyped",
        ),
        pytest.param(["--nope"], "error: No such option '--nope'; try `tessera --help`\n", id="unknown option"),
        pytest.param(
            ["fail", "--gpus", "x"],
            "error: --gpus: 'x' is not a whole number: try `tessera fail --help`\n",
            id="wrong value of a command's option",
        ),
        pytest.param(
            ["fail", "--gpus", "x" * 5000],
            f"error: --gpus: '{'x' * 64}...' is not a whole number: try `tessera fail --help`\n",
            id="a long value is not repeated",
        ),
    ],
)
@pytest.mark.usefixtures("failing")
def test_wrong_use_is_wrong_input(arguments: list[str], want: str) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="tessera")
    assert (result.exit_code, result.stderr, result.stdout) == (2, want, "")


def test_without_a_command_help_is_printed() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_help_names_commands_exit_codes_environment_and_completion() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for want in (*COMMANDS, "Exit codes:", "130  interrupted", "TESSERA_PLAN_POLICY", "tessera completion bash"):
        assert want in result.stdout


def test_version_is_the_distribution_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tessera, version {__version__}\n")


def test_the_lines_of_the_root_help_are_those_of_the_commands() -> None:
    context = click.Context(main)
    got = {name: main.get_command(context, name) for name in main.list_commands(context)}
    assert {name: command and command.get_short_help_str(limit=200) for name, command in got.items()} == COMMANDS


def test_called_from_python_errors_are_left_alone(failing: Callable[[BaseException], None]) -> None:
    failing(Conflict("node a", found="v2", expected="v1"))
    with pytest.raises(Conflict):
        tessera.cli.main.main(["fail"], standalone_mode=False)
