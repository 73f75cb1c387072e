"""Requests to the metrics APIs by their paths, and the permission that each needs.

Source: k8s.io/metrics `pkg/apis/custom_metrics` and `external_metrics`; kubernetes-sigs/custom-metrics-apiserver
`pkg/apiserver/installer`; k8s.io/apiserver `pkg/endpoints/request/requestinfo.go` for the attributes of authorization.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tessera.api.kubernetes.labelselectors import Selector, read_selector
from tessera.api.kubernetes.reviews import Attributes

__all__ = [
    "CUSTOM",
    "EXTERNAL",
    "RESOURCES",
    "VERSIONS",
    "Custom",
    "Discovery",
    "External",
    "MetricResource",
    "Question",
    "find_resource",
    "read_path",
]

CUSTOM: Final = "custom.metrics.k8s.io"
EXTERNAL: Final = "external.metrics.k8s.io"
VERSIONS: Final = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
"""The preferred one first."""
_ALL = "*"


class MetricResource(msgspec.Struct, frozen=True):
    """A kind of object with metrics."""

    kind: str
    api_version: str
    namespaced: bool = True


RESOURCES: Final = {
    "pods": MetricResource("Pod", "v1"),
    "services": MetricResource("Service", "v1"),
    "namespaces": MetricResource("Namespace", "v1", namespaced=False),
    "nodes": MetricResource("Node", "v1", namespaced=False),
    "persistentvolumeclaims": MetricResource("PersistentVolumeClaim", "v1"),
    "persistentvolumes": MetricResource("PersistentVolume", "v1", namespaced=False),
    "replicationcontrollers": MetricResource("ReplicationController", "v1"),
    "deployments.apps": MetricResource("Deployment", "apps/v1"),
    "statefulsets.apps": MetricResource("StatefulSet", "apps/v1"),
    "daemonsets.apps": MetricResource("DaemonSet", "apps/v1"),
    "replicasets.apps": MetricResource("ReplicaSet", "apps/v1"),
    "jobs.batch": MetricResource("Job", "batch/v1"),
    "cronjobs.batch": MetricResource("CronJob", "batch/v1"),
    "ingresses.networking.k8s.io": MetricResource("Ingress", "networking.k8s.io/v1"),
}
"""By resource and group, as discovery and paths name them."""


def find_resource(name: str, group: str = "") -> str | None:
    """Return the key of a resource by its singular or plural name; None for an unknown one.

    Args:
        name: in any case.
        group: the API group, or what it begins with; empty for the first that has the name.

    Source: k8s.io/apimachinery `pkg/api/meta/restmapper.go` (`ResourcesFor`).

    """
    lowered = name.lower()
    for key, resource in RESOURCES.items():
        plural, _, of = key.partition(".")
        if lowered in {plural, resource.kind.lower()} and of.startswith(group):
            return key
    return None


class Discovery(msgspec.Struct, frozen=True):
    """Discovery: of all groups, of one, of one version."""

    group: str = ""
    version: str = ""


class Custom(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of objects."""

    version: str
    resource: str
    """A key of `RESOURCES`."""
    metric: str
    namespace: str = ""
    name: str = ""
    """Empty for all objects that the selector selects."""
    selector: Selector = ()
    metric_selector: Selector = ()


class External(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that describes no object."""

    metric: str
    namespace: str
    selector: Selector = ()


Question = Discovery | Custom | External


def read_path(parts: Sequence[str], parameters: Mapping[str, str]) -> tuple[Question, Attributes] | None:
    """Return the request and the permission that it needs; None for an unknown path.

    Args:
        parts: of the path, decoded: `apis`, a group, ...
        parameters: `labelSelector` and `metricLabelSelector`.

    Raises:
        InvalidInput: an invalid selector.

    """
    if [*parts[:1]] != ["apis"] or "" in parts or len(parts) > _MOST_PARTS:
        return None
    group, version = (*parts[1:3], "", "")[:2]
    rest = [*parts[3:]]
    if (group and group not in VERSIONS) or (version and version not in VERSIONS[group]):
        return None
    if not rest:
        return Discovery(group, version), Attributes(path="/" + "/".join(parts))
    right = Attributes(group=group, version=version)
    if group == EXTERNAL:
        return _external(rest, right, parameters)
    return _custom(rest, right, parameters)


_MOST_PARTS = 8


def _external(rest: list[str], right: Attributes, parameters: Mapping[str, str]) -> tuple[External, Attributes] | None:
    match rest:
        case ["namespaces", namespace, metric]:
            requested = External(metric=metric, namespace=namespace, selector=_selector(parameters, "labelSelector"))
            return requested, msgspec.structs.replace(right, verb="list", resource=metric, namespace=namespace)
    return None


def _custom(rest: list[str], right: Attributes, parameters: Mapping[str, str]) -> tuple[Custom, Attributes] | None:
    match rest:
        case ["namespaces", namespace, "metrics", metric]:
            resource, name, right_resource = "namespaces", namespace, ("metrics", metric, "")
        case ["namespaces", namespace, resource, name, metric] if resource != "namespaces":
            right_resource = (resource, name, metric)
        case [resource, name, metric] if resource != "namespaces":
            namespace, right_resource = "", (resource, name, metric)
        case _:
            return None
    known = RESOURCES.get(resource)
    if known is None or known.namespaced != bool(namespace and resource != "namespaces"):
        return None
    requested = Custom(
        version=right.version,
        resource=resource,
        metric=metric,
        namespace=namespace if known.namespaced else "",
        name="" if name == _ALL else name,
        selector=_selector(parameters, "labelSelector"),
        metric_selector=_selector(parameters, "metricLabelSelector"),
    )
    plural, _, _ = right_resource[0].partition(".")
    return requested, msgspec.structs.replace(
        right, resource=plural, name=right_resource[1], subresource=right_resource[2], namespace=namespace
    )


def _selector(parameters: Mapping[str, str], name: str) -> Selector:
    return read_selector(parameters.get(name, ""), f"parameter {name}")
