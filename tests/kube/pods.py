"""Pods for tests on a real node: built, applied, waited for, read."""

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from builders.signed import SERVER, config_map
from tessera.clients.kube import CONFIG_MAPS, PODS, HttpKube, annotations_of, name_of
from tessera.errors import Conflict, Unavailable
from testbed.cluster import Cluster
from testbed.images import BUSYBOX
from testbed.processes import until

__all__ = [
    "allocatable",
    "binding",
    "busybox",
    "create",
    "devices",
    "environment",
    "log",
    "phase",
    "remove",
    "run",
    "showing",
    "unscheduled",
    "until_allocatable",
    "until_nothing_is_offered",
]

_SHOWN = "SHOWN=all"
MOST_TROUBLES = 4
DOMAINS = ("nvidia.com/", "tessera.dev/", "aliyun.com/")
_KEPT = "aliyun.com/gpu-count"
"""No device plugin's: it says how many GPUs there are, also while nothing of them is offered."""


def showing(*commands: str, then: str = "exec sleep 3600") -> str:
    """Return the command of a container whose log is its environment and what `commands` print, for `environment`."""
    return "; ".join(("env", *commands, f"echo {_SHOWN}", then))


SLEEP = showing()


def busybox(name: str, *, command: str = SLEEP, limits: dict[str, int] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod of one container `main`, which ends at once when it is deleted."""
    amounts = {resource: str(count) for resource, count in (limits or {}).items()}
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command], "resources": {"limits": amounts}}
    whole = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"made-by": "test"}}, "spec": whole}


ASSIGNMENT = "tessera.dev/assignment"
TEST_SCHEDULER = "nobody"
"""Scheduler name of pods that a test binds itself."""


def create(cluster: Cluster, *pods: dict[str, Any]) -> None:
    """Create pods; those with an assignment are bound with it as a server does, which signs."""
    assigned = [each for each in pods if annotations_of(each).get(ASSIGNMENT)]
    cluster.apply(*(unscheduled(each) if each in assigned else each for each in pods))
    if assigned:
        with ThreadPoolExecutor(1) as thread:  # the test may have a loop of its own
            thread.submit(asyncio.run, _bind_pending(cluster)).result()


def unscheduled(one: dict[str, Any]) -> dict[str, Any]:
    """Return a pod, or a template, that no scheduler binds."""
    return {**one, "spec": {**one["spec"], "schedulerName": TEST_SCHEDULER}}


@contextmanager
def binding(cluster: Cluster) -> Iterator[None]:
    """Bind all pods with an assignment that are created within the context."""
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_bind_pending(cluster, ended)))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def _bind_pending(cluster: Cluster, ended: threading.Event | None = None) -> None:
    """Bind the pending pods of this scheduler to the only node: once, or until `ended` is set."""
    (node,) = (each["metadata"]["name"] for each in cluster.get("nodes")["items"])
    async with HttpKube.connect(cluster.kubeconfig) as kube:
        await kube.apply(CONFIG_MAPS, config_map(), manager="test")
        while True:
            pending = [each for each in (await kube.list(PODS)).objects if _is_pending(each)]
            binds = (_bind(kube, each, node) for each in pending)
            await asyncio.gather(*binds)
            if ended is None or ended.is_set():
                return
            await asyncio.sleep(0.1)


def _is_pending(each: dict[str, Any]) -> bool:
    return each["spec"].get("schedulerName") == TEST_SCHEDULER and not each["spec"].get("nodeName")


async def _bind(kube: HttpKube, each: dict[str, Any], node: str) -> None:
    namespace, name = name_of(each)
    uid, annotations = each["metadata"]["uid"], {ASSIGNMENT: annotations_of(each)[ASSIGNMENT]}
    sealed = SERVER.sealed(annotations, uid=uid, node=node)
    try:
        await kube.bind(name, namespace, uid=uid, node=node, annotations=sealed)
    except Conflict:
        return  # deleted meanwhile


def run(cluster: Cluster, *pods: dict[str, Any], timeout_s: int = 120) -> None:
    """Create pods and wait until they are ready."""
    create(cluster, *pods)
    names = [f"pod/{one['metadata']['name']}" for one in pods]
    try:
        cluster.kubectl("wait", "--for=condition=Ready", *names, f"--timeout={timeout_s}s")
    except Unavailable as error:
        raise Unavailable("pods", found="; ".join(troubles(cluster)), expected="ready") from error


def troubles(cluster: Cluster) -> list[str]:
    """Return what stands in the way of the first few pods that are not ready."""
    told = []
    for one in cluster.get("pods", "-l", "made-by=test")["items"]:
        status = one["status"]
        waiting = [json.dumps(each["state"]) for each in status.get("containerStatuses", ()) if not each["ready"]]
        said = [
            each["message"] for each in status.get("conditions", ()) if each["status"] == "False" and "message" in each
        ]
        if waiting or said or status["phase"] != "Running":
            words = (one["metadata"]["name"], status["phase"], status.get("message", ""), *waiting, *said)
            told.append(" ".join(filter(None, words)))
    return told[:MOST_TROUBLES]


def remove(cluster: Cluster, *names: str) -> None:
    """Delete pods, all that tests made where none is named, and wait until they are gone."""
    selection = names or ("-l", "made-by=test")
    cluster.kubectl("delete", "pod", *selection, "--ignore-not-found", "--timeout=120s")


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get("pod", name)["status"]["phase"])


def log(cluster: Cluster, name: str, line: str, *options: str) -> list[str]:
    """Return the lines of a container's log when `line` is among them: it runs before the kubelet has what it wrote."""
    lines: list[str] = []

    def written() -> bool:
        lines[:] = cluster.kubectl("logs", name, *options).splitlines()
        return line in lines

    until(f"line {line!r} in the log of {name}", written, timeout_s=60, found=lambda: f"{lines}")
    return lines


def environment(cluster: Cluster, name: str, *options: str) -> dict[str, str]:
    """Return the environment of a container whose command is of `showing`; `options` of kubectl say which."""
    lines = log(cluster, name, _SHOWN, *options)
    return dict(line.split("=", 1) for line in lines if "=" in line)


def devices(cluster: Cluster, name: str) -> str:
    """Return the UUIDs of a container's GPUs and instances, however they were handed over."""
    found = environment(cluster, name)
    visible = found["NVIDIA_VISIBLE_DEVICES"]
    return found["TESSERA_GPU_UUIDS"] if visible == "void" else visible


def allocatable(cluster: Cluster, node: str, resource: str) -> int:
    return int(cluster.get("node", node)["status"]["allocatable"].get(resource, "0"))


def until_allocatable(cluster: Cluster, node: str, wants: Iterable[tuple[str, int]], timeout_s: float = 90) -> None:
    """Wait until a node offers so many of each resource."""
    desired = dict(wants)

    def offered() -> dict[str, int]:
        return {resource: allocatable(cluster, node, resource) for resource in desired}

    until(f"allocatable of {node}", lambda: offered() == desired, timeout_s=timeout_s, found=lambda: str(offered()))


def until_nothing_is_offered(cluster: Cluster, node: str) -> None:
    """Wait until the node offers nothing of what device plugins offered."""

    def offered() -> dict[str, str]:
        found = cluster.get("node", node)["status"]["allocatable"]
        mine = {name: count for name, count in found.items() if name.startswith(DOMAINS) and name != _KEPT}
        return {name: count for name, count in mine.items() if count != "0"}

    until(f"nothing offered by {node}", lambda: not offered(), timeout_s=60, found=lambda: str(offered()))
