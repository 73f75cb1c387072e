"""The five classic cases as live workloads: model servers under a wave of requests, a job, notebooks, memory shares."""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from tessera.clients.kube import PODS, MemoryKube, Object, Store, name_of
from tessera.core.explain.fleetview import ModelServerHistory, ScalePoint
from tessera.core.serving.autoscaling.autoscaler import AutoscalerState, ScaledServer, propose
from tessera.core.serving.metrics.load import PASS_S, Load
from tessera.core.workload.need import PodKey
from tessera.sim.serving.replicamodel import ReplicaModel, Replicas

__all__ = ["CASES", "Case", "EmbeddedWorkloads", "Serving"]

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Source: k8s.io/apimachinery `pkg/util/rand`."""
_KEPT: Final = 120
_TURN_S: Final = 0.5
_WAVE_S: Final = 3600.0


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """A model server that scales with its load."""

    slots: int
    least_rate: float
    """Requests per second in the trough."""
    most_rate: float
    service_s: float
    most: int
    phase: float = 0.0
    """Phase of its wave."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One workload."""

    namespace: str
    name: str
    gpu: str
    """The nodes that it selects, by the label `gpu`."""
    limits: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...] = ()
    replicas: int = 1
    """Number of pods; of a job at most."""
    serving: Serving | None = None
    job: bool = False
    """Whether its pods come in batches and end."""
    activity: float = 60.0
    """Compute that a pod uses on average, in percent of its GPU or MIG instance."""
    memory: float = 0.8
    """The part of its GPU memory that a pod uses; 0 where it does nothing with its GPU."""


CASES: Final = (
    Case(
        namespace="batch",
        name="embed",
        gpu="h100",
        limits=(("nvidia.com/mig-1g.10gb", "1"),),
        replicas=15,
        job=True,
        activity=92,
    ),
    Case(
        namespace="serving",
        name="vllm",
        gpu="h100",
        limits=(("tessera.dev/gpu-memory", "37"),),
        annotations=(("tessera.dev/isolation", "hardware"),),
        serving=Serving(slots=8, least_rate=0.3, most_rate=3.5, service_s=10, most=8),
    ),
    Case(
        namespace="vision",
        name="triton",
        gpu="a100",
        limits=(("nvidia.com/mig-1g.5gb", "1"),),
        serving=Serving(slots=4, least_rate=1, most_rate=16, service_s=2.0, most=12, phase=0.75),
    ),
    Case(namespace="notebooks", name="notebook", gpu="t4", limits=(("nvidia.com/gpu", "1"),), replicas=9, activity=0),
    Case(
        namespace="notebooks",
        name="workshop",
        gpu="t4",
        limits=(("nvidia.com/gpu", "1"),),
        replicas=2,
        activity=0,
        memory=0,
    ),
    Case(namespace="ranking", name="ranker", gpu="a10", limits=(("aliyun.com/gpu-mem", "5"),), replicas=4, activity=18),
    Case(namespace="ranking", name="tagger", gpu="a10", limits=(("aliyun.com/gpu-mem", "9"),), replicas=2, activity=20),
    Case(
        namespace="research",
        name="finetune",
        gpu="h100",
        limits=(("tessera.dev/gpu-memory", "75"),),
        replicas=2,
        activity=97,
        memory=0.4,
    ),
    Case(
        namespace="research",
        name="pretrain",
        gpu="h100",
        limits=(("tessera.dev/gpu-memory", "90"),),
        job=True,
    ),
)
"""From examples/1 to examples/5, sized for the nodes of `run`; `pretrain` is too large for every GPU, now and then."""


