"""The configuration of the second scheduler, `tessera-scheduler`: upstream kube-scheduler with Tessera's extender.

`scripts/generate` writes it to deploy/chart/files/scheduler.yaml.
"""

from typing import Final

from tessera.api.documents import Plain
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.core.gpu.gpumodels import CATALOG
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, SCHEDULER_NAME, SHARE_MEMORY

__all__ = ["configuration"]

_WEIGHT: Final = 1000
"""One point of the extender is worth ten times this. All plugins of kube-scheduler together give at most 1,400, so the
node that the extender gives 10 wins over those it gives 9. Source: kubernetes `pkg/scheduler/schedule_one.go` (an
extender's score counts tenfold), `pkg/scheduler/apis/config/v1/default_plugins.go` (weights 14 in all, of 100)."""
_TIMEOUT_S: Final = 30
"""Above the server's own timeout, so that its messages reach the pod's events."""
_IGNORED: Final = (GPU_COMPUTE, GPU_COUNT)
"""Advertised by no node: they only refine `tessera.dev/gpu-memory`."""


def configuration(url: str) -> dict[str, Plain]:
    """Return a KubeSchedulerConfiguration (v1).

    Args:
        url: of `tessera server` for the scheduler.

    Source: kubernetes/kube-scheduler `config/v1/types.go` (`Extender`); a field's JSON name is its Go name, except
    `enableHTTPS` and `tlsConfig`.
    """
    profiles = sorted({profile.name for model in CATALOG for profile in model.profiles})
    instances = (mig_resource(name, shared=shared) for name in profiles for shared in (False, True))
    names = (GPU_MEMORY, SHARE_MEMORY, GPU_RESOURCE, f"{GPU_RESOURCE}.shared", *instances)
    managed: list[Plain] = [{"name": name} for name in names]
    managed += [{"name": name, "ignoredByScheduler": True} for name in _IGNORED]
    extender: dict[str, Plain] = {
        "urlPrefix": url,
        # It answers with only the best node. With `filter` the same node wins, by its score, after kube-scheduler has
        # read all names twice more and scored all nodes itself.
        "filterVerb": "choose",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": _WEIGHT,
        "httpTimeout": f"{_TIMEOUT_S}s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": managed,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceName": SCHEDULER_NAME,
            "resourceNamespace": NAMESPACE,
        },
        # The best node counts, not the best of a sample.
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": SCHEDULER_NAME}],
        "extenders": [extender],
    }
