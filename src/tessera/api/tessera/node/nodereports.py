"""Tessera's reports on a Node object: events, conditions, labels; as JSON for the Kubernetes API."""

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

from tessera.api.fields import refused_form
from tessera.api.kubernetes.times import time_text
from tessera.api.tessera.node.instancefields import InstanceFields
from tessera.core.cluster.enforcement import Enforcement, Level
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState, ImpairedKind, Impairment, UnhealthyDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode
from tessera.core.node.health import HealthChange, HealthPhase
from tessera.core.workload.tesseranames import AGENT
from tessera.errors import UNDECODABLE

__all__ = [
    "CONDITION",
    "CONFIGURATION",
    "DEVICE_LIST",
    "ENFORCEMENT",
    "REVISION",
    "Report",
    "Subject",
    "condition",
    "enforcement_text",
    "event",
    "event_name",
    "gpu_revision",
    "has_agent",
    "health_report",
    "impairment_report",
    "orphan_report",
    "read_enforcement",
]

CONDITION = "TesseraLayoutApplied"
"""Type of the node condition: whether the requested layout is in force."""
CONFIGURATION = "TesseraConfigurationApplied"
"""Type of the node condition: what is declared and not in force; absent if everything is."""

ENFORCEMENT = "tessera.dev/enforcement"
"""Annotation of a node: the isolation on each device, as JSON. Set by the agent; read
by commands that show a cluster."""

DEVICE_LIST = "tessera.dev/device-list-strategy"
"""Annotation of a node: its device list strategies, `cdi-cri`; several are separated by commas. Set by
the agent; read by the agent after a restart, and by the server as the mark of an agent."""

REVISION = "tessera.dev/gpu-revision"
"""Label of a node: changes with what its GPUs can be allocated as. Set by the agent; read by kube-scheduler,
which tries pending pods again then. It tries pods again that an extender found no place for when a node they may fit
changes, and sees Node objects alone. Source: kubernetes v1.36
`pkg/scheduler/framework/events.go:nodeSchedulingPropertiesChange`; annotations count from 1.31 on, labels always."""


