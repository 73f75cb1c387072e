"""The Kubernetes objects of a model server: Deployment, Service, disruption budget, monitor, autoscaler."""

import datetime as dt
from typing import Any

import msgspec

from tessera.core.serving.annotations import IDLE, KIND, ONE_BY_ONE, SERVER_LABEL, SLOTS, WAKE
from tessera.core.serving.autoscaling.hpa import ScalingRules
from tessera.core.serving.autoscaling.hpabehavior import scaling_behavior
from tessera.core.serving.metrics.load import PASS_S
from tessera.core.serving.metrics.metricnames import QUEUE_TIME, REPLICAS
from tessera.core.serving.metrics.promql import queue_time_query
from tessera.core.serving.modelserver import ModelServer
from tessera.core.serving.render.engines import METRICS_PORT, EngineProgram, program
from tessera.core.serving.render.pods import labels, pod_template
from tessera.core.serving.serverstatus import StartedReplicas
from tessera.core.workload.need import Isolation
from tessera.core.workload.tesseranames import API_VERSION
from tessera.errors import InvalidInput

__all__ = ["render", "server_object"]


def render(
    server: ModelServer, subject: str, *, prometheus: str = "", started: StartedReplicas | None = None
) -> tuple[dict[str, Any], ...]:
    """Return the objects of a model server, the Deployment first.

    Where replicas start one by one, they are at most one more than are ready: these objects change as replicas become
    ready. Rendered without a cluster, the first ones start at once, and others by a clock.

    Args:
        server: its spec.
        subject: the server, for errors.
        prometheus: URL of the Prometheus that KEDA queries.
        started: its replicas in the cluster; None without one.

    Raises:
        InvalidInput: the spec is invalid; names the field.

    """
    runs = program(server, subject)
    one_by_one = runs.measures_memory and server.isolation is not Isolation.HARDWARE
    pace = _Pace(one_by_one=one_by_one, started=started if one_by_one else None)
    objects = [
        _deployment(server, runs, pace),
        _service(server, runs),
        _budget(server),
    ]
    if server.spec.monitor.enabled:
        objects.append(_monitor(server, runs))
    if server.scaled:
        by_keda = server.spec.autoscaling.autoscaler == "KEDA"
        objects.append(_scaled_object(server, pace, subject, prometheus) if by_keda else _autoscaler(server, pace))
    return tuple(objects)


class _Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas start."""

    one_by_one: bool
    """Whether they may share a GPU whose free memory they measure as they start."""
    started: StartedReplicas | None
    """Those of the cluster, where it matters; None elsewhere."""

    def limit(self, replicas: int) -> int:
        """Return how many of some replicas to request now."""
        return replicas if self.started is None else self.started.limit(replicas)


def server_object(
    server: ModelServer, version: str, kind: str, spec: dict[str, Any], more: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return an object of the server's name, owned by the ModelServer if it is one in a cluster."""
    metadata: dict[str, Any] = {"name": server.name, "labels": labels(server) | (more or {})}
    if server.namespace:
        metadata["namespace"] = server.namespace
    if server.uid:
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": server.name, "uid": server.uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _selector(server: ModelServer) -> dict[str, Any]:
    return {"matchLabels": {SERVER_LABEL: server.name}}


def _deployment(server: ModelServer, runs: EngineProgram, pace: _Pace) -> dict[str, Any]:
    # A replica is replaced when its successor is ready, which takes one more part of a GPU for a while. Of four or
    # more a quarter may be missing, whose successors start at once; of fewer that is none, because it is rounded down.
    missing = 0 if pace.one_by_one else "25%"
    spec: dict[str, Any] = {
        "selector": _selector(server),
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": missing}},
        "progressDeadlineSeconds": server.spec.startup_seconds + 600,
        "template": pod_template(server, runs),
    }
    fixed = {} if server.scaled else {"replicas": pace.limit(server.min_replicas)}
    deployment = server_object(server, "apps/v1", "Deployment", {**fixed, **spec})
    if annotations := _annotations(server, runs, pace):
        deployment["metadata"]["annotations"] = annotations
    return deployment


