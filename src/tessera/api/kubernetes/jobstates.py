"""The state of a Job of one or more pods, and its reason."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tessera.api.kubernetes.jobs import BY_RUN, OF_JOB, QUEUE_LABEL, token_secret_of
from tessera.api.untyped import as_dict, as_dicts

__all__ = ["QUEUED_JOB", "JobStage", "JobState", "read_job"]

QUEUED_JOB: Final = "kueue.x-k8s.io/job-uid"
"""Label of Kueue's Workloads: the Job that each is about. Source: kubernetes-sigs/kueue `pkg/controller/constants`."""
_UNPACKING: Final = "PodInitializing"
"""Why a container waits for earlier ones. Source: Kubernetes, kubelet `PodInitializing`."""
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
    reason: str = ""
    pod: str = ""
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
    own = [
        each
        for each in pods
        if _labels(each).get(OF_JOB) == name
        and as_dict(each.get("metadata")).get("namespace") == metadata.get("namespace")
    ]
    pod: Mapping[str, Any] = max(
        own, key=lambda each: str(as_dict(each.get("metadata")).get("creationTimestamp", "")), default={}
    )
    stage, reason, exit_code = _stage(spec, status, metadata, pod)
    if stage is JobStage.PENDING and not pod:
        reason = _why_no_pod(metadata, events)
    if stage is JobStage.QUEUED and (words := _why_queued(metadata, workloads)):
        reason = f"{reason}: {words}"
    parts = spec.get("completions")
    if isinstance(parts, int) and parts > 1 and stage is not JobStage.QUEUED:
        stage, exit_code = _stage_of_parts(parts, status, own), None
        reason = ": ".join(filter(None, (_progress(parts, status), reason if stage is JobStage.PENDING else "")))
    container = next(iter(as_dicts(as_dict(as_dict(spec.get("template")).get("spec")).get("containers"))), {})
    limits = as_dict(as_dict(container.get("resources")).get("limits"))
    return JobState(
        name=name,
        namespace=str(metadata.get("namespace", "")),
        stage=stage,
        reason="".join(each if each.isprintable() else "\ufffd" for each in " ".join(reason.split())),
        pod=str(as_dict(pod.get("metadata")).get("name", "")),
        node=str(as_dict(pod.get("spec")).get("nodeName", "")),
        exit_code=exit_code,
        created=str(metadata.get("creationTimestamp", "")),
        token_secret=token_secret_of(container),
        by_run=all(as_dict(metadata.get("labels")).get(key) == value for key, value in BY_RUN),
        requests=tuple((resource, str(amount)) for resource, amount in sorted(limits.items()) if "/" in resource),
    )


def _stage(
    spec: Mapping[str, Any], status: Mapping[str, Any], metadata: Mapping[str, Any], pod: Mapping[str, Any]
) -> tuple[JobStage, str, int | None]:
    """Return the stage, its reason, and the exit code of the command."""
    state = as_dict(next(iter(as_dicts(as_dict(pod.get("status")).get("containerStatuses"))), {}).get("state"))
    ended = as_dict(state.get("terminated"))
    code = ended.get("exitCode") if isinstance(ended.get("exitCode"), int) else None
    conditions = {str(each.get("type")): each for each in as_dicts(status.get("conditions"))}
    if _is_true(conditions, "Complete") or (code == 0 and not _is_true(conditions, "Failed")):
        return JobStage.SUCCEEDED, "", 0
    if _is_true(conditions, "Failed") or as_dict(pod.get("status")).get("phase") == "Failed":
        return JobStage.FAILED, _why_failed(conditions, pod, ended), code
    if state.get("running") is not None or code is not None:
        return JobStage.RUNNING, "", code
    return *_before_start(spec, metadata, pod, as_dict(_unpacking(pod).get("waiting") or state.get("waiting"))), None


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


def _before_start(
    spec: Mapping[str, Any], metadata: Mapping[str, Any], pod: Mapping[str, Any], waiting: Mapping[str, Any]
) -> tuple[JobStage, str]:
    if spec.get("suspend") and not pod:
        queue = as_dict(metadata.get("labels")).get(QUEUE_LABEL)
        return JobStage.QUEUED, f"pending in queue {queue}" if queue else "it is suspended"
    if not as_dict(pod.get("spec")).get("nodeName"):
        conditions = as_dicts(as_dict(pod.get("status")).get("conditions"))
        scheduled = next((each for each in conditions if each.get("type") == "PodScheduled"), {})
        return JobStage.PENDING, str(scheduled.get("message", ""))
    words = [str(waiting.get(part, "")) for part in ("reason", "message")]
    return JobStage.STARTING, ": ".join(filter(None, words)) if words[0] != _UNPACKING else ""


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


def _unpacking(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the container that unpacks the code; empty for none."""
    return as_dict(next(iter(as_dicts(as_dict(pod.get("status")).get("initContainerStatuses"))), {}).get("state"))


def _why_failed(conditions: Mapping[str, Any], pod: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    said = as_dict(pod.get("status"))
    if ended.get("exitCode") is not None:
        reason = str(ended.get("reason", ""))
        return f"its command ended with {ended['exitCode']}" + (f" ({reason})" if reason not in {"", "Error"} else "")
    unpacked = as_dict(_unpacking(pod).get("terminated"))
    if unpacked.get("exitCode"):
        words = str(unpacked.get("message") or f"exit code {unpacked['exitCode']}")
        return f"its code was not unpacked, which needs tar and gzip in the image: {words}"
    for each in (said, conditions.get("Failed", {})):
        words = ": ".join(filter(None, (str(each.get(part) or "") for part in ("reason", "message"))))
        if words:
            return words
    return ""


def _is_true(conditions: Mapping[str, Any], kind: str) -> bool:
    return bool(as_dict(conditions.get(kind)).get("status") == "True")
