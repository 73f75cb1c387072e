"""What runs inside the virtual machine, a class for each time it starts, on four disks that stay the same between."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.disksuite import ArraySuite, spec_of
from harness.diskworlds import HostWorld
from tessera.agent.storage.disks.preparing import observe_plan
from tessera.cli import main
from tessera.clients.disks import HostDisks
from tessera.core.storage.disks.plan import DiskState

BY_ID = "nvme-QEMU_NVMe_Ctrl_gpu?"
NAMES = tuple(Path(f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_gpu{number}").resolve().name for number in range(4))
MOUNT = Path("/mnt/disks/tessera")
KEPT = MOUNT / "model" / "weights"


def tessera(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Return what `tessera disks` printed as JSON; it has to exit with this code."""
    done = CliRunner().invoke(main, ["disks", *arguments, "--select", BY_ID, "-o", "json"])
    assert done.exit_code == code, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kill_while(command: list[str], doing: str, *, everything: bool) -> None:
    """Start a command, and kill it while a program that it runs has this argument; that one too, if everything."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                with contextlib.suppress(OSError):  # one that has ended
                    if doing.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                        process.kill()
                        if everything:
                            os.kill(int(child), signal.SIGKILL)
                        return
        assert process.stderr is not None
        pytest.fail(f"{doing} was not seen: {process.stderr.read().decode()}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HostWorld]:
    made = HostWorld(NAMES, tmp_path)
    yield made
    made.reboot()


class TestSuite(ArraySuite):
    """The disks of this machine do what every implementation does."""


class TestKilled:
    @pytest.mark.parametrize("everything", [False, True], ids=["its program goes on", "its program too"])
    @pytest.mark.parametrize("doing", ["--create", "mkfs.ext4"])
    def test_killed_in_the_middle_the_next_one_completes(self, world: HostWorld, doing: str, everything: bool) -> None:
        spec = spec_of(world)
        selected = [word for path in spec.select for word in ("--select", path)]
        place = ("--mount", spec.mount, "--state-dir", str(Path(spec.mount).parent))
        program = "from tessera.cli import main; main()"
        command = [sys.executable, "-c", program, "disks", "apply", "--yes", *selected, *place]
        kill_while(command, doing, everything=everything)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        while done.returncode == 5 and "at work on them" in done.stderr:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert asyncio.run(observe_plan(HostDisks(), spec)).state is DiskState.READY


class TestFirstStart:
    def test_blank_disks_are_made_ready(self) -> None:
        assert tessera("status", code=1)["state"] == "pending"
        made = tessera("apply", "--yes")
        assert made["state"] == "ready"
        assert [disk["serial"] for disk in made["disks"]] == ["gpu0", "gpu1", "gpu2", "gpu3"]
        assert made["free_bytes"] > 1200 << 20
        KEPT.parent.mkdir()
        KEPT.write_bytes(b"weights" * 100_000)


class TestSecondStart:
    def test_after_a_reboot_the_files_are_there_again(self) -> None:
        assert not MOUNT.is_mount()
        # udev has assembled the array.
        assert [step["do"] for step in tessera("plan")["steps"]] == ["mount"]
        assert tessera("apply", "--yes")["state"] == "ready"
        assert KEPT.read_bytes() == b"weights" * 100_000
        assert tessera("apply", "--yes")["steps"] == []

    def test_a_disk_that_is_pulled_out_is_said(self) -> None:
        Path(f"/sys/block/{NAMES[2]}/device/device/remove").write_text("1")
        found = tessera("status", code=1)
        assert found["state"] == "disk lost"
        assert "1 of its 4 disks is missing" in found["reasons"][0]
        assert tessera("apply", "--yes", code=5)["state"] == "disk lost"


class TestThirdStart:
    def test_with_the_disk_back_in_its_place_all_is_well(self) -> None:
        assert tessera("apply", "--yes")["state"] == "ready"
        assert KEPT.read_bytes() == b"weights" * 100_000


class TestFourthStart:
    def test_a_blank_disk_in_the_place_of_one_is_no_reason_to_format(self) -> None:
        found = tessera("apply", "--yes", code=5)
        assert (found["state"], found["steps"]) == ("disk lost", [])
        assert [disk["content"] for disk in found["disks"]] == ["member", "blank", "member", "member"]
