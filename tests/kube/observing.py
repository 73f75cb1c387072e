"""What is seen on the nodes of a testbed from outside: living containers, the driver's devices, the kubelet's record.

Nothing of Tessera is asked. Containers are found by the control groups of the kubelet; a process's environment and the
device files in its /dev say what the container was given.
"""

import contextlib
import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from judges.deviceuse import Container, Entry, Gpu, Instance
from judges.deviceuse import Node as UsedNode
from kube.churn import INIT
from tessera.sim.nvmlsim import Machine
from testbed.cluster import Cluster
from testbed.node import Node

__all__ = ["Api", "Living", "NoAnswerError", "checkpoint", "containers_of", "living", "mps_daemons", "used_node"]

OF_CONTAINER = re.compile(r"/(node[0-9]+)/kubepods(?:/[a-z]+)?/pod([0-9a-f-]{36})/([0-9a-f]{64})$")
CAPABILITY = re.compile(r"gpu([0-9]+)/gi([0-9]+)/")
_MPS = b"nvidia-cuda-mps-control"
ANSWER_S = 5.0


class NoAnswerError(Exception):
    """The API server does not answer."""


class Api:
    """The API server over plain HTTPS, as the administrator; one connection, for one thread."""

    def __init__(self, cluster: Cluster, answer_s: float = ANSWER_S) -> None:
        self._kubeconfig = cluster.kubeconfig
        self._answer_s = answer_s
        self._connection: http.client.HTTPSConnection | None = None

    def ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> tuple[int, Any]:
        """Return status and decoded body of an answer.

        Raises:
            NoAnswerError: there is none in time.

        """
        data = None if body is None else json.dumps(body)
        try:
            connection = self._connection or self._connect()
            connection.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswerError(str(error)) from error
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def list(self, path: str) -> list[dict[str, Any]]:
        """Return the items of a list.

        Raises:
            NoAnswerError: the API server does not answer, or not with a list.

        """
        status, found = self.ask("GET", path)
        if status != http.client.OK:
            raise NoAnswerError(f"{path}: {status}")
        items: list[dict[str, Any]] = found["items"]
        return items

    def insist(self, method: str, path: str, body: object = None, within_s: float = 90) -> tuple[int, Any]:
        """Ask until the API server has answered with something but an error of its own."""
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(NoAnswerError):
                status, found = self.ask(method, path, body)
                if status < http.client.INTERNAL_SERVER_ERROR and status != http.client.TOO_MANY_REQUESTS:
                    return status, found
            if time.monotonic() > deadline:
                raise NoAnswerError(f"{method} {path} for {within_s:g} s")
            time.sleep(0.2)

    def _connect(self) -> http.client.HTTPSConnection:
        content = json.loads(self._kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        self._connection = http.client.HTTPSConnection(host, int(port), timeout=self._answer_s, context=context)
        return self._connection


class Living(NamedTuple):
    """The processes of a container."""

    node: str
    pod_uid: str
    id: str
    pid: int


def living(cgroup: str) -> dict[str, Living]:
    """Return the containers of a testbed in which a process runs, by their ids; of each the first process."""
    found: dict[str, Living] = {}
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError, IndexError):
            line = (path / "cgroup").read_text().splitlines()[0]
            match = OF_CONTAINER.search(line) if f":/{cgroup}/" in line else None
            if match and match[3] not in found and _runs(path):
                found[match[3]] = Living(match[1], match[2], match[3], int(path.name))
    return found


def _runs(path: Path) -> bool:
    return (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def containers_of(
    found: Mapping[str, Living], known: Callable[[Living, Mapping[str, str]], Container]
) -> Iterator[Container]:
    """Give what containers have; `known` makes one of a container and its environment, where HOSTNAME is its pod.

    Left out are the pods' sandboxes, and containers that runc is still making.
    """
    for each in found.values():
        with contextlib.suppress(OSError):
            path = Path(f"/proc/{each.pid}")
            pairs = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            if "HOSTNAME" not in environment or (path / "exe").readlink().name.startswith("runc"):
                continue
            files = frozenset(name for folder in ("dev", "dev/nvidia-caps") for name in _nvidia_files(path, folder))
            made = known(each, environment)
            yield made._replace(environment=environment, files=files)


def _nvidia_files(path: Path, folder: str) -> list[str]:
    try:
        return [
            each.name for each in (path / "root" / folder).iterdir() if re.fullmatch(r"nvidia(-cap)?[0-9]+", each.name)
        ]
    except OSError:
        return []


def used_node(node: Node) -> UsedNode:
    """Return the devices that the driver of a node shows."""
    with Machine(node.gpu_state) as machine:
        gpus = machine.describe()["gpus"]
    instances, capabilities = list[Instance](), dict[tuple[int, int], str]()
    for gpu in gpus:
        for each in gpu["instances"]:
            for part in each["compute_instances"]:
                instances.append(Instance(part["uuid"], gpu["uuid"], each["memory_mib"]))
                capabilities[gpu["minor"], each["id"]] = part["uuid"]
    return UsedNode(
        name=node.name,
        gpus=tuple(Gpu(gpu["uuid"], gpu["minor"], gpu["memory_mib"] - gpu["reserved_mib"]) for gpu in gpus),
        instances=tuple(instances),
        capabilities=_capability_files(node, capabilities),
    )


def _capability_files(node: Node, instances: Mapping[tuple[int, int], str]) -> dict[str, str]:
    """Return the MIG device of each file of /dev/nvidia-caps, by the list of the node's driver."""
    lines = node.path("/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    found = {}
    for line in lines:
        name, minor = line.split()
        match = CAPABILITY.match(name)
        if match and (int(match[1]), int(match[2])) in instances:
            found[f"nvidia-cap{minor}"] = instances[int(match[1]), int(match[2])]
    return found


def checkpoint(node: Node) -> list[Entry]:
    """Return what the kubelet's checkpoint says; nothing where there is none yet."""
    try:
        text = (node.device_plugins / "kubelet_internal_checkpoint").read_text()
    except FileNotFoundError:
        return []
    return [
        Entry(
            each["PodUID"],
            each["ContainerName"],
            each["ResourceName"],
            _ids(each["DeviceIDs"]),
            initial=each["ContainerName"] == INIT,
        )
        for each in json.loads(text)["Data"]["PodDeviceEntries"] or ()
    ]


def _ids(by_numa: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the ids that the checkpoint has by NUMA node; one of several nodes is there for each."""
    return tuple(sorted({each for ids in by_numa.values() for each in ids}))


def mps_daemons(node: Node) -> dict[str, int]:
    """Return the processes of the MPS daemons that run on a node, by GPU or MIG device, also those without a record."""
    found, folder = dict[str, int](), node.path("/run/tessera")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or the node has no such folder
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"-f" in words and any(word.rpartition(b"/")[2] == _MPS for word in words):
                pipe = re.search(rb"CUDA_MPS_PIPE_DIRECTORY=([^\0]+)", (process / "environ").read_bytes())
                if pipe and (process / "root/run/tessera").samefile(folder):
                    found[Path(pipe[1].decode()).parent.name] = int(process.name)
    return found
