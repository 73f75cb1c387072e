"""Which pods use which devices: a plan and its snapshot joined, for the drawing and the tables."""

from collections import defaultdict

import msgspec

from tessera.core.cluster.occupancy import PodShare
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Share, Snapshot
from tessera.core.gpu.mig import Placement, is_legal, open_placements
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.plan import GpuLayout, Plan, PlannedDevice
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need, Pod, PodKey
from tessera.core.workload.units import gib

__all__ = [
    "DrawnDevice",
    "DrawnFleet",
    "DrawnGpu",
    "DrawnNode",
    "DrawnPod",
    "DrawnWorkload",
    "Queue",
    "fleet",
    "pod_name",
]

MIG_MODES = frozenset({Mode.MIG, Mode.MIG_TIME_SLICING, Mode.MIG_MPS})


class DrawnWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one owner, or the bare pods of one need; they share a color."""

    number: int
    """Order of first appearance: running pods, then pending ones, then those only in the plan."""
    kind: str
    name: str
    running: int = 0
    placed: int = 0
    pending: int = 0


class DrawnPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod on one device."""

    pod: PodKey
    workload: int
    memory_mib: int
    compute_percent: int
    running: bool
    """Whether the pod runs already; False for a pod that this plan places."""
    part: int = 1
    """Index of the pod's share, from 1."""
    parts: int = 1


class DrawnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a GPU and the pods that use it."""

    label: str
    """Profile of the MIG instance, empty for the whole GPU."""
    start: int
    size: int
    """Memory slices; both 0 for the whole GPU."""
    mode: Mode
    memory_mib: int
    clients: int
    """Maximum number of pods; 0 for amounts of memory."""
    exists: bool
    """Whether nothing must be created: the plan says so, or a pod runs on it."""
    pods: tuple[DrawnPod, ...] = ()

    @property
    def isolation(self) -> Isolation:
        """The isolation between the pods on this device."""
        return self.mode.isolation

    @property
    def allocated_mib(self) -> int:
        """Memory allocated to its pods."""
        return sum(holder.memory_mib for holder in self.pods)


class DrawnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU with its devices in order of start."""

    index: int
    model: str
    memory_mib: int
    memory_slices: int
    allocated_mib: int
    mig: bool
    devices: tuple[DrawnDevice, ...] = ()
    openings: tuple[Placement, ...] | None = None
    """MIG instances that could be created beside the planned ones, each alone; None where none may be."""
    unrecorded: bool = False
    """Whether the index is a guess."""

    @property
    def used(self) -> bool:
        """Whether any pod uses it."""
        return any(device.pods for device in self.devices)


class DrawnNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its GPUs, its cpu and memory use after the plan, and its pods that use no GPU."""

    name: NodeName
    cpu_milli: int = 0
    cpu_used_milli: int = 0
    memory_mib: int = 0
    memory_used_mib: int = 0
    marks: tuple[str, ...] = ()
    """Labels that mattered or are commonly requested, taints, and whether the node is cordoned."""
    gpus: tuple[DrawnGpu, ...] = ()
    others: tuple[DrawnPod, ...] = ()


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one workload that are pending for the same reason."""

    workload: int
    reason: str
    pods: tuple[PodKey, ...]


