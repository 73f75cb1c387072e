"""The GPUPolicy controller: observe the cluster, plan by `core.packing.partitioning`, apply; level-triggered.

It writes each node's policy and desired devices to its GPUNode, and the status of each
GPUPolicy. Its memory is a cache: losing it at any moment is harmless.
"""

import asyncio
import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tessera.api.tessera.cluster.clusters import PodMemory, as_fields, read_cluster
from tessera.api.tessera.node.nodereports import Report
from tessera.api.tessera.pods.signatures import KEYS, Authority, published_keys
from tessera.api.tessera.v1alpha1.gpunodes import API_VERSION, desired_field
from tessera.api.tessera.v1alpha1.gpunodes import KIND as GPU_NODE
from tessera.api.tessera.v1alpha1.gpupolicies import (
    GpuPolicy,
    GpuPolicySpec,
    GpuPolicyStatus,
    node_policy,
    read_gpu_policy,
    status_fields,
)
from tessera.api.tessera.v1alpha1.objects import NAMESPACE, refused_status
from tessera.api.tessera.v1alpha1.partitionpolicies import partition_policy
from tessera.api.tessera.v1alpha1.policystatus import PolicyFacts, new_status
from tessera.clients.kube import (
    CONFIG_MAPS,
    GPU_NODES,
    GPU_POLICIES,
    NODES,
    PODS,
    Change,
    Kube,
    Object,
    Selection,
    Store,
    record_event,
    version_of,
    watch_loop,
)
from tessera.controller.settings import ControllerSettings
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.core.cluster.snapshot import NodeName
from tessera.core.packing.obstacles import Cause
from tessera.core.packing.partitioning import (
    PartitioningDecision,
    PartitioningMemory,
    PartitioningPolicy,
    PartitioningState,
    advance_all,
    applying,
    observe_cluster,
)
from tessera.core.usage.ownmetrics import CONTROLLER_RECONCILES, DECISIONS, PENDING, PLAN_TIME, RECONCILE_TIME
from tessera.core.workload.tesseranames import CONTROLLER
from tessera.errors import InvalidInput
from tessera.log import defect, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.signing import verify
from tessera.wakeup import WakeUp

__all__ = ["Controller"]

_KINDS = (NODES, PODS, GPU_NODES, GPU_POLICIES)
_REST = 3
"""Pause after a pass, as a multiple of its duration: under constant change the controller uses a quarter of a core."""

_SURE_S = 0.001
"""Added to each wait: a timer may fire slightly early, and a pass that starts too early would wait once more."""


