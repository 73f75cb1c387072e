"""What holds of shares in any order of events: no GPU is shared by containers that need more than it has.

Pods come, start, start again and end in any order; the agent is killed, its `shares.json` cannot be written or is lost,
the watch of pods is late, and the API server is silent. A server assigns what is free by the assignments on record.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.gpunodes import facts
from harness.pluginnode import CDI, MEMORY, NEED, Node, share
from tessera.clients.kubelet import Container
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

GPUS = 2
GIB = 15
"""Of each."""
STEPS = 60
NAMES = {facts(index, "T4").uuid: index for index in range(GPUS)}


class Churn:
    """A node, and the devices of its running containers."""

    def __init__(self, node: Node, rng: random.Random, how: PluginOptions) -> None:
        self.node = node
        self.rng = rng
        self.how = how
        self.waiting: list[str] = []
        self.admitted: list[str] = []
        self.told: dict[str, int] = {}
        """Index of the GPU of each running container, by its pod."""
        self.processes: dict[str, Path] = {}
        self.units: dict[str, int] = {}
        self.refused = 0
        self.scratch = node.root / f".shares.json.{os.getpid()}"

    async def offer(self) -> None:
        await self.node.offer(*((facts(index, "T4"), MEMORY) for index in range(GPUS)), how=self.how)

    async def create(self) -> None:
        """A server binds a pod where there is room; the agent's watch may be late to show it."""
        name, units = f"p{len(self.units):02}", self.rng.choice((5, 7, 10))
        used = Counter[int]()
        for _, pod in self.node.pods:
            for each in self.node.assigned(pod):
                used[each["gpu"]] += each["memoryMiB"]
        free = [gpu for gpu in range(GPUS) if used[gpu] + (units << 10) <= GIB << 10]
        if not free:
            return
        self.units[name] = units
        self.node.assign(name, units, share(self.rng.choice(free), units << 10))
        if self.rng.random() < 0.4:
            del self.node.watched["default", name]
        self.waiting.append(name)

    async def admit(self) -> None:
        if self.waiting:
            name = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            limits = ((NEED, self.units[name]),)
            try:
                await self.node.kubelet.admit("default", name, Container(name="main", limits=limits))
                self.admitted.append(name)
            except Conflict:
                self.refused += 1
                self.node.watched["default", name] = self.node.pods["default", name]
                self.node.end(name)

    async def start(self) -> None:
        if self.admitted:
            name = self.rng.choice(self.admitted)
            self.stop(name)
            try:
                given = await self.node.kubelet.create("default", name, "main")
            except Conflict:
                self.refused += 1
                return
            env = dict(given.env) or dict(pair.split("=", 1) for pair in self.node.spec(given)["env"])
            self.told[name] = NAMES[env["TESSERA_GPU_UUIDS"]]
            self.processes[name] = self.node.process_of(name, 100 + int(name[1:]))

    def stop(self, name: str) -> None:
        self.told.pop(name, None)
        if name in self.processes:
            shutil.rmtree(self.processes.pop(name))

    async def end(self) -> None:
        if self.admitted:
            name = self.admitted.pop(self.rng.randrange(len(self.admitted)))
            self.stop(name)
            self.node.watched["default", name] = self.node.pods["default", name]
            self.node.end(name)

    async def kill(self) -> None:
        await self.node.kill()
        if self.rng.random() < 0.3:
            (self.node.root / "shares.json").unlink(missing_ok=True)
        self.node.plugins = self.node.started()
        await self.offer()

    async def fill_or_clear_disk(self) -> None:
        self.scratch.rmdir() if self.scratch.exists() else self.scratch.mkdir()

    async def silence(self) -> None:
        self.node.silent = not self.node.silent

    async def show(self) -> None:
        self.node.watched.update(self.node.pods)

    async def clean_up(self) -> None:
        await self.node.plugins._clean_up_record_and_shares()
        self.node.passed_s += 61
        await self.node.plugins._clean_up_record_and_shares()

    def check(self) -> None:
        """Check that no GPU is shared by more than it has, and that the record has the devices of each."""
        used = Counter[int]()
        for name, gpu in self.told.items():
            used[gpu] += self.units[name]
        assert all(units <= GIB for units in used.values()), self.told
        recorded = {
            each.pod: [NAMES[use.device.gpu] for use in each.uses] for each in self.node.plugins.gate.record.entries
        }
        assert {name: recorded[f"default/{name}"] for name in self.told} == {
            name: [gpu] for name, gpu in self.told.items()
        }


@pytest.mark.parametrize("how", [PluginOptions(), CDI], ids=["envvar", "cdi"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TESSERA_SHARES_SEEDS", "8"))))
async def test_no_gpu_is_shared_by_more_than_it_has_room_for(node: Node, how: PluginOptions, seed: int) -> None:
    node.hurry(termination_s=0.0, late_s=0.0)
    churn = Churn(node, random.Random(seed), how)
    await churn.offer()
    events: dict[Callable[[], object], int] = {
        churn.create: 8,
        churn.admit: 8,
        churn.start: 8,
        churn.end: 3,
        churn.kill: 3,
        churn.fill_or_clear_disk: 2,
        churn.silence: 1,
        churn.show: 3,
        churn.clean_up: 3,
    }
    for _ in range(STEPS):
        (event,) = churn.rng.choices(list(events), list(events.values()))
        await event()  # type: ignore[misc]
        churn.check()
