"""Devices by name as kube-scheduler counts them; that explain and defrag agree is in explain/test_agreement."""

from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import gpu, node
from builders.shares import mig_share
from tessera.core.cluster.cluster import ObservedNode, ObservedPod, Phase
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import NodeName
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.advertised import AdvertisedDevices
from tessera.core.packing.obstacles import Cause, Obstacle
from tessera.core.workload.need import DeviceRequest, Form, Need, Pod, PodKey

NAMES = ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb")
FIXED = GpuNodeState(name=NodeName("n"), gpus=(gpu(0, sharing=Sharing(modes=(Mode.WHOLE,))),), reported=True)


def need(**counts: int) -> Need:
    return Need(
        requests=tuple(DeviceRequest(resource=NAMES[name == "mig"], count=count) for name, count in counts.items())
    )


def observed(advertised: dict[str, int], state: GpuNodeState | None = FIXED) -> ObservedNode:
    counts = tuple((NAMES[name == "mig"], count) for name, count in advertised.items())
    return ObservedNode(node=node("n"), state=state, advertised=counts)


def pod(request: Need, where: str | None = "n", unread: str = "") -> ObservedPod:
    shares = tuple(mig_share(0, "1g.5gb", start) for start in range(2)) if unread else ()
    return ObservedPod(
        pod=Pod(key=PodKey("ns/x"), need=request),
        node=None if where is None else NodeName(where),
        unread=unread,
        shares=shares,
        phase=Phase.RUNNING,
    )


@given(
    advertised=st.fixed_dictionaries({"gpu": st.integers(0, 4), "mig": st.integers(0, 4)}),
    running=st.lists(st.fixed_dictionaries({"gpu": st.integers(0, 2), "mig": st.integers(0, 2)}), max_size=3),
    requested=st.fixed_dictionaries({"gpu": st.integers(0, 4), "mig": st.integers(0, 4)}),
)
def test_enough_are_left_if_what_pods_request_is_no_more_than_is_advertised(
    advertised: dict[str, int], running: list[dict[str, int]], requested: dict[str, int]
) -> None:
    requested = {name: count for name, count in requested.items() if count} or {"gpu": 1}
    pods = [pod(need(**each)) for each in running]
    devices = AdvertisedDevices([observed({name: count for name, count in advertised.items() if count})], pods)
    left = {name: advertised[name] - sum(each[name] for each in running) for name in advertised}
    assert devices.suffice(need(**requested), "n") == all(left[name] >= count for name, count in requested.items())
    for each in pods:
        devices.give(each, "n")
    assert devices.suffice(need(**requested), "n") == all(
        advertised[name] >= count for name, count in requested.items()
    )


def test_a_pod_without_node_or_on_an_unknown_one_takes_nothing() -> None:
    devices = AdvertisedDevices([observed({"gpu": 1})], [pod(need(gpu=1), None), pod(need(gpu=1), "elsewhere")])
    assert devices.suffice(need(gpu=1), "n")


def test_a_pod_whose_request_cannot_be_read_takes_the_devices_that_are_recorded() -> None:
    devices = AdvertisedDevices([observed({"mig": 3})], [pod(Need(), unread="it is odd")])
    assert [devices.suffice(need(mig=count), "n") for count in (1, 2)] == [True, False]


def test_of_amounts_it_matters_that_they_are_advertised() -> None:
    amount = Need(requests=(DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=1),))
    assert not AdvertisedDevices([observed({"gpu": 1})]).suffice(amount, "n")


def test_what_is_missing_where_no_device_is_created() -> None:
    devices = AdvertisedDevices([observed({"gpu": 1})], [pod(need(gpu=1))])
    text = "too few free devices: 1 x nvidia.com/gpu requested, 0 of 1 advertised are free"
    assert devices.missing(need(gpu=1), "n") == Obstacle(Cause.ADVERTISED, text)
    silent = "the node does not advertise nvidia.com/gpu: check its agent"
    assert AdvertisedDevices([observed({})]).missing(need(gpu=1), "n") == Obstacle(Cause.ADVERTISED, silent)
    assert AdvertisedDevices([observed({}, None)]).missing(need(gpu=1), "n") is None, "nothing is known of it"
