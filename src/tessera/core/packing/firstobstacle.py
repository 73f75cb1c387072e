"""The first obstacle of a pod on a node: of the node itself, of its devices, or of what is free there."""

from typing import Final

from tessera.core.cluster.snapshot import Node
from tessera.core.packing.fit.admission import Refusal, refusal, unadvertised, withheld
from tessera.core.packing.obstacles import UNREPORTED, Cause, Obstacle
from tessera.core.workload.need import DeviceRequest, Isolation, Need
from tessera.core.workload.resources import GPU_MEMORY, MODEL_RESOURCE
from tessera.core.workload.units import cores

__all__ = ["first_obstacle", "mixed", "refused"]

_REFUSED: Final = {
    Refusal.NODE_NAME: "the pod is pinned to {}",
    Refusal.UNSCHEDULABLE: "the node is cordoned",
    Refusal.TAINT: "the pod does not tolerate the taint {}",
    Refusal.SELECTOR: "the node has no label {}, which the pod selects",
    Refusal.AFFINITY: "the pod's node affinity excludes the node",
    Refusal.MODEL: f"the node does not offer {MODEL_RESOURCE}{{0}}: ModelCache {{0}} has not fetched the model there",
    Refusal.UNITS: (
        f"the pod counts {GPU_MEMORY} in MiB and the node in GiB, and kube-scheduler compares {{}}: request it in GiB, "
        f"without the annotation {GPU_MEMORY}-unit"
    ),
}


def refused(rule: Refusal, culprit: str) -> Obstacle:
    """Return the obstacle of a node that does not admit a pod by this rule, with the taint or label."""
    return Obstacle(Cause.REFUSED, _REFUSED[rule].format(culprit))


def _node_obstacle(need: Need, cpu_milli: int, memory_mib: int, pods: int) -> Obstacle | None:
    """Return what a node with this much left lacks besides devices; None where it has enough."""
    if need.cpu_milli > cpu_milli:
        free = max(cpu_milli, 0)
        return Obstacle(Cause.CPU, f"too little CPU: {cores(need.cpu_milli)} requested, {cores(free)} free", free)
    if need.memory_mib > memory_mib:
        free = max(memory_mib, 0)
        return Obstacle(Cause.MEMORY, f"too little memory: {need.memory_mib} MiB requested, {free} MiB free", free)
    return None if pods > 0 else Obstacle(Cause.PODS, "the node has its maximum number of pods")


def mixed(request: DeviceRequest, models: tuple[str, ...]) -> Obstacle:
    """Return the obstacle of a node with other devices too by the name of a request that says which (`mixednames`)."""
    grade = f" with {request.isolation} isolation" if request.isolation is not Isolation.NONE else ""
    model = f" of model {' or '.join(models)}" if models else ""
    return Obstacle(
        Cause.MIXED,
        f"not every {request.resource} of the node is one{grade}{model}, and the kubelet chooses by name alone: "
        "request an amount, or give these devices a name of their own in the node's GPUPolicy",
    )


def first_obstacle(
    need: Need,
    node: Node,
    *,
    devices: Obstacle | None,
    free: tuple[int, int, int],
) -> Obstacle | None:
    """Return the first obstacle of a node, in the order of kube-scheduler and the extender; None if the pod fits.

    Args:
        need: of the pod.
        node: as in the snapshot.
        devices: the obstacle that `Obstacles` found, or that its devices are `mixed`.
        free: milli cpu, MiB of memory and pods.

    """
    rule = refusal(need, node)
    if rule is not None:
        return refused(*rule)
    lasting_one = devices if devices is not None and devices.cause.lasting else None
    return _unknown(need, node) or lasting_one or _unadvertised(need, node) or _node_obstacle(need, *free) or devices


def _unknown(need: Need, node: Node) -> Obstacle | None:
    """Return why a node's GPUs are unknown, or a requested resource is withheld; None where neither is."""
    if need.requests and node.problem:
        return Obstacle(Cause.UNREADABLE, f"the node's GPUs are unknown: {node.problem}")
    if need.requests and not node.reported:
        return Obstacle(Cause.UNREPORTED, UNREPORTED)
    reason = withheld(need, node)
    return Obstacle(Cause.WITHHELD, reason) if reason else None


def _unadvertised(need: Need, node: Node) -> Obstacle | None:
    """Return the device by name that a node without agent does not advertise; None for none."""
    resource = unadvertised(need, node)
    text = f"the node does not advertise {resource} and has no agent"
    return Obstacle(Cause.NO_AGENT, text) if resource else None
