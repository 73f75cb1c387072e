"""The processes of a node's pods, and whether the agent sees those of others."""

from pathlib import Path
from typing import Any

import pytest

from builders.kubeobjects import pod
from builders.nodeviews import of_the_host
from tessera.agent.pods.podprocesses import ProcessTable
from tessera.agent.pods.podsview import by_uid
from tessera.clients.kube import Object

UID = "0f6e8f0a-1b2c-4d5e-8f90-a1b2c3d4e5f6"


def run(folder: Path, number: int, cgroup: str) -> None:
    (folder / "proc" / str(number)).mkdir(parents=True)
    (folder / "proc" / str(number) / "cgroup").write_text(f"0::/{cgroup}\n")


@pytest.mark.parametrize("name", [f"pod{UID}", f"pod{UID.replace('-', '_')}"])
def test_pods_are_known_by_the_control_groups_of_their_processes(tmp_path: Path, name: str) -> None:
    run(tmp_path, 10, f"kubepods.slice/{name}/abc")
    assert ProcessTable(tmp_path / "proc").running([UID, "another-uid", ""], {}) == {UID}


# sentence: the control groups of a process, and the pods it runs in
NESTED: dict[str, tuple[str, set[str]]] = {
    "a container names a group after another pod": (f"kubepods/pod{'ab' * 16}/x/kubepods/pod{UID}/y", set()),
    "a node that is a pod of another cluster": (f"kubepods/pod{'cd' * 16}/x/kubepods/pod{UID}/y", {UID}),
    "that with systemd": (
        f"kubepods.slice/kubepods-pod{'cd' * 16}.slice/x/kubepods-pod{UID.replace('-', '_')}.slice/y",
        {UID},
    ),
    "a container names a group after its own pod": (f"kubepods/pod{UID}/x/pod{UID}", {UID}),
}


@pytest.mark.parametrize("case", NESTED)
def test_a_process_runs_in_the_outermost_pod_of_this_node(tmp_path: Path, case: str) -> None:
    group, want = NESTED[case]
    run(tmp_path, 10, group)
    hostile = pod("hostile")
    hostile["metadata"]["uid"] = "ab" * 16
    assert ProcessTable(tmp_path / "proc").running([UID], by_uid([hostile])) == want


