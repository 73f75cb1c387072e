"""Claims in the ledger: they count for everybody but the pod they are for."""

import pytest

from builders.kubeobjects import gpu
from harness.servers import (
    LARGE,
    FaultyKube,
    check,
    make_node,
    make_pod,
    servers,
    settle,
)
from tessera.clients.kube import Unanswered

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/filter", "/choose"])
async def test_what_is_claimed_for_a_pod_is_not_in_its_own_way(path: str) -> None:
    """After a lost answer a pod is scheduled again: on a full node it is given what was claimed for it."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0), gpu(1))
    await make_node(kube, "empty", gpu(0))
    async with servers(kube, 2) as running:
        first, *others = [await make_pod(kube, name, LARGE) for name in ("p", "q", "r")]
        await settle()
        kube.faults = {"bind": [Unanswered("x", found="nothing", expected="an answer")]}
        assert await running[0].bind(first, "a") != ""
        assert await running[0].bind(others[0], "a") == ""
        await settle()
        for server in running:
            assert await server.fitting(others[1], "a", path=path) == []
            assert await server.fitting(first, "a", "nowhere", path=path) == ["a"]
            assert "a" in await server.fitting(first, "empty", "a", path=path)
            assert server.server.view.ledger.conflicts == ()
        assert await running[1].schedule(first, "a") == ""
    await check(kube)
