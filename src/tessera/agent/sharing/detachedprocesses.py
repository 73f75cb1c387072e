"""Processes that outlive the agent: started in a session of their own, found again, and ended."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from tessera.errors import Unavailable

__all__ = ["belongs", "end", "gone", "identity", "launch", "ran", "same_files", "variable"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROC = Path("/proc")
_STATE, _START = 0, 19
"""Positions after the name in `/proc/PID/stat`. Source: proc_pid_stat(5), fields 3 and 22."""
_POLL_S = 0.05
_MAX_OUTPUT = 1 << 16


def identity(pid: int) -> str:
    """Return what distinguishes this process from any other with its process id; empty where it has ended.

    A child of this process that has ended is reaped.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        _, _, fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")
        boot = _BOOT.read_text().strip()
    except OSError:
        return ""
    words = fields.split()
    return "" if words[_STATE] in {"Z", "X"} else f"{boot}/{words[_START]}"


def belongs(pid: int, name: str, variable: str) -> bool:
    """Return whether a process outside of containers runs a program of this name with this variable `NAME=value`.

    A process in a container may claim anything; it is in another PID namespace than this process.
    """
    process = _PROC / str(pid)
    try:
        same = (process / "ns" / "pid").readlink() == (_PROC / "self" / "ns" / "pid").readlink()
        words, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
    except OSError:
        return False
    named = any(word.rpartition(b"/")[2] == name.encode() for word in words.split(b"\0"))
    return same and named and variable.encode() in variables.split(b"\0")


def variable(pid: int, name: str) -> str:
    """Return a variable of a process's environment; empty where it has none, or has ended."""
    try:
        text = os.fsdecode((_PROC / str(pid) / "environ").read_bytes())
    except OSError:
        return ""
    return dict(each.partition("=")[::2] for each in text.split("\0")).get(name, "")


def same_files(pid: int) -> bool:
    """Return whether a process has the same files as this one; True where that is unknown."""
    try:
        return (_PROC / str(pid) / "ns" / "mnt").readlink() == (_PROC / "self" / "ns" / "mnt").readlink()
    except OSError:
        return True


async def launch(command: tuple[str, ...], env: Mapping[str, str], log: Path, timeout_s: float) -> int:
    """Start a program that outlives this one, its output appended to `log`; return its process id.

    Raises:
        Unavailable: no process could be started.

    """
    # The shell ends at once, so that the program becomes a child of init, and in no session of ours.
    script = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
    output = await ran(("/bin/sh", "-c", script, "sh", str(log), *command), "", env, timeout_s, session=True)
    if not output.strip().isdecimal():
        raise Unavailable(command[0], found=output.strip() or "no answer", hint="see `tessera doctor`")
    return int(output)


async def ran(
    command: tuple[str, ...], text: str, env: Mapping[str, str], timeout_s: float, *, session: bool = False
) -> str:
    """Return the output of a short program with `text` as its input, of less than a pipe's capacity.

    Raises:
        Unavailable: it cannot be run, fails, or does not end in time; then it is killed.

    """
    # Written before it runs: no pipe breaks, whether it reads the input or not.
    given, writing = os.pipe()
    try:
        os.write(writing, text.encode())
        os.close(writing)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=given,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(env),
            start_new_session=session,
        )
    except OSError as error:
        raise Unavailable(
            command[0], found=error.strerror or "an error", hint="install the program, or name it by --mps-control"
        ) from error
    finally:
        os.close(given)
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise Unavailable(command[0], found=f"no answer within {timeout_s:g} s", hint="see `tessera doctor`") from error
    answer = output[:_MAX_OUTPUT].decode(errors="replace").strip()
    if process.returncode:
        found = f"exit status {process.returncode}: {answer[:200]}"
        raise Unavailable(command[0], found=found, hint="see `tessera doctor`")
    return answer


async def end(pid: int, known: str, timeout_s: float) -> None:
    """End the process `pid` if it is still the one `known` identifies: SIGTERM first, SIGKILL after the timeout."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if identity(pid) != known:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        await gone(pid, known, timeout_s)


async def gone(pid: int, known: str, timeout_s: float) -> bool:
    """Return whether a process ends within the timeout."""
    until = asyncio.get_running_loop().time() + timeout_s
    while True:
        if identity(pid) != known:
            return True
        if asyncio.get_running_loop().time() > until:
            return False
        await asyncio.sleep(_POLL_S)
