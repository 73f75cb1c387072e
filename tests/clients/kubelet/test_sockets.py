"""Sockets that plugins are served at: a stale one is replaced, and where none can be the error says why."""

import os
from pathlib import Path

import pytest

from harness.plugins import ScriptedPlugin
from tessera.clients.kubelet import serve
from tessera.clients.kubelet.sockets import identity
from tessera.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio


async def test_a_stale_socket_is_replaced(socket_folder: Path) -> None:
    path = socket_folder / "p.sock"
    first = await serve(ScriptedPlugin("a"), path)
    second = await serve(ScriptedPlugin("a"), path)
    assert (first.reachable, second.reachable) == (False, True)
    await first.stop()
    assert second.reachable
    await second.stop()
    path.write_text("not a socket")
    third = await serve(ScriptedPlugin("a"), path)
    assert third.reachable
    await third.stop()


def test_a_socket_made_anew_is_another_although_the_file_system_uses_its_inode_again(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert identity(path) is None
    path.touch()
    before = identity(path)
    assert before == identity(path) is not None
    os.utime(path, ns=(1, 1))
    assert identity(path) != before


# sentence: (path, error, what it says)
UNUSABLE: dict[str, tuple[str, type[Exception], str]] = {
    "a path of more bytes than a socket has": (f"/tmp/{'é' * 60}.sock", InvalidInput, "130 bytes"),
    "a folder that is not there": ("/tmp/tessera-absent/p.sock", Unavailable, "No such file or directory"),
    "a folder that cannot be written": ("/sys/p.sock", Unavailable, "writ"),
    "a file in place of the folder": ("/etc/passwd/p.sock", Unavailable, "Not a directory"),
    "a folder in place of the socket": ("/tmp/..", Unavailable, "directory"),
}


@pytest.mark.parametrize("case", UNUSABLE)
async def test_where_no_socket_can_be(case: str) -> None:
    path, error, want = UNUSABLE[case]
    with pytest.raises(error, match=want):
        await serve(ScriptedPlugin("a"), Path(path))