class DrawnFleet(msgspec.Struct, frozen=True, kw_only=True):
    """Everything to show of a plan."""

    policy: str
    proof: str
    """The exact solver's proof; empty if it was not used."""
    workloads: tuple[DrawnWorkload, ...]
    nodes: tuple[DrawnNode, ...]
    pending: tuple[Queue, ...]
    warnings: tuple[str, ...]
    skipped: int = 0
    """Nodes whose GPUs are unknown."""

    @property
    def gpus(self) -> tuple[DrawnGpu, ...]:
        """Return all GPUs in order of node and index."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)

    @property
    def pods(self) -> tuple[DrawnPod, ...]:
        """Return all pods, those without a GPU last in their node."""
        return tuple(
            holder
            for node in self.nodes
            for holder in (
                *(holder for gpu in node.gpus for device in gpu.devices for holder in device.pods),
                *node.others,
            )
        )


def pod_name(key: PodKey) -> str:
    """Return the name of a pod without its namespace."""
    return key.rpartition("/")[2]


def fleet(plan: Plan, snapshot: Snapshot) -> DrawnFleet:
    """Return which pods use what under a plan; nodes in the order of the snapshot, then those only in the plan."""
    pods = _pods(plan, snapshot)
    numbers, workloads = _workloads(plan, snapshot, pods)
    layouts: defaultdict[NodeName, list[GpuLayout]] = defaultdict(list)
    for layout in plan.layouts:
        layouts[layout.node].append(layout)
    by_node: defaultdict[NodeName, list[tuple[Assignment, bool]]] = defaultdict(list)
    for running in snapshot.running:
        by_node[running.assignment.node].append((running.assignment, True))
    for assignment in plan.assignments:
        by_node[assignment.node].append((assignment, False))
    known = {node.name: node for node in snapshot.nodes}
    selected = frozenset(key for pod in pods.values() for key, _ in pod.need.node_selector)
    nodes = {
        name: known.get(name) or Node(name=name, cpu_milli=0, memory_mib=0) for name in (*known, *layouts, *by_node)
    }
    return DrawnFleet(
        policy=plan.policy,
        proof=_proof(plan),
        workloads=workloads,
        nodes=tuple(
            _Reader(
                pods=pods,
                numbers=numbers,
                assignments=tuple(by_node[name]),
                selected=selected,
                gpus={gpu.index: gpu for gpu in nodes[name].gpus},
            ).node(nodes[name], layouts[name])
            for name in nodes
        ),
        pending=_queues(plan, numbers),
        warnings=plan.warnings,
        skipped=len(plan.skipped),
    )


def _pods(plan: Plan, snapshot: Snapshot) -> dict[PodKey, Pod]:
    named = (
        *(running.pod for running in snapshot.running),
        *snapshot.pending,
    )
    pods = {pod.key: pod for pod in named}
    keys = (
        *(assignment.pod for assignment in plan.assignments),
        *(pending.pod for pending in plan.pending),
    )
    for key in keys:
        pods.setdefault(key, Pod(key=key, need=Need()))
    return pods


def _workloads(
    plan: Plan, snapshot: Snapshot, pods: dict[PodKey, Pod]
) -> tuple[dict[PodKey, int], tuple[DrawnWorkload, ...]]:
    groups: defaultdict[object, list[Pod]] = defaultdict(list)
    for pod in pods.values():
        groups[pod.owner or pod.need].append(pod)
    running = {one.pod.key for one in snapshot.running}
    placed = {assignment.pod for assignment in plan.assignments}
    pending = {one.pod for one in plan.pending}
    workloads = []
    numbers = {}
    for number, members in enumerate(groups.values()):
        keys = {pod.key for pod in members}
        numbers.update(dict.fromkeys(keys, number))
        kind, name = _title(members)
        workloads.append(
            DrawnWorkload(
                number=number,
                kind=kind,
                name=name,
                running=len(keys & running),
                placed=len(keys & placed),
                pending=len(keys & pending),
            )
        )
    return numbers, tuple(workloads)


def _title(members: list[Pod]) -> tuple[str, str]:
    """Return kind and name of a workload: its owner's, the pod's, or the common part of bare pods."""
    first = members[0]
    if first.owner:
        kind, _, name = first.owner.partition("/")
        return (kind, name) if name else ("", kind)
    if len(members) == 1:
        return "Pod", first.key
    requests = " + ".join(requested(request) for request in first.need.requests) or "no GPU"
    return "Pods", f"asking {requests}"


def requested(request: DeviceRequest) -> str:
    """Return one container's request, in few words."""
    times = f"{request.count} x " if request.count > 1 else ""
    short = request.resource.rpartition("/")[2]
    if request.form is Form.EXACT:
        return f"{times}{short}"
    compute = f", {request.compute_percent} % compute" if request.compute_percent else ""
    return f"{times}{short} {gib(request.memory_mib)}{compute}"


def _proof(plan: Plan) -> str:
    bound = plan.bound
    if bound is None:
        return ""
    if bound.optimal:
        return f"proved optimal: no plan places more than {bound.at_most}"
    return f"not proved optimal: {bound.placed} placed of at most {bound.at_most}"


def _queues(plan: Plan, numbers: dict[PodKey, int]) -> tuple[Queue, ...]:
    groups: defaultdict[tuple[int, str], list[PodKey]] = defaultdict(list)
    for one in plan.pending:
        groups[numbers[one.pod], one.reason].append(one.pod)
    return tuple(Queue(workload=n, reason=reason, pods=tuple(keys)) for (n, reason), keys in groups.items())


