"""Shares of GPUs: what a pod gets of one device."""

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode


def share(
    gpu: int = 0, memory_mib: int = 1024, mode: Mode | None = None, at: str = "", *, percent: int = 0, **names: str
) -> Share:
    """Return a share of a GPU; `at` is `PROFILE@START`, and `names` are `resource` and `container`."""
    profile, _, start = at.partition("@")
    mode = mode or (Mode.MIG if profile else Mode.MEMORY_SHARE)
    resource = names.get("resource") or ("nvidia.com/gpu" if mode is Mode.WHOLE else "tessera.dev/gpu-memory")
    return Share(
        gpu=gpu,
        mode=mode,
        profile=profile or None,
        start=int(start) if start else None,
        memory_mib=memory_mib,
        compute_percent=percent,
        isolation=mode.isolation,
        resource=resource,
        container=names.get("container", "main"),
    )


def whole(gpu: int = 0, memory_mib: int = 1, **names: str) -> Share:
    """Return all of a GPU."""
    return share(gpu, memory_mib, Mode.WHOLE, percent=100, **names)


def amount(gpu: int, placement: Placement | None = None, memory_mib: int = 4096, container: str = "main") -> Share:
    """Return what serves a request for so much memory: a part of a GPU, or the MIG instance at a place."""
    return share(gpu, memory_mib, at=f"{placement.profile}@{placement.start}" if placement else "", container=container)


def mig_share(gpu: int, profile: str, start: int, kind: str = "A100-40GB", mode: Mode = Mode.MIG) -> Share:
    """Return a MIG instance as a share."""
    known = model(kind)
    found = next(each for each in known.profiles if each.name == profile)
    percent = 100 * found.compute_slices // known.compute_slices
    resource = f"nvidia.com/mig-{profile}"
    return share(gpu, found.memory_mib, mode, f"{profile}@{start}", percent=percent, resource=resource)
