"""Writes on each pod which devices the kubelet gave it for what it asked by name.

The kubelet chooses among equal devices and tells nobody; the scheduler has to know which GPU a pod sits on. Devices of
a pod never change, so that each pod is written once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from tessera.api.podspecs import ASSIGNMENT
from tessera.api.recordedpods import asks_by_name, recorded_assignment
from tessera.clients.kube import PODS, Kube, Object, annotations_of, name_of, version_of
from tessera.core.matching import Held
from tessera.core.snapshot import Share
from tessera.errors import Conflict, InvalidInput
from tessera.log import Logger

__all__ = ["Recorder", "World"]

_PAUSE_S = 0.05
"""Between two writes, for fifty pods that start at once on each of a thousand nodes."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorder asks."""

    pods: Callable[[], Iterable[Object]]
    """The Pod objects of this node."""
    held: Callable[[], Awaitable[tuple[Held, ...]]]
    """The kubelet's PodResources."""
    devices: Callable[[], Awaitable[Mapping[str, Share]]]
    """What each device is, by the id the kubelet has (`core.byname.shares_by_id`)."""
    share_unit_mib: Callable[[], int]
    """MiB in one `aliyun.com/gpu-mem`."""


class Recorder:
    """Compares pods with the kubelet's record; call `look` when something changed, and every few seconds.

    Args:
        kube: the Kubernetes API.
        world: what it asks.
        log: where each write is logged.

    """

    def __init__(self, kube: Kube, world: World, log: Logger) -> None:
        self._kube = kube
        self._world = world
        self._log = log
        self._settled: dict[tuple[str, str], Object] = {}
        """Pods of which nothing is to be written; objects are never changed in place."""

    async def look(self) -> None:
        """Write what can be told and is not written yet; costs nothing where every pod is settled.

        Raises:
            TesseraError: kubelet, driver or API do not answer; call again.

        """
        pods = {name_of(pod): pod for pod in self._world.pods()}
        self._settled = {name: pod for name, pod in self._settled.items() if pods.get(name) is pod}
        open_pods = [pod for name, pod in pods.items() if name not in self._settled and not self._is_settled(pod)]
        if not open_pods:
            return
        held, devices = await self._world.held(), await self._world.devices()
        for pod in open_pods:
            text = self._text(pod, held, devices)
            if text is not None and annotations_of(pod).get(ASSIGNMENT) == text:
                self._settled[name_of(pod)] = pod
            elif text is not None:
                await self._write(pod, text)

    def _is_settled(self, pod: Object) -> bool:
        """Return whether a pod has nothing to be told, and remember it."""
        try:
            settled = not asks_by_name(pod)
        except InvalidInput:
            settled = True
        if settled:
            self._settled[name_of(pod)] = pod
        return settled

    def _text(self, pod: Object, held: tuple[Held, ...], devices: Mapping[str, Share]) -> str | None:
        try:
            return recorded_assignment(pod, held, devices, share_unit_mib=self._world.share_unit_mib())
        except InvalidInput as error:
            self._log.warning("assignment_not_recorded", reason=str(error))
            self._settled[name_of(pod)] = pod
            return None

    async def _write(self, pod: Object, text: str) -> None:
        """Write an assignment on the pod that was seen; one that changed meanwhile is looked at again."""
        namespace, name = name_of(pod)
        body = {"metadata": {"resourceVersion": version_of(pod), "annotations": {ASSIGNMENT: text}}}
        try:
            await self._kube.patch(PODS, name, body, namespace=namespace)
        except Conflict as error:
            self._log.info("look_again", what="assignment", pod=f"{namespace}/{name}", reason=str(error))
        else:
            self._log.info("assignment_recorded", pod=f"{namespace}/{name}")
        await asyncio.sleep(_PAUSE_S)
