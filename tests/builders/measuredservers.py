"""A model server's objects: its Deployment, pods, HorizontalPodAutoscaler, and what its pods expose."""

from typing import Any

SERVER = "serving.tessera.dev/server"


def deployment(name: str = "llm", *, replicas: int = 1, **annotations: str) -> dict[str, Any]:
    """Return a Deployment; annotations by the part of their name after the slash, `_` for `-`."""
    given = {f"serving.tessera.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {SERVER: name}, "annotations": given},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "engine"}]}}},
    }


def autoscaler(
    name: str = "llm", *, min_replicas: int | None = 1, max_replicas: int = 5, metric: str = "tessera_replicas"
) -> dict[str, Any]:
    """Return a HorizontalPodAutoscaler of a Deployment."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    asked = {"type": "External", "external": {"metric": {"name": metric}}}
    spec = {
        "scaleTargetRef": target,
        "maxReplicas": max_replicas,
        "metrics": [asked],
        **({} if min_replicas is None else {"minReplicas": min_replicas}),
    }
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def model_pod(name: str = "llm-1", server: str = "llm", *, address: str = "10.0.0.1") -> dict[str, Any]:
    """Return a ready pod with its metrics at port 8002, created at 1000 s after 1970 and ready 90 s later."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:18:10Z"}
    state = {"running": {"startedAt": "1970-01-01T00:16:45Z"}}
    metadata = {
        "name": name,
        "namespace": "ns",
        "labels": {SERVER: server},
        "creationTimestamp": "1970-01-01T00:16:40Z",
    }
    container = {"name": "engine", "ports": [{"name": "metrics", "containerPort": 8002}]}
    return {
        "metadata": metadata,
        "spec": {"containers": [container]},
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "PodScheduled", "status": "True"}, ready],
            "containerStatuses": [{"name": "engine", "restartCount": 0, "state": state}],
        },
    }


def triton(*, ended: int, queued_s: float = 0.0, served_s: float = 0.0, waiting: int = 0) -> bytes:
    """Return what a Triton exposes."""
    labels = '{model="m",version="1"}'
    return (
        f"nv_inference_request_success{labels} {ended}\n"
        f"nv_inference_queue_duration_us{labels} {queued_s * 1e6}\n"
        f"nv_inference_compute_infer_duration_us{labels} {served_s * 1e6}\n"
        f"nv_inference_pending_request_count{labels} {waiting}\n"
    ).encode()
