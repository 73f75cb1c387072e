"""`tessera disks` on a kernel with RAID and four NVMe disks: the suite, reboots, a disk pulled out, a disk replaced."""

import shlex
from pathlib import Path

import pytest

from testbed.guest import PROGRAMS, boot, build, lack

ROOT = Path(__file__).parents[2]
DISK_BYTES = 400 << 20
TIMEOUT_S = 900.0
PYTEST = (
    "python -m pytest -q --color=no -c /dev/null --rootdir=/tmp --noconftest -p anyio.pytest_plugin -p no:cacheprovider"
    " --import-mode=importlib --basetemp=/tmp/tests -rA --tb=short"
)


class Machine:
    """A virtual machine with four disks."""

    def __init__(self, folder: Path) -> None:
        self._root = build(folder, ROOT)
        self._disks = {f"gpu{number}": folder / f"gpu{number}.img" for number in range(4)}
        for serial in self._disks:
            self.replace(serial)

    def replace(self, serial: str) -> None:
        """Put a blank disk in the place of one."""
        with self._disks[serial].open("wb") as file:
            file.truncate(DISK_BYTES)

    def passes(self, name: str, *, udev: bool = True) -> int:
        """Start the machine, run a class of `inside.py`, and return how many of its tests passed; all have to."""
        what = shlex.quote(f"/checkout/tests/guest/inside.py::{name}")
        ran = boot(self._root, self._disks, f"cd /tmp && {PYTEST} {what}", TIMEOUT_S, udev=udev)
        assert ran.code == 0, ran.output
        return ran.output.count("PASSED ")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    if missing := lack():
        pytest.skip(f"a virtual machine needs {missing}; on Debian: apt-get install {' '.join(PROGRAMS.values())}")
    return Machine(tmp_path_factory.mktemp("guest"))


def test_disks_of_a_machine_do_what_every_implementation_does(machine: Machine) -> None:
    assert machine.passes("TestSuite", udev=False) >= 20


def test_disks_through_reboots_a_pull_and_a_replacement_beside_udev(machine: Machine) -> None:
    for serial in ("gpu0", "gpu1", "gpu2", "gpu3"):
        machine.replace(serial)
    assert machine.passes("TestFirstStart") == 1
    assert machine.passes("TestSecondStart") == 2
    assert machine.passes("TestThirdStart") == 1
    machine.replace("gpu1")
    assert machine.passes("TestFourthStart") == 1


def test_killed_in_the_middle_beside_udev_and_without(machine: Machine) -> None:
    assert machine.passes("TestKilled") == 4
    assert machine.passes("TestKilled", udev=False) == 4
