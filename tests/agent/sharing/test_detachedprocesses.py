"""Programs that outlive the agent, and short ones that answer or do not."""

import os
import subprocess
from pathlib import Path

import pytest

from tessera.agent.sharing.detachedprocesses import end, gone, identity, launch, ran, same_files
from tessera.errors import Unavailable


@pytest.mark.anyio
async def test_a_program_is_launched_in_a_session_of_its_own_with_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = await launch(("/bin/sh", "-c", "echo $NAME; exec sleep 60"), {"NAME": "x", "PATH": "/usr/bin:/bin"}, log, 20)
    known = identity(pid)
    assert known
    assert os.getsid(pid) != os.getsid(0)
    assert not await gone(pid, known, 0.2)
    assert log.read_text() == "x\n"
    await end(pid, "another process of that number", 1)
    assert identity(pid) == known
    await end(pid, known, 20)
    assert identity(pid) != known
    await end(pid, known, 20)


@pytest.mark.anyio
async def test_a_program_that_ignores_being_asked_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = await launch(("sh", "-c", "trap '' TERM; echo ready; exec sleep 60"), os.environ, log, 20)
    known = identity(pid)
    while not log.read_text():
        assert not await gone(pid, known, 0.05)
    await end(pid, known, 0.3)
    assert identity(pid) != known


def test_a_child_that_ended_has_no_identity() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert identity(child.pid) == ""


@pytest.mark.anyio
async def test_a_program_answers() -> None:
    assert await ran(("cat",), "hello\n", os.environ, 20) == "hello"


FAILURES = {
    "not there": (
        ("/nowhere/program",),
        20.0,
        "/nowhere/program: No such file or directory: install the program, or name it by --mps-control",
    ),
    "failing": (("sh", "-c", "echo why; exit 3"), 20.0, "sh: exit status 3: why: see `tessera doctor`"),
    "silent": (("sleep", "60"), 0.3, "sleep: no answer within 0.3 s: see `tessera doctor`"),
}


@pytest.mark.parametrize(("command", "timeout_s", "want"), FAILURES.values(), ids=FAILURES)
@pytest.mark.anyio
async def test_why_there_is_no_answer(command: tuple[str, ...], timeout_s: float, want: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await ran(command, "", os.environ, timeout_s)
    assert str(caught.value).startswith(want)


@pytest.mark.anyio
async def test_nothing_is_launched_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="see `tessera doctor`"):
        await launch(("sleep", "60"), os.environ, tmp_path / "no" / "log", 20)


def test_files_of_this_process_and_those_of_one_that_has_ended() -> None:
    assert same_files(os.getpid())
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert same_files(child.pid)