# sentence: control groups and names of processes as they started, and the containers that run; the status has `main` as
# 1, `side` as 2
CONTAINERS: dict[str, tuple[dict[str, str], set[str]]] = {
    "no process": ({}, set()),
    "its own": ({f"{1:064x}": "python"}, {"main"}),
    "its own, in a group below": ({f"{1:064x}/nested": "python"}, {"main"}),
    "one of the other container": ({f"{2:064x}": "python"}, {"side"}),
    "one that the status does not show yet": ({f"{3:064x}": "python"}, {"main", "side"}),
    "the sandbox's": ({f"{3:064x}": "pause"}, set()),
    "the sandbox's and its own": ({f"{3:064x}": "pause", f"{1:064x}": "python"}, {"main"}),
    "one of that name and the sandbox's": ({f"{3:064x}": "pause", f"{4:064x}": "pause"}, {"main", "side"}),
    "one of that name that started after its own": ({f"{1:064x}": "python", f"{3:064x}": "pause"}, {"main", "side"}),
    "its own of that name": ({f"{1:064x}": "pause"}, {"main"}),
    "one of a group of unknown form": ({"abc": "python"}, {"main", "side"}),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_a_container_may_run_while_a_process_may_be_its_own(tmp_path: Path, case: str) -> None:
    processes, want = CONTAINERS[case]
    for number, (group, name) in enumerate(processes.items(), 10):
        run(tmp_path, number, f"kubepods/pod{UID}/{group}")
        (tmp_path / f"proc/{number}/comm").write_text(f"{name}\n")
        (tmp_path / f"proc/{number}/stat").write_text(stat(number, name, start=number))
    run(tmp_path, 30, f"kubepods/pod{'ab' * 16}/{4:064x}")
    asked = {(UID, "main"), (UID, "side"), ("another-uid", "main")}
    assert running_containers(tmp_path, of_containers("containerd"), asked) == {(UID, name) for name in want}


def stat(number: int, name: str, *, start: int) -> str:
    return f"{number} ({name}) S {' '.join(['0'] * 18)} {start} 0\n"


def of_containers(runtime: str) -> dict[str, Any]:
    """Return a pod whose status has `main` and `side`."""
    own, statuses = pod("p"), [("main", 1), ("side", 2)]
    own["metadata"]["uid"] = UID
    own["status"] = {
        "containerStatuses": [{"name": name, "containerID": f"{runtime}://{number:064x}"} for name, number in statuses]
    }
    return own


def running_containers(
    folder: Path, own: Object, asked: set[tuple[str, str]], node: Object | None = None
) -> frozenset[tuple[str, str]]:
    return ProcessTable(folder / "proc").running_containers(asked, by_uid([own]), node or {})


# sentence: the runtime, the processes of unknown containers named `pause` by their `stat`, and whether some may run
PAUSES: dict[str, tuple[str, list[str], bool]] = {
    "the first under containerd": ("containerd", [stat(10, "pause", start=1), stat(11, "pause", start=2)], True),
    "the only one under containerd": ("containerd", [stat(10, "pause", start=1)], False),
    "the only one under cri-dockerd": ("docker", [stat(10, "pause", start=1)], False),
    "a name with brackets and blanks": ("containerd", [stat(10, "pause) S 0 (x", start=1)], False),
    "two that started at once": ("containerd", [stat(10, "pause", start=1), stat(11, "pause", start=1)], True),
    "one that may have started before": ("containerd", [stat(10, "pause", start=1), ""], True),
    "one of which the start is not known": ("containerd", [""], True),
    "the first of a runtime that may have started none for the pod": ("cri-o", [stat(10, "pause", start=1)], True),
    "the first of an unknown runtime": ("", [stat(10, "pause", start=1)], True),
}


@pytest.mark.parametrize("case", PAUSES)
def test_a_process_named_pause_is_none_of_a_container_only_if_it_was_certainly_the_pod_s_first(
    tmp_path: Path, case: str
) -> None:
    """Any program may be called so, and the status may not show its container yet."""
    runtime, found, may_run = PAUSES[case]
    for number, text in enumerate(found, 10):
        run(tmp_path, number, f"kubepods/pod{UID}/{number:064x}")
        (tmp_path / f"proc/{number}/comm").write_text("pause\n")
        (tmp_path / f"proc/{number}/stat").write_text(text)
    got = running_containers(tmp_path, of_containers(runtime), {(UID, "main")})
    assert got == ({(UID, "main")} if may_run else set())


@pytest.mark.parametrize(("runtime", "may_run"), [("containerd://2.1.4", False), ("cri-o://1.34", True), ("", True)])
def test_while_its_image_is_pulled_a_pod_has_the_process_of_its_sandbox_alone(
    tmp_path: Path, runtime: str, *, may_run: bool
) -> None:
    """No container was created, so that the status does not say which runtime it is; the Node does."""
    own = {**of_containers(runtime), "status": {"phase": "Pending"}}
    run(tmp_path, 10, f"kubepods/pod{UID}/{10:064x}")
    (tmp_path / "proc/10/comm").write_text("pause\n")
    (tmp_path / "proc/10/stat").write_text(stat(10, "pause", start=1))
    node = {"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}
    got = running_containers(tmp_path, own, {(UID, "main")}, node)
    assert got == ({(UID, "main")} if may_run else set())


# sentence: control groups of the processes, whether the PID namespace is the machine's, and whether the view is blind
SEES: dict[str, tuple[tuple[str, ...], bool, bool]] = {
    "an agent with hostPID": ((), True, False),
    "one on the host, in a namespace of a container that is a node": (("init.scope", "kubelet.service"), False, False),
    "one that sees its own container alone": (("kubepods/pod1/agent", "kubepods/pod1/agent"), False, True),
    "one that sees nothing": ((), False, True),
}


@pytest.mark.parametrize("case", SEES)
def test_who_sees_its_own_container_alone_is_blind(tmp_path: Path, case: str) -> None:
    groups, host, blind = SEES[case]
    if host:
        of_the_host(tmp_path / "proc")
    for number, group in enumerate(groups):
        run(tmp_path, number, group)
    assert ProcessTable(tmp_path / "proc").blind is blind


def test_who_has_seen_others_once_is_not_blind_when_they_have_ended(tmp_path: Path) -> None:
    for number, group in enumerate(("a", "b")):
        run(tmp_path, number, group)
    seen = ProcessTable(tmp_path / "proc")
    assert not seen.blind
    (tmp_path / "proc/1/cgroup").unlink()
    assert not seen.blind


# sentence: a process's control groups, its stat, and the pod it is found in
PROCESSES: dict[str, tuple[str, str, str | None]] = {
    "systemd": (f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope", "", UID),
    "cgroupfs": (f"kubepods/besteffort/pod{UID}/{'a' * 64}", "10 (x) S 1", UID),
    "of no pod": ("system.slice/nvidia-dcgm.service", "", None),
    "ended": (f"kubepods/pod{UID}/a", "10 (a) R) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0", None),
    "its first thread ended": (f"kubepods/pod{UID}/a", "10 (a) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 2 0", UID),
}


@pytest.mark.parametrize("case", PROCESSES)
@pytest.mark.parametrize("known", [True, False], ids=["known", "gone"])
def test_the_pod_of_a_process(tmp_path: Path, case: str, known: bool) -> None:
    group, stat, uid = PROCESSES[case]
    of_the_host(tmp_path / "proc")
    run(tmp_path, 10, group)
    (tmp_path / "proc/10/stat").write_text(stat)
    own = pod("p")
    own["metadata"]["uid"] = UID
    pods = by_uid([own]) if known else {}
    assert ProcessTable(tmp_path / "proc").pods_of([10, 11], pods) == ({10: uid} if uid else {})


def test_who_is_blind_knows_no_process_s_pod(tmp_path: Path) -> None:
    run(tmp_path, 10, f"kubepods/pod{UID}/a")
    assert ProcessTable(tmp_path / "proc").pods_of([10], {}) == {}
