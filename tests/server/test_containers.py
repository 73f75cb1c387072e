"""Containers of one pod: each is served as it asks, and what runs at one time has no device twice."""

import random
from typing import Any

import pytest

from builders.kubeobjects import gpu, pod
from harness.servers import make_node, servers
from tessera.api.tessera.pods.assignedrequests import read_assigned_requests
from tessera.clients.kube import PODS, MemoryKube
from tessera.core.cluster.snapshot import Share

pytestmark = pytest.mark.anyio

NEED, COUNT = "tessera.dev/gpu-memory", "tessera.dev/gpu-count"
PODS_TRIED = 120


def drawn(rng: random.Random, name: str) -> dict[str, Any]:
    """Return a pod with init containers, sidecars and others that request amounts of one or several GPUs."""
    made = pod(name, {}, node=None)

    def container(kind: str) -> dict[str, Any]:
        limits = {NEED: str(rng.choice((2, 4, 8, 12)))}
        if rng.random() < 0.4:
            limits[COUNT] = str(rng.choice((2, 3)))
        asks = rng.random() < 0.8
        return {"name": kind, "image": "none", "resources": {"limits": limits if asks else {}}}

    init = [container(f"init-{number}") for number in range(rng.randrange(4))]
    for each in init:
        if rng.random() < 0.4:
            each["restartPolicy"] = "Always"
    made["spec"] |= {"initContainers": init, "containers": [container(f"main-{n}") for n in range(rng.randrange(1, 3))]}
    return made


def lived_through(spec: dict[str, Any]) -> list[list[str]]:
    """Let a pod start container by container; return what ran at each time."""
    running: list[str] = []
    found = []
    for each in (*spec["initContainers"], *spec["containers"]):
        running.append(each["name"])
        found.append(list(running))
        if each["name"].startswith("init") and each.get("restartPolicy") != "Always":
            running.remove(each["name"])
    return found


async def test_each_container_has_as_many_gpus_as_it_asks_and_none_of_whoever_runs_beside_it() -> None:
    """Brute force over the lives of the containers, against what a server assigns and an agent reads of it."""
    rng, kube, placed = random.Random(11), MemoryKube(), 0
    await make_node(kube, "a", *(gpu(index) for index in range(8)))
    async with servers(kube) as (server,):
        for number in range(PODS_TRIED):
            made = await kube.create(PODS, drawn(rng, f"p{number}"))
            why = await server.schedule(made, "a")
            found = await kube.get(PODS, f"p{number}", "ns")
            assert found is not None
            if not why:
                placed += 1
                _check(found)
            await kube.delete(PODS, f"p{number}", namespace="ns", grace_s=0)
    assert placed > PODS_TRIED // 2, "too few pods were placed for this test to prove anything"


def _check(found: dict[str, Any]) -> None:
    requests = read_assigned_requests([found])
    assert requests.notes == ()
    shares = {each.key.container: each.shares for each in requests.requests}
    for each in (*found["spec"]["initContainers"], *found["spec"]["containers"]):
        limits = each["resources"]["limits"]
        own: tuple[Share, ...] = shares.get(each["name"], ())
        count = int(limits.get(COUNT, 1)) if NEED in limits else 0
        assert len({share.gpu for share in own}) == len(own) == count, (each, own)
        assert all(share.memory_mib >= 1024 * int(limits[NEED]) for share in own), (each, own)
    of = {each.key.container: range(each.at, each.at + len(each.shares)) for each in requests.requests}
    for together in lived_through(found["spec"]):
        places = [place for name in together for place in of.get(name, ())]
        assert len(set(places)) == len(places), f"{together} have a share twice: {of}"
