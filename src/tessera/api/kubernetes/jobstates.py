"""The state of a Job of one or more pods, and its reason."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tessera.api.kubernetes.jobs import BY_RUN, OF_JOB, QUEUE_LABEL, token_secret_of
from tessera.api.untyped import as_dict, as_dicts
from tessera.core.serving.annotations import SERVER_LABEL

__all__ = ["QUEUED_JOB", "JobStage", "JobState", "read_job"]

QUEUED_JOB: Final = "kueue.x-k8s.io/job-uid"
"""Label of Kueue's Workloads: the Job that each is about. Source: kubernetes-sigs/kueue `pkg/controller/constants`."""
_UNPACKING: Final = "PodInitializing"
"""Why a container waits for earlier ones. Source: Kubernetes, kubelet `PodInitializing`."""
_NOT_STARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Why a container ended whose command never ran. Source: containerd `internal/cri/server/container_start.go`
(`errorStartReason`); Docker's dockershim."""
_RUNTIME: Final = re.compile(r"^.*unable to start container process: (?:error during container init: )?|: unknown$")
"""What runtimes say around the cause. Source: runc `libcontainer/process_linux.go`; containerd's gRPC errors."""
_CREATING: Final = re.compile(r'^Error creating: pods "[^"]*" is ')
"""The pod's name changes each time. Source: Kubernetes, `controller_utils.go` (`FailedCreatePodReason`)."""


class JobStage(enum.StrEnum):
    """Stage of a Job."""

    QUEUED = "Queued"
    """Suspended: a queue has not admitted it yet, or a user suspended it."""
    PENDING = "Pending"
    """It has no node."""
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self in {JobStage.SUCCEEDED, JobStage.FAILED}


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a Job, and the reason."""

    name: str
    namespace: str
    stage: JobStage
    uid: str = ""
    reason: str = ""
    pod: str = ""
    active_pods: tuple[str, ...] = ()
    """Those that have neither ended nor are being deleted."""
    container: str = ""
    """Of its command; others may have been added to the pod."""
    started: bool = False
    """Whether its command has started in this pod, and may have written."""
    node: str = ""
    exit_code: int | None = None
    """Of its command, once that has ended."""
    created: str = ""
    """RFC 3339."""
    requests: tuple[tuple[str, str], ...] = ()
    """Amounts of GPUs and models by resource."""
    token_secret: str = ""
    """Secret with the token of its notebook; empty where it has none."""
    by_run: bool = False
    """Whether `tessera run` or `notebook` created it."""
    by_render: bool = False
    """Whether it is one of `tessera render --job`."""


def read_job(
    job: Mapping[str, Any],
    pods: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]] = (),
    workloads: Iterable[Mapping[str, Any]] = (),
) -> JobState:
    """Return the state of a Job.

    Args:
        job: the object.
        pods: those of its namespace, or more.
        events: those about it, or more: they have the reason for a missing pod, such as quota.
        workloads: Kueue's for it, or more: they have the reason why a queue has not admitted it.

    """
    metadata, spec, status = (as_dict(job.get(part)) for part in ("metadata", "spec", "status"))
    name = str(metadata.get("name", ""))
    own = [each for each in pods if _is_of(each, metadata)]
    pod: Mapping[str, Any] = max(own, key=_age, default={})
    container = next(iter(as_dicts(as_dict(as_dict(spec.get("template")).get("spec")).get("containers"))), {})
    observed = _Pod(pod, str(container.get("name", "")))
    stage, reason, exit_code = _stage(spec, status, metadata, observed)
    if stage is JobStage.PENDING and not pod:
        reason = _why_no_pod(metadata, events)
    if stage is JobStage.QUEUED and (words := _why_queued(metadata, workloads)):
        reason = f"{reason}: {words}"
    parts = spec.get("completions")
    # With `backoffLimitPerIndex` a failed pod does not end the Job, even of a single part.
    if isinstance(parts, int) and (parts > 1 or "backoffLimitPerIndex" in spec) and stage is not JobStage.QUEUED:
        stage, exit_code = _stage_of_parts(parts, status, own), None
        reason = ": ".join(filter(None, (_progress(parts, status), reason if stage is JobStage.PENDING else "")))
    labels = _labels(job)
    by_run = all(labels.get(key) == value for key, value in BY_RUN)
    limits = as_dict(as_dict(container.get("resources")).get("limits"))
    return JobState(
        name=name,
        namespace=str(metadata.get("namespace", "")),
        stage=stage,
        uid=str(metadata.get("uid", "")),
        reason="".join(each if each.isprintable() else "\ufffd" for each in " ".join(reason.split())),
        pod=_name(pod),
        active_pods=tuple(_name(each) for each in own if _is_active(each)),
        container=str(container.get("name", "")),
        started=observed.started,
        node=str(as_dict(pod.get("spec")).get("nodeName", "")),
        exit_code=exit_code,
        created=str(metadata.get("creationTimestamp", "")),
        token_secret=token_secret_of(container) if by_run else "",
        by_run=by_run,
        by_render=SERVER_LABEL in labels,
        requests=tuple((resource, str(amount)) for resource, amount in sorted(limits.items()) if "/" in resource),
    )


def _is_of(pod: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether a pod is of the Job with this metadata: a user may set its label on any pod."""
    metadata = as_dict(pod.get("metadata"))
    if _labels(pod).get(OF_JOB) != job.get("name") or metadata.get("namespace") != job.get("namespace"):
        return False
    return any(each.get("uid") == job.get("uid") for each in as_dicts(metadata.get("ownerReferences")))


