"""Quotas of GPU memory, as Kubernetes and Kueue have them."""

from typing import Any

__all__ = ["GPU_MEMORY", "cluster_queue", "resource_quota"]

GPU_MEMORY = "tessera.dev/gpu-memory"


def resource_quota(used: str, name: str = "gpus") -> dict[str, Any]:
    """Return a ResourceQuota of the namespace `team-a`, of 160 units."""
    key = f"requests.{GPU_MEMORY}"
    metadata = {"name": name, "namespace": "team-a"}
    return {"metadata": metadata, "status": {"hard": {key: "160"}, "used": {key: used}}}


def cluster_queue() -> dict[str, Any]:
    """Return the ClusterQueue `a` of 80 units, of which 90 are used: 10 are borrowed from its cohort."""
    resources = [{"name": GPU_MEMORY, "nominalQuota": "80"}]
    usage = [{"name": "a100", "resources": [{"name": GPU_MEMORY, "total": "90", "borrowed": "10"}]}]
    groups = [{"flavors": [{"name": "a100", "resources": resources}]}]
    return {
        "metadata": {"name": "a"},
        "spec": {"cohortName": "all", "resourceGroups": groups},
        "status": {"flavorsUsage": usage},
    }
