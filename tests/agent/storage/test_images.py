"""The agent's side of ImageWarmups: it pulls what has its turn, pins, unpins and reports, over any restart."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest
from structlog.testing import capture_logs

from conformance.kubesuite import definition
from harness.agentlogs import until_logged
from harness.agentmachine import Machine
from harness.awaiting import until_object
from harness.serving import running
from tessera.agent.run import Agent
from tessera.agent.storage.images import ImageWarmer
from tessera.agent.storage.modelcache import ModelDisk, ModelSources, Places
from tessera.api.oci.dockerconfig import RegistryCredential
from tessera.api.tessera.v1alpha1.imagewarmups import (
    API_VERSION,
    new_node_images,
    node_spec,
    node_status,
    read_node_images,
)
from tessera.cli.processes.agent import storage_loops
from tessera.clients.kube import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NODE_IMAGES,
    NODE_MODELS,
    NODES,
    SECRETS,
    MemoryKube,
    Object,
)
from tessera.clients.runtime import LocalImage, MemoryRuntime
from tessera.core.storage.images.layers import Reference
from tessera.core.storage.images.warmup import DesiredImage, NodeImages, ObservedImage
from tessera.errors import Unavailable, Unsupported
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

Answer = TypeVar("Answer")

A, B, C = "r.example/a:1", "r.example/b:1", "r.example/c:1"
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


class Node:
    """A node whose agent runs inside `running`."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.measures = Measures()
        self.runtime = MemoryRuntime()
        self.runtime.offered = {A: (ONE, 7), B: (TWO, 9)}
        self.now_s = 1000.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        warmer = ImageWarmer("n1", self.kube, self.runtime, interval_s=0.01, now_s=lambda: self.now_s)
        async with running(warmer.run(self.measures)):
            yield

    async def tell(self, *desired: DesiredImage) -> None:
        body = {"apiVersion": API_VERSION, "kind": "NodeImages", "metadata": {"name": "n1"}}
        await self.kube.apply(
            NODE_IMAGES, {**body, "spec": node_spec(desired)}, manager="tessera-controller", force=True
        )

    async def reports(self, ready: Callable[[NodeImages], bool]) -> NodeImages:
        """Return what the agent reports when it is as desired."""

        def as_desired(each: Object) -> bool:
            return bool(each.get("status")) and ready(read_node_images(each))

        return read_node_images(await until_object(self.kube, NODE_IMAGES, "n1", as_desired))

    async def reports_states(self, **states: str) -> NodeImages:
        want = {f"r.example/{name}:1": state for name, state in states.items()}
        return await self.reports(lambda found: {each.image: each.state for each in found.observed} == want)


@pytest.fixture
async def node() -> Node:
    one = Node()
    await one.kube.create(NODES, {"metadata": {"name": "n1", "uid": "uid-1"}})
    return one


def wanted(image: str, attempt: int = 0, **more: Any) -> DesiredImage:
    return DesiredImage(image=image, attempt=attempt, **more)


async def test_the_object_is_made_and_reports_that_an_agent_is_there(node: Node) -> None:
    async with node.running():
        found = await node.reports(lambda _: True)
    assert (found.name, found.observed) == ("n1", ())
    made = await node.kube.get(NODE_IMAGES, "n1")
    assert made is not None
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert made["status"]["runtime"] == "memory 1"


async def test_what_has_its_turn_is_pulled_and_pinned(node: Node) -> None:
    await node.tell(wanted(A, 1, pinned=True), wanted(B, pinned=True))
    async with node.running():
        found = await node.reports(lambda found: any(each.pinned for each in found.observed))
    assert found.observed == (
        ObservedImage(image=A, state="Present", digest=ONE, bytes=7, pinned=True, attempt=1),
        ObservedImage(image=B, state="Missing"),
    )
    assert node.runtime.pulls == [A]
    text = node.measures.render().decode()
    assert {'tessera_node_images{state="Present"} 1', 'tessera_node_images{state="Missing"} 1'} <= {*text.splitlines()}
    assert 'tessera_loop_age_seconds{loop="watch-nodeimages"}' in text


