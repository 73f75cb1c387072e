"""Shares of pods with init containers: the kubelet gives a pod's later containers the units of those that have ended.

Nothing fails here and nothing is lost: every pod starts, with the GPU of its assignment, whoever else waits for an
image between its admission and its start.
"""

import random
from collections.abc import Iterable

import pytest

from builders.gpunodes import facts
from builders.signed import signed
from harness.pluginnode import MEMORY, NEED, Node, share
from tessera.clients.kubelet import Container
from tessera.core.node.nodesharing import ListStrategy, PluginOptions

pytestmark = pytest.mark.anyio

T4 = 15
"""Units of each GPU."""
STRATEGIES: tuple[ListStrategy, ...] = ("envvar", "volume-mounts", "cdi-cri")


class Waiting:
    """A pod that the kubelet has admitted, and what is left of it to start."""

    def __init__(self, node: Node, name: str, gpu: int, inits: Iterable[int], lasting: Iterable[int]) -> None:
        self.node, self.name = node, name
        self.inits = [(f"init{place}", units) for place, units in enumerate(inits)]
        self.lasting = [(f"main{place}", units) for place, units in enumerate(lasting)]
        self.left = [container for container, _ in (*self.inits, *self.lasting)]
        shares = (share(gpu, units << 10, container=container) for container, units in self.lasting)
        node.assign(name, 1, *shares)
        pod = node.pods["default", name]
        pod["spec"] |= {"initContainers": _limits(self.inits), "containers": _limits(self.lasting)}
        node.pods["default", name] = node.watched["default", name] = signed(pod)

    async def admit(self) -> None:
        """Allocate for one container after the other, as the kubelet does."""
        kubelet, kept = self.node.kubelet, list[str]()
        for container, units in (*self.inits, *self.lasting):
            reused = kept[:units]
            new = await kubelet._choose(NEED, units - len(reused)) if units > len(reused) else ()
            ids = tuple(sorted((*reused, *new)))
            await kubelet.allocate("default", self.name, Container(name=container, limits=((NEED, units),)), ids)
            if (container, units) in self.inits:
                kept = list(dict.fromkeys((*kept, *ids)))
            else:
                kept = [each for each in kept if each not in ids]

    async def start_next(self) -> None:
        """Start its next container."""
        answer = await self.node.kubelet.create("default", self.name, self.left.pop(0))
        (gpu,) = {each["gpu"] for each in self.node.assigned(self.name)}
        if not answer.cdi_devices:
            assert facts(gpu).uuid in str(answer), "it was told the GPU that it is assigned now"


def _limits(containers: Iterable[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"name": name, "resources": {"limits": {NEED: str(units)}}} for name, units in containers]


async def offered(node: Node, how: ListStrategy, gpus: int = 1) -> None:
    await node.offer(
        *((facts(index, "T4"), MEMORY) for index in range(gpus)), how=PluginOptions(list_strategies=(how,))
    )


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("inits", [(), (4,), (4, 4), (3,), (3, 4)])
@pytest.mark.parametrize("lasting", [(4, 4), (4, 5), (5, 4)])
async def test_each_container_of_a_pod_has_its_own_share(
    node: Node, how: ListStrategy, inits: tuple[int, ...], lasting: tuple[int, ...]
) -> None:
    await offered(node, how)
    pod = Waiting(node, "p", 0, inits, lasting)
    await pod.admit()
    await node.plugins._clean_up_record_and_shares()
    assert not list(node.plugins.gate.refusals.blocked_pods())
    while pod.left:
        await pod.start_next()


@pytest.mark.parametrize("how", STRATEGIES)
async def test_a_container_after_an_init_container_has_its_own_pod_s_share_though_another_pod_of_its_size_is_older(
    node: Node, how: ListStrategy
) -> None:
    """The kubelet admits one pod's containers before the next pod's: the ids of the init container tell which it is."""
    await offered(node, how, gpus=2)
    older, pod = Waiting(node, "older", 1, [], [4]), Waiting(node, "p", 0, [3], [4])
    for each in (pod, older):
        await each.admit()
    for each in (pod, older):
        while each.left:
            await each.start_next()
    assert [node.assigned(each)[0]["gpu"] for each in ("p", "older")] == [0, 1]


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("passes", [0, 1])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 4, 5), (8, 7), (10, 5)])
async def test_a_pod_that_waits_for_its_image_counts_once(
    node: Node, how: ListStrategy, passes: int, sizes: tuple[int, ...]
) -> None:
    await offered(node, how)
    pods = [Waiting(node, f"p{place}", 0, [units], [units]) for place, units in enumerate(sizes)]
    for pod in pods:
        await pod.admit()
        for _ in range(passes):
            node.passed_s += 31
            await node.plugins._clean_up_record_and_shares()
    for pod in pods:
        while pod.left:
            await pod.start_next()


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("gpus", [1, 2])
async def test_equal_pods_wait_for_their_image_at_once(node: Node, how: ListStrategy, gpus: int) -> None:
    await offered(node, how, gpus=2)
    pods = [Waiting(node, f"p{number}", number % gpus, [4], [4]) for number in range(2)]
    for pod in pods:
        await pod.admit()
    for pod in pods:
        while pod.left:
            await pod.start_next()


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("seed", range(20))
async def test_all_pods_start_in_any_order_of_admissions_and_starts(node: Node, how: ListStrategy, seed: int) -> None:
    rng = random.Random(seed)
    await offered(node, how, gpus=2)
    used, pods, count = dict[int, int](), list[Waiting](), 0
    while count < 6 or any(pod.left for pod in pods):
        able = [pod for pod in pods if pod.left]
        if count < 6 and (not able or rng.random() < 0.5):
            gpu, lasting = rng.randrange(2), [rng.choice((3, 4)) for _ in range(rng.choice((1, 1, 2)))]
            if used.get(gpu, 0) + sum(lasting) <= T4:
                used[gpu] = used.get(gpu, 0) + sum(lasting)
                inits = [rng.choice(lasting) for _ in range(rng.choice((0, 1, 1, 2)))]
                pods.append(Waiting(node, f"p{count}", gpu, inits, lasting))
                await pods[-1].admit()
            count += 1
        else:
            await rng.choice(able).start_next()
        if rng.random() < 0.2:
            node.passed_s += 31
            await node.plugins._clean_up_record_and_shares()
    assert not list(node.plugins.gate.refusals.blocked_pods())
    assert node.plugins.gate.refusals.double_allocations() == ()
