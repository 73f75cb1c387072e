"""Model servers in the cluster: labeled Deployments, their pods, and the autoscalers that target them.

Labels and annotations are untrusted.
"""

import datetime as dt
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.serving.annotations import COLD_START, IDLE, KIND, ONE_BY_ONE, PORT, SLOTS, WAKE
from tessera.core.serving.autoscaling.serverfacts import HpaBounds, ModelDeployment, ModelPod
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.core.serving.metrics.metricnames import REPLICAS
from tessera.core.serving.serverstatus import DeploymentProgress
from tessera.core.workload.tesseranames import API_VERSION
from tessera.errors import InvalidInput, shown

__all__ = [
    "more_pods",
    "read_bounds",
    "read_deployment",
    "read_pod",
    "read_progress",
    "read_woken",
]

_REVISION: Final = "deployment.kubernetes.io/revision"
"""Annotation of a Deployment, set by Kubernetes' controller. Source: kubernetes
`pkg/controller/deployment/util/deployment_util.go` (`RevisionAnnotation`)."""
_ENGINE_PORTS: Final = tuple(each.port for each in ENGINE_METRICS)
_MOST_PORT, _MOST_SLOTS, _MOST_SECONDS, _MOST_IDLE_SECONDS = 65535, 100_000, 7200, 604_800
_Time: TypeAlias = Annotated[dt.datetime, msgspec.Meta(tz=True)]
_LAST_TIME_S: Final = 1 << 36


class _Owner(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool = False

    @property
    def is_server(self) -> bool:
        return self.controller and self.kind == KIND and self.api_version == API_VERSION


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    owner_references: tuple[_Owner, ...] | None = None
    generation: int = 0
    annotations: dict[str, str] | None = None
    creation_timestamp: dt.datetime | None = None
    deletion_timestamp: dt.datetime | None = None


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, frozen=True):
    name: str
    ports: tuple[_Port, ...] | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None


class _Containers(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...]


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: dt.datetime | None = None


class _Running(msgspec.Struct, frozen=True, rename="camel"):
    started_at: dt.datetime | None = None


class _State(msgspec.Struct, frozen=True):
    running: _Running | None = None


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    restart_count: int = 0
    state: _State = _State()


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: tuple[_Condition, ...] | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Containers
    status: _PodStatus = _PodStatus()


class _Template(msgspec.Struct, frozen=True):
    spec: _Containers


class _DeploymentSpec(msgspec.Struct, frozen=True):
    template: _Template
    replicas: int | None = None


class _DeploymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int | None = None
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    conditions: tuple[_Condition, ...] | None = None


