"""Pods that run while something is done to Tessera, observed all the time and from outside: none may notice it."""

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from judges.deviceuse import Container, Fault, doubled, judged, uses_of
from kube.observing import Api, Living, NoAnswerError, checkpoint, containers_of, living, mps_daemons, used_node
from testbed.cluster import Cluster
from testbed.processes import until

__all__ = ["Bystanders"]

_PODS = "/api/v1/namespaces/default/pods"
_LOOK_S = 0.2
_BEGIN_S = 60


class _State(NamedTuple):
    """What one pod is and has; nothing of it may change."""

    api: tuple[str, bool, str, str, int, str]
    """UID, whether it is being deleted, phase, container, number of restarts and assignment."""
    process: int
    environment: Mapping[str, str]
    files: frozenset[str]
    """Of NVIDIA's devices, in its /dev."""
    devices: frozenset[tuple[str, tuple[str, ...]]]
    """Resources and device ids, in the kubelet's checkpoint."""


class Bystanders:
    """Pods with GPUs in namespace default, of one container each, on a testbed of one node.

    While the block runs, a thread looks as often as it can at the API's pods, living processes, their environment and
    device files, the kubelet's checkpoint, the driver's devices and MPS daemons. `harmed` says what was not as at
    first, and what any pod of the namespace, also one made meanwhile, has that it must not have.

    Args:
        cluster: where they run.
        names: of the pods.

    """

    def __init__(self, cluster: Cluster, *names: str) -> None:
        self._cluster = cluster
        (self._node,) = cluster.nodes
        self._names = names
        self._api = Api(cluster)
        self._uids = dict[str, str]()
        self._faults = list[Fault]()
        self._before = dict[str, _State]()
        self._served = set[str]()
        self._ends = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None
        self.harmed = dict[str, None]()
        self.looks = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as failed:
            failed.callback(self._api.close)  # else a later test is blamed for its socket
            # A pod runs by its status before its process is another than runc's.
            until("processes and devices of all", self._have_begun, timeout_s=_BEGIN_S, found=lambda: str(self._before))
            self._daemons = mps_daemons(self._node)
            failed.pop_all()
        self._running = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        with self._thread, contextlib.closing(self._api):
            if self._running is not None:
                self._running.result()

    def unharmed(self, after: str) -> None:
        """Fail where a pod was harmed; returns after one more look."""
        looks = self.looks
        while self.looks < looks + 2 and self._running is not None and not self._running.done():
            self._ends.wait(_LOOK_S)
        assert not self.harmed, f"{after}: {list(self.harmed)}"

    def _have_begun(self) -> bool:
        with contextlib.suppress(NoAnswerError):
            self._before = self._states()
        return self._before.keys() == {*self._names} <= self._served

    def _run(self) -> None:
        while not self._ends.is_set():
            with contextlib.suppress(NoAnswerError):  # then nothing is known of the pods
                self._compare(self._states(), mps_daemons(self._node))
                self.looks += 1
            self._ends.wait(_LOOK_S)

    def _compare(self, now: Mapping[str, _State], daemons: Mapping[str, int]) -> None:
        for name, before in self._before.items():
            state = now.get(name)
            if state is None:
                self.harmed[f"{name}: no process"] = None
            elif state != before:
                changes = zip(state._fields, before, state, strict=True)
                self.harmed[f"{name}: {[each for each in changes if each[1] != each[2]]}"] = None
        for key, process in self._daemons.items():
            if daemons.get(key) != process:
                self.harmed[f"MPS daemon of {key}: process {process}, now {daemons.get(key)}"] = None
        self.harmed |= dict.fromkeys(str(each) for each in self._faults)

    def _states(self) -> dict[str, _State]:
        """Return what the pods have that live, and note what is wrong with what any pod has."""
        pods = {each["metadata"]["name"]: each for each in self._api.list(_PODS)}
        self._uids |= {each["metadata"]["uid"]: name for name, each in pods.items()}
        first = living(self._cluster.cgroup)
        driver, entries = used_node(self._node), checkpoint(self._node)
        after = living(self._cluster.cgroup)
        # What lives before and after lived while the driver was read.
        lasting = {key: each for key, each in first.items() if key in after and each.pod_uid in self._uids}
        containers = {self._uids[lasting[each.id].pod_uid]: each for each in containers_of(lasting, _known)}
        self._faults = [*judged(driver, containers.values()), *doubled(entries)]
        self._served |= {name for name, each in containers.items() if uses_of(each, driver)}
        found = dict[str, _State]()
        for name in self._names:
            if name in containers and name in pods:
                uid, container = pods[name]["metadata"]["uid"], containers[name]
                devices = frozenset((one.resource, one.ids) for one in entries if one.pod == uid)
                shown = container.environment, container.files
                found[name] = _State(_told(pods[name]), lasting[container.id].pid, *shown, devices)
        return found


def _known(found: Living, environment: Mapping[str, str]) -> Container:
    return Container(node=found.node, pod=environment["HOSTNAME"], id=found.id)


def _told(pod: Mapping[str, Any]) -> tuple[str, bool, str, str, int, str]:
    (one,) = pod["status"]["containerStatuses"]
    metadata = pod["metadata"]
    shown = pod["status"]["phase"], one["containerID"], one["restartCount"]
    return metadata["uid"], "deletionTimestamp" in metadata, *shown, metadata["annotations"]["tessera.dev/assignment"]
