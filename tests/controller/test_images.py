"""ImageWarmups in a cluster of this process: controller and agents bring all images to all nodes."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import node
from harness.awaiting import until_object
from harness.serving import running
from tessera.agent.storage.images import ImageWarmer
from tessera.clients.kube import (
    ENVIRONMENTS,
    IMAGE_WARMUPS,
    NODE_IMAGES,
    NODES,
    PODS,
    MemoryKube,
    Object,
    Selection,
    Store,
    follow,
)
from tessera.clients.runtime import MemoryRuntime
from tessera.controller.images import ImageWarmups
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

A, B, C, D = "r.example/a:1", "r.example/b:1", "r.example/c:1", "r.example/d:1"
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


def pooled(name: str, *, ready: str = "True", pool: str = "gpu") -> Object:
    made = node(name, pool=pool)
    return made | {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


def warmup(*images: str, name: str = "servers", **spec: Any) -> Object:
    listed = {"images": list(images)} if images else {}
    return {"metadata": {"name": name, "generation": 1}, "spec": {**listed, **spec}}


class Cluster:
    """Nodes, of which all have an agent, and a controller; they run inside `running`."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.runtimes: dict[str, MemoryRuntime] = {}

    async def add(self, *nodes: Object) -> None:
        for each in nodes:
            name = each["metadata"]["name"]
            await self.kube.create(NODES, each)
            self.runtimes[name] = MemoryRuntime()
            self.runtimes[name].offered = {A: (ONE, 7), B: (TWO, 9)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        nodes = Store(self.kube, NODES)
        loops = [nodes.run(), ImageWarmups(self.kube, nodes, now=lambda: NOW, least_s=0.01).run(Measures())]
        loops += [ImageWarmer(name, self.kube, each).run(Measures()) for name, each in self.runtimes.items()]
        async with running(*loops):
            yield

    async def status(self, ready: Callable[[Any], bool], name: str = "servers") -> Any:
        """Return the status of a warmup when it is as desired."""

        def as_desired(each: Object) -> bool:
            return bool(each.get("status") and ready(each["status"]))

        return (await until_object(self.kube, IMAGE_WARMUPS, name, as_desired))["status"]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_all_selected_nodes_get_all_images(cluster: Cluster) -> None:
    await cluster.add(pooled("n1"), pooled("n2"), pooled("n3", pool="other"))
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A, B, nodeSelector={"matchLabels": {"pool": "gpu"}}))
    async with cluster.running():
        status = await cluster.status(lambda status: status.get("pinned") == 2)
    assert (status["nodes"], status["ready"], status["observedGeneration"]) == (2, 2, 1)
    assert list(status["images"]) == [
        {"image": A, "digest": ONE, "nodes": 2},
        {"image": B, "digest": TWO, "nodes": 2},
    ]
    assert {each["type"]: each["status"] for each in status["conditions"]} == {"Accepted": "True", "Ready": "True"}
    assert [sorted(each.images) for each in cluster.runtimes.values()] == [[A, B], [A, B], []]


async def test_environments_are_pulled_before_they_are_needed_and_say_on_how_many_nodes_they_are(
    cluster: Cluster,
) -> None:
    await cluster.add(pooled("n1"), pooled("n2"), pooled("n3", pool="other"))
    for name, image in (("alone", "r.example/c:1"), ("odd", "A b"), ("jupyter", A)):
        await cluster.kube.create(ENVIRONMENTS, {"metadata": {"name": name}, "spec": {"image": image}})
    labeled = {"metadata": {"name": "jupyter", "labels": {"warm": "yes"}}, "spec": {"image": A}}
    await cluster.kube.apply(ENVIRONMENTS, labeled, manager="test", force=True)
    select = {"matchLabels": {"warm": "yes"}}
    await cluster.kube.create(IMAGE_WARMUPS, warmup(environments=select, nodeSelector={"matchLabels": {"pool": "gpu"}}))
    async with cluster.running():
        status = await cluster.status(lambda status: status.get("ready") == 2)
        assert [each["image"] for each in status["images"]] == [A]
        named = await until_object(
            cluster.kube, ENVIRONMENTS, "jupyter", lambda each: each.get("status", {}).get("ready") == 2
        )
        assert named["status"] == {"nodes": 2, "ready": 2, "image": A}
        # Another image: the nodes get it, and no longer keep the former.
        moved = labeled | {"spec": {"image": B}}
        await cluster.kube.apply(ENVIRONMENTS, moved, manager="test", force=True)
        status = await cluster.status(lambda status: [each["image"] for each in status["images"]] == [B])
        await cluster.status(lambda status: status.get("ready") == 2 and status["images"][0]["nodes"] == 2)
    assert [sorted(each.images) for each in cluster.runtimes.values()] == [[A, B], [A, B], []]
    found = [await cluster.kube.get(ENVIRONMENTS, each) for each in ("alone", "odd")]
    assert [each and each.get("status") for each in found] == [{"image": C}, None]


