"""What the dashboard page shows of an observed cluster: its fleet, each GPU divided into its parts."""

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from tessera.core.cluster.cluster import Cluster, ObservedNode, Record
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.explain.fleetview import (
    ContentionView,
    FleetView,
    GpuPart,
    GpuView,
    ImageView,
    ModelServerHistory,
    ModelView,
    NodeView,
    PendingView,
    PodView,
    WorkloadRecommendation,
)
from tessera.core.explain.inspection import (
    GpuHealth,
    GpuInspection,
    InspectedShare,
    InspectedSlices,
    NodeInspection,
    inspect,
)
from tessera.core.gpu.sharing import Mode, mig_resource
from tessera.core.storage.images.warmup import ObservedImage
from tessera.core.storage.models.nodemodels import ObservedModel
from tessera.core.usage.activity import is_idle
from tessera.core.usage.contention import Contention
from tessera.core.usage.rightsizing import Recommendation
from tessera.core.workload.need import PodKey
from tessera.core.workload.objectnames import is_pod
from tessera.core.workload.units import gib

__all__ = ["MeasuredUsage", "PageObservation", "fleet_view"]

_TEMPLATE_HASH: Final = re.compile("-[bcdfghjklmnpqrstvwxz2456789]{1,10}$")
"""What a Deployment adds to its name for a ReplicaSet.

Source: kubernetes/kubernetes `pkg/controller/deployment/sync.go`; apimachinery `pkg/util/rand`, `SafeEncodeString`.
"""


_MOST_GONE: Final = 16
"""Pods that a node reports and the cluster does not have: they ended meanwhile; of more a node is not believed."""


class MeasuredUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured of pods and model servers; without what is unknown."""

    activity: Mapping[tuple[str, PodKey], float] = {}
    """Percent of its compute that each pod uses, of its busiest device, by the node that reports it."""
    memory_mib: Mapping[tuple[str, str], Mapping[PodKey, int]] = {}
    """Memory that pods use of GPUs, by the node that reports it, and UUID."""
    contention: Mapping[tuple[str, str], tuple[Contention, ...]] = {}
    """What slows down the pods of GPUs, likewise."""
    throttled: Mapping[tuple[str, str], tuple[str, ...]] = {}
    """Why clocks of GPUs are lowered, likewise."""
    model_servers: tuple[ModelServerHistory, ...] = ()
    """Those that are scaled, with their last hour."""
    recommendations: tuple[Recommendation, ...] = ()
    """For containers, some of which may be gone; the most urgent first."""


class PageObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the page."""

    cluster: Cluster
    measured: MeasuredUsage = MeasuredUsage()
    images: Mapping[str, tuple[ObservedImage, ...]] = {}
    """Reported images of ImageWarmups, by node."""
    models: Mapping[str, tuple[ObservedModel, ...]] = {}
    """Reported models of ModelCaches, by node."""


class _Pods(NamedTuple):
    """What is known of the cluster's pods, by their keys."""

    workloads: Mapping[PodKey, str]
    nodes: Mapping[PodKey, str | None]
    activity: Mapping[PodKey, float]


def fleet_view(observed: PageObservation) -> FleetView:
    """Return the unrestricted page; a node is believed about its own pods alone.

    Cost: linear in nodes, GPUs and pods.
    """
    cluster = observed.cluster
    found = inspect(cluster)
    nodes = {each.node.name: each for each in cluster.nodes}
    namespaces = {_split(pod.pod.key)[0] for pod in cluster.pods if pod.pod.need.requests or pod.shares}
    allocated = {pod.pod.key for pod in cluster.pods if pod.shares}
    workloads = {pod.pod.key: _workload(pod.pod.owner) for pod in cluster.pods}
    places = {pod.pod.key: pod.node for pod in cluster.pods}
    activity = {key: percent for (node, key), percent in observed.measured.activity.items() if places.get(key) == node}
    pods = _Pods(workloads, places, activity)
    views = tuple(_node(each, nodes[each.name], observed, pods) for each in found.nodes)
    planned = _planned(views)
    resources = {pod.pod.key: [request.resource for request in pod.pod.need.requests] for pod in cluster.pods}
    return FleetView(
        nodes=views,
        pending=tuple(
            PendingView(
                namespace=namespace,
                pod=pod,
                workload=workloads[each.pod],
                need=each.need,
                reason=each.message,
                created_on=tuple(dict.fromkeys(name for resource in resources[each.pod] for name in planned[resource])),
            )
            for each in found.pending
            for namespace, pod in (_split(each.pod),)
        ),
        model_servers=observed.measured.model_servers,
        recommendations=tuple(_recommended(observed, pods)),
        activity={key: round(percent) for key, percent in sorted(activity.items()) if key in allocated},
        memory_mib=_memory(views, observed.measured, places),
        namespaces=tuple(sorted(namespaces)),
        notes=found.notes,
    )


