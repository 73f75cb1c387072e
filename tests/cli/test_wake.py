"""`tessera wake`: a server at zero is woken, and no other."""

import datetime as dt

import pytest

from builders.modelservers import model_server
from tessera.cli.wake import wake_server
from tessera.clients.kube import MODEL_SERVERS, MemoryKube, Object
from tessera.errors import InvalidInput

pytestmark = pytest.mark.anyio

NOW = dt.datetime(2026, 11, 26, 8, tzinfo=dt.UTC)


async def kube_with(replicas: dict[str, int], **metadata: object) -> MemoryKube:
    kube = MemoryKube()
    await kube.create(MODEL_SERVERS, model_server({"replicas": replicas}, namespace="serving", **metadata))
    return kube


async def server(kube: MemoryKube) -> Object:
    found = await kube.get(MODEL_SERVERS, "ranker", "serving")
    assert found is not None
    return found


@pytest.mark.parametrize("before", [None, "2026-11-01T00:00:00Z", "a word that is no time"])
async def test_a_server_that_scales_to_zero_is_woken(before: str | None) -> None:
    annotations = {"mine": "kept"} | ({"serving.tessera.dev/wake": before} if before else {})
    kube = await kube_with({"min": 0}, annotations=annotations)
    said = await wake_server(kube, "ranker", "serving", NOW)
    assert said.startswith("woke serving/ranker; it serves when")
    want = {"mine": "kept", "serving.tessera.dev/wake": "2026-11-26T08:00:00Z"}
    assert (await server(kube))["metadata"]["annotations"] == want


async def test_who_is_awake_stays_so() -> None:
    kube = await kube_with({"min": 0})
    await kube.patch(
        MODEL_SERVERS, "ranker", {"status": {"readyReplicas": 2}}, namespace="serving", subresource="status"
    )
    said = await wake_server(kube, "ranker", "serving", NOW)
    assert said == "serving/ranker is awake, for at least 1200 s: 2 ready"


async def test_one_that_never_scales_to_zero_and_one_that_is_not_there_are_refused() -> None:
    kube = await kube_with({"min": 1})
    with pytest.raises(InvalidInput, match=r"with replicas\.min 1 it has a replica all the time"):
        await wake_server(kube, "ranker", "serving", NOW)
    assert "annotations" not in (await server(kube))["metadata"]
    with pytest.raises(InvalidInput, match=r"no such ModelServer.*kubectl get modelservers -n other"):
        await wake_server(kube, "ranker", "other", NOW)
