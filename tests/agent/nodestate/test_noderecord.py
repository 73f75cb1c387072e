"""What an agent writes on its node, over the API in memory."""

import datetime as dt

import pytest

from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.api.tessera.node.nodereports import CONDITION, Report
from tessera.clients.kube import EVENTS, NODES, MemoryKube, Object, annotations_of, labels_of
from tessera.core.cluster.gpunodestate import Impairment
from tessera.errors import Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
APPLIED = Report(reason="LayoutApplied", message="all GPUs as desired")
FAILED = Report(reason="LayoutFailed", message="1g.5gb at 0 is in use", warning=True)
READY = {"type": "Ready", "status": "True"}


async def node_of(kube: MemoryKube) -> Object:
    found = await kube.get(NODES, "n1")
    assert found is not None
    return found


@pytest.fixture
async def kube() -> MemoryKube:
    kube = MemoryKube()
    labels = {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.old": "x",
        "nvidia.com/mig.config": "all-1g.5gb",
        "zone": "a",
    }
    await kube.create(NODES, {"metadata": {"name": "n1", "labels": labels}, "status": {"conditions": [READY]}})
    return kube


@pytest.fixture
def record(kube: MemoryKube) -> NodeRecord:
    return NodeRecord(kube, "n1", logger(), now=lambda: NOON)


async def test_labels_of_others_stay(kube: MemoryKube, record: NodeRecord) -> None:
    desired = {"nvidia.com/gpu.count": "2"}
    assert await record.set_labels(desired, owned=lambda key: key.startswith("nvidia.com/gpu."))
    want = {"nvidia.com/gpu.count": "2", "nvidia.com/mig.config": "all-1g.5gb", "zone": "a"}
    assert labels_of(await node_of(kube)) == want
    version = (await node_of(kube))["metadata"]["resourceVersion"]
    assert not await record.set_labels(desired, owned=lambda key: key.startswith("nvidia.com/gpu."))
    assert (await node_of(kube))["metadata"]["resourceVersion"] == version


async def test_gpus_are_counted_where_their_memory_is_offered_as_gpushare_offers_it(
    kube: MemoryKube, record: NodeRecord
) -> None:
    async def amounts() -> list[dict[str, str]]:
        status = (await node_of(kube))["status"]
        return [status.get(name, {}) for name in ("capacity", "allocatable")]

    assert not await record.count_gpus(await node_of(kube), 2)
    await kube.patch(NODES, "n1", {"status": {"capacity": {"aliyun.com/gpu-mem": "30"}}}, subresource="status")
    assert await record.count_gpus(await node_of(kube), 2)
    assert [each["aliyun.com/gpu-count"] for each in await amounts()] == ["2", "2"]
    assert not await record.count_gpus(await node_of(kube), 2)
    await kube.patch(NODES, "n1", {"status": {"capacity": {"aliyun.com/gpu-mem": "0"}}}, subresource="status")
    assert await record.count_gpus(await node_of(kube), 2)
    assert [each["aliyun.com/gpu-count"] for each in await amounts()] == ["0", "0"]
    assert not await record.count_gpus(await node_of(kube), 2)


async def test_a_node_that_is_not_seen_yet_is_not_counted(record: NodeRecord) -> None:
    assert not await record.count_gpus({}, 2)


async def test_annotations_are_set_and_removed(kube: MemoryKube, record: NodeRecord) -> None:
    assert await record.annotate({"tessera.dev/applied-config": "a1"})
    assert not await record.annotate({"tessera.dev/applied-config": "a1"})
    assert annotations_of(await node_of(kube)) == {"tessera.dev/applied-config": "a1"}
    assert await record.annotate({"tessera.dev/applied-config": None})
    assert annotations_of(await node_of(kube)) == {}


async def test_the_condition_stands_beside_those_of_others(kube: MemoryKube, record: NodeRecord) -> None:
    assert await record.set_condition("False", FAILED)
    assert not await record.set_condition("False", FAILED)
    assert await record.set_condition("True", APPLIED)
    ready, ours = (await node_of(kube))["status"]["conditions"]
    assert ready == READY
    assert (ours["type"], ours["status"], ours["reason"]) == (CONDITION, "True", "LayoutApplied")


async def test_the_condition_is_taken_away_alone(kube: MemoryKube, record: NodeRecord) -> None:
    await record.set_condition("True", APPLIED)
    assert await record.remove_condition()
    assert not await record.remove_condition()
    assert (await node_of(kube))["status"]["conditions"] == [READY]


async def test_what_is_not_in_force_is_a_condition_that_goes_with_it(kube: MemoryKube, record: NodeRecord) -> None:
    overridden = (Impairment(kind="Overridden", subject="label a=b", by="GPUPolicy c", message="label a=b: no effect"),)
    assert not await record.report_impaired({}, ())
    await record.set_condition("True", APPLIED)
    assert await record.report_impaired(await node_of(kube), overridden)
    assert not await record.report_impaired(await node_of(kube), overridden)
    _, layout, ours = (await node_of(kube))["status"]["conditions"]
    assert (layout["type"], ours["type"]) == (CONDITION, "TesseraConfigurationApplied")
    assert (ours["status"], ours["reason"], ours["message"]) == ("False", "Overridden", "label a=b: no effect")
    assert await record.report_impaired(await node_of(kube), ())
    assert not await record.report_impaired(await node_of(kube), ())
    assert [each["type"] for each in (await node_of(kube))["status"]["conditions"]] == ["Ready", CONDITION]


async def test_the_same_event_is_counted(kube: MemoryKube, record: NodeRecord) -> None:
    for report in (FAILED, FAILED, APPLIED):
        await record.report(report)
    events = {each["reason"]: each["count"] for each in (await kube.list(EVENTS)).objects}
    assert events == {"LayoutFailed": 2, "LayoutApplied": 1}


async def test_an_event_that_cannot_be_written_stops_nothing(kube: MemoryKube, record: NodeRecord) -> None:
    kube.stop()
    await record.report(FAILED)
    kube.start()
    assert (await kube.list(EVENTS)).objects == ()


async def test_a_node_that_does_not_exist_is_named() -> None:
    with pytest.raises(Unavailable, match="node n2"):
        await NodeRecord(MemoryKube(), "n2", logger()).read()


async def test_counts_are_lowered_and_raised_each_where_the_node_has_the_resource(
    kube: MemoryKube, record: NodeRecord
) -> None:
    async def count(**amounts: str) -> Object:
        await kube.patch(NODES, "n1", {"status": {"allocatable": amounts}}, subresource="status")
        return await node_of(kube)

    counts = {"a": 2, "b": 2, "c": 2, "d": 2, "cpu": 2, "absent": 2}
    node = await count(a="1", b="2", c="3", d="40k", cpu="1500m")
    assert await record.announce(node, counts)
    assert (await node_of(kube))["status"]["allocatable"] == {"a": "1", "b": "2", "c": "2", "d": "2", "cpu": "1500m"}
    assert not await record.announce(await node_of(kube), counts)
    assert await record.count_bound(node, counts)
    assert (await node_of(kube))["status"]["allocatable"] == {"a": "2", "b": "2", "c": "2", "d": "2", "cpu": "1500m"}
    assert not await record.count_bound(await node_of(kube), counts)