def _memory(
    nodes: Iterable[NodeView], measured: MeasuredUsage, places: Mapping[PodKey, str | None]
) -> dict[str, dict[str, int]]:
    """Return the memory that nodes' own pods use, by UUID of the GPU and pod.

    A node that says that it has the GPU of another takes nothing away of the other's.
    """
    found = defaultdict[str, dict[str, int]](dict)
    for node in nodes:
        for gpu in node.gpus:
            reported = measured.memory_mib.get((node.name, gpu.uuid), {})
            if own := {str(key): mib for key, mib in sorted(reported.items()) if places.get(key) == node.name}:
                found[gpu.uuid] |= own
    return dict(found)


def _planned(nodes: Iterable[NodeView]) -> Mapping[str, Sequence[str]]:
    """Return the nodes on which free MIG instances are planned that do not exist yet, by their resource."""
    found = defaultdict[str, list[str]](list)
    for node in nodes:
        for part in (part for gpu in node.gpus for part in gpu.parts):
            if part.state == "desired":
                found[mig_resource(part.label)].append(node.name)
    return found


def _recommended(observed: PageObservation, pods: _Pods) -> Iterator[WorkloadRecommendation]:
    """Yield recommendations for existing pods."""
    found = ((PodKey(f"{each.namespace}/{each.pod}"), each) for each in observed.measured.recommendations)
    for key, each in found:
        if pods.nodes.get(key) == each.node and not each.verdict.needs_no_change:
            yield WorkloadRecommendation(**msgspec.structs.asdict(each), workload=pods.workloads[key])


def _workload(owner: str) -> str:
    """Return the name of a pod's workload: of the Deployment for its ReplicaSet.

    From the owner, never from the pod's name: `train-0-x2x4b` is of `train` where that is an Indexed Job.
    """
    kind, _, rest = owner.partition("/")
    name = rest.partition("/")[2]
    return _TEMPLATE_HASH.sub("", name) if kind == "ReplicaSet" else name


def _split(key: PodKey) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name


def _node(inspected: NodeInspection, node: ObservedNode, observed: PageObservation, pods: _Pods) -> NodeView:
    state = node.state if inspected.reported else None
    return NodeView(
        name=inspected.name,
        ready=inspected.ready,
        driver=inspected.driver,
        policy=inspected.policy,
        problem="; ".join((*filter(None, (inspected.problem,)), *inspected.conflicts)),
        gpus=tuple(_gpu(gpu, node, state, observed, pods) for gpu in inspected.gpus),
        unplaced=tuple(
            PodView(
                namespace=namespace,
                pod=pod,
                workload=pods.workloads[each.pod],
                phase=each.phase.value,
                memory_mib=each.memory_mib,
            )
            for each in inspected.unplaced
            for namespace, pod in (_split(each.pod),)
        ),
        images=tuple(
            ImageView(image=each.image, state=each.state, bytes=each.bytes)
            for each in observed.images.get(inspected.name, ())
        ),
        models=tuple(map(_model, observed.models.get(inspected.name, ()))),
    )


