"""Pods with a share on a node in memory: their processes and status, and how a kubelet allocates for them."""

import hashlib

from builders.signed import signed
from harness.pluginnode import NEED, Node, share
from tessera.clients.kubelet import Container


def process(node: Node, uid: str, container: str, command: str) -> None:
    """Let a process of a pod start, after those that run."""
    number = 100 + len(list(node.proc.iterdir()))
    folder = node.proc / str(number)
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/kubepods/besteffort/pod{uid}/{container}\n")
    (folder / "comm").write_text(f"{command}\n")
    (folder / "stat").write_text(f"{number} ({command}) S {' '.join(['0'] * 18)} {number} 0\n")


def run(node: Node, name: str, *, pause: bool, ends: bool) -> None:
    """Let the container of a pod run, or have run: as its status and the process table show it."""
    own = hashlib.sha256(name.encode()).hexdigest()
    uid = node.pods["default", name]["metadata"]["uid"]
    processes = {hashlib.sha256(uid.encode()).hexdigest(): "pause"} if pause else {}
    if not ends:
        processes[own] = "python"
    for container, command in processes.items():
        process(node, uid, container, command)
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": f"containerd://{own}"}]}
    node.pods["default", name] = node.watched["default", name] = {**node.pods["default", name], "status": status}


def run_init(node: Node, name: str, phase: str) -> None:
    """Let the init container of a pod run; in a new sandbox its status may have the former phase, `Running`."""
    own = hashlib.sha256(name.encode()).hexdigest()
    process(node, f"uid-{name}", hashlib.sha256(f"{name} sandbox".encode()).hexdigest(), "pause")
    process(node, f"uid-{name}", own, "python")
    init = {"name": "init", "containerID": f"containerd://{own}"}
    status = {"phase": phase, "initContainerStatuses": [init], "containerStatuses": [{"name": "main"}]}
    node.pods["default", name] = node.watched["default", name] = {**node.pods["default", name], "status": status}


def ask_with_init(node: Node, name: str, gpu: int, units: int) -> None:
    """Assign a share to a pod whose init container requests as much as the other."""
    node.assign(name, units, share(gpu, units << 10))
    add_init(node, name)


def add_init(node: Node, name: str) -> None:
    spec = node.pods["default", name]["spec"]
    spec["initContainers"] = [{**spec["containers"][0], "name": "init"}]
    node.pods["default", name] = node.watched["default", name] = signed(node.pods["default", name])


async def admit_with_init(node: Node, name: str, units: int, *, again: bool = False) -> None:
    """Let the kubelet allocate for the init container, and where the other does not run for that too."""
    await admit_all(node, name, units, *(["init"] if again else ["init", "main"]))


async def admit_all(node: Node, name: str, units: int, *containers: str) -> None:
    """Let the kubelet allocate for these containers of a pod: the other has what the init container had."""
    ids: tuple[str, ...] = ()
    for container in containers:
        desired = Container(name=container, limits=((NEED, units),))
        if not ids:
            await node.kubelet.admit("default", name, desired)
            held = await node.plugins.gate.view.allocated()
            (ids,) = {each.device_ids for each in held if (each.uid, each.container) == (f"uid-{name}", container)}
        else:
            await node.kubelet.allocate("default", name, desired, ids)


async def passes(node: Node) -> None:
    """Let the agent look for two minutes."""
    for _ in range(4):
        await node.plugins._clean_up_record_and_shares()
        node.passed_s += 31
