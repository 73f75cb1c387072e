"""The embedded cluster: its nodes, policies and processes, and the page that shows them."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tessera.clients.kube import GPU_NODES, GPU_POLICIES, MemoryKube, Store
from tessera.clients.nodeusage import NodeReports
from tessera.controller.run import Controller
from tessera.controller.settings import ControllerSettings
from tessera.core.explain.observedfleet import MeasuredUsage
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, UsageReport
from tessera.errors import TesseraError
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.page import AgentMetrics
from tessera.server.run import Server
from tessera.server.settings import Page, ServerSettings
from tessera.sim.embedded.nodes import EmbeddedNode
from tessera.sim.embedded.scheduling import Scheduling
from tessera.sim.embedded.workloads import EmbeddedWorkloads
from tessera.wakeup import WakeUp

__all__ = ["Embedded"]

_NODES: Final = (
    ("h100-1", ("H100-80GB",) * 4, "mixed"),
    ("h100-2", ("H100-80GB",) * 4, "mixed"),
    ("a100-1", ("A100-40GB",) * 2, "mixed"),
    ("a10-1", ("A10",) * 2, "shares"),
    ("t4-1", ("T4",), "notebooks"),
)
"""Names, GPUs and pools."""
_POLICIES: Final[dict[str, Any]] = {
    "mixed": {
        "gpus": [{"sharing": {"mode": "auto"}}],
        "repartition": {"idleSeconds": 1, "longestSeconds": 3, "keepIdleSeconds": 20},
        "disruption": {"budget": "50%"},
    },
    "shares": {"gpus": [{"sharing": {"mode": "memory-share"}}]},
    "notebooks": {"gpus": [{"sharing": {"mode": "time-slicing", "replicas": 14}}]},
}
_POLL_S: Final = 0.2
_READ_S: Final = 1.0
"""The page reads what agents report so often."""


class _Usages:
    """`UsageSource` of the nodes in this process, whose containers grow older as fast as the workloads."""

    def __init__(self, nodes: Sequence[EmbeddedNode], speed: float) -> None:
        self._nodes = nodes
        self._speed = speed

    async def read(self) -> NodeReports:
        return NodeReports(tuple(sorted(map(self._report, self._nodes), key=lambda each: each.node)))

    def _report(self, node: EmbeddedNode) -> UsageReport:
        def older(container: ContainerReport) -> ContainerReport:
            load_s = None if container.load_observed_s is None else container.load_observed_s * self._speed
            return msgspec.structs.replace(
                container, observed_s=container.observed_s * self._speed, load_observed_s=load_s
            )

        def aged(device: DeviceReport) -> DeviceReport:
            return msgspec.structs.replace(device, containers=tuple(map(older, device.containers)))

        report = node.usage()
        gpus = (msgspec.structs.replace(each, devices=tuple(map(aged, each.devices))) for each in report.gpus)
        return msgspec.structs.replace(report, gpus=tuple(gpus))

    async def close(self) -> None:
        pass


class _Metrics(AgentMetrics):
    """The page's metrics: what agents report, and the model servers."""

    def __init__(self, nodes: Sequence[EmbeddedNode], workloads: EmbeddedWorkloads, speed: float) -> None:
        super().__init__(_Usages(nodes, speed), logger(), every_s=_READ_S)
        self._workloads = workloads

    @property
    def measured(self) -> MeasuredUsage:
        return msgspec.structs.replace(super().measured, model_servers=self._workloads.model_servers())


class Embedded:
    """A cluster in this process, with the page.

    Args:
        page: address of the page.
        speed: simulated seconds of the workloads in a second.
        seed: of names and requests.

    """

    def __init__(self, page: Page, speed: float = 30.0, seed: int = 1) -> None:
        self.kube = MemoryKube()
        self.nodes: list[EmbeddedNode] = []
        self.workloads = EmbeddedWorkloads(self.kube, speed, random.Random(seed))
        self._measures = Measures()
        """Of the controller."""
        metrics = _Metrics(self.nodes, self.workloads, speed)
        self.server = Server(ServerSettings(port=0, page=page, replica="embedded"), self.kube, metrics=metrics)

    def metrics(self) -> Mapping[str, bytes]:
        """Return the metrics of each process."""
        agents = {f"agent-{node.name}": node.metrics() for node in self.nodes}
        return {"server": self.server.metrics(), "controller": self._measures.render(), **agents}

    async def run(self, ready: Callable[[int], None]) -> None:
        """Run until canceled.

        Args:
            ready: called once with the port of the page.

        Raises:
            TesseraError: the port is taken.

        """
        try:
            await self._run(ready)
        except ExceptionGroup as raised:
            known = [error for error in raised.exceptions if isinstance(error, TesseraError)]
            raise known[0] if known else raised from raised

    async def _run(self, ready: Callable[[int], None]) -> None:
        for name, spec in _POLICIES.items():
            body = {"nodeSelector": {"matchLabels": {"pool": name}}} | spec
            await self.kube.create(GPU_POLICIES, {"metadata": {"name": name}, "spec": body})
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self.server.run())
                listening = tasks.create_task(self.server.listening.wait())
                await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
                if self.server.page_port:
                    ready(self.server.page_port)
                for name, models, pool in _NODES:
                    labels = {"pool": pool, "gpu": name.partition("-")[0]}
                    node = EmbeddedNode(name, models, self.kube, Path(folder), labels, self.workloads)
                    self.nodes.append(node)
                    tasks.create_task(node.run())
                settings = ControllerSettings(identity="embedded")
                tasks.create_task(Controller(settings, self.kube, measures=self._measures).run())
                await self.server.synced()
                wakeup = WakeUp()
                tasks.create_task(Store(self.kube, GPU_NODES, wake=wakeup.set).run())
                while not await self._policies_applied():
                    await wakeup.wait(_POLL_S)
                tasks.create_task(Scheduling(self.kube, self.server.verbs).run())
                tasks.create_task(self.workloads.run())

    async def _policies_applied(self) -> bool:
        """Return whether each node's GPUs are shared as its policy says: earlier pods would get others."""
        found = (await self.kube.list(GPU_NODES)).objects
        reported = (
            "policy" in (each.get("spec") or {})
            and (each.get("status") or {}).get("observedGeneration") == each["metadata"]["generation"]
            for each in found
        )
        return len(found) == len(_NODES) and all(reported)
