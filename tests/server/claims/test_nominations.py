"""Places kept for pods that kube-scheduler is about to bind."""

import pytest

from harness.servers import (
    Clock,
    make_pod,
    servers,
    settle,
)
from tessera.clients.kube import MemoryKube

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/prioritize", "/choose"])
async def test_a_place_is_kept_for_a_pod_that_was_scored_until_it_is_bound_or_late(kube: MemoryKube, path: str) -> None:
    clock = Clock()
    async with servers(kube, clock=clock) as (server,):
        large = {"tessera.dev/gpu-memory": 39}
        first, second = [await make_pod(kube, name, large) for name in ("p", "q")]
        await settle()
        for _ in range(2):  # asking again changes nothing
            await server.post(path, {"Pod": first, "NodeNames": ["a"]})
        assert await server.fitting(second, "a") == ["a"]
        third = await make_pod(kube, "r", large)
        assert await server.fitting(third, "a") == [], "one GPU is kept for each of the two"
        clock.now_s += 6
        assert await server.fitting(third, "a") == ["a"]
        assert await server.bind(first, "a") == ""
        assert await server.bind(second, "a") == "", "what is kept for the third gives way to who comes first"
