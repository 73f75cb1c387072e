"""What a pod needs: cpu, memory, GPUs in one of three request forms, and where it may run.

Equal needs are interchangeable: a `Need` carries no name, so two replicas of one Deployment share one `Need` value.
"""

import enum
from typing import Literal, NewType

import msgspec

__all__ = ["Ask", "Form", "Isolation", "Need", "Pod", "PodKey", "Requirement", "SelectorTerm", "Toleration"]

PodKey = NewType("PodKey", str)
"""A pod's identity, `namespace/name`."""


class Isolation(enum.StrEnum):
    """How far one pod is protected from another on the same GPU; a stronger grade serves a weaker ask."""

    HARDWARE = "hardware"
    """Own slices of memory and compute: a whole GPU or a MIG instance."""
    DRIVER = "driver"
    """Limits the driver enforces (MPS, per-cgroup memory); a fatal fault is shared."""
    NONE = "none"
    """No limit is enforced: time-slicing and plain memory shares."""

    def covers(self, asked: "Isolation") -> bool:
        """Return whether a share of this grade may serve a pod that asked for `asked`."""
        order = (Isolation.NONE, Isolation.DRIVER, Isolation.HARDWARE)
        return order.index(self) >= order.index(asked)


class Form(enum.StrEnum):
    """The three ways a pod asks for GPU capacity."""

    EXACT = "exact"
    """Devices of a resource name: `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-1g.10gb`."""
    SHARE = "share"
    """An amount of memory on one shared GPU, as gpushare's `aliyun.com/gpu-mem`; never a MIG instance."""
    NEED = "need"
    """Memory, compute and isolation (`tessera.dev/gpu-memory`); any device that gives at least that serves."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One container's ask for `count` devices of one kind, shares and needs on as many GPUs."""

    resource: str
    """The resource name as the pod wrote it; for `Form.EXACT` it decides what serves."""
    form: Form = Form.EXACT
    count: int = 1
    memory_mib: int = 0
    """Memory per device; 0 for exact asks."""
    compute_percent: int = 0
    """Compute per device, 1 to 100; 0 means no claim to compute."""
    isolation: Isolation = Isolation.NONE
    """The weakest grade that may serve; exact asks leave it at none, because the name decides."""
    container: str = ""


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's toleration; empty `key` with `Exists` tolerates everything, empty `effect` matches every effect.

    Source: k8s.io/api core/v1 Toleration.
    """

    key: str = ""
    operator: Literal["Equal", "Exists", "Lt", "Gt"] = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One expression of a node selector term. Source: k8s.io/api core/v1 NodeSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class SelectorTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A node selector term: all expressions and fields must match; a term with neither matches no node."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    """Expressions over node fields; Kubernetes knows `metadata.name` alone."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides where a pod may run. Hashable; equal needs are interchangeable."""

    cpu_milli: int = 0
    memory_mib: int = 0
    asks: tuple[Ask, ...] = ()
    """GPU asks of all containers together, after Kubernetes' rule for init and sidecar containers; all on one node."""
    models: tuple[str, ...] = ()
    """GPU models (catalogue names) that may serve; empty means any."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels the node must carry, sorted by key."""
    affinity: tuple[SelectorTerm, ...] | None = None
    """Required node affinity: at least one term must match; None means no constraint."""
    tolerations: tuple[Toleration, ...] = ()
    node_name: str = ""
    """`spec.nodeName` where the pod is pinned; empty otherwise."""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod: an identity and a need."""

    key: PodKey
    need: Need
    priority: int = 0
    owner: str = ""
    """The workload that made it, `Kind/namespace/name`; empty for a bare pod."""
