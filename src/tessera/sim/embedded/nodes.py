"""One node in this process: Tessera's agent on in-memory GPUs and an in-memory kubelet, and the kubelet's pods."""

import asyncio
import contextlib
import hashlib
import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from tessera.agent.declarations.configuration import Sources
from tessera.agent.run import Agent
from tessera.agent.settings import AgentSettings, Paths
from tessera.agent.sharing import MpsSettings
from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.tessera.cluster.clusters import as_fields
from tessera.api.tessera.pods.assignments import read_shares
from tessera.api.tessera.usage.usagejson import read_usage
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import NODES, PODS, MemoryKube, Object, Selection, Store, annotations_of, name_of, uid_of
from tessera.clients.kubelet import Container, MemoryKubelet
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import Instance
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import RemappedRows
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Conflict, TesseraError
from tessera.log import Logger, logger
from tessera.sim.nvmlsim.products import product
from tessera.wakeup import WakeUp

__all__ = ["EmbeddedNode", "gpu_limits"]

_TURN_S = 1.0
_CREATE_S = 1.5
_IDLE = 0.15
"""The part of its power that a GPU uses without load."""
_CAPPED = 0.85
"""Above this load a GPU would exceed its power limit: it lowers its clocks."""
_CAPPED_CLOCK = 0.85
"""The part of its highest clock that it has then."""
_POWER_CAP = 0x4
_STARTS = 5
"""A rejected pod is retried this often, as its controller would recreate it."""


def gpu_limits(pod: Object) -> dict[str, int]:
    """Return the devices requested by the pod's only container, by resource."""
    (container,) = pod["spec"]["containers"]
    limits: dict[str, Any] = container["resources"]["limits"]
    return {name: int(count) for name, count in limits.items() if "/" in name}


