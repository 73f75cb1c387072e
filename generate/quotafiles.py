"""Objects of quotas that count one unit for all forms of requests, for deploy/quota; see docs/quota.md."""

from typing import Final

from tessera.api.documents import Plain
from tessera.core.gpu.gpumodels import CATALOG, GpuModel, Profile
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, MODEL_RESOURCE, SHARE_MEMORY

__all__ = ["kueue_resources", "needs_only"]

_MIB_IN_GIB: Final = 1024


def needs_only() -> dict[str, Plain]:
    """Return a ResourceQuota (v1) that leaves `tessera.dev/gpu-memory` as the only form of request.

    Source: kubernetes `pkg/quota/v1/evaluator/core/pods.go`: of extended resources requests alone are counted.
    """
    slices = (mig_resource(profile, shared=shared) for profile in _profiles() for shared in (False, True))
    names = (GPU_COUNT, SHARE_MEMORY, GPU_RESOURCE, f"{GPU_RESOURCE}.shared", *slices)
    hard: dict[str, Plain] = {f"requests.{name}": "0" for name in names}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpu-needs-only"}, "spec": {"hard": hard}}


def kueue_resources() -> dict[str, Plain]:
    """Return the section `resources` of Kueue's configuration that counts MIG devices and gpushare's memory as needs.

    Kueue admits nothing with a resource that its queue does not count, so it has to ignore models. A
    profile of several GPU models counts as the largest of its instances; memory is rounded up to GiB.

    Source: kubernetes-sigs/kueue `apis/config/v1beta2/configuration_types.go` (`ResourceTransformation`).
    """
    transformations: list[Plain] = [_replaced(SHARE_MEMORY, 1, 0)]
    for name, offers in _profiles().items():
        memory_mib = max(profile.memory_mib for _, profile in offers)
        percent = max(100 * profile.compute_slices // model.compute_slices for model, profile in offers)
        transformations.append(_replaced(mig_resource(name), -(-memory_mib // _MIB_IN_GIB), percent))
    return {"resources": {"excludeResourcePrefixes": [MODEL_RESOURCE], "transformations": transformations}}


def _replaced(name: str, memory_gib: int, compute_percent: int) -> dict[str, Plain]:
    outputs: dict[str, Plain] = {GPU_MEMORY: str(memory_gib)}
    if compute_percent:
        outputs[GPU_COMPUTE] = str(compute_percent)
    return {"input": name, "strategy": "Replace", "outputs": outputs}


def _profiles() -> dict[str, list[tuple[GpuModel, Profile]]]:
    """Return who offers each profile, by its name in order of names."""
    offers: dict[str, list[tuple[GpuModel, Profile]]] = {}
    for model in CATALOG:
        for profile in model.profiles:
            offers.setdefault(profile.name, []).append((model, profile))
    return dict(sorted(offers.items()))
