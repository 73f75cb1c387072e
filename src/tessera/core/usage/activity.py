"""How active pods are, what memory they use, and when a device is idle: nearly nothing of either is used."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from tessera.core.workload.need import PodKey

__all__ = ["IDLE_PERCENT", "UNUSED_MIB", "is_idle", "pod_activity", "pod_memory"]

IDLE_PERCENT: Final = 5.0
"""A container that uses less of the compute of its GPU or MIG instance is idle."""

UNUSED_MIB: Final = 64
"""A device with at most this much memory in use is used by no process.

Drivers report up to 14 MiB of an empty MIG instance; the smallest CUDA context has 72 MiB (docs/hardware.md).
Source: NVIDIA dcgm-exporter, `internal/pkg/transformation/kubernetes_mig_test.go`; MIG User Guide, `nvidia-smi`.
"""


def is_idle(percent: Collection[float | None], used_mib: int | None) -> bool:
    """Return whether all containers of a device are known to be idle; where unknown, whether no process uses it.

    Args:
        percent: how much of its compute each container uses; None where unknown.
        used_mib: memory of the device in use; None where unknown.

    """
    known = [each for each in percent if each is not None]
    if known and len(known) == len(percent):
        return max(known) < IDLE_PERCENT
    return used_mib is not None and used_mib <= UNUSED_MIB


def pod_activity(loads: Iterable[tuple[str, str, float | None]]) -> dict[tuple[str, PodKey], float]:
    """Return how much of its compute each pod uses, in percent, of its busiest device: by node and pod.

    Args:
        loads: node, container as `namespace/pod/container`, and percent of its device; None where unknown.

    """
    found: dict[tuple[str, PodKey], float] = defaultdict(float)
    for node, container, percent in loads:
        if percent is not None:
            key = node, PodKey(container.rpartition("/")[0])
            found[key] = max(found[key], min(percent, 100.0))
    return dict(found)


def pod_memory(uses: Iterable[tuple[str, str, str, int | None]]) -> dict[tuple[str, str], dict[PodKey, int]]:
    """Return how much memory each pod uses of each GPU, in MiB: by node and UUID; none of a pod where some is unknown.

    Args:
        uses: node, UUID of the GPU, container as `namespace/pod/container`, and MiB in use; None where unknown.

    """
    found: dict[tuple[str, str], dict[PodKey, int | None]] = defaultdict(dict)
    for node, gpu, container, mib in uses:
        key = PodKey(container.rpartition("/")[0])
        so_far = found[node, gpu].get(key, 0)
        found[node, gpu][key] = None if mib is None or so_far is None else so_far + mib
    known = ((gpu, {key: mib for key, mib in pods.items() if mib is not None}) for gpu, pods in found.items())
    return {gpu: pods for gpu, pods in known if pods}
