"""The list of a device plugin: what streams of the kubelet get, and how devices leave it."""

import asyncio

import msgspec
import pytest

from builders.gpunodes import facts, offered
from builders.nodeviews import RecordedPods
from builders.offeredresources import GPU, IDS, MEMORY, SLICED, UNHEALTHY, UNITS, Shares, plugin, two
from tessera.agent.deviceplugin import OfferedResource
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers import listing
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import InvalidInput

pytestmark = pytest.mark.anyio


async def listed_by(each: OfferedResource) -> list[tuple[str, bool]]:
    """Return what a stream that opens now is given: ids, and whether they are healthy."""
    stream = each.watch()
    devices = await anext(stream)
    await stream.aclose()
    return [(device.id, device.healthy) for device in devices]


async def test_a_device_is_unhealthy_before_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "STAYS_S", 0.0)
    each = plugin(two(SLICED))
    each.update(offered((facts(0, "T4"), SLICED))[GPU])
    both = [(name, name in IDS[:2]) for name in IDS]
    now_s = asyncio.get_running_loop().time
    assert (await listed_by(each), each.unsettled, each.awaits_kubelet) == (both, True, True)
    each.drop_unchosen(None, now_s())
    each.drop_unchosen(frozenset(IDS), now_s())
    assert await listed_by(each) == both, "the kubelet has it as healthy"
    each.drop_unchosen(frozenset(IDS[:2]), now_s())
    assert (await listed_by(each), each.unsettled, each.awaits_kubelet) == (both[:2], False, False)


async def test_a_device_stays_listed_while_a_pod_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call until the pod is known: the kubelet reads in between what it has chosen."""
    monkeypatch.setattr(listing, "STAYS_S", 0.0)
    view, goes_on, inside = RecordedPods(), asyncio.Event(), asyncio.Event()

    class Slow(Shares):
        async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerResponse:
            inside.set()
            await goes_on.wait()
            return await super().allocate(resource, ids)

    def drop_unchosen(each: OfferedResource) -> bool:
        each.drop_unchosen(frozenset(), asyncio.get_running_loop().time())
        return each.unsettled

    units = plugin(two(MEMORY, UNITS), Slow())
    last = units.resource.devices[-1].id
    asking = asyncio.create_task(units.allocate((last,)))
    await inside.wait()
    units.update(msgspec.structs.replace(units.resource, devices=()))
    assert drop_unchosen(units)
    assert await listed_by(units) == [(last, False)], "the others are nobody's"
    goes_on.set()
    await asking
    assert not units.resource.devices
    assert not drop_unchosen(units)

    each = plugin(two(SLICED), view=view)
    await each.allocate((IDS[3],))
    each.update(offered((facts(0, "T4"), SLICED))[GPU], leaving=frozenset({DeviceId(facts(1).uuid)}))
    assert drop_unchosen(each), "the kubelet has not recorded whose it is"
    view.record("p", GPU, IDS[3])
    await each.pre_start((IDS[3],))
    assert not drop_unchosen(each)
    with pytest.raises(InvalidInput, match="one of the 2 advertised ids"):
        await each.allocate((IDS[2],))


async def test_streams_get_the_whole_list_when_anything_changed() -> None:
    each = plugin(two(SLICED))
    first, second = each.watch(), each.watch()
    assert await anext(first) == await anext(second) == two(SLICED).devices
    assert each.streams == 2
    each.update(two(SLICED))
    later = [asyncio.ensure_future(anext(stream)) for stream in (first, second)]
    assert not await each.sent(0.01) or not any(task.done() for task in later)
    each.update(two(SLICED, options=UNHEALTHY))
    assert [[device.healthy for device in await task] for task in later] == [[True, True, False, False]] * 2
    await first.aclose()
    assert each.streams == 1
    each.end()
    assert await anext(second) == ()
    assert [devices async for devices in second] == []
    assert each.streams == 0
    assert await each.sent(0.01)


async def test_a_stream_that_does_not_read_is_not_waited_for_longer_than_the_deadline() -> None:
    each = plugin(two(SLICED))
    stream = each.watch()
    await anext(stream)
    assert not await each.sent(0.01)
    await stream.aclose()