def _annotations(server: ModelServer, runs: EngineProgram, pace: _Pace) -> dict[str, str]:
    """Return the annotations of the Deployment for `tessera metrics`."""
    scaling, found = server.spec.autoscaling, dict[str, str]()
    if server.scaled and pace.one_by_one:
        found[ONE_BY_ONE] = "true"
    if slots := scaling.slots or runs.slots:
        found[SLOTS] = f"{slots}"
    if server.scales_to_zero:
        found[IDLE] = f"{scaling.idle_seconds}"
        if server.woken_s is not None:
            found[WAKE] = dt.datetime.fromtimestamp(server.woken_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def _service(server: ModelServer, runs: EngineProgram) -> dict[str, Any]:
    expose = server.spec.expose
    address = {"clusterIP": "None"} if expose.type == "Headless" else {"type": expose.type}
    ports = [{"name": each.name, "port": each.number, "targetPort": each.target} for each in runs.ports]
    # Clients outside of the cluster do not need the metrics.
    outside = expose.type == "LoadBalancer"
    spec = {
        **address,
        "selector": {SERVER_LABEL: server.name},
        "ports": [each for each in ports if not (outside and each["port"] == METRICS_PORT)],
    }
    service = server_object(server, "v1", "Service", spec)
    if expose.annotations:
        service["metadata"]["annotations"] = dict(expose.annotations)
    return service


def _budget(server: ModelServer) -> dict[str, Any]:
    # A replica that cannot start must not keep its node from being drained.
    spec = {"maxUnavailable": 1, "selector": _selector(server), "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return server_object(server, "policy/v1", "PodDisruptionBudget", spec)


def _monitor(server: ModelServer, runs: EngineProgram) -> dict[str, Any]:
    port = next(each.target for each in runs.ports if each.name == "metrics")
    spec = {
        "selector": _selector(server),
        # So that a server's series are found by its name, whatever its pods are called.
        "podTargetLabels": [SERVER_LABEL],
        "podMetricsEndpoints": [{"port": port, "path": "/metrics", "interval": f"{PASS_S}s"}],
    }
    return server_object(server, "monitoring.coreos.com/v1", "PodMonitor", spec, dict(server.spec.monitor.labels))


def _target(server: ModelServer) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": server.name}


def _bounds(server: ModelServer, pace: _Pace) -> tuple[int, int]:
    """Return the fewest and most replicas that an autoscaler requests now; `tessera_replicas` waits by itself."""
    by_queue_time = server.spec.autoscaling.metric == "queue-time"
    return pace.limit(server.min_replicas), pace.limit(server.max_replicas) if by_queue_time else server.max_replicas


def _behavior(server: ModelServer, pace: _Pace) -> dict[str, Any]:
    """Return how fast replicas scale."""
    by_clock = pace.one_by_one and pace.started is None
    found = scaling_behavior(server.spec.autoscaling.metric, one_by_one=by_clock)
    return {"scaleUp": _direction(found.up), "scaleDown": _direction(found.down)}


def _direction(scaling: ScalingRules) -> dict[str, Any]:
    policies = [
        {"type": each.type, "value": each.value, "periodSeconds": int(each.period_s)} for each in scaling.policies
    ]
    return {
        "stabilizationWindowSeconds": int(scaling.window_s),
        "selectPolicy": scaling.select,
        "policies": policies,
    }


def _autoscaler(server: ModelServer, pace: _Pace) -> dict[str, Any]:
    scaling, (min_replicas, max_replicas) = server.spec.autoscaling, _bounds(server, pace)
    metric: dict[str, Any]
    if scaling.metric == "tessera":
        # One for each desired replica: the autoscaler's arithmetic gives the number itself.
        named = {"name": REPLICAS, "selector": _selector(server)}
        target = {"type": "AverageValue", "averageValue": "1"}
        metric = {"type": "External", "external": {"metric": named, "target": target}}
    else:
        target = {"type": "AverageValue", "averageValue": f"{scaling.queue_time_millis}m"}
        metric = {"type": "Pods", "pods": {"metric": {"name": QUEUE_TIME}, "target": target}}
    spec = {
        "scaleTargetRef": _target(server),
        # Scaling to zero is the controller's: clusters refuse 0 here before Kubernetes 1.37.
        "minReplicas": max(1, min_replicas),
        "maxReplicas": max_replicas,
        "metrics": [metric],
        "behavior": _behavior(server, pace),
    }
    return server_object(server, "autoscaling/v2", "HorizontalPodAutoscaler", spec)


def _scaled_object(server: ModelServer, pace: _Pace, subject: str, prometheus: str) -> dict[str, Any]:
    if not prometheus:
        raise InvalidInput(
            f"{subject}: spec.autoscaling.autoscaler",
            found="KEDA needs the URL of a Prometheus",
            hint="give --prometheus http://prometheus.monitoring:9090 to `tessera render` and `tessera controller`",
        )
    if not server.namespace:
        raise InvalidInput(
            f"{subject}: metadata.namespace",
            found="KEDA's query would count servers of this name in all namespaces",
            hint="name the namespace",
        )
    min_replicas, max_replicas = _bounds(server, pace)
    metadata = {
        "serverAddress": prometheus,
        "query": queue_time_query(server.spec.engine, server.name, server.namespace),
        "threshold": f"{server.spec.autoscaling.queue_time_millis / 1000:g}",
        # Without the series there is no value: no answer must not read as no wait.
        "ignoreNullValues": "false",
    }
    spec = {
        "scaleTargetRef": _target(server),
        "minReplicaCount": min_replicas,
        "maxReplicaCount": max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(server, pace)}},
        "fallback": {"failureThreshold": 3, "replicas": min_replicas, "behavior": "currentReplicasIfHigher"},
        "triggers": [{"type": "prometheus", "metricType": "Value", "metadata": metadata}],
    }
    return server_object(server, "keda.sh/v1alpha1", "ScaledObject", spec)
