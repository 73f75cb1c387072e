"""Devices that nodes advertise by name, as kube-scheduler counts them: less those that the pods of a node request.

It binds a pod by name where enough are left; the kubelet then chooses among them. Where too few are, a GPU may still
have room: the controller creates devices on managed GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from tessera.core.cluster.cluster import ObservedNode, ObservedPod
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.protocols.allocators import devices_one_by_one
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import names_device
from tessera.core.packing.ledger import Ledger, LedgerEntry, Purpose, PurposeKey
from tessera.core.packing.obstacles import Cause, Obstacle
from tessera.core.workload.need import DeviceRequest, Form, Need, PodKey

__all__ = ["AdvertisedDevices"]


class AdvertisedDevices:
    """The devices by name that are left on each node.

    Source: kubernetes `pkg/scheduler/framework/plugins/noderesources/fit.go`: allocatable less requests of bound pods.

    Args:
        nodes: the nodes.
        pods: of which those on a node count.

    """

    def __init__(self, nodes: Iterable[ObservedNode], pods: Iterable[ObservedPod] = ()) -> None:
        self._nodes = {str(each.node.name): each for each in nodes}
        self._unclaimed = {name: Counter(dict(each.advertised)) for name, each in self._nodes.items()}
        for pod in pods:
            if pod.node is not None:
                self.take(pod, pod.node)

    def take(self, pod: ObservedPod | Need, node: str) -> None:
        """Count a pod on a node; nothing where the node is unknown."""
        self._unclaimed.get(node, Counter()).subtract(_requested(pod))

    def give(self, pod: ObservedPod | Need, node: str) -> None:
        """Undo `take`."""
        self._unclaimed.get(node, Counter()).update(_requested(pod))

    def suffice(self, need: Need, node: str) -> bool:
        """Return whether a node has as many left of each name as a pod requests, and any of each amount."""
        left, requested = self._unclaimed[node], _requested(need)
        advertised = {name for name, _ in self._nodes[node].advertised}
        return all(left[name] >= count for name, count in requested.items()) and all(
            request.resource in advertised for request in need.requests
        )

    def missing(self, need: Need, node: str) -> Obstacle | None:
        """Return the device by name of which a node has too few left, and no GPU on which it is created; else None."""
        observed = self._nodes[node]
        if observed.state is None and observed.node.advertised is None:  # what it advertises is unknown
            return None
        advertised = dict(observed.advertised)
        for name, count in _requested(need).items():
            left, total = max(self._unclaimed[node][name], 0), advertised.get(name, 0)
            if left >= count or any(
                self._creates(node, request) for request in need.requests if request.resource == name
            ):
                continue
            if not total:
                return Obstacle(Cause.ADVERTISED, f"the node does not advertise {name}: check its agent")
            text = f"too few free devices: {count} x {name} requested, {left} of {total} advertised are free"
            return Obstacle(Cause.ADVERTISED, text, left)
        return None

    def devices(self, ledger: Ledger, need: Need, node: str) -> tuple[Share, ...]:
        """Return what the kubelet would allocate to a pod by name for which enough are left, one for each device.

        Idle devices that it may allocate already come before others. Empty where the GPUs do not have what the node
        advertises.
        """
        found: list[Share] = []
        requests: list[DeviceRequest] = []
        idle = list(self._idle(node))
        for request in need.requests:
            own = [share for share in idle if share.resource == request.resource]
            taken = [share for share in own if ledger.can_hold(node, [*found, share])][: request.count]
            idle = [share for share in idle if share not in taken]
            found += taken
            requests += (
                [msgspec.structs.replace(request, count=request.count - len(taken))]
                if len(taken) < request.count
                else []
            )
        if not requests:
            return tuple(found)
        trial = PurposeKey(Purpose.TRIAL, "idle devices")
        ledger.put_pod(LedgerEntry(trial, PodKey(trial.uid), self._nodes[node].node.name, Need(), tuple(found)))
        rest = ledger.choose(Need(requests=tuple(requests), models=need.models), node)
        ledger.drop_pod(trial)
        return () if isinstance(rest, str) else (*found, *rest)

    def _creates(self, node: str, request: DeviceRequest) -> bool:
        state = self._nodes[node].state
        gpus = state.gpus if state is not None and state.reported else ()
        return any(gpu.sharing.managed and gpu.options(request) for gpu in gpus)

    def _idle(self, node: str) -> Iterator[Share]:
        """Yield the devices of managed GPUs that the kubelet may allocate, also those that pods have."""
        state = self._nodes[node].state
        gpus = {gpu.uuid: gpu for gpu in state.gpus if gpu.sharing.creates_devices} if state is not None else {}
        offered = devices_one_by_one(state.offered) if state is not None else frozenset()
        for uuid, placement in sorted(offered, key=DeviceId.order):
            if uuid in gpus:
                yield named_share(gpus[uuid], placement)


def _requested(pod: ObservedPod | Need) -> Counter[str]:
    """Return how many devices of each name a pod requests; by its devices where its request cannot be read."""
    if isinstance(pod, ObservedPod) and pod.unread:
        return Counter(share.resource for share in pod.shares if names_device(share.resource))
    need = pod if isinstance(pod, Need) else pod.pod.need
    found = Counter[str]()
    for request in need.requests:
        if request.form is Form.EXACT:
            found[request.resource] += request.count
    return found