class EmbeddedWorkloads:
    """Keeps the workloads at their desired number of pods, and knows how busy these are.

    Args:
        kube: the Kubernetes API.
        speed: simulated seconds in a second.
        rng: names of pods, requests.

    """

    def __init__(self, kube: MemoryKube, speed: float, rng: random.Random) -> None:
        self._kube = kube
        self._speed = speed
        self._rng = rng
        self._pods = Store(kube, PODS)
        self._began_s = time.monotonic()
        self._servers = {each.name: _Server(each, rng) for each in CASES if each.serving}
        self._busy: dict[PodKey, float] = {}

    def model_servers(self) -> tuple[ModelServerHistory, ...]:
        """Return the model servers."""
        return tuple(each.history() for each in self._servers.values())

    def busy(self, pod: Object) -> float:
        """Return how much of its compute a pod uses, in percent."""
        return self._busy.get(PodKey("/".join(name_of(pod))), 0.0)

    @staticmethod
    def memory_in_use(pod: Object) -> float:
        """Return the part of its GPU memory that a pod uses."""
        namespace, name = name_of(pod)
        return next(each.memory for each in CASES if each.namespace == namespace and name.startswith(f"{each.name}-"))

    async def run(self) -> None:
        """Create and delete pods until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            await self._pods.synced()
            while True:
                now_s = (time.monotonic() - self._began_s) * self._speed
                for case in CASES:
                    await self._keep(case, now_s)
                await asyncio.sleep(_TURN_S)

    async def _keep(self, case: Case, now_s: float) -> None:
        pods = sorted(self._of(case), key=lambda each: int(each["metadata"]["uid"][4:]))
        running = sum((each.get("status") or {}).get("phase") == "Running" for each in pods)
        desired, busy = case.replicas, case.activity
        if case.serving:
            server = self._servers[case.name]
            desired, busy = server.advance(now_s, running), server.busy(running)
        elif case.job:
            wave = 0.5 - 0.5 * math.cos(2 * math.pi * now_s / (_WAVE_S * 0.7))
            desired = round(case.replicas * wave)
        self._note(case, pods, busy)
        for _ in range(desired - len(pods)):
            await self._create(case)
        pending_first = sorted(pods, key=lambda each: bool(each["spec"].get("nodeName")))
        for each in pending_first[: max(0, len(pods) - desired)]:
            namespace, name = name_of(each)
            await self._kube.delete(PODS, name, namespace=namespace)

    def _note(self, case: Case, pods: list[Object], busy: float) -> None:
        keys = [PodKey("/".join(name_of(each))) for each in pods]
        for key in [key for key in self._busy if key.startswith(f"{case.namespace}/{case.name}-") and key not in keys]:
            del self._busy[key]
        for number, key in enumerate(keys):
            # Notebooks are used now and then: one in four at a time.
            used = 40.0 if case.name == "notebook" and number % 4 == 0 else busy
            self._busy[key] = round(min(100.0, max(0.0, used * self._rng.uniform(0.9, 1.1))))

    def _of(self, case: Case) -> Iterator[Object]:
        for (namespace, name), each in self._pods.objects.items():
            if namespace == case.namespace and name.startswith(f"{case.name}-"):
                yield each

    async def _create(self, case: Case) -> None:
        middle = "" if case.job or case.name == "notebook" else "7d4b9c6f58-"
        name = f"{case.name}-{middle}{''.join(self._rng.choices(_LETTERS, k=5))}"
        container = {"name": "main", "image": f"example.com/{case.name}:1", "resources": {"limits": dict(case.limits)}}
        kind = "ReplicaSet" if middle else "Job"
        owner = {
            "apiVersion": "apps/v1" if middle else "batch/v1",
            "kind": kind,
            "name": f"{case.name}-{middle}".rstrip("-"),
            "uid": f"{kind}-{case.name}",
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": case.namespace,
            "annotations": dict(case.annotations),
            "ownerReferences": [owner],
        }
        selector = {"gpu": case.gpu}
        spec = {"containers": [container], "schedulerName": "tessera-scheduler", "nodeSelector": selector}
        await self._kube.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


class _Server:
    """A model server: simulated requests to the pods that run, scaled by Tessera's autoscaler."""

    def __init__(self, case: Case, rng: random.Random) -> None:
        assert case.serving is not None
        self._case, self._serving, self._rng = case, case.serving, rng
        self._model = ReplicaModel(slots=case.serving.slots, cold_start_s=60)
        self._replicas = Replicas(self._model, 1)
        self._state = AutoscalerState()
        self._desired, self._arrived, self._now_s, self._next_s = 2, 0, 0.0, 0.0
        self._began_s = time.time()
        self._points: deque[ScalePoint] = deque(maxlen=_KEPT)

    def busy(self, running: int) -> float:
        return 100 * self._replicas.in_flight() / max(1, running * self._serving.slots)

    def history(self) -> ModelServerHistory:
        return ModelServerHistory(namespace=self._case.namespace, name=self._case.name, points=tuple(self._points))

    def advance(self, now_s: float, running: int) -> int:
        """Serve the requests until now with the running pods, and return the desired number."""
        self._replicas.scale(self._now_s, running, start_s=0.0)
        if not self._arrived and not running:
            self._next_s = now_s  # requests begin when a pod can answer
        while self._next_s < now_s:
            self._replicas.put(self._next_s, self._rng.expovariate(1 / self._serving.service_s))
            self._arrived += 1
            self._next_s += self._rng.expovariate(self._rate(self._next_s))
        self._replicas.advance_to(now_s)
        self._replicas.release(now_s)
        if now_s >= self._now_s + PASS_S:
            self._now_s = now_s
            self._scale(running)
        return self._desired

    def _rate(self, at_s: float) -> float:
        wave = 0.5 - 0.5 * math.cos(2 * math.pi * (at_s / _WAVE_S + self._serving.phase))
        return self._serving.least_rate + (self._serving.most_rate - self._serving.least_rate) * wave

    def _scale(self, running: int) -> None:
        load = Load(
            at_s=self._now_s,
            arrived=self._arrived,
            completed=self._replicas.completed,
            served_s=self._replicas.served_s,
            in_flight=self._replicas.in_flight(),
            replicas=self._desired,
            ready=running,
        )
        server = ScaledServer(
            slots=self._serving.slots, cold_start_s=self._model.cold_start_s, max_replicas=self._serving.most
        )
        self._state, found = propose(self._state, load, server)
        self._desired = found.replicas
        at_s = round(self._began_s + self._now_s, 1)
        self._points.append(ScalePoint(at_s, self._desired, running, load.in_flight))