class _EnforcementFields(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    gpu: str
    placement: InstanceFields | None = None
    mode: Mode
    level: Level


_ENFORCEMENT = msgspec.json.Decoder(tuple[_EnforcementFields, ...])
_GRAVEST: tuple[ImpairedKind, ...] = ("Refused", "Withheld", "Overridden")
_NAME_CHARACTERS = 253
"""Source: kubernetes/apimachinery `pkg/util/validation` (`DNS1123SubdomainMaxLength`)."""
_MESSAGE_CHARACTERS = 1024
"""Source: kubernetes/kubernetes `pkg/apis/core/validation/events.go` (`NoteLengthLimit`)."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An event on a node for `kubectl describe node`."""

    reason: str
    """One word in CamelCase: `LayoutApplied`, `LayoutFailed`, `LayoutBlocked`."""
    message: str
    warning: bool = False


def impairment_report(impaired: Sequence[Impairment]) -> Report | None:
    """Return the condition `TesseraConfigurationApplied`, with the gravest impairment as its reason; None for none."""
    if not impaired:
        return None
    gravest = min(impaired, key=lambda each: _GRAVEST.index(each.kind))
    message = "; ".join(dict.fromkeys(each.message for each in impaired))
    return Report(reason=gravest.kind, message=message, warning=True)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The object of an event."""

    kind: str
    name: str
    namespace: str = ""
    uid: str
    node: str
    """The agent's node, or the node itself."""

    @classmethod
    def of_node(cls, node: str) -> Self:
        """Return a node as a subject.

        Source: kubernetes/client-go `tools/record/event.go` (`makeEvent`): a node's UID is given as its name.
        """
        return cls(kind="Node", name=node, uid=node, node=node)


def event_name(subject: Subject, report: Report) -> str:
    """Return the event's name: the same report of the same object has the same name, so that it is counted."""
    digest = hashlib.sha256(f"{subject.kind}\n{report.reason}\n{report.message}".encode()).hexdigest()[:16]
    return f"{subject.name[: _NAME_CHARACTERS - len(digest) - 1].rstrip('-.')}.{digest}"


def event(
    subject: Subject, report: Report, now: dt.datetime, *, count: int = 1, component: str = AGENT
) -> dict[str, Any]:
    """Return a core/v1 Event about an object, in the namespace where kubectl finds it: of a node, `default`."""
    moment = time_text(now.timestamp())
    about = {"kind": subject.kind, "name": subject.name, "uid": subject.uid}
    return {
        "metadata": {"name": event_name(subject, report), "namespace": subject.namespace or "default"},
        "involvedObject": about | ({"namespace": subject.namespace} if subject.namespace else {}),
        "reason": report.reason,
        "message": report.message[:_MESSAGE_CHARACTERS],
        "type": "Warning" if report.warning else "Normal",
        "source": {"component": component, "host": subject.node},
        "reportingComponent": component,
        "reportingInstance": subject.node,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": count,
    }


def condition(
    status: Literal["True", "False", "Unknown"],
    report: Report,
    now: dt.datetime,
    former: dict[str, Any] | None,
    kind: str = CONDITION,
) -> dict[str, Any]:
    """Return the node condition; the transition time stays if the status is unchanged."""
    moment = time_text(now.timestamp())
    same = former is not None and former.get("status") == status
    return {
        "type": kind,
        "status": status,
        "reason": report.reason,
        "message": report.message[:_MESSAGE_CHARACTERS],
        "lastHeartbeatTime": moment,
        "lastTransitionTime": former.get("lastTransitionTime", moment) if former and same else moment,
    }


def health_report(change: HealthChange, inventory: Inventory) -> Report:
    """Return the event of a device that became unhealthy, or healthy again."""
    healthy = change.after is HealthPhase.HEALTHY
    message = f"{_device(change.device, inventory)}: {change.after.value}, {change.reason}"
    return Report(reason="DeviceHealthy" if healthy else "DeviceUnhealthy", message=message, warning=not healthy)


def orphan_report(device: UnhealthyDevice, inventory: Inventory) -> Report:
    """Return the event of a device that gets no pods, because processes of a deleted pod use it."""
    message = f"{_device(device.device, inventory)}: {device.reason}; no pod is sent to it until they have ended"
    return Report(reason="DeviceOrphaned", message=message, warning=True)


def _device(device: DeviceId, inventory: Inventory) -> str:
    indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    gpu, placement = device
    where = f", {placement.profile} at {placement.start}" if placement else ""
    return f"GPU {indices.get(gpu, '?')} ({gpu}){where}"


def gpu_revision(state: GpuNodeState, offered: Iterable[DesiredDevices]) -> str:
    """Return the value of the label `tessera.dev/gpu-revision`, the same for the same state.

    kube-scheduler retries a pod that its extender rejected when a Node, a Pod or the like changes; it does not watch
    GPUNodes. What an agent releases to the scheduler changes nothing else of the Node, and without the label such a
    pod may be pending for five minutes. Source: kubernetes `pkg/scheduler/schedule_one.go` (`findNodesThatFitPod`),
    `pkg/scheduler/framework/events.go`.

    Args:
        state: GPUs, their sharing and health.
        offered: the kubelet's devices, sorted.

    """
    text = msgspec.json.encode((state.gpus, state.unhealthy, state.unit_mib, tuple(offered)), order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]


def has_agent(node: Mapping[str, Any]) -> bool:
    """Return whether a Node object has marks of an agent, even without the agent's GPUNode."""
    metadata = node.get("metadata") or {}
    return DEVICE_LIST in (metadata.get("annotations") or {}) or REVISION in (metadata.get("labels") or {})


def enforcement_text(levels: Iterable[Enforcement]) -> str:
    """Return the annotation's text: a list with GPU, MIG instance if any, mode and isolation."""
    fields = tuple(msgspec.convert(each, _EnforcementFields, from_attributes=True) for each in levels)
    return msgspec.json.encode(fields).decode()


def read_enforcement(text: str) -> tuple[Enforcement, ...]:
    """Return the isolation on each device in the annotation's text; entries without a version are of version 1.

    Raises:
        InvalidInput: it is none, or of a version to come.

    """
    try:
        fields = _ENFORCEMENT.decode(text)
    except UNDECODABLE as error:
        raise refused_form(error, text.encode(errors="replace"), "") from error
    return tuple(msgspec.convert(each, Enforcement, from_attributes=True) for each in fields)
