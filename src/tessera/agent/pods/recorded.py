"""Records on each pod what the kubelet allocated: the devices of requests by name, and that memory was allocated.

The kubelet chooses among equal devices and does not report it; the scheduler must know which GPU a pod uses. A pod's
devices never change, so each pod is written once. That memory was allocated is for readers of gpushare's
annotations, as its own device plugin writes them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeAlias

from tessera.agent.pods.assignmentkeys import Trust
from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.tessera.pods.recordedpods import (
    allocated,
    awaits_memory,
    honored,
    recorded_assignment,
    requests_by_name,
)
from tessera.api.tessera.pods.signatures import is_signed
from tessera.clients.kube import PODS, Kube, Object, annotations_of, name_of, version_of
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.errors import Conflict, InvalidInput, TesseraError
from tessera.log import Logger
from tessera.loops import for_each

__all__ = ["Recorder"]

_Name: TypeAlias = tuple[str, str]
_PAUSE_S = 0.05
"""Pause between two writes, for fifty pods that start at once on each of a thousand nodes."""


class PodRecord(Protocol):
    """The pods of a node and their devices, as `PodsView` has them."""

    def pods(self) -> Iterable[Object]:
        """Return the Pod objects."""

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        """Return the containers' devices by the kubelet's record."""


class DeviceShares(Protocol):
    """The declared sharing of a node's devices."""

    async def shares_by_id(self) -> Mapping[str, Share]:
        """Return the share of each device id of the kubelet (`core.cluster.namedshares.shares_by_id`)."""
        ...


class Recorder:
    """Compares pods with the kubelet's record; call `record` when something changed, and every few seconds.

    Args:
        kube: the Kubernetes API.
        view: the pods of this node.
        devices: which share a device id is.
        trust: the keys that count, and how assignments are signed.
        log: for writes.
        now_ns: the time, in nanoseconds since 1970.

    """

    def __init__(
        self,
        kube: Kube,
        view: PodRecord,
        devices: DeviceShares,
        trust: Trust,
        log: Logger,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._kube = kube
        self._view = view
        self._devices = devices
        self._trust = trust
        self._log = log
        self._now_ns = now_ns
        self._up_to_date: dict[tuple[str, str], Object] = {}
        """Pods with nothing to write; objects are never changed in place."""

    async def record(self, share_unit_mib: int) -> None:
        """Write what is known and not written yet; costs nothing where every pod is settled.

        Args:
            share_unit_mib: MiB in one `aliyun.com/gpu-mem`.

        Raises:
            TesseraError: kubelet, driver or API server do not answer; call again.

        """
        pods = {name_of(pod): pod for pod in self._view.pods()}
        self._up_to_date = {name: pod for name, pod in self._up_to_date.items() if pods.get(name) is pod}
        named, waiting = self._open(pod for name, pod in pods.items() if name not in self._up_to_date)
        if not named and not waiting:
            return
        record, devices = (
            await self._view.devices_of_lasting_containers(),
            await self._devices.shares_by_id() if named else {},
        )

        async def write(name: _Name) -> None:
            pod, keys = pods[name], self._trust.keys
            text = None
            if name in named:
                text = recorded_assignment(pod, record, devices, share_unit_mib=share_unit_mib, keys=keys)
            same = text is None or (annotations_of(pod).get(ASSIGNMENT) == text and is_signed(pod, keys))
            new = {} if text is None or same else {ASSIGNMENT: text}
            if name in waiting:
                new |= allocated(pod, record, now_ns=self._now_ns())
            elif text is not None and not new:
                self._up_to_date[name] = pod
            if new:
                await self._write(pod, new)

        def refused(name: _Name, error: TesseraError) -> None:
            self._report("assignment_not_recorded", pods[name], error)

        await for_each(dict.fromkeys((*named, *waiting)), write, refused)

    async def sign(self, share_unit_mib: int) -> None:
        """Sign unsigned assignments of running pods: an agent that did not sign let them start.

        Args:
            share_unit_mib: MiB in one `aliyun.com/gpu-mem`.

        Raises:
            TesseraError: kubelet or API server do not answer; call again.

        """
        record = await self._view.devices_of_lasting_containers()

        async def sign(pod: Object) -> None:
            text = honored(pod, record, self._trust.keys, share_unit_mib=share_unit_mib)
            if text is not None:
                await self._write(pod, {ASSIGNMENT: text})

        await for_each(self._view.pods(), sign, partial(self._report, "assignment_not_signed"))

    def _report(self, event: str, pod: Object, error: TesseraError) -> None:
        """Log why something is not written on a pod; the write is retried, unless it can never succeed."""
        if isinstance(error, InvalidInput):
            self._up_to_date[name_of(pod)] = pod
        namespace, name = name_of(pod)
        write = self._log.info if isinstance(error, Conflict) else self._log.warning
        write(event, pod=f"{namespace}/{name}", reason=str(error))

    def _open(self, pods: Iterable[Object]) -> tuple[list[_Name], list[_Name]]:
        """Return the pods with requests by name, and those that wait for memory; remember those that are neither."""
        named, waiting = [], []
        for pod in pods:
            name = name_of(pod)
            try:
                by_name, waits = requests_by_name(pod), awaits_memory(pod)
            except InvalidInput:
                by_name = waits = False
            named += [name] if by_name else []
            waiting += [name] if waits else []
            if not by_name and not waits:
                self._up_to_date[name] = pod
        return named, waiting

    async def _write(self, pod: Object, annotations: Mapping[str, str]) -> None:
        """Write annotations on the observed pod; one that changed meanwhile is read again."""
        namespace, name = name_of(pod)
        sealed = self._trust.sealed(pod, annotations)
        body = {"metadata": {"resourceVersion": version_of(pod), "annotations": sealed}}
        await self._kube.patch(PODS, name, body, namespace=namespace)
        event = "assignment_recorded" if ASSIGNMENT in annotations else "memory_allocated"
        self._log.info(event, pod=f"{namespace}/{name}")
        await asyncio.sleep(_PAUSE_S)