def _container_id(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()


class PodLoads(Protocol):
    """What pods do with their GPUs."""

    def memory_in_use(self, pod: Object) -> float:
        """Return the part of its GPU memory that a pod's process uses; 0 without such a process."""
        ...

    def busy(self, pod: Object) -> float:
        """Return how much of its compute a pod uses, in percent."""
        ...


class _Driver(MemoryDriver):
    """GPUs in memory on which a MIG instance takes a while, as on real ones: so one sees what is planned."""

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create an instance at exactly this place."""
        await asyncio.sleep(_CREATE_S)
        return await super().create_instance(gpu, placement)


class EmbeddedNode:
    """A node; `run` ends when it is canceled.

    Args:
        name: of the Node object, and of its folder.
        models: of its GPUs.
        kube: the Kubernetes API.
        folder: of all nodes.
        labels: of the Node object.
        loads: says what pods do with their GPUs.

    """

    def __init__(
        self,
        name: str,
        models: tuple[str, ...],
        kube: MemoryKube,
        folder: Path,
        labels: dict[str, str],
        loads: PodLoads,
    ) -> None:
        self.name = name
        self.folder = folder / name
        self._kube = kube
        self._labels = labels
        self._loads = loads
        self._agent: Agent | None = None
        self._driver = _Driver.of(*models, node=name)
        self._uuids = [f"GPU-{name}-{index}" for index in range(len(models))]
        self._models = models
        self._wakeup = WakeUp()
        selection = Selection(fields=(("spec.nodeName", name),))
        self._pods = Store(kube, PODS, selection, wake=self._wakeup.set)
        self._started: dict[str, Object] = {}
        """Pods with running containers, by UID."""
        self._processes: dict[str, int] = {}
        self._shares: dict[str, tuple[Share, ...]] = {}
        """The assignments of pods with a process, by UID."""
        self._energy_mj = Counter[str]()
        self._measured_s = 0.0
        self._refused: dict[str, int] = {}
        self._advertised: dict[str, str] = {}
        self._pids = itertools.count(1000)
        self._log: Logger = logger(node=name)

    async def run(self) -> None:
        """Run agent and kubelet until canceled."""
        for part in ("proc", "sharing", "state"):
            (self.folder / part).mkdir(parents=True)
        self._show_process(1, "/init.scope")
        allocatable = {"cpu": "96", "memory": "768Gi", "pods": "110"}
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        await self._kube.create(NODES, {"metadata": {"name": self.name, "labels": self._labels}, "status": status})
        async with MemoryKubelet(self.folder) as kubelet, asyncio.TaskGroup() as tasks:
            self._agent = Agent(self._settings(kubelet), self._driver, self._kube)
            tasks.create_task(self._agent.run())
            tasks.create_task(self._pods.run())
            await self._pods.synced()
            while True:
                try:
                    await self._turn(kubelet)
                except TesseraError as error:
                    self._log.info("kubelet_turn_failed", reason=str(error))
                await self._wakeup.wait(_TURN_S)

    def metrics(self) -> bytes:
        """Return the agent's metrics."""
        return self._agent.measures.render() + self._agent.exporter.render() if self._agent else b""

    def usage(self) -> UsageReport:
        """Return the agent's report of GPU usage."""
        return read_usage(self._agent.exporter.report(), self.name) if self._agent else UsageReport(node=self.name)

    def _settings(self, kubelet: MemoryKubelet) -> AgentSettings:
        folder = self.folder
        return AgentSettings(
            node=self.name,
            paths=Paths(
                plugins=kubelet.plugins,
                pod_resources=kubelet.pod_resources,
                cdi=folder / "cdi",
                driver_specs=(folder / "nvidia.yaml",),
                runtime_config=folder / "containerd.toml",
                state=folder / "state",
                mig_minors=folder / "mig-minors",
                proc=folder / "proc",
                machine=folder / "machine",
            ),
            sources=Sources(sharing=folder / "sharing", policy=folder / "policy.yaml"),
            mps=MpsSettings(program=str(folder / "no-mps"), root=folder / "mps"),
            interval_s=2.0,
            measure_s=_TURN_S,
        )

    async def _turn(self, kubelet: MemoryKubelet) -> None:
        await self._advertise(kubelet)
        present = {uid_of(each): each for each in self._pods.objects.values()}
        for uid, each in list(self._started.items()):
            if uid not in present:
                self._end(kubelet, uid, each)
        for uid, each in present.items():
            if uid not in self._started:
                await self._start(kubelet, uid, each)
            elif uid not in self._processes and ASSIGNMENT in annotations_of(each) and self._loads.memory_in_use(each):
                self._run_process(uid, each)
        self._measure()

    def _measure(self) -> None:
        """Set the effects of such a load on the GPUs: clocks, heat, power."""
        now_s = asyncio.get_running_loop().time()
        passed_s, self._measured_s = now_s - (self._measured_s or now_s), now_s
        loads = Counter[str]()
        for uid in self._processes:
            for each in self._shares[uid]:
                loads[self._uuids[each.gpu]] += round(self._part(each) * self._loads.busy(self._started[uid]))
        for uid, pid in self._processes.items():
            most = max((loads[self._uuids[each.gpu]] for each in self._shares[uid]), default=0)
            scale = min(1, 100 / most) if most else 0  # a GPU that is overcommitted gives each less
            self._driver.set_load(pid, round(self._loads.busy(self._started[uid]) * scale))
        for uuid, name in zip(self._uuids, self._models, strict=True):
            load, shown = min(loads[uuid], 100) / 100, product(model(name))
            idle_w, most_w = shown.power_w[1] * _IDLE, shown.power_w[1]
            watts = idle_w + (most_w - idle_w) * load
            self._energy_mj[uuid] += round(watts * passed_s * 1000)
            capped = load > _CAPPED
            self._driver.set_measured(
                uuid,
                sm_clock_mhz=round(shown.clocks_mhz[0] * (_CAPPED_CLOCK if capped else 1)),
                memory_clock_mhz=shown.clocks_mhz[1],
                temperature_c=round(34 + 40 * load),
                power_watts=round(watts, 1),
                energy_mj=self._energy_mj[uuid],
                remapped_rows=RemappedRows(corrected=0, uncorrected=0, failed=False),
                clocks_event_reasons=_POWER_CAP if capped else 0,
                ecc_corrected=0,
                ecc_uncorrected=0,
            )

    async def _advertise(self, kubelet: MemoryKubelet) -> None:
        """Write the plugins' devices to the Node, as the kubelet does."""
        offered = {name: str(kubelet.allocatable(name)) for name in dict.fromkeys(kubelet.registrations)}
        if offered != self._advertised:
            status = {"allocatable": offered, "capacity": offered}
            await self._kube.patch(NODES, self.name, {"status": status}, subresource="status")
            self._advertised = offered

    async def _start(self, kubelet: MemoryKubelet, uid: str, pod: Object) -> None:
        namespace, name = name_of(pod)
        container = Container(name=pod["spec"]["containers"][0]["name"], limits=tuple(gpu_limits(pod).items()))
        try:
            await kubelet.admit(namespace, name, container, uid=uid)
            await kubelet.create(namespace, name, container.name)
        except Conflict as error:
            self._refused[uid] = self._refused.get(uid, 0) + 1
            self._log.info("pod_refused", pod=f"{namespace}/{name}", reason=str(error))
            if self._refused[uid] >= _STARTS:
                await self._kube.delete(PODS, name, namespace=namespace)
            return
        self._started[uid] = pod
        with contextlib.suppress(Conflict):  # it was deleted
            status = {"name": container.name, "containerID": f"containerd://{_container_id(uid)}"}
            running = {"status": {"phase": "Running", "containerStatuses": [status]}}
            await self._kube.patch(PODS, name, running, namespace=namespace, subresource="status")

    def _part(self, share: Share) -> float:
        """Return the part of its GPU's compute that a pod can use: that of its instance, or all."""
        return (model(self._models[share.gpu]).compute_part(share.profile) if share.profile else None) or 1.0

    def _end(self, kubelet: MemoryKubelet, uid: str, pod: Object) -> None:
        kubelet.remove(*name_of(pod))
        del self._started[uid]
        self._shares.pop(uid, None)
        pid = self._processes.pop(uid, None)
        if pid is not None:
            self._driver.end_process(pid)
            shutil.rmtree(self.folder / "proc" / str(pid))

    def _show_process(self, pid: int, cgroup: str) -> None:
        folder = self.folder / "proc" / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def _run_process(self, uid: str, pod: Object) -> None:
        """Let the pod's process take memory of the devices that it was assigned."""
        (field,) = as_fields([pod])
        pid = self._processes[uid] = next(self._pids)
        self._show_process(pid, f"/kubepods/pod{uid}/{_container_id(uid)}")
        shares = self._shares[uid] = tuple(read_shares(field, None) or ())
        for share in shares:
            place = None
            if share.profile is not None and share.start is not None:
                sizes = {each.name: each.size for each in model(self._models[share.gpu]).profiles}
                place = Placement(share.start, sizes[share.profile], share.profile)
            with contextlib.suppress(TesseraError):
                self._driver.start_process(
                    self._uuids[share.gpu], pid, place, round(self._loads.memory_in_use(pod) * share.memory_mib)
                )