class _Deployment(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _DeploymentSpec
    status: _DeploymentStatus = _DeploymentStatus()


class _Target(msgspec.Struct, frozen=True):
    kind: Literal["Deployment"]
    name: str


class _MetricName(msgspec.Struct, frozen=True):
    name: str = ""


class _External(msgspec.Struct, frozen=True):
    metric: _MetricName = _MetricName()


class _Metric(msgspec.Struct, frozen=True):
    external: _External | None = None


class _AutoscalerSpec(msgspec.Struct, frozen=True, rename="camel"):
    scale_target_ref: _Target
    max_replicas: int
    min_replicas: int | None = None
    metrics: tuple[_Metric, ...] | None = None


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Autoscaler(msgspec.Struct, frozen=True):
    metadata: _Named
    spec: _AutoscalerSpec


def read_pod(pod: Mapping[str, Any]) -> ModelPod:
    """Return a pod of a model server.

    Raises:
        InvalidInput: it does not have a pod's form.

    """
    read = _convert(pod, _Pod, "Pod")
    conditions = {condition.type: condition for condition in read.status.conditions or ()}
    ready, scheduled = conditions.get("Ready"), conditions.get("PodScheduled")
    container, port, problem = _metrics_port(read)
    statuses = {status.name: status for status in read.status.container_statuses or ()}
    status = statuses.get(container, _ContainerStatus(name=container))
    created = read.metadata.creation_timestamp
    begun = (status.state.running and status.state.running.started_at) or created
    is_ready = ready is not None and ready.status == "True"
    cold_start_s = None
    asked = (scheduled and scheduled.status == "True" and scheduled.last_transition_time) or created
    if is_ready and ready and ready.last_transition_time and asked and not status.restart_count:
        cold_start_s = (ready.last_transition_time - asked).total_seconds()
    host = _host(read.status.pod_ip)
    return ModelPod(
        url=f"http://{host}:{port}/metrics" if host and not problem else "",
        problem=problem or ("" if host else "it has no address yet"),
        running=read.status.phase == "Running",
        ready=is_ready and read.metadata.deletion_timestamp is None,
        unschedulable=scheduled is not None and scheduled.status == "False" and scheduled.reason == "Unschedulable",
        started_s=begun.timestamp() if begun else 0.0,
        cold_start_s=cold_start_s,
    )


def _metrics_port(pod: _Pod) -> tuple[str, int, str]:
    """Return the container that has metrics, its port, and what is wrong with an annotation."""
    ports = [(each.name, port) for each in pod.spec.containers for port in each.ports or ()]
    first = pod.spec.containers[0].name if pod.spec.containers else ""
    try:
        given = _number(pod.metadata.annotations or {}, PORT, _MOST_PORT)
    except InvalidInput as error:
        return first, 0, str(error)
    if given is not None:
        return next((name for name, port in ports if port.container_port == given), first), given, ""
    named = [(name, port.container_port) for name, port in ports if port.name == "metrics"]
    usual = [(name, port.container_port) for at in _ENGINE_PORTS for name, port in ports if port.container_port == at]
    for name, number in (*named, *usual):
        return name, number, ""
    return first, 0, f"no container port named metrics and no annotation {PORT}"


def _host(address: str | None) -> str:
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return ""
    return f"[{found}]" if found.version == 6 else str(found)  # noqa: PLR2004  # IPv6


def read_deployment(deployment: Mapping[str, Any]) -> ModelDeployment:
    """Return a Deployment of a model server.

    Raises:
        InvalidInput: it does not have a Deployment's form.

    """
    found = _convert(deployment, _Deployment, "Deployment")
    annotations, problem = found.metadata.annotations or {}, ""
    slots, cold_start_s, idle_s, woken_s, one_by_one = None, None, None, None, False
    try:
        slots = _number(annotations, SLOTS, _MOST_SLOTS) or _sequences(found.spec.template.spec.containers)
        cold_start_s = _number(annotations, COLD_START, _MOST_SECONDS)
        idle_s = _number(annotations, IDLE, _MOST_IDLE_SECONDS)
        woken_s = read_woken(annotations)
        one_by_one = _boolean(annotations, ONE_BY_ONE)
    except InvalidInput as error:
        problem = str(error)
    progress = _progress(found)
    owner = next((each for each in found.metadata.owner_references or () if each.is_server), None)
    return ModelDeployment(
        name=found.metadata.name,
        replicas=progress.desired,
        slots=slots,
        revision=annotations.get(_REVISION, ""),
        rolling=progress.rolling,
        cold_start_s=None if cold_start_s is None else float(cold_start_s),
        idle_s=None if idle_s is None else float(idle_s),
        woken_s=woken_s,
        one_by_one=one_by_one,
        problem=problem,
        owner=owner.name if owner else "",
        owner_uid=owner.uid if owner else "",
    )


def read_progress(deployment: Mapping[str, Any]) -> DeploymentProgress:
    """Return how far a Deployment is.

    Raises:
        InvalidInput: it does not have a Deployment's form.

    """
    return _progress(_convert(deployment, _Deployment, "Deployment"))


def _progress(deployment: _Deployment) -> DeploymentProgress:
    status = deployment.status
    # Pods rejected by admission, Pod Security or a quota; and a rollout that does not complete.
    failing = {("ReplicaFailure", "True"), ("Progressing", "False")}
    return DeploymentProgress(
        desired=1 if deployment.spec.replicas is None else deployment.spec.replicas,
        replicas=status.replicas,
        ready=status.ready_replicas,
        updated=status.updated_replicas,
        generation=deployment.metadata.generation,
        observed_generation=status.observed_generation,
        failures=tuple(e.message or "" for e in status.conditions or () if (e.type, e.status) in failing),
    )


def read_woken(annotations: Mapping[str, str]) -> float | None:
    """Return when a server was last woken, in seconds since 1970, by its annotations; None for never.

    Raises:
        InvalidInput: the annotation is not a time.

    """
    text = annotations.get(WAKE)
    if text is None:
        return None
    try:
        found: float = msgspec.convert(text.strip(), _Time).timestamp()
    except msgspec.ValidationError:
        found = -1.0
    if not 0 <= found < _LAST_TIME_S:
        raise InvalidInput(f"annotation {WAKE}", found=shown(text), expected="a time, as 2026-11-26T08:00:00Z")
    return found


def more_pods(deployment: Mapping[str, Any], count: int) -> tuple[dict[str, Any], ...]:
    """Return pods as a Deployment that can be read would have them if it had more replicas, pending."""
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    given = template.get("metadata") or {}
    named = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    names = (f"{metadata['name']}-more-{number}" for number in range(count))
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**named, "name": name, "namespace": metadata["namespace"], "uid": name},
            "spec": template["spec"],
        }
        for name in names
    )