def _name(pod: Mapping[str, Any]) -> str:
    return str(as_dict(pod.get("metadata")).get("name", ""))


def _is_active(pod: Mapping[str, Any]) -> bool:
    ended = str(as_dict(pod.get("status")).get("phase")) in {"Succeeded", "Failed"}
    return not ended and not as_dict(pod.get("metadata")).get("deletionTimestamp")


def _age(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Return what the newest pod has most of; one that is being deleted is older than any other."""
    metadata = as_dict(pod.get("metadata"))
    return not metadata.get("deletionTimestamp"), str(metadata.get("creationTimestamp", ""))


class _Pod:
    """A Job's newest pod; empty for none.

    Args:
        body: the object.
        container: of its command.

    """

    def __init__(self, body: Mapping[str, Any], container: str) -> None:
        metadata, self.status = as_dict(body.get("metadata")), as_dict(body.get("status"))
        self.deleted = bool(metadata.get("deletionTimestamp"))
        self.node = as_dict(body.get("spec")).get("nodeName")
        self.failed, self.running = (self.status.get("phase") == each for each in ("Failed", "Running"))
        states = as_dicts(self.status.get("containerStatuses"))
        own = next((each for each in states if each.get("name") == container), {})
        self.state = as_dict(own.get("state"))
        self.ended = as_dict(self.state.get("terminated"))
        code = self.ended.get("exitCode")
        self.not_started = self.ended.get("reason") in _NOT_STARTED
        """Whether its command could not be started: the exit code is then the runtime's."""
        self.code = code if isinstance(code, int) and not self.not_started else None
        self.started = self.state.get("running") is not None or (bool(self.ended) and not self.not_started)
        self.has_others_running = any(as_dict(each.get("state")).get("running") is not None for each in states)
        conditions = {str(each.get("type")): each for each in as_dicts(self.status.get("conditions"))}
        self.scheduled = as_dict(conditions.get("PodScheduled"))
        self.disrupted = _sentence(self.status) if self.failed and self.status.get("reason") else ""
        """Why the kubelet or the API server ended it, whatever its command returned then; empty if they did not.

        Source: Kubernetes, `PodStatus.Reason` (`Evicted`), condition `DisruptionTarget`.
        """
        if not self.disrupted and _is_true(conditions, "DisruptionTarget"):
            self.disrupted = _sentence(conditions["DisruptionTarget"])

    @property
    def unpacking(self) -> dict[str, Any]:
        """The state of the container that unpacks the code; empty for none."""
        return as_dict(next(iter(as_dicts(self.status.get("initContainerStatuses"))), {}).get("state"))


def _sentence(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (str(condition.get(part) or "") for part in ("reason", "message"))))


def _stage(
    spec: Mapping[str, Any], status: Mapping[str, Any], metadata: Mapping[str, Any], pod: _Pod
) -> tuple[JobStage, str, int | None]:
    """Return the stage, its reason, and the exit code of the command.

    What the Job's controller has decided comes first. Pods of a suspended Job are ended and do not count, nor do those
    that are being deleted until it has decided.
    """
    conditions = {str(each.get("type")): each for each in as_dicts(status.get("conditions"))}
    if _is_true(conditions, "Complete"):
        return JobStage.SUCCEEDED, "", 0
    if _is_true(conditions, "Failed"):
        return _failed(conditions, pod)
    if spec.get("suspend"):
        queue = as_dict(metadata.get("labels")).get(QUEUE_LABEL)
        return JobStage.QUEUED, f"pending in queue {queue}" if queue else "it is suspended", None
    return _stage_of_pod(conditions, pod)


