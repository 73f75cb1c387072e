"""Writes on each pod what the kubelet gave it: which devices for what it asked by name, and that memory was allocated.

The kubelet chooses among equal devices and tells nobody; the scheduler has to know which GPU a pod sits on. Devices of
a pod never change, so that each pod is written once. That memory was allocated is for those who read gpushare's
annotations, as its own device plugin writes them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

from tessera.agent.assignmentkeys import Trust
from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.tessera.pods.recordedpods import allocated, asks_by_name, awaits_memory, honored, recorded_assignment
from tessera.api.tessera.pods.signatures import is_signed
from tessera.clients.kube import PODS, Kube, Object, annotations_of, name_of, version_of
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.matching import Held
from tessera.errors import Conflict, InvalidInput
from tessera.log import Logger

__all__ = ["Recorder"]

_Name: TypeAlias = tuple[str, str]
_PAUSE_S = 0.05
"""Between two writes, for fifty pods that start at once on each of a thousand nodes."""


class PodRecord(Protocol):
    """The pods of a node and what they hold, as `NodeView` gives them."""

    def pods(self) -> Iterable[Object]:
        """Return the Pod objects."""

    async def held(self) -> tuple[Held, ...]:
        """Return what containers hold by the kubelet's record."""


class Recorder:
    """Compares pods with the kubelet's record; call `record` when something changed, and every few seconds.

    Args:
        kube: the Kubernetes API.
        view: the pods of this node.
        devices: returns what each device is, by the id the kubelet has (`core.cluster.byname.shares_by_id`).
        trust: whose assignments count, and how they are signed.
        log: where each write is logged.
        now_ns: the time, in nanoseconds since 1970.

    """

    def __init__(
        self,
        kube: Kube,
        view: PodRecord,
        devices: Callable[[], Awaitable[Mapping[str, Share]]],
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
        self._settled: dict[tuple[str, str], Object] = {}
        """Pods of which nothing is to be written; objects are never changed in place."""

    async def record(self, share_unit_mib: int) -> None:
        """Write what is known and not written yet; costs nothing where every pod is settled.

        Args:
            share_unit_mib: MiB in one `aliyun.com/gpu-mem`.

        Raises:
            TesseraError: kubelet, driver or API do not answer; call again.

        """
        pods = {name_of(pod): pod for pod in self._view.pods()}
        self._settled = {name: pod for name, pod in self._settled.items() if pods.get(name) is pod}
        named, waiting = self._open(pod for name, pod in pods.items() if name not in self._settled)
        if not named and not waiting:
            return
        held, devices = await self._view.held(), await self._devices() if named else {}
        for name in dict.fromkeys((*named, *waiting)):
            text = self._text(pods[name], held, devices, share_unit_mib) if name in named else None
            said = annotations_of(pods[name]).get(ASSIGNMENT)
            same = text is None or (said == text and is_signed(pods[name], self._trust.keys))
            new = {} if text is None or same else {ASSIGNMENT: text}
            if name in waiting:
                new |= allocated(pods[name], held, now_ns=self._now_ns())
            elif text is not None and not new:
                self._settled[name] = pods[name]
            if new:
                await self._write(pods[name], new)

    async def sign(self, share_unit_mib: int) -> None:
        """Sign what pods run with and nobody signed: an agent that did not sign let them start.

        Args:
            share_unit_mib: MiB in one `aliyun.com/gpu-mem`.

        Raises:
            TesseraError: kubelet or API do not answer; call again.

        """
        held = await self._view.held()
        for pod in self._view.pods():
            try:
                text = honored(pod, held, self._trust.keys, share_unit_mib=share_unit_mib)
            except InvalidInput as error:
                self._log.warning("assignment_not_signed", reason=str(error))
            else:
                if text is not None:
                    await self._write(pod, {ASSIGNMENT: text})

    def _open(self, pods: Iterable[Object]) -> tuple[list[_Name], list[_Name]]:
        """Return the pods that asked by name, and those that wait for memory; remember those that are neither."""
        named, waiting = [], []
        for pod in pods:
            name = name_of(pod)
            try:
                asks, waits = asks_by_name(pod), awaits_memory(pod)
            except InvalidInput:
                asks = waits = False
            named += [name] if asks else []
            waiting += [name] if waits else []
            if not asks and not waits:
                self._settled[name] = pod
        return named, waiting

    def _text(
        self, pod: Object, held: tuple[Held, ...], devices: Mapping[str, Share], share_unit_mib: int
    ) -> str | None:
        try:
            return recorded_assignment(pod, held, devices, share_unit_mib=share_unit_mib, keys=self._trust.keys)
        except InvalidInput as error:
            self._log.warning("assignment_not_recorded", reason=str(error))
            self._settled[name_of(pod)] = pod
            return None

    async def _write(self, pod: Object, annotations: Mapping[str, str]) -> None:
        """Write annotations on the pod that was seen; one that changed meanwhile is looked at again."""
        namespace, name = name_of(pod)
        sealed = self._trust.sealed(pod, annotations)
        body = {"metadata": {"resourceVersion": version_of(pod), "annotations": sealed}}
        try:
            await self._kube.patch(PODS, name, body, namespace=namespace)
        except Conflict as error:
            self._log.info("look_again", what="assignment", pod=f"{namespace}/{name}", reason=str(error))
        else:
            event = "assignment_recorded" if ASSIGNMENT in annotations else "memory_allocated"
            self._log.info(event, pod=f"{namespace}/{name}")
        await asyncio.sleep(_PAUSE_S)