def _sequences(containers: Sequence[_Container]) -> int | None:
    """Return vLLM's `--max-num-seqs` of a Deployment that Tessera did not render; of several the last, as vLLM does."""
    found = None
    for each in containers:
        words = [*(each.command or ()), *(each.args or ())]
        for place, word in enumerate(words):
            name, _, value = word.partition("=")
            if name.replace("_", "-") == "--max-num-seqs":
                text = value or (words[place + 1] if place + 1 < len(words) else "")
                found = _positive(text, _MOST_SLOTS)
    return found


def _number(annotations: Mapping[str, str], name: str, most: int) -> int | None:
    text = annotations.get(name)
    if text is None:
        return None
    number = _positive(text.strip(), most)
    if number is None:
        raise InvalidInput(f"annotation {name}", found=shown(text), expected=f"a whole number from 1 to {most}")
    return number


def _boolean(annotations: Mapping[str, str], name: str) -> bool:
    text = annotations.get(name, "false").strip()
    if text not in {"true", "false"}:
        raise InvalidInput(f"annotation {name}", found=shown(text), expected="true or false")
    return text == "true"


def _positive(text: str, most: int) -> int | None:
    sound = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return int(text) if sound and 1 <= int(text) <= most else None


def read_bounds(autoscaler: Mapping[str, Any]) -> HpaBounds | None:
    """Return the bounds of a HorizontalPodAutoscaler; None where it targets no Deployment."""
    try:
        found = msgspec.convert(autoscaler, _Autoscaler)
    except msgspec.ValidationError:
        return None
    spec = found.spec
    min_replicas = 1 if spec.min_replicas is None else spec.min_replicas
    names = {each.external.metric.name for each in spec.metrics or () if each.external is not None}
    return HpaBounds(
        name=found.metadata.name,
        deployment=spec.scale_target_ref.name,
        min_replicas=min_replicas,
        max_replicas=spec.max_replicas,
        uses_tessera_replicas=REPLICAS in names,
    )


def _convert(obj: Mapping[str, Any], kind: type[Any], name: str) -> Any:
    try:
        return msgspec.convert(obj, kind)
    except msgspec.ValidationError as error:
        metadata = obj.get("metadata")
        at = f"{metadata.get('namespace')}/{metadata.get('name')}" if isinstance(metadata, dict) else "?"
        raise InvalidInput(f"{name} {at}", found=f"it is not a {name} ({error_phrase(error, obj)})") from error
