"""A program reboots the node, and the request survives the reboot."""

from pathlib import Path

import pytest

from tessera.agent.partition import RebootRecord, reboot
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio


async def test_the_command_gets_its_arguments_as_they_are(tmp_path: Path) -> None:
    mark = tmp_path / "a name; with $signs"
    await reboot(("/bin/sh", "-c", 'echo "$1" >"$0"', str(mark), "$HOME `id`"))
    assert mark.read_text() == "$HOME `id`\n"


@pytest.mark.parametrize(
    ("command", "want"),
    [
        (("/nowhere/reboot",), "/nowhere/reboot: No such file or directory"),
        (("/bin/sh", "-c", "echo not allowed; exit 3"), "exit status 3: not allowed"),
    ],
)
async def test_a_command_that_fails_says_how(command: tuple[str, ...], want: str) -> None:
    with pytest.raises(Unavailable, match=want):
        await reboot(command)


async def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
        await reboot(("/bin/sleep", "60"), deadline_s=0.1)


def test_what_is_written_down_is_found_by_the_next_agent(tmp_path: Path) -> None:
    path = tmp_path / "state" / "rebooted"
    assert not RebootRecord(path).holds("all-1g.5gb")
    RebootRecord(path).write("all-1g.5gb")
    assert RebootRecord(path).holds("all-1g.5gb")
    assert not RebootRecord(path).holds("all-1g")
    RebootRecord(path).forget()
    assert not RebootRecord(path).holds("all-1g.5gb")
    RebootRecord(path).forget()


def test_in_doubt_a_reboot_was_requested(tmp_path: Path) -> None:
    """A record that cannot be read keeps the node from a reboot."""
    path = tmp_path / "rebooted"
    path.mkdir()
    record = RebootRecord(path)
    assert record.holds("any")
    with pytest.raises(Unavailable, match="else the node might reboot again and again"):
        record.write("any")
    record.forget()
    assert list(tmp_path.iterdir()) == [path]