async def test_a_tag_that_moves_stays_what_it_was_resolved_to(cluster: Cluster) -> None:
    await cluster.add(pooled("n1"))
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A))
    async with cluster.running():
        await cluster.status(lambda status: status.get("ready") == 1)
    await cluster.add(pooled("n2"))
    cluster.runtimes["n2"].offered = {A: (TWO, 7), "r.example/a:former": (ONE, 7)}
    async with cluster.running():
        await cluster.status(lambda status: status.get("ready") == 2)
    assert cluster.runtimes["n2"].pulls == [f"r.example/a@{ONE}"]


async def test_images_of_pending_pods_come_first(cluster: Cluster) -> None:
    await cluster.add(pooled("n1"))
    pod = {"metadata": {"name": "p", "namespace": "x"}, "spec": {"containers": [{"image": B}, {"image": "no name"}]}}
    await cluster.kube.create(PODS, pod)
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A, B))
    async with cluster.running():
        status = await cluster.status(lambda status: status.get("ready") == 1)
    assert cluster.runtimes["n1"].pulls == [B, A]
    assert [each.get("pendingPods") for each in status["images"]] == [None, 1]


async def test_a_warmup_that_is_deleted_leaves_images_unpinned(cluster: Cluster) -> None:
    await cluster.add(pooled("n1"))
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A))
    async with cluster.running():
        await cluster.status(lambda status: status.get("pinned") == 1)
        await cluster.kube.delete(IMAGE_WARMUPS, "servers")
        async with asyncio.timeout(20):
            async for change in follow(cluster.kube, NODE_IMAGES, Selection(), on_error=lambda _: None):
                if change.object and not change.object["spec"].get("images") and not change.object["status"]["images"]:
                    break
    assert (list(cluster.runtimes["n1"].images), await cluster.runtimes["n1"].pinned()) == ([A], frozenset())


async def test_an_invalid_spec_reports_why_and_stops_no_other(cluster: Cluster) -> None:
    await cluster.add(pooled("n1"), pooled("n2", ready="Unknown"))
    await cluster.kube.create(IMAGE_WARMUPS, warmup("A b", name="bad"))
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A))
    await cluster.kube.create(NODE_IMAGES, {"metadata": {"name": "odd"}})
    odd = {"status": {"images": "Odd"}}
    await cluster.kube.patch(NODE_IMAGES, "odd", odd, subresource="status")
    async with cluster.running():
        bad = await cluster.status(lambda _: True, "bad")
        status = await cluster.status(lambda status: status.get("ready") == 1 and status["nodes"] == 2)
    (accepted,) = bad["conditions"]
    assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
    assert "image 'A b'" in accepted["message"]
    assert list(status["problems"]) == [{"node": "n2", "reason": "the node is not ready"}]


