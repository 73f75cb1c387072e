"""The pod of a model server: container, probes, volumes, and what Kubernetes needs to run it."""

from typing import Any, Final

import msgspec

from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.modelserver import MODELS, ModelServer, Probes
from tessera.core.serving.render.engines import DRAIN_SECONDS, EngineProgram
from tessera.core.workload.kubernetesnames import HOSTNAME
from tessera.core.workload.need import Isolation
from tessera.core.workload.resources import GPU_COMPUTE, GPU_MEMORY, MODEL_RESOURCE, SCHEDULER_NAME
from tessera.core.workload.tesseranames import GPU_MODEL, ISOLATION

__all__ = ["gpu_limits", "labels", "pod_template"]

_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # the mount point, not a file of ours
_STARTUP_PERIOD_S: Final = 10
"""A replica is observed to be ready this soon, however seldom it is probed later."""


def labels(server: ModelServer) -> dict[str, str]:
    """Return the labels of all objects of a server."""
    return {
        "app.kubernetes.io/name": server.spec.engine,
        "app.kubernetes.io/instance": server.name,
        "app.kubernetes.io/managed-by": "tessera",
        SERVER_LABEL: server.name,
    }


def gpu_limits(server: ModelServer) -> dict[str, str]:
    """Return the extended resources of the container: the part of a GPU, and the cached model."""
    spec = server.spec
    limits = {} if spec.model.cache is None else {f"{MODEL_RESOURCE}{spec.model.cache}": "1"}
    if spec.gpu.resource is not None:
        return {spec.gpu.resource: str(spec.gpu.count), **limits}
    compute = {} if spec.gpu.compute is None else {GPU_COMPUTE: str(spec.gpu.compute)}
    return {GPU_MEMORY: str(spec.gpu.memory_gib), **compute, **limits}


def pod_template(server: ModelServer, program: EngineProgram, *, serving: bool = True) -> dict[str, Any]:
    """Return the template of the pods.

    Args:
        server: the model server.
        program: what the container runs.
        serving: whether it listens; a Job does not, and the server's Service must not select its pods.

    """
    spec = server.spec
    requested = server.isolation
    annotations = {
        **({ISOLATION: requested.value} if requested is not None else {}),
        **({GPU_MODEL: ", ".join(spec.gpu.models)} if spec.gpu.models else {}),
    }
    carried = {each: text for each, text in labels(server).items() if serving or each != SERVER_LABEL}
    metadata: dict[str, Any] = {"labels": carried, **({"annotations": annotations} if annotations else {})}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security(spec.run_as_user),
        "containers": [_container(server, program, serving=serving)],
        "volumes": _volumes(server),
    }
    if spec.gpu.resource is None:
        pod["schedulerName"] = SCHEDULER_NAME
    if serving:
        pod |= {
            "terminationGracePeriodSeconds": spec.termination_grace_period_seconds,
            "topologySpreadConstraints": [_spread(server)],
        }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": each} for each in spec.image_pull_secrets]
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if tolerations := [msgspec.to_builtins(each) for each in spec.tolerations]:
        pod["tolerations"] = tolerations
    return {"metadata": metadata, "spec": pod}


def _security(user: int) -> dict[str, Any]:
    """Return the security context of a server: the spec always names its user, to whom its volumes are given.

    That of `tessera run` (`api/kubernetes/jobs`) is weaker where nobody named a user: it must admit every image.
    """
    return {
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "runAsNonRoot": user != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _spread(server: ModelServer) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {SERVER_LABEL: server.name}},
    }


def _container(server: ModelServer, program: EngineProgram, *, serving: bool) -> dict[str, Any]:
    spec = server.spec
    # The user has no home of its own in the image; caches of compiled kernels need a writable folder.
    own = {"HOME": "/tmp", "USER": "server"}  # noqa: S108  # an emptyDir of the pod
    env = [{"name": name, "value": value} for name, value in own.items() if name not in {e.name for e in spec.env}]
    container: dict[str, Any] = {
        "name": spec.engine if serving else "batch",
        "image": spec.image,
        **({"command": list(program.command)} if program.command else {}),
        **({"args": list(program.args)} if program.args else {}),
        "env": [*env, *(msgspec.to_builtins(each) for each in spec.env)],
        "resources": {
            "requests": {"cpu": spec.resources.cpu, "memory": spec.resources.memory},
            "limits": {"memory": spec.resources.memory, **gpu_limits(server)},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": _mounts(server),
    }
    if serving:
        container |= _serving(server, program)
    return container


def _serving(server: ModelServer, program: EngineProgram) -> dict[str, Any]:
    probes = server.spec.probes
    # The first probe may come at once: so many failures take one period less.
    failures = -(-server.spec.startup_seconds // _STARTUP_PERIOD_S) + 1
    startup = _probe(program.ready, probes, failures=failures) | {"periodSeconds": _STARTUP_PERIOD_S}
    return {
        "ports": [
            {"name": each.name, "containerPort": each.number} for each in program.ports if each.name == each.target
        ],
        "startupProbe": startup,
        "readinessProbe": _probe(program.ready, probes, failures=probes.readiness_failures),
        "livenessProbe": _probe(program.live, probes, failures=probes.liveness_failures),
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
    }


def _probe(path: str, probes: Probes, *, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": probes.period_seconds,
        "timeoutSeconds": probes.timeout_seconds,
        "failureThreshold": failures,
    }


def _volumes(server: ModelServer) -> list[dict[str, Any]]:
    spec = server.spec
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if _has_shared_memory(server):
        size = spec.resources.shared_memory
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    model = spec.model
    if model.claim is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": model.claim, "readOnly": True}})
    elif model.nfs is not None:
        nfs = {"server": model.nfs.server, "path": model.nfs.path, "readOnly": True}
        volumes.append({"name": "model", "nfs": nfs})
    elif model.host_path is not None:
        volumes.append({"name": "model", "hostPath": {"path": model.host_path, "type": "Directory"}})
    return volumes


def _mounts(server: ModelServer) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108  # an emptyDir of the pod
    if _has_shared_memory(server):
        mounts.append({"name": "shared-memory", "mountPath": _SHARED_MEMORY})
    if server.spec.model.cache is None:
        # A cached model is mounted by the agent's device plugin.
        mounts.append({"name": "model", "mountPath": f"{MODELS}/{server.model}", "readOnly": True})
    return mounts


def _has_shared_memory(server: ModelServer) -> bool:
    """Return whether the pod may have /dev/shm of its own: an MPS client must see that of the MPS daemon."""
    return server.isolation is Isolation.HARDWARE
