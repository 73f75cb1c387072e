"""Work submitted by a command, as a Job of one pod."""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tessera.api.untyped import as_dict, as_dicts
from tessera.core.gpu.sharing import GPU_RESOURCE, names_device
from tessera.core.workload.resources import GPU_MEMORY

__all__ = [
    "ARCHIVE",
    "BEGUN",
    "BY_RUN",
    "CODE_FOLDER",
    "LEFT_AFTER_S",
    "NOTEBOOK_KEY",
    "NOTEBOOK_VARIABLE",
    "OF_JOB",
    "QUEUE_LABEL",
    "JobRequest",
    "WorkRequest",
    "job_object",
    "job_selection",
    "own_secret",
    "owned_by",
    "secret_of",
    "token_secret_of",
]

BY_RUN: Final = (("app.kubernetes.io/managed-by", "tessera-run"),)
"""Label of Jobs, their pods and Secrets created by `tessera run` and `notebook`."""
_BEGUN: Final = "tessera.dev/submission"
"""Label of a Job's own Secret: `begun` until it is deleted with its Job. Set by `tessera run`; read by `tessera run`
and `tessera stop`."""
BEGUN: Final = (*BY_RUN, (_BEGUN, "begun"))
"""Labels of a Job's own Secret that is not yet owned by the Job: the Secret is created first."""
LEFT_AFTER_S: Final = 600
"""A Secret of an older submission that no Job needs was left by an interrupted one."""
OF_JOB: Final = "batch.kubernetes.io/job-name"
"""Label of a Job's pods. Source: Kubernetes API, `batch/v1` (`JobNameLabel`)."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Label of objects that a LocalQueue of Kueue admits. Source: kubernetes-sigs/kueue `pkg/controller/constants`."""
_KEPT_S: Final = 86_400
"""A Job that has ended is deleted after a day."""
_MAIN: Final = "main"
_UNPACK: Final = "unpack-code"
_ARCHIVE_VOLUME: Final = "archive"
ARCHIVE: Final = "code.tar.gz"
"""Key of a Job's own Secret: the archive of its code."""
NOTEBOOK_KEY: Final = "token"
"""Key of a Job's own Secret: its notebook's token."""
NOTEBOOK_VARIABLE: Final = "JUPYTER_TOKEN"
"""Variable with the token of a notebook, by which it is known. Source: Jupyter Server,
`jupyter_server.auth.identity` (`IdentityProvider.token`)."""
CODE_FOLDER: Final = "/code"
"""A pod's folder with its code, and its working directory."""
_GPU_TOLERATION: Final = {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
"""Tolerates the taint of GPU nodes. Source: Kubernetes,
`plugin/pkg/admission/extendedresourcetoleration`, which adds it to pods that request `nvidia.com/gpu` alone, in
clusters that have that admission plugin."""


class WorkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The work to run, in an image that is chosen later."""

    name: str = ""
    """Empty to let the API server generate one from `prefix`."""
    prefix: str = "run-"
    namespace: str
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
    own_secret: str = ""
    """Name of its own Secret, with `ARCHIVE` or `NOTEBOOK_KEY` or both; empty for none."""
    code: bool = False
    """Whether it has code."""
    notebook: bool = False
    """Whether its command is a notebook's."""
    user: int = 0
    """User id of its processes; 0 for the image's own user."""

    def in_image(self, image: str) -> "JobRequest":
        """Return the same work in an image."""
        return JobRequest(image=image, **{name: getattr(self, name) for name in WorkRequest.__struct_fields__})


class JobRequest(WorkRequest, frozen=True, kw_only=True):
    """The work to run, with its image."""

    image: str


def job_object(requested: JobRequest) -> dict[str, Any]:
    """Return the Job: one pod, never restarted, without a service account token.

    One that requests GPUs or a part of one tolerates the taint that GPU nodes have on GKE and elsewhere.
    Code is unpacked by the image's own `tar` before the command starts, into the folder where that starts.
    """
    env: list[dict[str, Any]] = [{"name": name, "value": _literal(value)} for name, value in requested.env]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, secret, key in requested.env_secrets
    ]
    if requested.notebook:
        token = {"secretKeyRef": {"name": requested.own_secret, "key": NOTEBOOK_KEY}}
        env.append({"name": NOTEBOOK_VARIABLE, "valueFrom": token})
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
    _with_scheduling(requested, pod)
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
        labels = {**labels, QUEUE_LABEL: requested.queue}
        spec["suspend"] = True
    named = {"name": requested.name} if requested.name else {"generateName": requested.prefix}
    metadata = {**named, "namespace": requested.namespace, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _with_scheduling(requested: JobRequest, pod: dict[str, Any]) -> None:
    """Add the scheduler to a pod, and the toleration of GPU nodes if it requests GPUs."""
    if requested.scheduler:
        pod["schedulerName"] = requested.scheduler
    if any(resource == GPU_MEMORY or names_device(resource) for resource in requested.limits):
        pod["tolerations"] = [dict(_GPU_TOLERATION)]


def _restrict(pod: dict[str, Any], user: int) -> None:
    """Restrict a pod as far as every image allows, and with a user as `restricted` requires.

    Unlike a model server's (`core/serving/render/pods`): its image is the user's, who may need root in it.

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
    own = {"secretName": requested.own_secret, "items": [{"key": ARCHIVE, "path": ARCHIVE}]}
    bring = ({"name": _ARCHIVE_VOLUME, "secret": own}, {"name": "code", "emptyDir": {}})
    pod["volumes"] = [*bring, *pod.get("volumes", ())]


def own_secret(requested: WorkRequest, files: Mapping[str, bytes], *, begun: bool = False) -> dict[str, Any]:
    """Return the Secret of a Job with these files; labeled as begun until `owned_by`, if the submission has begun."""
    labels = dict(BEGUN if begun else BY_RUN)
    metadata: dict[str, Any] = {"name": requested.own_secret, "namespace": requested.namespace, "labels": labels}
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": data}


def owned_by(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that makes a Job the owner of its Secret, so that they are deleted together."""
    own = as_dict(job.get("metadata"))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": own.get("name"), "uid": own.get("uid")}
    return {"metadata": {"labels": {_BEGUN: None}, "ownerReferences": [owner]}}


def secret_of(job: Mapping[str, Any]) -> str:
    """Return the name of a Job's own Secret; empty for none."""
    pod = as_dict(as_dict(as_dict(job.get("spec")).get("template")).get("spec"))
    archive = next((each for each in as_dicts(pod.get("volumes")) if each.get("name") == _ARCHIVE_VOLUME), {})
    container = next(iter(as_dicts(pod.get("containers"))), {})
    return str(as_dict(archive.get("secret")).get("secretName", "")) or token_secret_of(container)


def job_selection(name: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a Job's pods."""
    return ((OF_JOB, name),)


def token_secret_of(container: Mapping[str, Any]) -> str:
    """Return the name of the Secret with the token of a notebook; empty for another container."""
    variable = next((each for each in as_dicts(container.get("env")) if each.get("name") == NOTEBOOK_VARIABLE), {})
    reference = as_dict(as_dict(variable.get("valueFrom")).get("secretKeyRef"))
    return str(reference.get("name", "")) if reference.get("key") == NOTEBOOK_KEY else ""