def _model(model: ObservedModel) -> ModelView:
    fetching = model.state == "Fetching" and model.total_bytes > 0
    return ModelView(
        model=model.name,
        state="Ready" if model.revision else model.state,
        revision=model.revision,
        bytes=model.bytes,
        containers=model.containers,
        fetched_percent=min(100, 100 * model.fetched_bytes // model.total_bytes) if fetching else None,
    )


def _gpu(
    inspected: GpuInspection,
    node: ObservedNode,
    state: GpuNodeState | None,
    observed: PageObservation,
    pods: _Pods,
) -> GpuView:
    layout = next(gpu.sharing.layout for gpu in node.node.gpus if gpu.index == inspected.index) or ()
    used = {
        each.placement.start if each.placement else None: each.memory_mib
        for each in (state.used if state else ())
        if each.gpu == inspected.uuid
    }
    name = node.node.name
    parts = _Parts(inspected, name, {(each.profile, each.start) for each in layout}, used, pods)
    return GpuView(
        index=inspected.index,
        uuid=inspected.uuid,
        model=inspected.model,
        memory_mib=inspected.memory_mib,
        width=inspected.memory_slices if inspected.slices else inspected.memory_mib,
        mode=", ".join(mode.value for mode in inspected.modes) if inspected.pods else "",
        health=inspected.health.value,
        parts=tuple(parts.of_slices() if inspected.slices else parts.of_shares()),
        allocated_mib=inspected.allocated_mib,
        used_mib=inspected.used_mib,
        problems=(*(inspected.reasons if inspected.health is GpuHealth.UNHEALTHY else ()), *inspected.conflicts),
        contention=tuple(map(parts.contention, observed.measured.contention.get((name, inspected.uuid), ()))),
        throttled=observed.measured.throttled.get((name, inspected.uuid), ()),
    )


class _Parts:
    """Divides one GPU into its parts."""

    def __init__(
        self,
        gpu: GpuInspection,
        node: str,
        layout: Collection[tuple[str, int]],
        used_mib: Mapping[int | None, int],
        pods: _Pods,
    ) -> None:
        self._gpu = gpu
        self._node = node
        self._layout = layout
        self._used_mib = used_mib
        self._pods = pods

    def of_slices(self) -> Iterator[GpuPart]:
        """Yield the MIG instances and runs of free memory slices."""
        pods = defaultdict[tuple[str | None, int | None], list[InspectedShare]](list)
        for each in self._gpu.pods:
            pods[each.share.profile, each.share.start].append(each)
        yield from (self._instance(each, pods[each.profile, each.start]) for each in self._gpu.slices)

    def _instance(self, part: InspectedSlices, pods: Sequence[InspectedShare]) -> GpuPart:
        return GpuPart(
            start=part.start,
            size=part.size,
            label=part.profile,
            state=part.state,
            exists=part.state == "free" or (part.profile, part.start) in self._layout,
            idle=part.state == "allocated" and self._is_idle(pods, self._used_mib.get(part.start)),
            pods=tuple(map(self._pod_view, pods)),
        )

    def of_shares(self) -> Iterator[GpuPart]:
        """Yield the pods on a GPU without instances, one after the other, and the free rest."""
        start = 0
        alone = len(self._gpu.pods) == 1
        for each in self._gpu.pods:
            size = self._gpu.memory_mib if each.share.mode is Mode.WHOLE else each.share.memory_mib
            label = "whole" if each.share.mode is Mode.WHOLE else gib(size)
            idle = self._is_idle([each], self._used_mib.get(None) if alone else None)
            yield GpuPart(
                start=start, size=size, label=label, state="allocated", idle=idle, pods=(self._pod_view(each),)
            )
            start += size
        if start < self._gpu.memory_mib:
            yield GpuPart(start=start, size=self._gpu.memory_mib - start, state="free")

    def contention(self, contention: Contention) -> ContentionView:
        """Return what slows down the pods, with those of the node that cause it, of which some may be gone."""
        pods = {each.pod: self._pod_view(each) for each in self._gpu.pods}

        def named(containers: Iterable[str]) -> tuple[PodView, ...]:
            found = dict.fromkeys(PodKey(each.rpartition("/")[0]) for each in containers)
            gone = (key for key in found if key not in self._pods.nodes and is_pod(*_split(key)))
            shown = {*itertools.islice(gone, _MOST_GONE), *(key for key in found if self._is_here(key))}
            keys = [key for key in found if key in shown]
            others = {
                key: PodView(namespace=_split(key)[0], pod=_split(key)[1], workload=self._pods.workloads.get(key, ""))
                for key in keys
            }
            return tuple((others | pods)[key] for key in keys)

        caused_by, evenly = named(contention.caused_by), named(contention.evenly)
        if len(evenly) == 1:  # several containers, all of one pod: on the page the pod causes it
            caused_by, evenly = evenly, ()
        return ContentionView(
            cause=contention.cause,
            caused_by=caused_by,
            nobody=contention.nobody,
            scope=contention.scope,
            evenly=evenly,
            ended=contention.ended,
        )

    def _is_here(self, key: PodKey) -> bool:
        """Return whether the cluster has the pod on the node, or does not have it on a node yet."""
        return key in self._pods.nodes and self._pods.nodes[key] in {None, self._node}

    def _is_idle(self, pods: Iterable[InspectedShare], used_mib: int | None) -> bool:
        return is_idle([self._pods.activity.get(each.pod) for each in pods], used_mib)

    def _pod_view(self, inspected: InspectedShare) -> PodView:
        namespace, pod = _split(inspected.pod)
        return PodView(
            namespace=namespace,
            pod=pod,
            workload=self._pods.workloads[inspected.pod],
            phase=inspected.phase.value,
            ending=inspected.ending,
            unrecorded=inspected.record is Record.UNRECORDED,
            isolation=inspected.level.value,
            memory_mib=inspected.share.memory_mib,
        )
