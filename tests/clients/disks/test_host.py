"""The machine's own disks, as far as loop devices show them: no RAID. tests/guest has the whole."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.disksuite import DisksSuite, spec_of
from harness.diskworlds import HostWorld, attached
from tessera.agent.storage.disks.preparing import observe_plan, prepare
from tessera.core.storage.disks.steps import StopArray
from tessera.errors import InvalidInput, Unavailable


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    folder = tmp_path_factory.mktemp("images")
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(attached(folder / f"{number}.img")).removeprefix("/dev/") for number in range(4)
        )


class TestLoopDevices(DisksSuite):
    @pytest.fixture
    def world(self, names: tuple[str, ...], tmp_path: Path) -> Iterator[HostWorld]:
        made = HostWorld(names, tmp_path)
        yield made
        made.reboot()

    async def test_what_only_the_kernel_knows_to_be_in_use_is_refused(self, world: HostWorld) -> None:
        number = os.open(f"/dev/{world.names[0]}", os.O_RDONLY | os.O_EXCL)
        try:
            plan = await prepare(world.disks, spec_of(world, 1))
        finally:
            os.close(number)
        assert plan.reasons == (f"{world.names[0]} cannot be read: Device or resource busy",)

    async def test_the_error_of_a_program_that_fails_is_reported(
        self, world: HostWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        program = tmp_path / "mdadm"
        program.write_text("#!/bin/sh\necho 'mdadm: no such array' >&2; exit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(Unavailable, match="mdadm --stop /dev/md9: exit status 1: mdadm: no such array"):
            await world.disks.apply(StopArray(device="/dev/md9"))

    async def test_a_program_that_hangs_is_ended_and_reported(
        self, world: HostWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        program = tmp_path / "mdadm"
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setattr("tessera.clients.disks.host._STEP_S", 0.3)
        said = r"mdadm --stop /dev/md9: timed out after 0\.3 s: look for disk errors in the kernel log"
        with pytest.raises(Unavailable, match=said):
            await world.disks.apply(StopArray(device="/dev/md9"))

    async def test_a_record_that_nobody_can_read_is_refused(self, world: HostWorld) -> None:
        state = Path(world.mount_point).parent / "state"
        state.mkdir()
        for text in ("", "{}", "[", '{"array": 1, "filesystem": ""}'):
            (state / "creation.json").write_text(text)
            with pytest.raises(InvalidInput, match=r"creation\.json"):
                await observe_plan(world.disks, spec_of(world))
