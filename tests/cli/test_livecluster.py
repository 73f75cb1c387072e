"""A live cluster as commands read it: assignments count where keys say so, and without keys are taken at their word."""

from typing import Any

import pytest

from builders.kubeobjects import amount, gpu, gpunode, node, pod, share
from builders.signed import AGENT, SERVER, config_map
from tessera.api.tessera.pods.signatures import keys_text
from tessera.cli.livecluster import observe
from tessera.clients.kube import CONFIG_MAPS, GPU_NODES, NODES, PODS, MemoryKube, Object
from tessera.core.explain.inspection import inspect
from tessera.core.gpu.sharing import Mode
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio

NEED = {"tessera.dev/gpu-memory": 4}
WHOLE = share(0, 40960, Mode.WHOLE, resource="tessera.dev/gpu-memory")


class Forbidding(MemoryKube):
    """An API that lets nobody read ConfigMaps."""

    async def get(self, kind: Any, *rest: str) -> Object | None:
        if kind is CONFIG_MAPS:
            raise Unavailable("configmaps", found="forbidden", expected="rights")
        return await super().get(kind, *rest)


async def cluster(kube: MemoryKube) -> MemoryKube:
    """Make a node with an honest pod and a forging one."""
    await kube.create(NODES, node())
    body = gpunode("a", gpu(0), assignment_keys=keys_text([AGENT.public]))
    await kube.create(GPU_NODES, {key: value for key, value in body.items() if key != "status"})
    await kube.patch(GPU_NODES, "a", {"status": body["status"]}, subresource="status")
    await kube.create(PODS, pod("forged", NEED, WHOLE))
    honest = await kube.create(PODS, pod("honest", NEED, amount(0), node=None))
    uid, annotations = honest["metadata"]["uid"], honest["metadata"]["annotations"]
    await kube.bind("honest", "ns", uid=uid, node="a", annotations=SERVER.sealed(annotations, uid=uid, node="a"))
    return kube


async def test_a_forged_assignment_is_marked_and_is_no_conflict() -> None:
    kube = await cluster(MemoryKube())
    await kube.apply(CONFIG_MAPS, config_map(), manager="servers")
    (found,) = inspect(await observe(kube)).nodes
    assert found.gpus[0].conflicts == ()
    assert [each.pod for each in found.gpus[0].pods] == ["ns/honest"]
    assert [(each.pod, "not signed by Tessera" in each.problem) for each in found.unplaced] == [("ns/forged", True)]


@pytest.mark.parametrize("kind", [MemoryKube, Forbidding])
async def test_without_keys_nothing_is_checked(kind: type[MemoryKube]) -> None:
    (found,) = inspect(await observe(await cluster(kind()))).nodes
    assert {each.pod for each in found.gpus[0].pods} == {"ns/forged", "ns/honest"}
    assert found.gpus[0].conflicts