def _stage_of_pod(conditions: Mapping[str, Any], pod: _Pod) -> tuple[JobStage, str, int | None]:
    """Return the stage of a Job that is not suspended and of whose end nothing is said yet."""
    if pod.deleted:
        stage = JobStage.RUNNING if pod.state.get("running") is not None else JobStage.PENDING
        return stage, "its pod is being deleted", None
    if pod.failed or ((pod.code or pod.not_started) and pod.has_others_running):
        return _failed(conditions, pod)
    if pod.code == 0 and (pod.has_others_running or not pod.running):  # else the kubelet is about to say why it ended
        return JobStage.SUCCEEDED, "", 0
    if pod.state.get("running") is not None or pod.code is not None:
        return JobStage.RUNNING, "", pod.code
    return *_before_start(pod), None


def _failed(conditions: Mapping[str, Any], pod: _Pod) -> tuple[JobStage, str, int | None]:
    if pod.disrupted or pod.deleted:
        return JobStage.FAILED, pod.disrupted or f"its pod was deleted ({_sentence(conditions['Failed'])})", None
    return JobStage.FAILED, _why_failed(conditions, pod), pod.code


def _stage_of_parts(parts: int, status: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> JobStage:
    """Return the stage of a Job of several parts, of which some may run while others end or wait."""
    conditions = {str(each.get("type")): each for each in as_dicts(status.get("conditions"))}
    if _is_true(conditions, "Failed"):
        return JobStage.FAILED
    if _is_true(conditions, "Complete") or _count(status, "succeeded") >= parts:
        return JobStage.SUCCEEDED
    started = any(as_dict(each.get("status")).get("phase") == "Running" for each in pods)
    return JobStage.RUNNING if started or _count(status, "succeeded") else JobStage.PENDING


def _progress(parts: int, status: Mapping[str, Any]) -> str:
    """Return how many parts of a Job are done."""
    counts = (("active", "active"), ("failed", "failed pods"))
    rest = "".join(f", {number} {word}" for field, word in counts if (number := _count(status, field)))
    return f"{_count(status, 'succeeded')} of {parts} parts done{rest}"


def _count(status: Mapping[str, Any], field: str) -> int:
    found = status.get(field)
    return found if isinstance(found, int) else 0


def _before_start(pod: _Pod) -> tuple[JobStage, str]:
    if not pod.node:
        return JobStage.PENDING, str(pod.scheduled.get("message", ""))
    waiting = as_dict(pod.unpacking.get("waiting") or pod.state.get("waiting"))
    return JobStage.STARTING, _sentence(waiting) if waiting.get("reason") != _UNPACKING else ""


def _why_no_pod(metadata: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """Return the last failure of a Job without pod."""
    own = [
        each
        for each in events
        if each.get("type") == "Warning" and as_dict(each.get("involvedObject")).get("uid") == metadata.get("uid")
    ]
    newest = max(own, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""), default={})
    return _CREATING.sub("its pod is ", str(newest.get("message", "")))


def _why_queued(metadata: Mapping[str, Any], workloads: Iterable[Mapping[str, Any]]) -> str:
    """Return Kueue's reason why a Job is not admitted.

    Source: kubernetes-sigs/kueue `apis/kueue/v1beta2/workload_types.go` (`WorkloadQuotaReserved`, `WorkloadAdmitted`).
    """
    uid = metadata.get("uid")
    own = [each for each in workloads if uid and _labels(each).get(QUEUED_JOB) == uid]
    newest = max(own, key=lambda each: str(as_dict(each.get("metadata")).get("creationTimestamp", "")), default={})
    conditions = {str(each.get("type")): each for each in as_dicts(as_dict(newest.get("status")).get("conditions"))}
    waiting = next((kind for kind in ("QuotaReserved", "Admitted") if not _is_true(conditions, kind)), "")
    return str(as_dict(conditions.get(waiting)).get("message", ""))


def _labels(body: Mapping[str, Any]) -> dict[str, Any]:
    return as_dict(as_dict(body.get("metadata")).get("labels"))


def _why_failed(conditions: Mapping[str, Any], pod: _Pod) -> str:
    if pod.not_started:
        cause = _RUNTIME.sub("", " ".join(str(pod.ended.get("message", "")).split()))
        return ": ".join(filter(None, ("its command did not start", cause)))
    if pod.code is not None:
        reason = str(pod.ended.get("reason", ""))
        return f"its command ended with {pod.code}" + (f" ({reason})" if reason not in {"", "Error"} else "")
    unpacked = as_dict(pod.unpacking.get("terminated"))
    if unpacked.get("exitCode"):
        words = str(unpacked.get("message") or f"exit code {unpacked['exitCode']}")
        return f"its code was not unpacked, which needs tar and gzip in the image: {words}"
    return _sentence(pod.status) or _sentence(as_dict(conditions.get("Failed")))


def _is_true(conditions: Mapping[str, Any], kind: str) -> bool:
    return bool(as_dict(conditions.get(kind)).get("status") == "True")
