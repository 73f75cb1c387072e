"""A law over random lives of ModelServers: whatever happened, quiet passes make of each what is rendered."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from builders.modelservers import model_server
from harness.modelservercluster import NOW, NS, Passes
from tessera.api.kubernetes.modelpods import read_progress
from tessera.api.tessera.v1alpha1.modelservers import read_model_server
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    MODEL_SERVERS,
    POD_MONITORS,
    SCALED_OBJECTS,
    SERVICES,
    Kind,
    MemoryKube,
    Object,
)
from tessera.controller.modelservers import ModelServers, Pace
from tessera.core.serving.render import render
from tessera.core.serving.serverstatus import started_replicas
from tessera.errors import TesseraError

pytestmark = pytest.mark.anyio

KINDS = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, AUTOSCALERS, POD_MONITORS, SCALED_OBJECTS)
PROMETHEUS = "http://p:9090"
VLLM = {"engine": "vllm", "image": "example.com/vllm:1"}
GPUS: tuple[dict[str, Any], ...] = ({"memoryGiB": 20}, {"resource": "nvidia.com/gpu.shared"})
EVENTS = 25
QUIET = 200


def random_spec(chance: random.Random) -> dict[str, Any]:
    fewest = chance.choice([0, 1, 1, 2, 3])
    spec: dict[str, Any] = {
        "replicas": {"min": fewest, "max": fewest + chance.randint(0 if fewest else 1, 3)},
        "monitor": {"enabled": chance.random() < 0.7},
        "expose": {"type": chance.choice(["ClusterIP", "LoadBalancer"])},
        "autoscaling": {"slots": 8},
    }
    if fewest and chance.random() < 0.5:
        autoscaler = chance.choice(["KEDA", "HorizontalPodAutoscaler"])
        spec["autoscaling"] = {"slots": 8, "metric": "queue-time", "autoscaler": autoscaler}
    if chance.random() < 0.4:
        spec |= VLLM | {"gpu": chance.choice(GPUS)}
    return spec


class Life:
    """A controller and its cluster, in which anything happens to two servers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kube = MemoryKube()
        self.passes = Passes()
        self.task = self._start()

    def _start(self) -> asyncio.Task[None]:
        self.passes = Passes()
        pace = Pace(least_s=0.001, most_s=0.003, repair_s=0.005)
        controller = ModelServers(self.kube, [NS], prometheus=PROMETHEUS, now=lambda: NOW, pace=pace)
        return asyncio.create_task(controller.run(self.passes))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def restart(self) -> None:
        await self.end()
        self.task = self._start()

    async def happen(self) -> None:
        """Let one thing happen; it may be refused."""
        name, kind = self.chance.choice("ab"), self.chance.choice(KINDS)
        number = self.chance.randrange(9)
        with suppress(TesseraError):
            if number < 3:
                await self._change_server(name, remove=number == 0 and self.chance.random() < 0.3)
            elif number < 6:
                await self._drift(kind, name)
            elif number == 6:
                self.kube.withhold(NS, *((kind,) if self.chance.random() < 0.5 else ()))
            elif number == 7:
                self.kube.lose_answers(self.chance.randint(1, 3))
            else:
                await self.restart()

    async def _change_server(self, name: str, *, remove: bool) -> None:
        there = await self.kube.get(MODEL_SERVERS, name, NS)
        new = model_server(random_spec(self.chance), name=name, namespace=NS)
        if there is None:
            await self.kube.create(MODEL_SERVERS, new)
        elif remove:
            await self.kube.delete(MODEL_SERVERS, name, namespace=NS)
        else:
            await self.kube.patch(MODEL_SERVERS, name, {"spec": replacing(there["spec"], new["spec"])}, namespace=NS)

    async def _drift(self, kind: Kind, name: str) -> None:
        """Somebody changes or deletes an object."""
        there = await self.kube.get(kind, name, NS)
        if there is None:
            return
        number = self.chance.randrange(4)
        if number == 0:
            await self.kube.delete(kind, name, namespace=NS)
        elif number == 1:
            await self.kube.patch(kind, name, {"metadata": {"labels": None}}, namespace=NS)
        elif number == 2 and kind is DEPLOYMENTS:
            await self.kube.patch(kind, name, {"spec": {"replicas": self.chance.randrange(5)}}, namespace=NS)
        else:
            field = self.chance.choice(sorted(there["spec"].keys() - {"replicas"}))
            value = None if field != "template" and self.chance.random() < 0.5 else {"odd": 1}
            await self.kube.patch(kind, name, {"spec": {field: value}}, namespace=NS)

    async def quiet(self) -> list[str]:
        """Grant all rights; let the garbage collector and the Deployment controller do their part.

        Return what is not as the specs say in the end.
        """
        found, versions = list[str](), [list[str]()]
        self.kube.withhold(NS)
        self.kube.lose_answers(0)
        for _ in range(QUIET):
            await self._collect()
            await self._deploy()
            await self.passes.again()
            await asyncio.sleep(0.006)
            found = await self.problems()
            versions = [*versions[-2:], await self.versions()]
            if not found and versions == [versions[-1]] * 3:
                break
        return found

    async def _collect(self) -> None:
        alive = {each["metadata"]["uid"] for each in (await self.kube.list(MODEL_SERVERS)).objects}
        for kind in KINDS:
            for each in (await self.kube.list(kind)).objects:
                if alive.isdisjoint(owners_of(each)):
                    await self.kube.delete(kind, each["metadata"]["name"], namespace=NS)

    async def _deploy(self) -> None:
        for each in (await self.kube.list(DEPLOYMENTS)).objects:
            count, name = each["spec"].get("replicas", 1), each["metadata"]["name"]
            status = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), count)
            status["observedGeneration"] = each["metadata"].get("generation", 0)
            if each.get("status") != status:
                await self.kube.patch(DEPLOYMENTS, name, {"status": status}, namespace=NS, subresource="status")

    async def problems(self) -> list[str]:
        """Return what is not as the specs say."""
        found = list[str]()
        for each in (await self.kube.list(MODEL_SERVERS)).objects:
            server = read_model_server(each)
            conditions = (each.get("status") or {}).get("conditions") or ()
            true = {one["type"] for one in conditions if one["status"] == "True"}
            found += [f"{server.name}: {one} is not true" for one in ("Accepted", "Applied") if one not in true]
            objects = {kind.name: await self.kube.get(kind, server.name, NS) for kind in KINDS}
            deployment = objects[DEPLOYMENTS.name]
            started = started_replicas(read_progress(deployment) if deployment else None)
            want = {one["kind"]: one for one in render(server, "s", prometheus=PROMETHEUS, started=started)}
            for kind, there in objects.items():
                if kind in want:
                    found += [f"{server.name}: {kind}{path}" for path in differing(want[kind], there)]
                elif there is not None:
                    found.append(f"{server.name}: {kind} is left over")
        return found

    async def versions(self) -> list[str]:
        """Return the versions of all objects but the servers, whose status says what a process has seen."""
        listed = [each for kind in KINDS for each in (await self.kube.list(kind)).objects]
        return [each["metadata"]["resourceVersion"] for each in listed]


def replacing(former: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes one spec of another."""
    inner = {
        key: replacing(former[key], each) if isinstance(each, dict) and isinstance(former.get(key), dict) else each
        for key, each in new.items()
    }
    return dict.fromkeys(former.keys() - new.keys()) | inner


def owners_of(each: Object) -> set[str]:
    return {one["uid"] for one in each["metadata"].get("ownerReferences") or ()}


def differing(want: Any, there: Any) -> list[str]:
    """Return the paths of what is desired and not there; more may be there."""
    if isinstance(want, dict) and isinstance(there, dict):
        return [f".{key}{path}" for key, each in want.items() for path in differing(each, there.get(key))]
    return [] if want == there else [f" is {there!r}, not {want!r}"]


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happened_quiet_passes_make_what_is_rendered_and_then_write_nothing(seed: int) -> None:
    life = Life(seed)
    try:
        for _ in range(EVENTS):
            await life.happen()
            await asyncio.sleep(life.chance.choice([0.0, 0.002]))
        assert await life.quiet() == []
        before = await life.versions()
        await life.restart()
        for _ in range(3):
            await life.passes.again()
        assert await life.versions() == before, "a new process finds all as it is to be"
    finally:
        await life.end()