class Controller:
    """Reconciles the whole cluster; `run` ends when it is canceled and leaves all objects in place.

    It works at most a quarter of the time, however much changes.

    Args:
        settings: intervals of reconciling.
        kube: the Kubernetes API.
        now: the wall clock, for timestamps that people read.
        measures: counts what it does.

    """

    def __init__(
        self,
        settings: ControllerSettings,
        kube: Kube,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        measures: Measures | None = None,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._now = now
        self._measures = measures or Measures()
        self._log = logger(controller=settings.identity)
        self._wakeup = WakeUp()
        self._stores = {kind: Store(kube, kind, wake=self._wakeup.set, on_error=self._log_error) for kind in _KINDS}
        keys = Selection(namespace=NAMESPACE, fields=(("metadata.name", KEYS),))
        self._stores[CONFIG_MAPS] = Store(
            kube, CONFIG_MAPS, keys, wake=self._wakeup.set, on_change=self._take_keys, on_error=self._log_error
        )
        self._ring = KeyRing()
        """The servers' public keys."""
        self._pods = PodMemory()
        self._memories: Mapping[str, PartitioningMemory] = {}
        self._decided: tuple[PartitioningState, dict[str, GpuPolicySpec]] | None = None
        """The last plan's input: the same input is not planned again."""
        self._again_s = 0.0
        """When an unchanged cluster must be planned again because time has passed; on the loop's clock."""
        self._pending: dict[str, Counter[Cause]] = {}
        """Pods that no layout change would place, by policy and cause, as of the last plan."""
        self._accepted: dict[str, GpuPolicy] = {}
        """The last valid version of each policy; these are in force."""
        self._generations: dict[str, int] = {}
        """Generation of each GPUNode after the last write here; the servers' claims count on from there."""

    @property
    def nodes(self) -> Store:
        """The Node objects, watched by `run`."""
        return self._stores[NODES]

    async def run(self) -> None:
        """Run until canceled."""
        self._log.info("controller_started")
        try:
            async with asyncio.TaskGroup() as tasks:
                for kind, store in self._stores.items():
                    tasks.create_task(store.run(self._measures if kind in _KINDS else None))
                for store in self._stores.values():
                    await store.synced()
                self._measures.started("reconcile")
                while True:
                    began_s = asyncio.get_running_loop().time()
                    again_s = await self._reconcile_or_complain()
                    took_s = asyncio.get_running_loop().time() - began_s
                    pause_s = max(self._settings.least_s, _REST * took_s)
                    await asyncio.sleep(pause_s)
                    await self._wakeup.wait(max(0.0, again_s - took_s - pause_s) + _SURE_S)
        finally:
            for loop in ("reconcile", *map(watch_loop, _KINDS)):
                self._measures.stopped(loop)
            self._measures.set(PENDING, {})  # another leads now, and counts them
            self._log.info("controller_stopped")

    async def _reconcile_or_complain(self) -> float:
        """Reconcile once and log any error; return how long the next pass can wait."""
        again_s = self._settings.interval_s

        async def reconcile() -> None:
            nonlocal again_s
            began_s = self._measures.clock_s()
            again_s = min(again_s, await self.reconcile())
            self._measures.observe(RECONCILE_TIME, self._measures.clock_s() - began_s)

        def failed(error: BaseException) -> None:
            self._log_error(error)
            self._measures.count(CONTROLLER_RECONCILES, result="failed")

        def done() -> None:
            self._measures.count(CONTROLLER_RECONCILES, result="done")
            self._measures.turned("reconcile")

        await one_turn(reconcile, failed, done)
        return again_s

    def _log_error(self, error: BaseException) -> None:
        self._log.warning("reconcile_failed", reason=str(error) or type(error).__name__, exc_info=defect(error))

    async def reconcile(self) -> float:
        """Reconcile all nodes once; return in how many seconds time alone may change the result.

        Raises:
            TesseraError: a write failed; earlier writes stay.

        """
        # 1. Read the policies.
        objects = {kind: tuple(store.objects.values()) for kind, store in self._stores.items()}
        refused = self._read_policies(objects[GPU_POLICIES])
        policies = tuple(partition_policy(each) for each in self._accepted.values())
        # 2. Read the cluster. In a thread: thousands of pods take seconds, and the Lease must be renewed meanwhile.
        observed = await asyncio.to_thread(
            self._partitioning_state, (*objects[NODES], *objects[PODS], *objects[GPU_NODES])
        )
        # 3. Plan, unless nothing has changed.
        now_s = asyncio.get_running_loop().time()
        specs = {name: each.spec for name, each in self._accepted.items()}
        if (observed, specs) == self._decided and now_s < self._again_s:
            decisions = {name: PartitioningDecision() for name in self._memories}
        else:
            began_s = self._measures.clock_s()
            memories, decisions = await asyncio.to_thread(advance_all, self._memories, policies, observed, now_s)
            self._measures.observe(PLAN_TIME, self._measures.clock_s() - began_s)
            planned = {
                name: Counter(pod.cause for pod in each.pending)
                for name, each in decisions.items()
                if each.pending is not None
            }
            self._pending = {name: causes for name, causes in self._pending.items() if name in decisions} | planned
            self._measures.set(
                PENDING,
                {
                    (("policy", name), ("reason", cause.value)): causes[cause]
                    for name, causes in self._pending.items()
                    for cause in Cause
                },
            )
            # 4. Write the nodes' policies and desired devices, with an event for each reason.
            await self._write_nodes(observed, policies, decisions)
            self._memories, self._decided = memories, (observed, specs)
            moments = (each.again_s for each in decisions.values() if each.again_s is not None)
            self._again_s = min(moments, default=math.inf)
            await self._record_events(decisions)
        # 5. Write the statuses of the policies.
        await self._write_statuses(observed, policies, decisions, refused)
        return max(0.0, self._again_s - now_s)

    def _take_keys(self, change: Change) -> None:
        if change.object is not None and not change.gone:
            found, version = change.object, int(version_of(change.object) or 0)
            self._ring = self._ring.observe(found["metadata"].get("uid", ""), version, published_keys(found))

    def _partitioning_state(self, objects: tuple[Object, ...]) -> PartitioningState:
        authority = Authority(servers=self._ring.public, verify=verify)
        return observe_cluster(read_cluster(as_fields(objects), memory=self._pods, authority=authority))

    # Policies

    def _read_policies(self, objects: tuple[Object, ...]) -> dict[str, str]:
        """Read the policies; return the invalid ones and why. The last valid version of each stays in force."""
        refused: dict[str, str] = {}
        for each in objects:
            name = each["metadata"]["name"]
            try:
                self._accepted[name] = read_gpu_policy(each)
            except InvalidInput as error:
                refused[name] = str(error)
        names = {each["metadata"]["name"] for each in objects}
        self._accepted = {name: each for name, each in self._accepted.items() if name in names}
        return refused

    # Nodes

    async def _write_nodes(
        self,
        observed: PartitioningState,
        policies: tuple[PartitioningPolicy, ...],
        decisions: Mapping[str, PartitioningDecision],
    ) -> None:
        """Write the desired devices of nodes whose agents report, where they differ.

        Raises:
            Conflict: a GPUNode changed meanwhile; the plan may be outdated.

        """
        desired = {name: each for decision in decisions.values() for name, each in decision.desired}
        nodes = {node.name: node for node in observed.nodes}
        for state in observed.states:
            if state.name not in nodes:
                continue
            policy = applying(policies, nodes[state.name])
            spec: dict[str, Any] = {"desired": desired_field(desired.get(state.name, state.desired))}
            if policy is not None:
                spec["policy"] = {"name": policy.name, "document": node_policy(self._accepted[policy.name].spec)}
            present = self._stores[GPU_NODES].objects.get(("", state.name), {}).get("spec") or {}
            if state.name not in desired and present.get("policy") == spec.get("policy"):
                continue
            metadata = {"name": state.name, "resourceVersion": state.version}
            body = {"apiVersion": API_VERSION, "kind": GPU_NODE, "metadata": metadata, "spec": spec}
            stored = await self._kube.apply(GPU_NODES, body, manager=CONTROLLER, force=True)
            self._generations[state.name] = stored["metadata"].get("generation", 0)
            self._log.info(
                "node_written", node=state.name, policy=policy.name if policy else "", desired=spec["desired"]
            )

    async def _record_events(self, decisions: Mapping[str, PartitioningDecision]) -> None:
        for event in (each for decision in decisions.values() for each in decision.events):
            report = Report(reason=event.reason, message=event.message, warning=event.warning)
            self._measures.count(DECISIONS, reason=event.reason)
            self._log.info("decided", node=event.node, event_reason=event.reason, reason=event.message)
            await record_event(self._kube, event.node, report, self._now(), component=CONTROLLER)

    # Statuses

    async def _write_statuses(
        self,
        observed: PartitioningState,
        policies: tuple[PartitioningPolicy, ...],
        decisions: Mapping[str, PartitioningDecision],
        refused: Mapping[str, str],
    ) -> None:
        group_of = {node.name: applying(policies, node) for node in observed.nodes}
        for each in self._stores[GPU_POLICIES].objects.values():
            name = each["metadata"]["name"]
            if name not in refused and name not in decisions:
                continue  # it came during this pass; the next one includes it
            former = _status(each)
            if name in refused:
                generation = each["metadata"].get("generation", 0)
                new = refused_status(former, generation, refused[name], self._now())
            else:
                names = {node for node, policy in group_of.items() if policy is not None and policy.name == name}
                facts = self._facts(observed, names, decisions[name])
                new = new_status(self._accepted[name], facts, self._now())
            if new != former:
                body = {"status": status_fields(new)}
                await self._kube.patch(GPU_POLICIES, name, body, subresource="status")

    def _facts(self, observed: PartitioningState, names: set[NodeName], decision: PartitioningDecision) -> PolicyFacts:
        states = [state for state in observed.states if state.name in names]
        desired = dict(decision.desired)
        events = "; ".join(f"{each.node}: {each.message}" for each in decision.events)
        return PolicyFacts(
            nodes=len(states),
            gpus=sum(len(state.gpus) for state in states),
            desired=sum(
                each.whole + len(each.instances) for state in states for each in desired.get(state.name, state.desired)
            ),
            pending=None if decision.pending is None else len(decision.pending),
            decision=events,
            behind=tuple(state.name for state in states if self._is_behind(state.name)),
            impaired=tuple((state.name, each) for state in states for each in state.impaired),
        )

    def _is_behind(self, node: str) -> bool:
        """Return whether the node's agent has not acted on the last write yet."""
        each = self._stores[GPU_NODES].objects.get(("", node), {})
        acted: int = (each.get("status") or {}).get("observedGeneration", 0)
        return acted < self._generations.get(node, 1)


def _status(obj: Object) -> GpuPolicyStatus:
    """Return the status of a policy; one that cannot be parsed counts as none."""
    try:
        return msgspec.convert(obj.get("status") or {}, GpuPolicyStatus)
    except msgspec.ValidationError:
        return GpuPolicyStatus()
