"""Work submitted by a command, as a Job of one pod, and its state."""

import base64
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

__all__ = [
    "ARCHIVE",
    "BEGUN",
    "BY_RUN",
    "CODE_FOLDER",
    "LEFT_AFTER_S",
    "NOTEBOOK_KEY",
    "NOTEBOOK_PORT",
    "OF_JOB",
    "QUEUED_JOB",
    "JobRequest",
    "JobStage",
    "JobState",
    "job_object",
    "job_selection",
    "notebook_command",
    "own_secret",
    "owned_by",
    "read_job",
    "secret_of",
]

BY_RUN: Final = (("app.kubernetes.io/managed-by", "tessera-run"),)
"""Label of Jobs created by `tessera run`."""
_BEGUN: Final = "tessera.dev/submission"
"""Label of a Job's own Secret: `begun` until it is deleted with its Job. Set by `tessera run`; read by `tessera run`
and `tessera stop`."""
BEGUN: Final = (*BY_RUN, (_BEGUN, "begun"))
"""Labels of a Job's own Secret that is not yet owned by the Job: the Secret is created first."""
LEFT_AFTER_S: Final = 600
"""A Secret of an older submission that no Job needs was left by an interrupted one."""
OF_JOB: Final = "batch.kubernetes.io/job-name"
"""Label of a Job's pods. Source: Kubernetes API, `batch/v1` (`JobNameLabel`)."""
_QUEUE: Final = "kueue.x-k8s.io/queue-name"
QUEUED_JOB: Final = "kueue.x-k8s.io/job-uid"
"""Label of Kueue's Workloads: the Job that each is about. Source: kubernetes-sigs/kueue `pkg/controller/constants`."""
_KEPT_S: Final = 86_400
"""A Job that has ended is deleted after a day."""
_CULL_INTERVAL_S: Final = 60
_JUPYTERLAB: Final = """\
import sys
sys.path[:] = filter(None, sys.path)
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.contents.handlers import ContentsHandler
from jupyterlab.labapp import main
APIHandler._track_activity = False
ContentsHandler._track_activity = property(lambda handler: handler.request.method != "GET")
main()
"""
"""Starts JupyterLab, to which of all API requests changed files alone are activity: its page reads kernels, sessions
and files every 10 s, and saves its layout. Modules are not searched in the folder of the code. Source: Jupyter Server,
`base/handlers.py` (`APIHandler._track_activity`)."""
_MAIN: Final = "main"
_UNPACK: Final = "unpack-code"
_ARCHIVE_VOLUME: Final = "archive"
ARCHIVE: Final = "code.tar.gz"
"""Key of a Job's own Secret: the archive of its code."""
NOTEBOOK_KEY: Final = "token"
"""Key of a Job's own Secret: what opens its notebook."""
NOTEBOOK_PORT: Final = 8888
_OPENED_BY: Final = "JUPYTER_TOKEN"
"""Source: Jupyter Server, `jupyter_server.auth.identity` (`IdentityProvider.token`)."""
_UNPACKING: Final = "PodInitializing"
"""Why a container waits for earlier ones. Source: Kubernetes, kubelet `PodInitializing`."""
_CREATING: Final = re.compile(r'^Error creating: pods "[^"]*" is ')
"""The pod's name changes each time. Source: Kubernetes, `controller_utils.go` (`FailedCreatePodReason`)."""
CODE_FOLDER: Final = "/code"
"""A pod's folder with its code, and its working directory."""


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The work to run."""

    name: str = ""
    """Empty to let the API server generate one from `prefix`."""
    prefix: str = "run-"
    namespace: str
    image: str
    command: tuple[str, ...] = ()
    """Empty for the image's own."""
    limits: Mapping[str, str] = {}
    """Amounts by resource."""
    annotations: Mapping[str, str] = {}
    """Of the pod."""
    scheduler: str = ""
    """Name of the scheduler; empty for the cluster's default."""
    env: tuple[tuple[str, str], ...] = ()
    env_secrets: tuple[tuple[str, str, str], ...] = ()
    """Variables from Secrets: name, Secret, key."""
    secrets: tuple[str, ...] = ()
    """Secrets whose keys are variables."""
    secret_folders: tuple[tuple[str, str], ...] = ()
    """Secrets whose keys are files: name, folder."""
    claims: tuple[tuple[str, str], ...] = ()
    """PersistentVolumeClaims that it mounts read-only: name, folder."""
    queue: str = ""
    """Kueue's LocalQueue; empty for none."""
    secret: str = ""
    """Name of its own Secret, with `ARCHIVE` or `NOTEBOOK_KEY` or both; empty for none."""
    code: bool = False
    """Whether it has code."""
    notebook: bool = False
    """Whether its command is a notebook's."""
    user: int = 0
    """User id of its processes; 0 for the image's own user."""


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
    asks: tuple[tuple[str, str], ...] = ()
    """Amounts of GPUs and models by resource."""
    token_secret: str = ""
    """Secret with the token of its notebook; empty where it has none."""
    by_run: bool = False
    """Whether `tessera run` or `notebook` created it."""


