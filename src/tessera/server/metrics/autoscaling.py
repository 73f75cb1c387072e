"""Measures the model servers every 15 s and decides how many replicas each should have.

State is in memory only: after a restart the present number of replicas stays for five minutes, while it is measured.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from tessera.api.kubernetes.modelpods import read_bounds, read_deployment, read_pod
from tessera.api.prometheus.pendingrequests import BY_SERVICE
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    PODS,
    Kind,
    Kube,
    Object,
    Selection,
    Store,
    labels_of,
)
from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.autoscaling.decisions import ScalingState, decide_replicas, keep_last
from tessera.core.serving.autoscaling.places import PlacesToCount, order_in_turn, promised_places, to_count, with_room
from tessera.core.serving.autoscaling.recordedpass import RecordedPass
from tessera.core.serving.autoscaling.serverfacts import (
    HpaBounds,
    ModelDeployment,
    ModelPod,
    ServerFacts,
    bounds_of,
    deployment_of,
    server_facts,
    start_times,
)
from tessera.core.serving.metrics.counters import Counters, Unmeasured
from tessera.core.serving.metrics.load import PASS_S
from tessera.core.serving.metrics.observed import ServerObservation, ServerState, observe
from tessera.core.serving.metrics.queuetime import Window
from tessera.core.usage.ownmetrics import METRICS_RECONCILE_TIME, METRICS_SAMPLES, METRICS_WAKE_QUERIES
from tessera.errors import InvalidInput, TesseraError
from tessera.log import Logger, defect
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.server.metrics.published import MeasuredServer, publish
from tessera.server.metrics.replicaroom import ReplicaRoom
from tessera.server.metrics.requestqueues import RequestQueues
from tessera.server.metrics.samples import PodSamples
from tessera.server.metrics.scalingevents import ScalingEvents, ServerName

__all__ = ["ModelServerAutoscaler"]

_NOT_FOLLOWED: Final = "model_servers_not_followed"


class _TrackedServer(msgspec.Struct):
    """What is remembered of a server between passes."""

    observed: ServerState = ServerState()
    scaling: ScalingState = ScalingState()
    started_s: dict[str, float] = {}
    """How long each of its pods took until it was first ready."""
    counted_s: float = -math.inf
    """When places for more replicas were last counted."""
    defect: str = ""
    """Why the last pass over it failed; empty if it did not."""


class ModelServerAutoscaler:
    """Measures and decides on the model servers of a cluster.

    Args:
        kube: the Kubernetes API.
        samples: the pods' counters.
        log: records decisions.
        queues: requests queued in front of servers without a replica; None for no source.
        measures: observations and decisions, for Prometheus.
        now_s: the seconds since 1970.

    """

    def __init__(
        self,
        kube: Kube,
        samples: PodSamples,
        log: Logger,
        *,
        queues: RequestQueues | None = None,
        measures: Measures | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._samples = samples
        self._log = log
        self._queues = queues
        self._measures = measures or Measures()
        self._now_s = now_s
        self._events = ScalingEvents(kube, log, now_s, self._log_error)
        labeled = Selection(having=(SERVER_LABEL,))
        selections = ((PODS, labeled), (DEPLOYMENTS, labeled), (AUTOSCALERS, Selection()))
        self._stores: dict[Kind, Store] = {
            kind: Store(kube, kind, selection, on_error=self._log_error) for kind, selection in selections
        }
        self._states: dict[ServerName, _TrackedServer] = {}
        self._complaints: dict[str, str] = {}
        """The last error of each kind, by its event in the log."""
        self.measured: Mapping[ServerName, MeasuredServer] = {}
        """The measurements of the last pass, by namespace and name."""
        self.measured_s: float | None = None
        """When that was; None before the first one."""
        self.passed = asyncio.Event()
        """Set after the first pass over all servers."""

    def labels_of_pod(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return the labels of a pod; none if it is gone."""
        return labels_of(self._stores[PODS].objects.get((namespace, name), {}))

    @property
    def waiting_for(self) -> str:
        """What must be read before requests can be answered; empty when ready."""
        if self.passed.is_set():
            return ""
        complaint = self._complaints.get(_NOT_FOLLOWED)
        return f"reading model servers ({complaint})" if complaint else "reading model servers"

    async def run(self) -> None:
        """Reconcile every 15 s, until canceled."""
        async with asyncio.TaskGroup() as tasks:
            for store in self._stores.values():
                tasks.create_task(store.run(self._measures))
            for store in self._stores.values():
                await store.synced()
            self._measures.started("reconcile")
            while True:
                begun_s = time.monotonic()
                await one_turn(self.reconcile, self._log_error, partial(self._measures.turned, "reconcile"))
                self._measures.observe(METRICS_RECONCILE_TIME, time.monotonic() - begun_s)
                await asyncio.sleep(max(PASS_S - (time.monotonic() - begun_s), 1.0))

    def _log_error(self, error: BaseException, event: str = _NOT_FOLLOWED) -> None:
        reason = str(error) or type(error).__name__
        if reason != self._complaints.get(event):
            self._complaints[event] = reason
            self._log.warning(event, reason=reason, exc_info=defect(error))

    async def reconcile(self) -> None:
        """Measure each server once, and decide."""
        # 1. Read the pods of each server, and their counters.
        pods = self._read_pods()
        running = {(server[0], name): pod for server, each in pods.items() for name, pod in each.items() if pod.running}
        counted, pending = await asyncio.gather(self._samples.read(running), self._read_pending())
        # 2. Sum the counters of each server's pods, and decide.
        deployments, scalers, now_s = self._read_deployments(), self._read_bounds(), self._now_s()
        measured, growing = dict[ServerName, MeasuredServer](), dict[ServerName, PlacesToCount]()
        for server in sorted(pods.keys() | deployments.keys()):
            own, state = pods.get(server, {}), self._states.setdefault(server, _TrackedServer())
            _, deployment = deployments.get(server, (None, None))
            try:
                state.started_s = start_times(state.started_s, own)
                facts = server_facts(
                    deployment,
                    scalers.get((server[0], deployment.name)) if deployment else None,
                    own.values(),
                    started_s=state.started_s.values(),
                    pending_requests=None if pending is None else pending.get(server, 0.0),
                )
                samples = {name: counted[server[0], name] for name in own if (server[0], name) in counted}
                observation = self._observe(state, samples, own, replicas=facts.replicas, now_s=now_s)
                scaling, measured[server] = _decide(state.scaling, facts, observation, now_s)
                if places := to_count(facts, measured[server].decision):
                    growing[server] = places
                else:
                    state.scaling = scaling
                state.defect = ""
            except Exception as error:  # noqa: BLE001 a defect about one server must not stop the others
                measured[server] = self._keep_decision(server, own, error, now_s)
        # 3. Decide again by the room that there is, for those that grow.
        room = ReplicaRoom(self._kube, self._now_s)
        for server in order_in_turn(growing, {each: self._states[each].counted_s for each in growing}):
            deployed, _ = deployments[server]
            try:
                places = growing[server]
                measured[server] = await self._decide_with_room(room, server, deployed, measured[server], places)
            except Exception as error:  # noqa: BLE001 as above
                measured[server] = self._keep_decision(server, pods.get(server, {}), error, now_s)
        publish(self._measures, measured)
        self._record(measured)
        # 4. Forget deleted servers, and report changes.
        first, self.measured, self.measured_s = measured.keys() - self.measured.keys(), measured, now_s
        self._states = {server: self._states[server] for server in measured}
        # The first sample of a server has no predecessor to compare with: not an error.
        reported = {key: each for key, each in measured.items() if not (key in first and each.decision.bad)}
        await self._events.report(reported, deployments)
        self.passed.set()

    def _record(self, measured: Mapping[ServerName, MeasuredServer]) -> None:
        """Log the input of each decision, for `replay`."""
        if not self._log.is_enabled_for(logging.DEBUG):
            return
        for (namespace, server), each in measured.items():
            recorded = RecordedPass.of(each.at_s, each.facts, each.observation.load)
            self._log.debug(
                "model_server_measured", namespace=namespace, server=server, recorded=msgspec.to_builtins(recorded)
            )

    def _observe(
        self,
        state: _TrackedServer,
        samples: Mapping[str, Counters | Unmeasured],
        pods: Mapping[str, ModelPod],
        *,
        replicas: int,
        now_s: float,
    ) -> ServerObservation:
        """Sum the samples of a server's pods."""
        ready = {name for name, pod in pods.items() if pod.ready}
        state.observed, observation = observe(state.observed, samples, at_s=now_s, replicas=replicas, ready=ready)
        for window in observation.pods.values():
            result = "counted" if isinstance(window, Window) else "early" if window.too_early else "failed"
            self._measures.count(METRICS_SAMPLES, result=result)
        return observation

    def _keep_decision(self, server: ServerName, pods: Iterable[str], error: Exception, now_s: float) -> MeasuredServer:
        """Log a defect about a server, and return its last decision while that counts, without measurements."""
        state, former = self._states[server], self.measured.get(server)
        missing = Unmeasured(f"an error in `tessera metrics` itself, see its log ({type(error).__name__}: {error})")
        if state.defect != missing.reason:
            state.defect = missing.reason
            self._log.error(
                "model_server_not_measured",
                namespace=server[0],
                server=server[1],
                reason=missing.reason,
                exc_info=defect(error),
            )
        kept, decision = keep_last(state.scaling.decided, missing, now_s)
        state.scaling = msgspec.structs.replace(state.scaling, decided=kept)
        return MeasuredServer(
            at_s=now_s,
            facts=former.facts if former else ServerFacts(),
            observation=ServerObservation(pods=dict.fromkeys(pods, missing), load=missing),
            decision=decision,
            decided_s=None if kept is None else kept.at_s,
        )

    def _read_pods(self) -> dict[ServerName, dict[str, ModelPod]]:
        pods: dict[ServerName, dict[str, ModelPod]] = {}
        for (namespace, name), each in sorted(self._stores[PODS].objects.items()):
            try:
                pods.setdefault((namespace, labels_of(each)[SERVER_LABEL]), {})[name] = read_pod(each)
            except Exception as error:  # noqa: BLE001 as in `reconcile`
                self._log_error(error)
        return pods

    def _read_deployments(self) -> dict[ServerName, tuple[Object, ModelDeployment]]:
        """Return the Deployment of each server."""
        objects, labeled = self._stores[DEPLOYMENTS].objects, dict[ServerName, list[ModelDeployment]]()
        for (namespace, _), each in objects.items():
            try:
                read = read_deployment(each)
            except Exception as error:  # noqa: BLE001 as in `reconcile`
                self._log_error(error)
            else:
                labeled.setdefault((namespace, labels_of(each)[SERVER_LABEL]), []).append(read)
        chosen = {server: deployment_of(server[1], found) for server, found in labeled.items()}
        return {server: (objects[server[0], each.name], each) for server, each in chosen.items()}

    def _read_bounds(self) -> dict[ServerName, HpaBounds]:
        """Return the bounds of each Deployment that an autoscaler targets."""
        targeting: dict[ServerName, list[HpaBounds]] = {}
        for (namespace, _), each in self._stores[AUTOSCALERS].objects.items():
            if bounds := read_bounds(each):
                targeting.setdefault((namespace, bounds.deployment), []).append(bounds)
        return {target: bounds_of(found) for target, found in targeting.items()}

    async def _read_pending(self) -> Mapping[ServerName, float] | None:
        """Return the queued requests, if any server has no replica; None if they cannot be read."""
        if self._queues is None or all(read.replicas for _, read in self._read_deployments().values()):
            return {}
        try:
            pending = await self._queues.read()
        except TesseraError as error:
            self._log_error(error)
            self._measures.count(METRICS_WAKE_QUERIES, result="failed")
            return None
        self._measures.count(METRICS_WAKE_QUERIES, result="done")
        if pending.problem:
            self._log_error(InvalidInput("--wake-query", found=pending.problem, hint=BY_SERVICE))
        return pending.servers

    async def _decide_with_room(
        self, room: ReplicaRoom, server: ServerName, deployment: Object, measured: MeasuredServer, places: PlacesToCount
    ) -> MeasuredServer:
        """Decide by the room that there is, and keep what the server gets of it."""
        facts, state = measured.facts, self._states[server]
        try:
            count = await room.count(deployment, places.total)
        except TesseraError as error:
            self._log_error(error, "replica_room_unknown")
            facts = msgspec.structs.replace(facts, room=0, room_problem=f"{error.subject}: {error.cause}")
        else:
            state.counted_s = measured.at_s
            facts = with_room(facts, places, count)
        state.scaling, decided = _decide(state.scaling, facts, measured.observation, measured.at_s)
        if promised := promised_places(facts, places, decided.decision):
            room.promise(deployment, promised)
        return decided


def _decide(
    former: ScalingState, facts: ServerFacts, observation: ServerObservation, now_s: float
) -> tuple[ScalingState, MeasuredServer]:
    """Return the new state of a server, and its measurements with the decision."""
    scaling, decision = decide_replicas(former, facts, observation.load, now_s)
    decided_s = None if scaling.decided is None else scaling.decided.at_s
    return scaling, MeasuredServer(
        at_s=now_s, facts=facts, observation=observation, decision=decision, decided_s=decided_s
    )