async def test_what_is_no_longer_listed_is_unpinned_also_by_the_next_agent(node: Node) -> None:
    await node.tell(wanted(A, 1, pinned=True))
    async with node.running():
        await node.reports(lambda found: any(each.pinned for each in found.observed))
    await node.tell()
    async with node.running():
        await node.reports(lambda found: not found.observed)
    assert (await node.runtime.pinned(), node.runtime.images[A].pinned) == (frozenset(), False)
    assert node.runtime.pulls == [A]


async def test_a_digest_is_pulled_where_the_name_stands_for_another(node: Node) -> None:
    node.runtime.images[A] = LocalImage(digest=TWO, bytes=7, pinned=False)
    await node.tell(wanted(A, 3, digest=ONE))
    async with node.running():
        found = await node.reports_states(a="Present")
    assert found.observed[0].digest == ONE
    assert node.runtime.pulls == [f"r.example/a@{ONE}"]


async def test_a_failure_is_reported_once_for_each_turn(node: Node) -> None:
    del node.runtime.offered[A]
    await node.tell(wanted(A, 1))
    async with node.running():
        found = await node.reports_states(a="Failed")
        assert (found.observed[0].attempt, found.observed[0].failed_s) == (1, 1000.0)
        assert "no such image" in found.observed[0].reason
        node.runtime.offered[A] = (ONE, 7)
        await node.tell(wanted(A, 2))
        await node.reports_states(a="Present")
    assert node.runtime.pulls == [A, A]


async def test_failures_are_counted_until_a_pull_does_not_fail(node: Node) -> None:
    async with node.running():
        for attempt, state, failures in ((1, "Failed", 1), (2, "Failed", 2), (3, "Present", 0), (4, "Failed", 1)):
            node.runtime.offered.pop(A, None)
            node.runtime.images.pop(A, None)
            if state == "Present":
                node.runtime.offered[A] = (ONE, 7)
            await node.tell(wanted(A, attempt))
            found = await node.reports_states(a=state)
            while found.observed[0].attempt < attempt:
                found = await node.reports_states(a=state)
            assert found.observed[0].failures == failures


async def test_an_agent_that_starts_again_keeps_the_number_and_the_time_of_a_failure(node: Node) -> None:
    failed = ObservedImage(image=A, state="Failed", attempt=2, failures=2, failed_s=500.0, reason="no such image")
    pulling = ObservedImage(image=B, state="Pulling", attempt=1)
    await node.kube.create(NODE_IMAGES, new_node_images("n1", "uid-1"))
    await node.tell(wanted(A, 2), wanted(B, 1))
    status = node_status([failed, pulling], disk_percent=0, runtime="")
    await node.kube.patch(NODE_IMAGES, "n1", {"status": status}, subresource="status")
    async with node.running():
        found = await node.reports_states(a="Failed", b="Missing")
    assert found.observed == (failed, msgspec.structs.replace(pulling, state="Missing"))
    assert node.runtime.pulls == []


async def test_how_full_the_disk_is_stands_in_the_report(node: Node) -> None:
    node.runtime.percent = 90
    async with node.running():
        assert (await node.reports(lambda _: True)).disk_percent == 90


def secret(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "tessera-system"}, "data": data}


async def test_credentials_come_from_the_secrets_that_are_named(node: Node) -> None:
    node.runtime.passwords["r.example"] = "p"
    auths = json.dumps({"auths": {"r.example": {"username": "u", "password": "p"}}, "credsStore": "evil"})
    await node.kube.create(
        SECRETS, secret("registry", {".dockerconfigjson": base64.b64encode(auths.encode()).decode()})
    )
    await node.tell(wanted(A, 1, secrets=("registry",)), wanted(B, 1, secrets=("none",)))
    async with node.running():
        found = await node.reports_states(a="Present", b="Failed")
    assert "Secret tessera-system/none: there is no Secret" in found.observed[1].reason


