"""What the calls of one resource are answered, and its list as streams of the kubelet get it."""

import asyncio

import msgspec
import pytest

from builders.deviceplugins import gate
from builders.gpunodes import facts, offered
from builders.nodeviews import RecordedPods
from builders.offeredresources import GPU, IDS, MEMORY, SLICED, UNHEALTHY, UNITS, IdsHandover, Shares, plugin, two
from tessera.agent.deviceplugin import OfferedResource
from tessera.core.deviceplugin.allocations.agentallocations import uses_of_devices
from tessera.core.deviceplugin.allocations.allocateddevices import devices_by_name
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import Resource
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import Conflict, InvalidInput, Unavailable

pytestmark = pytest.mark.anyio

MPS = Sharing(modes=(Mode.MPS,), replicas=(("", 2),))


# sentence: (resource, ids asked, kind of error, what it says)
HOSTILE: dict[str, tuple[Resource, list[str], type[Exception], str]] = {
    "no ids": (two(SLICED), [], InvalidInput, "no device ids"),
    "an id twice": (two(SLICED), [IDS[0], IDS[0]], InvalidInput, "an id twice"),
    "an unknown id": (two(SLICED), [IDS[0], "GPU-x"], InvalidInput, "'GPU-x' is not one of the 4 advertised ids"),
    "a hostile id": (two(SLICED), ["../../x\n" * 100], InvalidInput, r"\\n"),
    "more than there are": (two(SLICED), [*IDS, "GPU-y::0"], InvalidInput, "GPU-y::0"),
    "is unhealthy: request": (two(SLICED, options=UNHEALTHY), [IDS[2]], Conflict, "is unhealthy: request"),
    "more than one of MPS": (two(MPS), IDS[:2], InvalidInput, "failRequestsGreaterThanOne"),
    "an unhealthy unit": (two(MEMORY, UNITS, UNHEALTHY), [f"{facts(1).uuid}-_-0"], Conflict, "is unhealthy: request"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_allocations_that_are_refused(case: str) -> None:
    resource, ids, kind, want = HOSTILE[case]
    each = plugin(resource)
    with pytest.raises(kind, match=want):
        await each.allocate(tuple(ids))
    healthy = tuple(device.id for device in resource.devices if device.healthy)[:1]
    assert isinstance(await each.allocate(healthy), ContainerResponse), "the next one is served"


async def test_devices_pass_the_gate_and_units_are_asked_of_the_shares() -> None:
    shares, view = Shares(), RecordedPods()
    each = plugin(two(SLICED), shares, view=view)
    assert dict((await each.allocate((IDS[0], IDS[2]))).env) == {"IDS": f"{IDS[0]},{IDS[2]}"}
    with pytest.raises(Unavailable, match="does not list these devices for any container"):
        await each.pre_start((IDS[0], IDS[2]))
    view.record("p", GPU, IDS[0], IDS[2])
    await each.pre_start((IDS[0], IDS[2]))
    assert (shares.requested, each.options.pre_start) == ([], True)
    units = plugin(two(MEMORY, UNITS), shares)
    ids = tuple(device.id for device in units.resource.devices[:3])
    await units.allocate(ids)
    await units.pre_start(ids)
    assert shares.requested == [("allocate", UNITS, 3), ("pre_start", UNITS, 3)]
    assert units.options.pre_start


# sentence: (sharing, what the pod's annotation says, why it may not start)
ISOLATED: dict[str, tuple[Sharing, str, str]] = {
    "a replica for hardware": (
        SLICED,
        "hardware",
        "it requests isolation hardware; time-slicing of GPU .* has none",
    ),
    "a replica for the driver's": (SLICED, "driver", "set schedulerName: tessera-scheduler"),
    "a replica for none": (SLICED, "none", ""),
    "a client of MPS for the driver's": (MPS, "driver", ""),
    "a client of MPS for hardware": (MPS, "hardware", "mps of GPU .* has driver"),
    "a whole GPU for hardware": (Sharing(modes=(Mode.WHOLE,)), "hardware", ""),
    "a grade that is none": (SLICED, "hard\n", r"isolation is 'hard\\n'.* write hardware, driver, none"),
}


@pytest.mark.parametrize("case", ISOLATED)
async def test_a_device_that_isolates_less_than_its_pod_asks_is_refused(case: str) -> None:
    sharing, text, why = ISOLATED[case]
    view, resource = RecordedPods(), two(sharing)
    each, name = plugin(resource, view=view), resource.devices[0].id
    await each.allocate((name,))
    view.record("p", GPU, name)
    view.objects["p"]["metadata"]["annotations"] = {"tessera.dev/isolation": text}
    if why:
        with pytest.raises(Conflict, match=why):
            await each.pre_start((name,))
    else:
        await each.pre_start((name,))
        view.objects["p"]["metadata"]["annotations"] = {"tessera.dev/isolation": "hardware"}
        await each.pre_start((name,))  # it keeps what it was started with


@pytest.mark.parametrize("sharing", [None, Sharing(modes=(Mode.WHOLE,)), MPS], ids=["nothing", "whole", "mps"])
async def test_a_device_counts_as_what_it_was_allocated_as_whatever_is_offered_since(sharing: Sharing | None) -> None:
    """The GPU becomes whole, is served by MPS or leaves the offer between `Allocate` and the start."""
    view = RecordedPods()
    each = plugin(two(SLICED), view=view)
    await each.allocate((IDS[0],))
    view.record("p", GPU, IDS[0])
    view.objects["p"]["metadata"]["annotations"] = {"tessera.dev/isolation": "driver"}
    each.update(two(sharing) if sharing else Resource(name=GPU, devices=()))
    with pytest.raises(Conflict, match=r"it requests isolation driver; its replica of GPU .* has none"):
        await each.pre_start((IDS[0],))
    view.objects["p"]["metadata"]["annotations"] = {}
    await each.pre_start((IDS[0],))


async def test_a_whole_gpu_that_leaves_the_offer_is_still_isolated() -> None:
    view, resource = RecordedPods(), two(Sharing(modes=(Mode.WHOLE,)))
    each, name = plugin(resource, view=view), resource.devices[0].id
    await each.allocate((name,))
    view.record("p", GPU, name)
    view.objects["p"]["metadata"]["annotations"] = {"tessera.dev/isolation": "hardware"}
    each.update(Resource(name=GPU, devices=()))
    await each.pre_start((name,))


@pytest.mark.parametrize("ran", [True, False])
async def test_a_container_that_ran_before_there_was_a_record_starts_again_with_what_it_had(*, ran: bool) -> None:
    class Kubelets(RecordedPods):
        async def devices_of_all_containers(self) -> tuple[KubeletAllocation, ...]:
            return tuple(self.recorded)

    view, resource = Kubelets(), two(SLICED)
    name = resource.devices[0].id
    own = gate(view)
    each = OfferedResource(resource, IdsHandover(), own, Shares())
    view.record("p", GPU, name)
    (held,) = view.recorded
    view.objects["p"]["metadata"]["annotations"] = {"tessera.dev/isolation": "hardware"}
    if ran:
        view.objects["p"]["status"] = {"containerStatuses": [{"name": held.container, "containerID": "containerd://1"}]}
    await own.record.clean_up(lambda _: uses_of_devices(resource.devices[:1]))
    if ran:
        await each.pre_start((name,))
    else:
        with pytest.raises(Conflict, match="it requests isolation hardware"):
            await each.pre_start((name,))


async def test_a_device_that_leaves_is_given_to_whom_the_kubelet_chose_it_for_already() -> None:
    each = plugin(two(SLICED))
    left = offered((facts(0, "T4"), SLICED))[GPU]
    each.update(left, leaving=frozenset({DeviceId(facts(1).uuid)}))
    assert each.resource.devices == left.devices
    assert each.offers(frozenset({DeviceId(facts(1).uuid)}))
    assert dict((await each.allocate((IDS[2],))).env) == {"IDS": IDS[2]}
    each.update(left)
    assert not each.offers(frozenset({DeviceId(facts(1).uuid)}))
    with pytest.raises(InvalidInput, match="one of the 2 advertised ids"):
        await each.allocate((IDS[3],))


async def test_a_device_never_looks_free_while_a_call_for_it_is_answered() -> None:
    """In between its former pod is seen to have ended, and the device is withdrawn: it must not go to the scheduler."""
    observed: list[tuple[frozenset[DeviceId], frozenset[str], bool]] = []

    class Looking(RecordedPods):
        async def refresh(self) -> None:
            await asyncio.sleep(0)
            self.objects.clear()
            own.record.release()
            each.update(msgspec.structs.replace(each.resource, devices=()))
            each.drop_unchosen(frozenset(), asyncio.get_running_loop().time())
            observed.append((devices_by_name(own.record.allocated), own.record.allocated_ids(GPU), each.unsettled))

    view = Looking()
    own = gate(view)
    each = OfferedResource(two(SLICED), IdsHandover(), own, Shares())
    await each.allocate((IDS[0],))
    view.record("p", GPU, IDS[0])
    await each.pre_start((IDS[0],))
    view.recorded.clear()  # the kubelet has let it go
    assert dict((await each.allocate((IDS[0],))).env) == {"IDS": IDS[0]}
    assert observed == [(frozenset({DeviceId(facts(0, "T4").uuid)}), frozenset({IDS[0]}), True)]
    assert [(entry.ids, entry.uid) for entry in own.record.entries] == [((IDS[0],), "")]


async def test_what_is_preferred_follows_the_policy() -> None:
    desired = PreferenceRequest(available=tuple(IDS), size=2)
    assert await plugin(two(SLICED)).prefer(desired) == (IDS[0], IDS[2])
    assert await plugin(two(SLICED), policy="packed").prefer(desired) == (IDS[0], IDS[1])
    each = plugin(two(SLICED))
    each.update(two(SLICED), policy="packed")
    assert await each.prefer(desired) == (IDS[0], IDS[1])
