"""A tenant that makes pods by thousands, with the worst that the API stores: others are bound all the same."""

import pytest

from harness.servers import NEED, Asked, make_pod, settle
from judges.allocated import shares_of
from tessera.clients.kube import PODS, MemoryKube, annotations_of
from tessera.core.cluster.snapshot import NodeName

pytestmark = pytest.mark.anyio

LARGEST = 256 << 10
"""Bytes of annotations that the API server lets a pod have."""
ASSIGNMENT, SIGNATURE = "tessera.dev/assignment", "tessera.dev/assignment-signature"
LARGE: dict[str, dict[str, str]] = {
    "deep": {ASSIGNMENT: "[" * LARGEST},
    "a list of everything": {ASSIGNMENT: '{"version": 1, "shares": [' + '{"gpu": 0},' * (LARGEST // 11)},
    "a number": {ASSIGNMENT: "9" * LARGEST},
    "a signature": {ASSIGNMENT: "[]", SIGNATURE: "a" * LARGEST},
    "a unit": {"tessera.dev/gpu-memory-unit": "M" * LARGEST},
    "an isolation": {"tessera.dev/isolation": "\u0000\ud7ff'\"\n" * (LARGEST // 8)},
    "gpushare's index": {"ALIYUN_COM_GPU_MEM_IDX": "1," * (LARGEST // 2)},
    "gpushare's allocation": {"scheduler.framework.gpushare.allocation": '{"0":' * (LARGEST // 5)},
    "many keys": {f"tessera.dev/{number}": "x" for number in range(10_000)},
}
NAMES = ("a" * 253, "0", "x.y.z", "a--b", "1e9", "null", "true")


@pytest.mark.parametrize("case", LARGE)
async def test_the_largest_annotations_take_nothing_and_keep_nobody(kube: MemoryKube, server: Asked, case: str) -> None:
    """With and without a node of its own choice; nothing refused it, as where admission is off."""
    for index, name in enumerate(NAMES):
        made = await make_pod(kube, name, NEED, annotations=LARGE[case])
        if index % 2:
            await kube.bind(name, "ns", uid=made["metadata"]["uid"], node="a", annotations={})
    await settle()
    await an_honest_pod_is_bound(kube, server)


async def test_ten_thousand_pods_are_kept_as_they_came_and_hold_nothing(kube: MemoryKube, server: Asked) -> None:
    for number in range(10_000):
        await make_pod(kube, f"{NAMES[number % len(NAMES)][:200]}-{number}", NEED, annotations={ASSIGNMENT: "[]"})
    await settle()
    assert server.server.view.pods.find("ns/null-5") is not None, "they were read"
    ledger = server.server.view.ledger
    assert [list(ledger.pods_on(NodeName(name))) for name in ("a", "b")] == [[], []]
    await an_honest_pod_is_bound(kube, server)


async def an_honest_pod_is_bound(kube: MemoryKube, server: Asked) -> None:
    honest = await make_pod(kube, "honest", NEED)
    await settle()
    assert await server.schedule(honest, "a", "b") == ""
    bound = await kube.get(PODS, "honest", "ns")
    assert bound is not None
    assert [each["memoryMiB"] for each in shares_of(bound)] == [10240]
    assert annotations_of(bound)[SIGNATURE]
