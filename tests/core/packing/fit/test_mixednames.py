"""Devices of one name that are not alike: to which nodes a pod may go that says more than the name."""

import msgspec
import numpy as np
import pytest

from builders.kubeobjects import gpu
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.mixednames import is_mixed, mixtures, restricts
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need

WHOLE = Sharing(modes=(Mode.WHOLE,))
REPLICAS = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
OWN = DeviceRequest(resource="nvidia.com/gpu", isolation=Isolation.HARDWARE)
SLICE = DeviceRequest(resource="nvidia.com/mig-1g.5gb", isolation=Isolation.HARDWARE)


def node(name: str, *gpus: Gpu) -> Node:
    return Node(name=NodeName(name), cpu_milli=1000, memory_mib=1000, gpus=gpus)


ASKS = {
    "a grade": (OWN, (), True),
    "a model": (DeviceRequest(resource="nvidia.com/mig-1g.5gb"), ("A100-40GB",), True),
    "the name alone": (DeviceRequest(resource="nvidia.com/gpu"), (), False),
    "an amount, which the scheduler gives": (
        DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=4096, isolation=Isolation.HARDWARE),
        ("A100-40GB",),
        False,
    ),
    "a network card beside it": (DeviceRequest(resource="example.com/nic"), ("A100-40GB",), False),
}


@pytest.mark.parametrize("sentence", ASKS)
def test_which_requests_say_more_than_the_name(sentence: str) -> None:
    request, models, want = ASKS[sentence]
    assert restricts(request, models) is want


def test_nodes_are_found_on_which_the_kubelet_could_choose_another_device() -> None:
    fleet = Fleet(
        (
            node("alike", gpu(0, sharing=WHOLE), gpu(1, sharing=WHOLE)),
            node("none"),
            node("mixed", gpu(0, sharing=WHOLE), gpu(1, sharing=REPLICAS)),
            node("models", gpu(0, sharing=WHOLE), gpu(1, "H100-80GB", sharing=WHOLE)),
        )
    )
    every = np.array([0, 1, 2, 3, -1])
    assert mixtures(Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),)), fleet, every) == {}
    assert list(mixtures(Need(requests=(OWN, SLICE)), fleet, every)) == [2]
    assert list(mixtures(Need(requests=(OWN, OWN)), fleet, every)) == [2], "each node once, by the first request"
    found = mixtures(Need(requests=(OWN,), models=("A100-40GB",)), fleet, every)
    assert sorted(found) == [2, 3]
    assert found[3] is OWN
    needs = (
        Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),)),
        Need(requests=(OWN, SLICE)),
        Need(requests=(OWN,), models=("A100-40GB",)),
    )
    assert [[n for n, each in enumerate(fleet.nodes) if is_mixed(need, each.gpus)] for need in needs] == [
        [],
        [2],
        [2, 3],
    ]


def test_a_gpu_that_is_unhealthy_now_counts_as_what_it_is() -> None:
    closed = msgspec.structs.replace(gpu(1, sharing=Sharing(modes=())), healthy=gpu(1, sharing=REPLICAS))
    fleet = Fleet((node("a", gpu(0, sharing=WHOLE), closed),))
    assert list(mixtures(Need(requests=(OWN,)), fleet, np.array([0]))) == [0]