def job_object(requested: JobRequest) -> dict[str, Any]:
    """Return the Job: one pod, never restarted, without a service account token.

    Code is unpacked by the image's own `tar` before the command starts, into the folder where that starts.
    """
    env: list[dict[str, Any]] = [{"name": name, "value": _literal(value)} for name, value in requested.env]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, secret, key in requested.env_secrets
    ]
    if requested.notebook:
        env.append({"name": _OPENED_BY, "valueFrom": {"secretKeyRef": {"name": requested.secret, "key": NOTEBOOK_KEY}}})
    container: dict[str, Any] = {"name": _MAIN, "image": requested.image}
    if requested.command:
        container["command"] = list(map(_literal, requested.command))
    if env:
        container["env"] = env
    if requested.secrets:
        container["envFrom"] = [{"secretRef": {"name": each}} for each in requested.secrets]
    if requested.limits:
        container["resources"] = {"limits": dict(requested.limits)}
    pod: dict[str, Any] = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    if requested.scheduler:
        pod["schedulerName"] = requested.scheduler
    _with_folders(requested, pod)
    if requested.code:
        _with_code(requested, pod)
    _restrict(pod, requested.user)
    labels = dict(BY_RUN)
    template: dict[str, Any] = {"metadata": {"labels": labels}, "spec": pod}
    if requested.annotations:
        template["metadata"]["annotations"] = dict(requested.annotations)
    spec: dict[str, Any] = {"backoffLimit": 0, "ttlSecondsAfterFinished": _KEPT_S, "template": template}
    if requested.queue:
        labels = {**labels, _QUEUE: requested.queue}
        spec["suspend"] = True
    named = {"name": requested.name} if requested.name else {"generateName": requested.prefix}
    metadata = {**named, "namespace": requested.namespace, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _restrict(pod: dict[str, Any], user: int) -> None:
    """Restrict a pod as far as every image allows, and with a user as `restricted` requires.

    Source: Kubernetes, Pod Security Standards.
    """
    own: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    each_container: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if user:
        own |= {"runAsNonRoot": True, "runAsUser": user}
        each_container["capabilities"] = {"drop": ["ALL"]}
    pod["securityContext"] = own
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container["securityContext"] = each_container


def _literal(text: str) -> str:
    """Escape a text for the kubelet: it expands `$(NAME)`, and takes `$$` for `$`.

    Source: Kubernetes API, `core/v1` (`Container.Command`, `EnvVar.Value`).
    """
    return re.sub(r"\$(?=[$(])", "$$", text)


def _with_folders(requested: JobRequest, pod: dict[str, Any]) -> None:
    """Add the read-only folders to a pod."""
    sources: list[tuple[str, dict[str, Any]]] = [
        *((folder, {"secret": {"secretName": name}}) for name, folder in requested.secret_folders),
        *(
            (folder, {"persistentVolumeClaim": {"claimName": name, "readOnly": True}})
            for name, folder in requested.claims
        ),
    ]
    for number, (folder, source) in enumerate(sources):
        volume = f"folder-{number}"
        pod.setdefault("volumes", []).append({"name": volume, **source})
        mount = {"name": volume, "mountPath": folder, "readOnly": True}
        pod["containers"][0].setdefault("volumeMounts", []).append(mount)


def _with_code(requested: JobRequest, pod: dict[str, Any]) -> None:
    """Add the code to a pod."""
    archive = {"name": _ARCHIVE_VOLUME, "mountPath": "/archive", "readOnly": True}
    target = {"name": "code", "mountPath": CODE_FOLDER}
    unpack: dict[str, Any] = {
        "name": _UNPACK,
        "image": requested.image,
        "command": ["tar", "-xzf", f"/archive/{ARCHIVE}", "-C", CODE_FOLDER],
        "volumeMounts": [archive, target],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if limits := {kind: amount for kind, amount in requested.limits.items() if kind in {"cpu", "memory"}}:
        unpack["resources"] = {"limits": limits}
    pod["initContainers"] = [unpack]
    main = pod["containers"][0]
    main |= {"workingDir": CODE_FOLDER, "volumeMounts": [target, *main.get("volumeMounts", ())]}
    own = {"secretName": requested.secret, "items": [{"key": ARCHIVE, "path": ARCHIVE}]}
    bring = ({"name": _ARCHIVE_VOLUME, "secret": own}, {"name": "code", "emptyDir": {}})
    pod["volumes"] = [*bring, *pod.get("volumes", ())]


def own_secret(requested: JobRequest, files: Mapping[str, bytes], *, begun: bool = False) -> dict[str, Any]:
    """Return the Secret of a Job with these files; labeled as begun until `owned_by`, if the submission has begun."""
    labels = dict(BEGUN if begun else BY_RUN)
    metadata: dict[str, Any] = {"name": requested.secret, "namespace": requested.namespace, "labels": labels}
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": data}


def owned_by(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that makes a Job the owner of its Secret, so that they are deleted together."""
    own = _dict(job.get("metadata"))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": own.get("name"), "uid": own.get("uid")}
    return {"metadata": {"labels": {_BEGUN: None}, "ownerReferences": [owner]}}


def secret_of(job: Mapping[str, Any]) -> str:
    """Return the name of a Job's own Secret; empty for none."""
    pod = _dict(_dict(_dict(job.get("spec")).get("template")).get("spec"))
    archive = next((each for each in _dicts(pod.get("volumes")) if each.get("name") == _ARCHIVE_VOLUME), {})
    container = next(iter(_dicts(pod.get("containers"))), {})
    return str(_dict(archive.get("secret")).get("secretName", "")) or _token_secret(container)


def notebook_command(idle_s: int) -> tuple[str, ...]:
    """Return the command of JupyterLab, reachable only from its own pod and with its token, which ends when idle.

    Idle kernels and terminals are ended, even while a browser shows them; without any of them, and without a changed
    file, the server ends as well. Source: Jupyter Server, `jupyter lab --help-all`.

    Args:
        idle_s: the time without work in seconds.

    """
    return (
        *("python3", "-c", _JUPYTERLAB),
        *("--ip=127.0.0.1", f"--port={NOTEBOOK_PORT}", "--ServerApp.port_retries=0"),
        *("--no-browser", "--allow-root"),
        f"--ServerApp.shutdown_no_activity_timeout={idle_s}",
        f"--MappingKernelManager.cull_idle_timeout={idle_s}",
        f"--MappingKernelManager.cull_interval={min(idle_s, _CULL_INTERVAL_S)}",
        "--MappingKernelManager.cull_connected=True",
        f"--TerminalManager.cull_inactive_timeout={idle_s}",
    )


def job_selection(name: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a Job's pods."""
    return ((OF_JOB, name),)


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
    metadata, spec, status = (_dict(job.get(part)) for part in ("metadata", "spec", "status"))
    name = str(metadata.get("name", ""))
    own = [
        each
        for each in pods
        if _labels(each).get(OF_JOB) == name
        and _dict(each.get("metadata")).get("namespace") == metadata.get("namespace")
    ]
    pod: Mapping[str, Any] = max(
        own, key=lambda each: str(_dict(each.get("metadata")).get("creationTimestamp", "")), default={}
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
    container = next(iter(_dicts(_dict(_dict(spec.get("template")).get("spec")).get("containers"))), {})
    limits = _dict(_dict(container.get("resources")).get("limits"))
    return JobState(
        name=name,
        namespace=str(metadata.get("namespace", "")),
        stage=stage,
        reason="".join(each if each.isprintable() else "\ufffd" for each in " ".join(reason.split())),
        pod=str(_dict(pod.get("metadata")).get("name", "")),
        node=str(_dict(pod.get("spec")).get("nodeName", "")),
        exit_code=exit_code,
        created=str(metadata.get("creationTimestamp", "")),
        token_secret=_token_secret(container),
        by_run=all(_dict(metadata.get("labels")).get(key) == value for key, value in BY_RUN),
        asks=tuple((resource, str(amount)) for resource, amount in sorted(limits.items()) if "/" in resource),
    )


def _token_secret(container: Mapping[str, Any]) -> str:
    variable = next((each for each in _dicts(container.get("env")) if each.get("name") == _OPENED_BY), {})
    reference = _dict(_dict(variable.get("valueFrom")).get("secretKeyRef"))
    return str(reference.get("name", "")) if reference.get("key") == NOTEBOOK_KEY else ""


def _stage(
    spec: Mapping[str, Any], status: Mapping[str, Any], metadata: Mapping[str, Any], pod: Mapping[str, Any]
) -> tuple[JobStage, str, int | None]:
    """Return the stage, its reason, and the exit code of the command."""
    state = _dict(next(iter(_dicts(_dict(pod.get("status")).get("containerStatuses"))), {}).get("state"))
    ended = _dict(state.get("terminated"))
    code = ended.get("exitCode") if isinstance(ended.get("exitCode"), int) else None
    conditions = {str(each.get("type")): each for each in _dicts(status.get("conditions"))}
    if _is_true(conditions, "Complete") or (code == 0 and not _is_true(conditions, "Failed")):
        return JobStage.SUCCEEDED, "", 0
    if _is_true(conditions, "Failed") or _dict(pod.get("status")).get("phase") == "Failed":
        return JobStage.FAILED, _why_failed(conditions, pod, ended), code
    if state.get("running") is not None or code is not None:
        return JobStage.RUNNING, "", code
    return *_before_start(spec, metadata, pod, _dict(_unpacking(pod).get("waiting") or state.get("waiting"))), None


def _stage_of_parts(parts: int, status: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> JobStage:
    """Return the stage of a Job of several parts, of which some may run while others end or wait."""
    conditions = {str(each.get("type")): each for each in _dicts(status.get("conditions"))}
    if _is_true(conditions, "Failed"):
        return JobStage.FAILED
    if _is_true(conditions, "Complete") or _count(status, "succeeded") >= parts:
        return JobStage.SUCCEEDED
    started = any(_dict(each.get("status")).get("phase") == "Running" for each in pods)
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
        queue = _dict(metadata.get("labels")).get(_QUEUE)
        return JobStage.QUEUED, f"pending in queue {queue}" if queue else "it is suspended"
    if not _dict(pod.get("spec")).get("nodeName"):
        conditions = _dicts(_dict(pod.get("status")).get("conditions"))
        scheduled = next((each for each in conditions if each.get("type") == "PodScheduled"), {})
        return JobStage.PENDING, str(scheduled.get("message", ""))
    words = [str(waiting.get(part, "")) for part in ("reason", "message")]
    return JobStage.STARTING, ": ".join(filter(None, words)) if words[0] != _UNPACKING else ""


def _why_no_pod(metadata: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """Return the last failure of a Job without pod."""
    own = [
        each
        for each in events
        if each.get("type") == "Warning" and _dict(each.get("involvedObject")).get("uid") == metadata.get("uid")
    ]
    newest = max(own, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""), default={})
    return _CREATING.sub("its pod is ", str(newest.get("message", "")))


def _why_queued(metadata: Mapping[str, Any], workloads: Iterable[Mapping[str, Any]]) -> str:
    """Return Kueue's reason why a Job is not admitted.

    Source: kubernetes-sigs/kueue `apis/kueue/v1beta2/workload_types.go` (`WorkloadQuotaReserved`, `WorkloadAdmitted`).
    """
    uid = metadata.get("uid")
    own = [each for each in workloads if uid and _labels(each).get(QUEUED_JOB) == uid]
    newest = max(own, key=lambda each: str(_dict(each.get("metadata")).get("creationTimestamp", "")), default={})
    conditions = {str(each.get("type")): each for each in _dicts(_dict(newest.get("status")).get("conditions"))}
    waiting = next((kind for kind in ("QuotaReserved", "Admitted") if not _is_true(conditions, kind)), "")
    return str(_dict(conditions.get(waiting)).get("message", ""))


def _labels(body: Mapping[str, Any]) -> dict[str, Any]:
    return _dict(_dict(body.get("metadata")).get("labels"))


def _unpacking(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the container that unpacks the code; empty for none."""
    return _dict(next(iter(_dicts(_dict(pod.get("status")).get("initContainerStatuses"))), {}).get("state"))


def _why_failed(conditions: Mapping[str, Any], pod: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    said = _dict(pod.get("status"))
    if ended.get("exitCode") is not None:
        reason = str(ended.get("reason", ""))
        return f"its command ended with {ended['exitCode']}" + (f" ({reason})" if reason not in {"", "Error"} else "")
    unpacked = _dict(_unpacking(pod).get("terminated"))
    if unpacked.get("exitCode"):
        words = str(unpacked.get("message") or f"exit code {unpacked['exitCode']}")
        return f"its code was not unpacked, which needs tar and gzip in the image: {words}"
    for each in (said, conditions.get("Failed", {})):
        words = ": ".join(filter(None, (str(each.get(part) or "") for part in ("reason", "message"))))
        if words:
            return words
    return ""


def _is_true(conditions: Mapping[str, Any], kind: str) -> bool:
    return bool(_dict(conditions.get(kind)).get("status") == "True")


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Sequence[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
