"""Processes that leave the control groups of the agent's pod, on a machine of plain files.

The kernel's own answer is in `tests/kube/test_image.py`.
"""

from pathlib import Path

import pytest

from tessera.agent.sharing.leavepod import leave_pod

PID = 77
VERSION_1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
VERSION_2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
POD = "/kubepods/besteffort/pod123/abc"
CASES: dict[str, tuple[str, str, set[str]]] = {
    "version 2, systemd's names": (VERSION_2, "0::/kubepods.slice/kubepods-pod1.slice/cri-abc.scope", {""}),
    "version 2, a kubelet with a root of its own": (
        VERSION_2,
        "0::/kubelet.slice/kubelet-kubepods.slice/x",
        {"kubelet.slice"},
    ),
    "version 1, each hierarchy": (
        VERSION_1,
        f"4:cpuacct,cpu:/node1{POD}\n3:cpuset:{POD}\n2:name=systemd:{POD}\n0::{POD}",
        {"cpu,cpuacct/node1", "cpuset", "systemd", "unified"},
    ),
    "in no pod": (VERSION_2, "0::/system.slice/tessera-agent.service", set()),
    "in a pod in one hierarchy alone": (VERSION_1, f"3:cpuset:{POD}\n2:name=systemd:/\n0::/", {"cpuset"}),
}


def machine(folder: Path, mounts: str, groups: str) -> Path:
    """Make a process table with this process, and control groups as far up as the kubelet's root."""
    for path, text in (("1/mountinfo", mounts), (f"{PID}/cgroup", groups + "\n")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    top = folder / "1" / "root" / "sys" / "fs" / "cgroup"
    for name in ("cpuset", "cpu,cpuacct/node1", "systemd", "unified", "kubelet.slice"):
        (top / name).mkdir(parents=True, exist_ok=True)
    return top


ODD = {"bytes that are no UTF-8": b"d\xe9", "a line separator": "a\u2028b".encode(), "a form feed": b"a\x0cb"}


@pytest.mark.parametrize("name", ODD.values(), ids=ODD)
def test_odd_names_of_mounted_folders_are_in_nobodys_way(tmp_path: Path, name: bytes) -> None:
    """A pod brings them about by its `subPath`, or by a link there: mountinfo shows which folder that is."""
    top = machine(tmp_path, VERSION_2, f"0::{POD}")
    other = b"90 23 0:27 /vol/%b /var/lib/kubelet/pods/u/volume-subpaths/v/c/0 rw - ext4 /dev/vda rw\n" % name
    (tmp_path / "1/mountinfo").write_bytes(other + VERSION_2.encode())
    assert leave_pod(PID, tmp_path) == ""
    assert [path.read_text() for path in top.rglob("cgroup.procs")] == [str(PID)]


@pytest.mark.parametrize(("mounts", "groups", "want"), CASES.values(), ids=CASES)
def test_a_process_is_moved_beside_the_pods_in_each_hierarchy(
    tmp_path: Path, mounts: str, groups: str, want: set[str]
) -> None:
    top = machine(tmp_path, mounts, groups)
    assert leave_pod(PID, tmp_path) == ""
    assert {str(path.parent.parent.relative_to(top)).strip(".") for path in top.rglob("cgroup.procs")} == want
    assert {path.read_text() for path in top.rglob("cgroup.procs")} <= {str(PID)}
    assert {path.parent.name for path in top.rglob("cgroup.procs")} <= {"tessera-mps"}


def test_a_new_folder_gets_the_processors_of_the_one_above(tmp_path: Path) -> None:
    own = machine(tmp_path, VERSION_1, f"3:cpuset:{POD}") / "cpuset"
    (own / "cpuset.cpus").write_text("0-1\n")
    (own / "tessera-mps").mkdir()
    (own / "tessera-mps" / "cpuset.cpus").write_text("\n")
    assert leave_pod(PID, tmp_path) == ""
    assert (own / "tessera-mps" / "cpuset.cpus").read_text() == "0-1\n"


def test_what_keeps_a_process_in_its_pod_is_reported(tmp_path: Path) -> None:
    machine(tmp_path, "", f"3:cpuset:{POD}")
    assert leave_pod(PID, tmp_path) == "the host's control groups (cpuset) are not mounted"
    top = machine(tmp_path, VERSION_1, f"3:cpuset:/elsewhere{POD}")
    folder = top / "cpuset" / "elsewhere" / "tessera-mps"
    assert leave_pod(PID, tmp_path) == f"{folder}: No such file or directory"
    assert leave_pod(78, tmp_path) == f"{tmp_path}/78/cgroup: No such file or directory"
