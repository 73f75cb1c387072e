"""A live cluster as its API shows it: nodes with their GPUs, pods with what they hold, whether that can be or not."""

import enum
from collections.abc import Mapping

import msgspec

from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.mps import Enforcement
from tessera.core.cluster.snapshot import Node, NodeName, Share, Snapshot
from tessera.core.workload.need import Pod, PodKey

__all__ = ["Cluster", "FinishedPod", "Phase", "Record", "SeenNode", "SeenPod"]


class Phase(enum.StrEnum):
    """How far a pod is."""

    WAITING = "waiting"
    """No node yet."""
    CLAIMED = "claimed"
    """A server has chosen its devices and is about to bind it."""
    STARTING = "starting"
    """Bound to a node, where its containers do not run yet."""
    RUNNING = "running"
    FINISHED = "finished"
    """Run to its end: it holds nothing, and no cluster shows it."""


class Record(enum.StrEnum):
    """How a pod's devices are known."""

    RECORDED = "recorded"
    """By an annotation of the pod, or by a server's claim."""
    GUESSED = "guessed"
    """Nobody recorded them: devices of its node that fit are taken for them."""
    NONE = "none"
    """It holds none, or nobody knows which."""


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node: Node
    address: str = ""
    """Its internal address; empty where the object has none."""
    ready: bool = True
    state: GpuNodeState | None = None
    """What its agent reports; None where no agent does."""
    unit_mib: int = 1024
    """Memory of one `aliyun.com/gpu-mem`."""
    enforcement: tuple[Enforcement, ...] = ()
    """What is in force on each device, as the agent says; empty where it does not."""
    advertised: tuple[tuple[str, int], ...] = ()
    """GPU resources it offers to kube-scheduler, with how many of each."""
    problem: str = ""
    """Why its GPUs are not known; empty where they are."""
    images: Mapping[str, int] = {}
    """Bytes of the images that it reports, by each full name."""


class SeenPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that has not finished."""

    pod: Pod
    uid: str = ""
    node: NodeName | None = None
    """Where it is or is about to be; None while it waits."""
    shares: tuple[Share, ...] = ()
    """As recorded, also where the node cannot have given that."""
    record: Record = Record.NONE
    phase: Phase
    ending: bool = False
    scheduler: str = ""
    """Name of the scheduler that is to place it."""
    message: str = ""
    """What its scheduler said last about why it waits."""
    unread: str = ""
    """What of its request could not be read, naming the field; then its need is empty."""
    problem: str = ""
    """What of it could not be read, or does not count, in a sentence; empty where there is nothing."""
    images: tuple[str, ...] = ()
    """Full names of the images that it starts with."""


class FinishedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that has run to its end."""

    pod: PodKey
    node: NodeName | None = None
    """Where it ran; None where it never had a node."""
    scheduler: str = ""
    failed: bool
    reason: str = ""
    """Of its end, as its status says; empty where it says nothing."""
    containers: tuple[str, ...] = ()
    """How each container ended that did not end well, one sentence each."""
    shares: tuple[Share, ...] = ()
    """What its annotations say it held."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """All that is seen at one moment."""

    nodes: tuple[SeenNode, ...]
    pods: tuple[SeenPod, ...] = ()
    snapshot: Snapshot
    """The same as a planner takes it: free of contradictions."""
    notes: tuple[str, ...] = ()
    """What could not be read or does not agree, one sentence each."""