class Unpinnable(MemoryRuntime):
    """A runtime that cannot pin, and whose pulls last until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def pull(self, reference: Reference, digest: str, credential: RegistryCredential | None) -> None:
        await self.go.wait()
        await super().pull(reference, digest, credential)

    async def pin(self, reference: Reference) -> None:
        raise Unsupported(reference.name, found="CRI-O", expected="containerd")


async def test_a_runtime_that_cannot_pin_is_reported_in_the_report(node: Node) -> None:
    node.runtime = Unpinnable()
    node.runtime.offered = {A: (ONE, 7)}
    await node.tell(wanted(A, 1, pinned=True))
    async with node.running():
        await node.reports_states(a="Pulling")
        node.runtime.go.set()
        found = await node.reports(lambda found: bool(found.observed[0].reason))
    assert (found.observed[0].state, found.observed[0].pinned) == ("Present", False)
    assert "containerd" in found.observed[0].reason


class PartlyBroken(MemoryRuntime):
    """A runtime that cannot say what it has of one image, or anything at all."""

    broken = ""
    silent = False

    async def image(self, reference: Reference) -> LocalImage | None:
        if reference.name == self.broken:
            raise Unavailable(f"image {self.broken}", found="no blob", hint="remove it")
        return await super().image(reference)

    async def version(self) -> str:
        return self._answer(await super().version())

    async def disk_percent(self) -> int:
        return self._answer(await super().disk_percent())

    def _answer(self, value: Answer) -> Answer:
        if self.silent:
            raise Unavailable("container runtime", found="it does not answer", hint="start it")
        return value


@pytest.mark.parametrize("bad", [A, B, C])
async def test_one_image_of_which_the_runtime_says_nothing_stops_no_other(node: Node, bad: str) -> None:
    runtime = PartlyBroken()
    runtime.offered = dict.fromkeys((A, B, C), (ONE, 7))
    runtime.broken = bad
    node.runtime = runtime
    await node.tell(*(wanted(each, 1, pinned=True) for each in (A, B, C)))
    others = {A, B, C} - {bad}
    async with node.running():
        found = await node.reports(lambda found: {each.image for each in found.observed if each.pinned} == others)
        (report,) = [each for each in found.observed if each.image == bad]
        assert (report.state, report.attempt, report.failures) == ("Failed", 1, 1)
        assert "no blob" in report.reason
        # It is pulled again in its next turn, and what is not listed any more is unpinned meanwhile.
        await node.tell(wanted(bad, 2, pinned=True))
        found = await node.reports(lambda found: [each.failures for each in found.observed] == [2])
        assert (found.observed[0].state, found.observed[0].attempt) == ("Failed", 2)
        assert await runtime.pinned() == frozenset()
        runtime.broken = ""
        found = await node.reports(lambda found: found.observed[0].state == "Present" and found.observed[0].pinned)
        assert found.observed[0].reason == ""
    assert runtime.pulls.count(bad) == 2


OTHERS: dict[str, dict[str, Any]] = {
    "a field": {"pinned": "Always"},
    "the attempt": {"attempt": "second"},
    "secrets": {"secrets": [{"name": "registry"}]},
    "no name of an image": {"image": "A b"},
}
"""What another version may write of an image, by what is different."""


@pytest.mark.parametrize("other", OTHERS)
async def test_a_value_of_another_version_affects_its_image_alone(node: Node, other: str) -> None:
    """It stays pinned, is neither pulled nor forgotten, and its report says why; the number of its turn is reported."""
    await node.tell(wanted(A, 1, pinned=True))
    async with node.running():
        await node.reports(lambda found: [each.pinned for each in found.observed] == [True])
        row = {"image": A, "digest": ONE, "pinned": True, "attempt": 2} | OTHERS[other]
        failures, name, numbers = -1, row["image"], (0, 0) if other == "the attempt" else (2, 3)
        for number in numbers:
            spec = {
                "images": [row | ({"attempt": number} if number else {}), {"image": B, "attempt": 1, "pinned": True}]
            }
            await node.kube.patch(NODE_IMAGES, "n1", {"spec": spec})

            def ended(found: NodeImages, number: int = number) -> bool:
                first, last = found.observed[0], found.observed[-1]
                return first.state == "Failed" and first.attempt >= number and (last.image, last.pinned) == (B, True)

            report = (await node.reports(lambda found: bool(found.observed) and ended(found))).observed[0]
            assert (report.image, report.reason.partition(" ")[0]) == (name, "image")
            if name == A:
                assert report.reason.endswith(": upgrade Tessera, or take the value out of the ImageWarmup")
                assert await node.runtime.pinned() == {A, B}
            failures = report.failures
        assert failures == (0 if other == "the attempt" else 2), "so that the pauses between its turns grow"
        await node.tell(wanted(A, 4, pinned=True))
        await node.reports_states(a="Present")
        assert await node.runtime.pinned() == {A}
    assert node.runtime.pulls == [A, B]


async def test_a_report_of_another_version_is_replaced(node: Node) -> None:
    await node.tell(wanted(A, 1, pinned=True), wanted(B, 1))
    status = {"images": [{"image": A, "state": "Quarantined", "attempt": 1}, {"image": B, "state": "Missing"}]}
    await node.kube.patch(NODE_IMAGES, "n1", {"status": status}, subresource="status")
    async with node.running():
        found = await node.reports_states(a="Failed", b="Present")
        assert "'Quarantined'" in found.observed[0].reason
        await node.tell(wanted(A, 2, pinned=True), wanted(B, 1))
        await node.reports_states(a="Present", b="Present")


async def test_a_runtime_that_does_not_answer_is_said_and_what_it_said_last_stays(node: Node) -> None:
    runtime = PartlyBroken()
    runtime.offered = {A: (ONE, 7)}
    node.runtime = runtime
    runtime.silent = True
    async with node.running():
        found = await node.reports(lambda found: bool(found.reason))
        assert found.reason == "container runtime: it does not answer: start it"
        runtime.silent = False
        await node.tell(wanted(A, 1))
        before = await node.reports(lambda found: not found.reason and [e.state for e in found.observed] == ["Present"])
        runtime.silent = True
        after = await node.reports(lambda found: bool(found.reason))
        assert after.observed == before.observed
        runtime.silent = False
        assert await node.reports(lambda found: not found.reason) == before


async def test_it_runs_once_the_api_and_the_runtime_answer(node: Node) -> None:
    """An API server that is gone, then a kind that is not there yet."""
    node.kube.uninstall(NODE_IMAGES)
    async with node.running():
        await asyncio.sleep(0)
        node.kube.stop()
        await asyncio.sleep(0)
        node.kube.start()
        await node.kube.create(CUSTOM_RESOURCE_DEFINITIONS, definition(NODE_IMAGES))
        await node.tell(wanted(A, 1))
        await node.reports_states(a="Present")


async def test_a_second_agent_of_the_node_pulls_and_reports_nothing_until_the_first_ends(machine: Machine) -> None:
    runtime = MemoryRuntime()
    runtime.offered = {A: (ONE, 7)}
    body = {"apiVersion": API_VERSION, "kind": "NodeImages", "metadata": {"name": "n1"}}
    spec = {**body, "spec": node_spec([wanted(A, 1, pinned=True)])}
    await machine.kube.apply(NODE_IMAGES, spec, manager="tessera-controller", force=True)
    models = Places(ModelDisk(machine.folder / "models"), ModelSources(), machine.kubelet.plugins)
    loops = storage_loops("n1", machine.kube, runtime, models, None)
    second = Agent(machine.settings, machine.driver, machine.kube, loops)
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "agent_started")
            running = asyncio.ensure_future(second.run())
            await until_logged(logs, "another_agent_runs")
            await machine.label(config="all-1g.5gb")
            await machine.until_state("success")
            images = await machine.kube.get(NODE_IMAGES, "n1")
            assert images is not None
            assert "status" not in images
            assert (runtime.pulls, await machine.kube.get(NODE_MODELS, "n1")) == ([], None)
        await machine.until_object(NODE_IMAGES, "n1", lambda each: bool(each.get("status")))
        await machine.until_object(NODE_MODELS, "n1", bool)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert runtime.pulls == [A]
