"""Locks of GPUs between processes: who has one is named, and its end frees it, however it comes."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.virtualtime import run
from tessera.agent.partition import NodeLocks
from tessera.errors import Conflict

HOLDER = """
import asyncio, sys
from pathlib import Path
from tessera.agent.partition import NodeLocks

async def main():
    async with NodeLocks(Path(sys.argv[1])).hold("GPU-0", by_s=0.0):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def take(locks: NodeLocks, gpu: str = "GPU-0", wait_s: float = 0.0) -> None:
    """Lock a GPU and free it again."""
    async with locks.hold(gpu, asyncio.get_running_loop().time() + wait_s):
        assert locks.problem == ""


def test_one_at_a_time_for_each_gpu(tmp_path: Path) -> None:
    one, other = NodeLocks(tmp_path / "locks"), NodeLocks(tmp_path / "locks")

    async def check() -> None:
        async with one.hold("GPU-0", by_s=0.0):
            await take(other, "GPU-1")
            with pytest.raises(Conflict, match=rf"`.*` \(pid {os.getpid()}, since 2\d\d\d-.* is changing its layout"):
                await take(other)
            with pytest.raises(Conflict, match="run the command again when it has ended"):
                await take(other, wait_s=5.0)
        await take(other)

    run(check())


def test_it_is_waited_for(tmp_path: Path) -> None:
    one, other = NodeLocks(tmp_path), NodeLocks(tmp_path)

    async def check() -> None:
        async with asyncio.TaskGroup() as tasks, one.hold("GPU-0", by_s=0.0):
            waiting = tasks.create_task(take(other, wait_s=60.0))
            await asyncio.sleep(30)
            assert not waiting.done()

    run(check())


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match=rf"`-c {tmp_path}` \(pid {holder.pid}, since "):
            asyncio.run(take(NodeLocks(tmp_path)))
        holder.kill()
        holder.wait()
        asyncio.run(take(NodeLocks(tmp_path)))


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (b"", "another process"),
        (b"\xff", "another process"),
        (
            b'{"pid": 7, "host": "elsewhere", "command": "x", "since": "then"}',
            r"`x` \(pid 7 on elsewhere, since then\)",
        ),
        (
            b'{"pid": 7, "host": "%s", "command": "x", "since": "then"}' % socket.gethostname().encode(),
            r"`x` \(pid 7, since then\)",
        ),
    ],
)
def test_whoever_holds_it_is_named_as_far_as_is_known(content: bytes, want: str, tmp_path: Path) -> None:
    one, other = NodeLocks(tmp_path), NodeLocks(tmp_path)

    async def check() -> None:
        async with one.hold("GPU-0", by_s=0.0):
            (tmp_path / "GPU-0.lock").write_bytes(content)
            with pytest.raises(Conflict, match=f"{want} is changing its layout"):
                await take(other)

    run(check())


def test_where_there_can_be_none_it_goes_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    locks = NodeLocks(tmp_path / "file")

    async def check() -> None:
        async with locks.hold("GPU-0", by_s=0.0):
            assert "File exists, so nothing keeps other processes from changing the same GPU" in locks.problem

    run(check())
