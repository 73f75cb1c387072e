"""A node with all that an agent speaks to, in this process: driver, Kubernetes API and kubelet in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.signed import SERVER, config_map
from tessera.agent.agenttimes import AgentTimes
from tessera.agent.declarations.configuration import Sources
from tessera.agent.run import Agent
from tessera.agent.settings import AgentSettings, Paths
from tessera.agent.sharing import MpsSettings
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import CONFIG_MAPS, EVENTS, NODES, PODS, Kind, MemoryKube, Object, Selection, labels_of
from tessera.clients.kubelet import Container, MemoryKubelet
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import GpuProcess, Inventory

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"


class WatchedDriver(MemoryDriver):
    """Counts how often processes are asked for, which an agent does when it looks at layouts, or starts a container."""

    requested = 0
    unseen: tuple[int, ...] = ()
    """GPUs that were lost before."""

    async def inventory(self) -> Inventory:
        return msgspec.structs.replace(await super().inventory(), unseen=self.unseen)

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        self.requested += 1
        return await super().processes(gpu)


class Machine(msgspec.Struct, kw_only=True):
    """A node with all that an agent speaks to."""

    driver: WatchedDriver
    kube: MemoryKube
    kubelet: MemoryKubelet
    folder: Path
    reboot: tuple[str, ...] = ()
    mig_config: Path | None = None
    driver_folder: str = ""
    times: AgentTimes = AgentTimes()

    @property
    def settings(self) -> AgentSettings:
        return AgentSettings(
            node="n1",
            paths=Paths(
                plugins=self.kubelet.plugins,
                pod_resources=self.kubelet.pod_resources,
                cdi=self.folder / "cdi",
                driver_specs=(self.folder / "nvidia.yaml",),
                driver_folder=self.driver_folder,
                runtime_config=self.folder / "containerd.toml",
                state=self.folder / "state",
                mig_minors=self.folder / "mig-minors",
                proc=self.folder / "proc",
            ),
            sources=Sources(sharing=self.folder / "sharing", policy=self.folder / "policy.yaml"),
            mps=MpsSettings(root=self.folder / "mps"),
            reboot=self.reboot,
            mig_config=self.mig_config,
            interval_s=0.2,
        )

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """Run an agent; at the end it is cut off at whatever it does, as by a signal."""
        one = Agent(self.settings, self.driver, self.kube, times=self.times)
        running = asyncio.ensure_future(one.run())
        try:
            yield one
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def label(self, **labels: str | None) -> None:
        named = {CONFIG if key == "config" else key: value for key, value in labels.items()}
        await self.kube.patch(NODES, "n1", {"metadata": {"labels": named}})

    async def node(self) -> Object:
        found = await self.kube.get(NODES, "n1")
        assert found is not None
        return found

    async def until(self, holds: Callable[[Object], bool], deadline_s: float = 20.0) -> Object:
        """Return the Node object as soon as it is so."""
        for _ in range(round(deadline_s / 0.02)):
            node = await self.node()
            if holds(node):
                return node
            await asyncio.sleep(0.02)
        pytest.fail(f"after {deadline_s} s: {await self.node()}")

    async def until_object(self, kind: Kind, name: str, holds: Callable[[Object], bool]) -> Object:
        """Return an object as soon as it is so, an empty one where it is gone; a watch tells."""
        chosen = Selection(namespace="default" if kind.namespaced else "")
        found: Object = {}
        try:
            async with asyncio.timeout(20):
                listing = await self.kube.list(kind, chosen)
                found = next((each for each in listing.objects if each["metadata"]["name"] == name), {})
                if holds(found):
                    return found
                async for event in self.kube.watch(kind, listing.resource_version, chosen):
                    if not event.bookmark and event.object["metadata"]["name"] == name:
                        found = {} if event.gone else event.object
                        if holds(found):
                            return found
        except TimeoutError:
            pytest.fail(f"after 20 s: {found}")
        pytest.fail(f"the watch ended: {found}")

    async def event(self, reason: str) -> str:
        """Return the message of the node's event with this reason as soon as there is one."""
        for _ in range(400):
            for each in (await self.kube.list(EVENTS)).objects:
                if each["reason"] == reason:
                    return str(each["message"])
            await asyncio.sleep(0.05)
        pytest.fail(f"no event {reason}")

    async def until_state(self, state: str) -> Object:
        return await self.until(lambda node: labels_of(node).get(STATE) == state)

    async def until_observed(self, times: int = 3) -> None:
        """Return when the agent has looked so often at the layouts of all GPUs: what it was to do has begun then."""
        last = self.driver.requested + (times + 1) * len((await self.driver.inventory()).gpus)
        for _ in range(1000):
            if self.driver.requested >= last:
                return
            await asyncio.sleep(0.02)
        pytest.fail("the agent does not look at layouts")

    async def until_mig(self, gpu: str, *, pending: bool) -> None:
        """Return as soon as the MIG mode that a GPU has after a reset is this."""
        for _ in range(1000):
            mode = next(each.mig for each in (await self.driver.inventory()).gpus if each.uuid == gpu)
            if mode is not None and mode.pending == pending:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"the MIG mode of {gpu} does not change")

    async def pod(self, name: str, limits: dict[str, int], shares: tuple[Share, ...] = ()) -> None:
        """Make a pod and bind it to the node, as a server does."""
        limit: dict[str, Any] = {"limits": {key: str(count) for key, count in limits.items()}}
        metadata = {"name": name, "namespace": "default"}
        spec = {"containers": [{"name": "c", "image": "none", "resources": limit}]}
        made = await self.kube.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        await self.kube.apply(CONFIG_MAPS, config_map(), manager="servers")
        annotations, uid = {"tessera.dev/assignment": write_shares(shares)} if shares else {}, made["metadata"]["uid"]
        sealed = SERVER.sealed(annotations, uid=uid, node="n1")
        await self.kube.bind(name, "default", uid=uid, node="n1", annotations=sealed)

    async def start(self, name: str, resource: str, count: int = 1) -> dict[str, str]:
        """Let the kubelet start a pod's container, and return its environment."""
        pod = await self.kube.get(PODS, name, namespace="default")
        uid = "" if pod is None else pod["metadata"]["uid"]
        await self.kubelet.admit("default", name, Container(name="c", limits=((resource, count),)), uid=uid)
        return dict((await self.kubelet.create("default", name, "c")).env)
