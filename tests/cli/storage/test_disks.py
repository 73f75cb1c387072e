"""`tessera disks` shows, does and checks what the disks of a node need, and says why it does not."""

import json

import msgspec
import pytest
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.clients.disks import MemoryDisks
from tessera.core.storage.disks.blockdevices import BlockDevice, Signature

GIB = 1 << 30


def disks_of_node(count: int = 2) -> MemoryDisks:
    return MemoryDisks(
        BlockDevice(
            name=f"nvme{number}n1",
            kind="disk",
            size_bytes=375 * GIB,
            model="nvme_card",
            links=(f"google-local-nvme-ssd-{number}",),
        )
        for number in range(count)
    )


def tessera(disks: MemoryDisks, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["disks", *arguments], obj=disks, input=answer)


def test_a_plan_shows_disks_and_commands_and_changes_nothing() -> None:
    disks = disks_of_node()
    for _ in range(2):
        done = tessera(disks, "plan", "-o", "wide")
        assert done.exit_code == 0
        assert "nvme1n1  375 GiB  nvme_card  blank" in done.stdout
        assert "mdadm --create /dev/md/tessera" in done.stdout
        assert "mount -o noatime /dev/md/tessera /mnt/disks/tessera" in done.stdout


def test_a_plan_as_json_has_each_command_as_a_list() -> None:
    found = json.loads(tessera(disks_of_node(), "plan", "--filesystem", "xfs", "-o", "json").stdout)
    assert found["state"] == "pending"
    assert [step["do"] for step in found["steps"]] == ["record-creation", "create-array", "make-filesystem", "mount"]
    assert [step["command"][:1] for step in found["steps"]] == [[], ["mdadm"], ["mkfs.xfs"], ["mount"]]
    assert [disk["content"] for disk in found["disks"]] == ["blank", "blank"]


def test_apply_asks_and_does_nothing_without_consent() -> None:
    disks = disks_of_node()
    for answer in ("n\n", ""):
        done = tessera(disks, "apply", answer=answer)
        assert done.exit_code == 2
        assert "--yes without a terminal" in done.stderr
        assert tessera(disks, "status").exit_code == 1


@pytest.mark.parametrize(("options", "answer"), [((), "y\n"), (("--yes",), "")])
def test_apply_makes_disks_ready_and_the_second_time_asks_nothing(options: tuple[str, ...], answer: str) -> None:
    disks = disks_of_node()
    done = tessera(disks, "apply", *options, answer=answer)
    assert done.exit_code == 0, done.stderr
    assert "ready: /dev/md127 at /mnt/disks/tessera" in done.stdout
    assert done.stderr.count("done: ") == 4
    again = tessera(disks, "apply")
    assert (again.exit_code, again.stderr) == (0, "")
    assert tessera(disks, "status").exit_code == 0


def test_status_reports_that_a_disk_is_lost_and_apply_refuses() -> None:
    disks = disks_of_node()
    assert tessera(disks, "apply", "--yes").exit_code == 0
    disks.remove("nvme1n1")
    done = tessera(disks, "status")
    assert done.exit_code == 1
    assert "1 of its 2 disks is missing" in done.stdout
    assert "`umount /dev/md127` for each mount, `mdadm --stop /dev/md127`, `wipefs --all /dev/nvme0n1`" in done.stdout
    refused = tessera(disks, "apply", "--yes")
    assert refused.exit_code == 5
    assert "1 of its 2 disks is missing" in refused.stderr
    assert "wipefs --all" in refused.stderr
    assert json.loads(tessera(disks, "status", "-o", "json").stdout)["state"] == "disk lost"


def test_foreign_data_is_refused_with_the_code_of_a_conflict() -> None:
    disks = disks_of_node()
    blank = BlockDevice(name="nvme1n1", kind="disk", size_bytes=GIB, links=("google-local-nvme-ssd-1",))
    disks.put(msgspec.structs.replace(blank, signature=Signature(kind="xfs", label="\x1b[31mred")))
    for verb in (("plan",), ("apply", "--yes")):
        done = tessera(disks, *verb)
        assert done.exit_code == 5
        assert "nvme1n1 has a signature of 'xfs' labeled '\\x1b[31mred'" in done.stderr


def test_a_model_that_a_disk_gives_itself_draws_nothing_on_the_terminal() -> None:
    disks = disks_of_node(1)
    named = BlockDevice(
        name="nvme0n1", kind="disk", size_bytes=GIB, model="\x1b[2Jx", links=("google-local-nvme-ssd-0",)
    )
    disks.put(named)
    assert "\x1b" not in tessera(disks, "plan").stdout


def test_without_disks_the_code_reports_that_this_node_cannot() -> None:
    done = tessera(MemoryDisks(), "plan")
    assert done.exit_code == 3
    assert "this node has no disk" in done.stderr


def test_a_spec_that_cannot_be_is_wrong_input() -> None:
    assert tessera(disks_of_node(), "plan", "--mount", "relative").exit_code == 2
    assert tessera(disks_of_node(), "apply", "--name", "far too long a name").exit_code == 2
