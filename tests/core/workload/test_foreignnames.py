"""Names of other systems: whose they are, and Tessera's form for the same."""

import pytest

from builders.fleets import gpu, node
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.reasons import Reasons
from tessera.core.workload.foreignnames import foreign_names, names_foreign
from tessera.core.workload.need import DeviceRequest, Form, Need

# Keyed by the name: the number asked for, whose it is, and what the sentence ends with.
NAMES = {
    "nvidia.com/gpumem": (3000, "HAMi", "tessera.dev/gpu-memory: 3, in GiB"),
    "nvidia.com/gpumem-percentage": (50, "HAMi", "tessera.dev/gpu-memory in GiB"),
    "nvidia.com/gpucores": (30, "HAMi", "tessera.dev/gpu-compute: 30 with tessera.dev/gpu-memory"),
    "nvidia.com/priority": (1, "HAMi", "priorityClassName"),
    "nvidia.com/gpu-10gb": (1, "nos", "tessera.dev/gpu-memory in GiB"),
    "volcano.sh/vgpu-memory": (2048, "Volcano", "tessera.dev/gpu-memory: 2, in GiB"),
    "volcano.sh/vgpu-cores": (20, "Volcano", "tessera.dev/gpu-compute: 20 with tessera.dev/gpu-memory"),
    "volcano.sh/vgpu-number": (1, "Volcano", "tessera.dev/gpu-count with tessera.dev/gpu-memory"),
    "volcano.sh/vgpu-memory-percentage": (10, "Volcano", "tessera.dev/gpu-memory in GiB"),
    "koordinator.sh/gpu": (100, "Koordinator", "tessera.dev/gpu-count with tessera.dev/gpu-memory"),
    "koordinator.sh/gpu.shared": (1, "Koordinator", "tessera.dev/gpu-count with tessera.dev/gpu-memory"),
    "koordinator.sh/gpu-core": (50, "Koordinator", "tessera.dev/gpu-compute: 50 with tessera.dev/gpu-memory"),
    "koordinator.sh/gpu-memory": (1 << 30, "Koordinator", "tessera.dev/gpu-memory in GiB"),
    "koordinator.sh/gpu-memory-ratio": (50, "Koordinator", "tessera.dev/gpu-memory in GiB"),
    "tencent.com/vcuda-core": (20, "gpu-manager", "tessera.dev/gpu-compute: 20 with tessera.dev/gpu-memory"),
    "tencent.com/vcuda-memory": (8, "gpu-manager", "tessera.dev/gpu-memory in GiB"),
    "mig.das.com/1g.5gb": (1, "InstaSlice", "nvidia.com/mig-PROFILE"),
    "gpu-memory": (1, "KAI", "tessera.dev/gpu-memory in GiB"),
    "gpu-fraction": (1, "KAI", "tessera.dev/gpu-memory in GiB"),
    "resource.k8s.io/claim": (1, "dynamic resource allocation", "one of the forms of docs/requests.md"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_another_system(name: str) -> None:
    count, owner, end = NAMES[name]
    (got,) = foreign_names(
        [DeviceRequest(resource=name, count=count), DeviceRequest(resource=name, count=count, container="b")]
    )
    assert got.startswith(f"{name} is a name of {owner}, which Tessera does not read: request ")
    assert got.endswith(end)


def test_tesseras_own_names_and_those_of_other_devices_are_not_reported() -> None:
    own = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "rdma/hca", "nvidia.com/gpumemory")
    assert foreign_names(DeviceRequest(resource=name) for name in own) == ()
    assert foreign_names([DeviceRequest(resource="gpu-memory", form=Form.NEED)]) == ()


OTHERS = {
    "amd.com/gpu": "AMD",
    "gpu.intel.com/i915": "Intel",
    "habana.ai/gaudi": "Intel",
    "google.com/tpu": "Google's TPUs",
    "aws.amazon.com/neuroncore": "AWS Neuron",
    "huawei.com/Ascend910": "Huawei",
}


@pytest.mark.parametrize(("name", "owner"), OTHERS.items())
def test_devices_that_are_not_nvidias_are_named_as_such(name: str, owner: str) -> None:
    assert names_foreign(name)
    want = f"{name} is a device of {owner}, and Tessera shares NVIDIA GPUs only"
    assert foreign_names([DeviceRequest(resource=name)]) == (want,)


@pytest.mark.parametrize("name", ["nvidia.com/gpus", "nvidia/gpu", "nvidia.com/GPU", "nvdia.com/gpu"])
def test_a_name_near_a_known_one_is_asked_about(name: str) -> None:
    assert foreign_names([DeviceRequest(resource=name)]) == (f"did you mean nvidia.com/gpu instead of {name}?",)


def test_the_reason_for_waiting_says_so() -> None:
    need = Need(
        requests=(DeviceRequest(resource="nvidia.com/gpu"), DeviceRequest(resource="nvidia.com/gpumem", count=3000))
    )
    _, got = Reasons(Snapshot(nodes=(node("a", gpu(0)),))).why(need)
    assert got.startswith(
        "needs nvidia.com/gpu, 3000 x nvidia.com/gpumem; no GPU of the node can provide nvidia.com/gpumem (a: "
    )
    assert got.endswith(
        "; nvidia.com/gpumem is a name of HAMi, which Tessera does not read: request " + NAMES["nvidia.com/gpumem"][2]
    )