async def test_an_environment_that_becomes_invalid_keeps_its_last_image_and_others_go_on(cluster: Cluster) -> None:
    """By a wrong name, and by a field of another version; after a restart of the controller too."""
    await cluster.add(pooled("n1"))
    labels = {"labels": {"warm": "yes"}}
    for name, image in (("a", A), ("b", B)):
        await cluster.kube.create(ENVIRONMENTS, {"metadata": {"name": name, **labels}, "spec": {"image": image}})
    await cluster.kube.create(IMAGE_WARMUPS, warmup(environments={"matchLabels": {"warm": "yes"}}))
    runtime = cluster.runtimes["n1"]
    runtime.offered |= {C: (ONE, 5), D: (TWO, 5)}
    async with cluster.running():
        await cluster.status(lambda status: status.get("pinned") == 1 and len(status["images"]) == 2)
        await cluster.kube.patch(ENVIRONMENTS, "a", {"spec": {"image": "A b"}})
        await cluster.kube.patch(ENVIRONMENTS, "b", {"spec": {"image": B, "platform": "arm64"}})
        await cluster.kube.create(ENVIRONMENTS, {"metadata": {"name": "c", **labels}, "spec": {"image": C}})
        await cluster.status(lambda status: status.get("pinned") == 1 and len(status["images"]) == 3)
        assert await runtime.pinned() == {A, B, C}
    async with cluster.running():
        await cluster.kube.create(ENVIRONMENTS, {"metadata": {"name": "d", **labels}, "spec": {"image": D}})
        await cluster.status(lambda status: status.get("pinned") == 1 and len(status["images"]) == 4)
        assert await runtime.pinned() == {A, B, C, D}
        invalid = await cluster.kube.get(ENVIRONMENTS, "a")
        assert invalid is not None
        assert invalid["status"] == {"nodes": 1, "ready": 1, "image": A}
        # A valid one has another image, and an invalid one another label: their former images go.
        await cluster.kube.patch(ENVIRONMENTS, "c", {"spec": {"image": D}})
        await cluster.kube.patch(ENVIRONMENTS, "b", {"metadata": {"labels": {"warm": None}}})
        await until_pinned(runtime, {A, D})
        # Readable again, and another: the former one is not kept.
        await cluster.kube.patch(ENVIRONMENTS, "a", {"spec": {"image": C}})
        await until_pinned(runtime, {C, D})
        status = await cluster.status(lambda status: status.get("ready") == 1)
        assert [each["image"] for each in status["images"]] == [C, D]


async def until_pinned(runtime: MemoryRuntime, images: set[str]) -> None:
    """Wait until exactly these images are pinned."""
    async with asyncio.timeout(20):
        while await runtime.pinned() != images:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.02)


def lists(images: list[str], status: Any) -> bool:
    """Return whether a status has these images, in this order."""
    return [each["image"] for each in status["images"]] == images


async def test_what_cannot_be_read_is_logged_once_however_often_the_controller_looks(cluster: Cluster) -> None:
    await cluster.add(pooled("n1"))
    await cluster.kube.create(ENVIRONMENTS, {"metadata": {"name": "e"}, "spec": {"image": "A b"}})
    await cluster.kube.create(NODE_IMAGES, {"metadata": {"name": "odd"}})
    await cluster.kube.patch(NODE_IMAGES, "odd", {"status": {"images": "Odd"}}, subresource="status")
    await cluster.kube.create(IMAGE_WARMUPS, warmup("A b", name="bad"))
    await cluster.kube.patch(IMAGE_WARMUPS, "bad", {"status": {"nodes": "all"}}, subresource="status")
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A))
    with capture_logs() as logs:
        async with cluster.running():
            for images in ([A, B], [A], [B]):
                await cluster.kube.patch(IMAGE_WARMUPS, "servers", {"spec": {"images": images}})
                await cluster.status(partial(lists, images))
                await cluster.status(lambda status: status.get("pinned") == 1)
    assert await cluster.runtimes["n1"].pinned() == {A, B}, "all stay"
    bad = await cluster.kube.get(IMAGE_WARMUPS, "bad")
    assert bad is not None
    assert bad["status"] == {"nodes": "all"}
    unread = [each["reason"].partition(": ")[0] for each in logs if each["event"] == "object_not_read"]
    assert sorted(unread) == ["Environment e", "ImageWarmup bad", "NodeImages odd"]
    assert "image_warmups_not_followed" not in {each["event"] for each in logs}


