"""`tessera wake`: a server at zero is woken, and no other."""

import datetime as dt
from typing import Any

import pytest

from builders.modelservers import model_server
from tessera.cli.wake import wake_server
from tessera.clients.kube import MODEL_SERVERS, SELF_SUBJECT_REVIEWS, Kind, MemoryKube, Object
from tessera.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio

NOW = dt.datetime(2026, 11, 26, 8, tzinfo=dt.UTC)


async def kube_with(replicas: dict[str, int], **metadata: object) -> MemoryKube:
    return await created(MemoryKube(clock=NOW.timestamp), replicas, **metadata)


async def created(kube: MemoryKube, replicas: dict[str, int], **metadata: object) -> MemoryKube:
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
    said = await wake_server(kube, "ranker", "serving")
    assert said.startswith("woke serving/ranker; it serves when")
    want = {"mine": "kept", "serving.tessera.dev/wake": "2026-11-26T08:00:00Z"}
    assert (await server(kube))["metadata"]["annotations"] == want


async def test_who_is_awake_stays_so() -> None:
    kube = await kube_with({"min": 0})
    await kube.patch(
        MODEL_SERVERS, "ranker", {"status": {"readyReplicas": 2}}, namespace="serving", subresource="status"
    )
    said = await wake_server(kube, "ranker", "serving")
    assert said == "serving/ranker is awake, for at least 1200 s: 2 ready"


async def test_one_that_never_scales_to_zero_and_one_that_is_not_there_are_refused() -> None:
    kube = await kube_with({"min": 1})
    with pytest.raises(InvalidInput, match=r"with replicas\.min 1 it has a replica all the time"):
        await wake_server(kube, "ranker", "serving")
    assert "annotations" not in (await server(kube))["metadata"]
    with pytest.raises(InvalidInput, match=r"no such ModelServer.*kubectl get modelservers -n other"):
        await wake_server(kube, "ranker", "other")


async def test_a_later_wake_is_never_replaced_by_an_earlier_one() -> None:
    """As a program sets it before office hours."""
    later = {"serving.tessera.dev/wake": "2026-11-26T17:00:00Z"}
    kube = await kube_with({"min": 0}, annotations=later)
    await wake_server(kube, "ranker", "serving")
    assert (await server(kube))["metadata"]["annotations"] == later


class Busy(MemoryKube):
    """A cluster in which another program wakes the server for longer just before each write, so often."""

    def __init__(self, times: int) -> None:
        super().__init__(clock=NOW.timestamp)
        self.left = times

    async def patch(self, kind: Kind, name: str, body: Object, *, namespace: str = "", **part: Any) -> Object:
        if self.left:
            self.left -= 1
            until = {"serving.tessera.dev/wake": f"2026-11-26T17:00:{self.left:02}Z"}
            await super().patch(kind, name, {"metadata": {"annotations": until}}, namespace=namespace)
        return await super().patch(kind, name, body, namespace=namespace, **part)


async def test_a_later_wake_that_comes_meanwhile_stays() -> None:
    kube = await created(Busy(2), {"min": 0})
    await wake_server(kube, "ranker", "serving")
    assert (await server(kube))["metadata"]["annotations"] == {"serving.tessera.dev/wake": "2026-11-26T17:00:00Z"}


async def test_one_that_changes_all_the_time_is_no_success() -> None:
    kube = await created(Busy(99), {"min": 0})
    with pytest.raises(Unavailable, match="changes all the time: try again"):
        await wake_server(kube, "ranker", "serving")


class Timeless(MemoryKube):
    async def create(self, kind: Kind, body: Object) -> Object:
        return {"metadata": {}} if kind == SELF_SUBJECT_REVIEWS else await super().create(kind, body)


async def test_without_the_servers_time_none_is_woken() -> None:
    kube = await created(Timeless(), {"min": 0})
    with pytest.raises(Unavailable, match="time of the API server"):
        await wake_server(kube, "ranker", "serving")
    assert "annotations" not in (await server(kube))["metadata"]