# Labels people ask for by name when they place GPU pods; those that some pod selects by are shown as well.
_TELLING_LABELS = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-gpu-partition-size",
    "cloud.google.com/gke-gpu-sharing-strategy",
    "cloud.google.com/gke-max-shared-clients-per-gpu",
    "node.kubernetes.io/instance-type",
    "nvidia.com/mig.config",
    "topology.kubernetes.io/zone",
)


def _marks(node: Node, selected: frozenset[str]) -> tuple[str, ...]:
    labels = tuple(
        f"{key.rpartition('/')[2]}={value}"
        for key, value in node.labels
        if value != node.name and (key in _TELLING_LABELS or key in selected or key.startswith("tessera.dev/"))
    )
    taints = tuple(f"taint {t.key}{'=' if t.value else ''}{t.value}:{t.effect}" for t in node.taints)
    return (*(("cordoned",) if node.unschedulable else ()), *labels, *taints)


class _Reader(msgspec.Struct, frozen=True, kw_only=True):
    """The state while one node is read."""

    pods: dict[PodKey, Pod]
    numbers: dict[PodKey, int]
    assignments: tuple[tuple[Assignment, bool], ...]
    selected: frozenset[str]
    gpus: dict[int, Gpu]

    def node(self, node: Node, layouts: list[GpuLayout]) -> DrawnNode:
        parts = {assignment.pod: list[Share | None](assignment.shares) for assignment, _ in self.assignments}
        running = {assignment.pod for assignment, runs in self.assignments if runs}
        gpus = tuple(self._gpu(layout, parts, running) for layout in sorted(layouts, key=lambda layout: layout.gpu))
        placed = {holder.pod for gpu in gpus for device in gpu.devices for holder in device.pods}
        needs = [self.pods[assignment.pod].need for assignment, _ in self.assignments]
        return DrawnNode(
            name=node.name,
            cpu_milli=node.cpu_milli,
            cpu_used_milli=sum(need.cpu_milli for need in needs),
            memory_mib=node.memory_mib,
            memory_used_mib=sum(need.memory_mib for need in needs),
            marks=_marks(node, self.selected),
            gpus=gpus,
            others=tuple(
                DrawnPod(
                    pod=assignment.pod,
                    workload=self.numbers[assignment.pod],
                    memory_mib=0,
                    compute_percent=0,
                    running=runs,
                )
                for assignment, runs in self.assignments
                if assignment.pod not in placed
            ),
        )

    def _drawn_pod(self, pod_share: PodShare, parts: list[Share | None], *, running: bool) -> DrawnPod:
        """Return a pod's holder; `parts` are its shares, None for placed ones."""
        number = parts.index(pod_share.share)
        parts[number] = None
        return DrawnPod(
            pod=pod_share.pod,
            workload=self.numbers[pod_share.pod],
            memory_mib=pod_share.share.memory_mib,
            compute_percent=pod_share.share.compute_percent,
            running=running,
            part=number + 1,
            parts=len(parts),
        )

    def _gpu(self, layout: GpuLayout, parts: dict[PodKey, list[Share | None]], running: set[PodKey]) -> DrawnGpu:
        devices = [
            _device(
                part, [self._drawn_pod(each, parts[each.pod], running=each.pod in running) for each in part.pod_shares]
            )
            for part in layout.devices
        ]
        return DrawnGpu(
            index=layout.gpu,
            model=layout.model,
            memory_mib=layout.memory_mib,
            memory_slices=layout.memory_slices,
            allocated_mib=layout.allocated_mib,
            mig=layout.mig,
            devices=tuple(devices),
            openings=_openings(layout, self.gpus.get(layout.gpu)),
            unrecorded=layout.unrecorded,
        )


def _openings(layout: GpuLayout, gpu: Gpu | None) -> tuple[Placement, ...] | None:
    """Return what could still be created; None if the GPU is not in MIG mode, is unknown, or has a fixed layout."""
    planned = tuple(part.placement for part in layout.devices if part.placement)
    if not layout.mig or gpu is None or not gpu.sharing.allow_repartition or not is_legal(gpu.model, planned):
        return None
    return open_placements(gpu.model, planned)


def _device(part: PlannedDevice, holders: list[DrawnPod]) -> DrawnDevice:
    placement = part.placement
    return DrawnDevice(
        label=placement.profile if placement else "",
        start=placement.start if placement else 0,
        size=placement.size if placement else 0,
        mode=part.mode,
        memory_mib=part.memory_mib,
        clients=part.clients,
        exists=part.exists or any(holder.running for holder in holders),
        pods=tuple(sorted(holders, key=lambda holder: not holder.running)),
    )