async def test_an_edit_that_is_invalid_unpins_no_image_and_others_go_on(cluster: Cluster) -> None:
    """By a wrong name, and by more Environments than one ImageWarmup may have."""
    await cluster.add(pooled("n1"))
    await cluster.kube.create(IMAGE_WARMUPS, warmup(A))
    select = {"matchLabels": {"warm": "yes"}}
    await cluster.kube.create(IMAGE_WARMUPS, warmup(B, name="catalog", environments=select))
    async with cluster.running():
        for name in ("servers", "catalog"):
            await cluster.status(lambda status: status.get("pinned") == 1, name)
        await cluster.kube.patch(IMAGE_WARMUPS, "servers", {"spec": {"images": [A, "A b"]}})
        for number in range(64):
            metadata = {"name": f"e{number}", "labels": {"warm": "yes"}}
            await cluster.kube.create(ENVIRONMENTS, {"metadata": metadata, "spec": {"image": f"r.example/e:{number}"}})
        for name in ("servers", "catalog"):
            await cluster.status(lambda status: status["conditions"][0]["status"] == "False", name)
        runtime = cluster.runtimes["n1"]
        runtime.offered["r.example/c:1"] = (ONE, 5)
        await cluster.kube.create(IMAGE_WARMUPS, warmup("r.example/c:1", name="another"))
        await cluster.status(lambda status: status.get("pinned") == 1, "another")
        assert await runtime.pinned() == {A, B, "r.example/c:1"}
        # What a valid one does not list any more goes meanwhile, and so do all images of one that is deleted.
        await cluster.kube.patch(IMAGE_WARMUPS, "another", {"spec": {"images": [A]}})
        await until_pinned(runtime, {A, B})
        await cluster.kube.delete(IMAGE_WARMUPS, "catalog")
        await until_pinned(runtime, {A})
        # Valid again: what it does not list any more is not kept.
        await cluster.kube.patch(IMAGE_WARMUPS, "another", {"spec": {"images": ["r.example/c:1"]}})
        await until_pinned(runtime, {A, "r.example/c:1"})
        await cluster.kube.patch(IMAGE_WARMUPS, "servers", {"spec": {"images": [B]}})
        await until_pinned(runtime, {B, "r.example/c:1"})


UNREAD: dict[str, Any] = {"pinned": "Always"}
"""What another version writes of an image, or of an ImageWarmup, beside what this one knows."""


async def test_after_a_pass_a_node_has_the_planned_images_whatever_another_version_wrote() -> None:
    """Each of two images is absent, known or of another version; its ImageWarmup too, or it selects no node.

    One that was never valid has no images in its status; the status of a "newer" one is of another version too.
    """
    forms, cases = (None, "known", "unread"), 0
    for rows, warmups in product(product(forms, repeat=2), product((*forms, "elsewhere", "never", "newer"), repeat=2)):
        cases += 1
        cluster = Cluster()
        await cluster.kube.create(NODES, pooled("n1"))
        former = [
            {"image": image, "pinned": True, "attempt": 3} | (UNREAD if row == "unread" else {})
            for image, row in zip((A, B), rows, strict=True)
            if row
        ]
        ended = [{"image": each, "state": "Missing", "attempt": 3} for each in (A, B)]
        status = {"images": [*ended, {"image": C, "state": "Quarantined", "attempt": 7}]}
        made = {"metadata": {"name": "n1"}, "spec": {"images": former}, "status": status}
        await cluster.kube.create(NODE_IMAGES, made)
        await cluster.kube.patch(NODE_IMAGES, "n1", {"status": made["status"]}, subresource="status")
        for image, name, form in zip((A, B, C, D), "abyz", (*warmups, "known", "known"), strict=True):
            away = {"nodeSelector": {"matchLabels": {"pool": "other"}}}
            more = {"unread": UNREAD, "never": UNREAD, "newer": UNREAD, "elsewhere": away}.get(form or "", {})
            if form:
                await cluster.kube.create(IMAGE_WARMUPS, warmup(image, name=name, parallelism={"perNode": 16}, **more))
            if last := {"unread": {"image": image}, "newer": {"name": image}}.get(form or ""):
                await cluster.kube.patch(IMAGE_WARMUPS, name, {"status": {"images": [last]}}, subresource="status")
        async with cluster.running():
            status = await cluster.status(lambda status: bool(status.get("problems")), "y")
        found = await cluster.kube.get(NODE_IMAGES, "n1")
        assert found is not None
        attempts = {each["image"]: each.get("attempt", 0) for each in found["spec"]["images"]}
        pairs = set(zip((A, B), rows, warmups, strict=True))
        holding = (*forms, "elsewhere", "never", "newer") if "newer" in warmups else ("unread",)
        stays = {image for image, row, form in pairs if row and form in holding and form != "known"}
        case = f"{rows}, {warmups}: {found['spec']}, {status}"
        if any(image in stays and row == "unread" for image, row, _ in pairs):  # it cannot be written back
            assert found["spec"]["images"] == former, case
            assert "its images stay as they are" in status["problems"][0]["reason"], case
            continue
        turns = {image: 4 for image, _, form in pairs if form == "known"}
        assert attempts == {**dict.fromkeys(stays, 3), **turns, C: 0, D: 1}, case
        assert "state: 'Quarantined'" in status["problems"][-1]["reason"], case
    assert cases == 9 * 36
