"""A live cluster as its API shows it: nodes with their GPUs, pods with their allocations, consistent or not."""

import enum
from collections.abc import Mapping

import msgspec

from tessera.core.cluster.enforcement import Enforcement
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Node, NodeName, Share, Snapshot
from tessera.core.workload.need import Pod, PodKey

__all__ = ["Cluster", "FinishedPod", "ObservedNode", "ObservedPod", "Phase", "Record"]


class Phase(enum.StrEnum):
    """Phase of a pod."""

    WAITING = "waiting"
    """No node yet."""
    CLAIMED = "claimed"
    """A server has chosen its devices and is about to bind it."""
    STARTING = "starting"
    """Bound to a node, where its containers are not running yet."""
    RUNNING = "running"
    FINISHED = "finished"
    """Run to its end: it uses nothing, and is not in the cluster."""


class Record(enum.StrEnum):
    """How a pod's devices are known."""

    RECORDED = "recorded"
    """By an annotation of the pod, or by a server's claim."""
    UNRECORDED = "guessed"
    """Not recorded: it counts with devices of its node that fit."""
    NONE = "none"
    """It uses none, or they are unknown."""


class ObservedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node: Node
    address: str = ""
    """Its internal address; empty if it has none."""
    ready: bool = True
    state: GpuNodeState | None = None
    """Its agent's report; None without an agent."""
    unit_mib: int | None = None
    """Memory of one `aliyun.com/gpu-mem` there; None where GPUs are not shared by amounts of memory."""
    enforcement: tuple[Enforcement, ...] = ()
    """The isolation enforced on each device, as reported by the agent; empty without a report."""
    advertised: tuple[tuple[str, int], ...] = ()
    """GPU resources that it advertises to kube-scheduler, with the number of each."""
    problem: str = ""
    """Why its GPUs are unknown; empty where they are known."""
    images: Mapping[str, int] = {}
    """Bytes of the images that it reports, by each full name."""


class ObservedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has not finished."""

    pod: Pod
    uid: str = ""
    node: NodeName | None = None
    """Its node; None while it is pending."""
    shares: tuple[Share, ...] = ()
    """As recorded, even where the node cannot have these."""
    record: Record = Record.NONE
    phase: Phase
    ending: bool = False
    gated: bool = False
    """Whether it has scheduling gates: no scheduler may place it before they are removed."""
    scheduler: str = ""
    """Name of the scheduler responsible for it."""
    message: str = ""
    """The scheduler's last message about why it is pending."""
    unseen: bool = False
    """Whether it is pending, and by its status no scheduler has considered it."""
    unread: str = ""
    """Why its request is invalid, naming the field; then its need is empty."""
    problem: str = ""
    """What of it could not be parsed, or does not count, in a sentence; empty for nothing."""
    images: tuple[str, ...] = ()
    """Full names of its containers' images."""


class FinishedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has run to its end."""

    pod: PodKey
    node: NodeName | None = None
    """Its node; None where it never had one."""
    scheduler: str = ""
    failed: bool
    reason: str = ""
    """Of its end, from its status; empty where there is none."""
    containers: tuple[str, ...] = ()
    """How each failed container ended, one sentence each."""
    shares: tuple[Share, ...] = ()
    """Its devices by its annotations."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of a cluster at one moment."""

    nodes: tuple[ObservedNode, ...]
    pods: tuple[ObservedPod, ...] = ()
    snapshot: Snapshot
    """The same as a planner takes it: free of contradictions."""
    notes: tuple[str, ...] = ()
    """What could not be parsed or is inconsistent, one sentence each."""
    share_unit_mib: int = 1024
    """MiB in one `aliyun.com/gpu-mem` of a pod (`core.cluster.shareunit`)."""
    controller_silent: str = ""
    """Why no controller acts, as a phrase; empty where one does, or that is not known."""
