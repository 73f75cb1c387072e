"""The interface of the Kubernetes API; objects are plain JSON, for the readers in `api`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from tessera.core.serving.metrics.metricnames import REPLICAS
from tessera.errors import Conflict, Unavailable, Unsupported

__all__ = [
    "API_SERVICES",
    "AUTOSCALERS",
    "CLUSTER_QUEUES",
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "DEPLOYMENTS",
    "DESIRED_REPLICAS",
    "DISRUPTION_BUDGETS",
    "ENVIRONMENTS",
    "EVENTS",
    "EVERYTHING",
    "GPU_NODES",
    "GPU_POLICIES",
    "IMAGE_WARMUPS",
    "JOBS",
    "LEASES",
    "MODEL_CACHES",
    "MODEL_SERVERS",
    "MUTATING_WEBHOOKS",
    "NODES",
    "NODE_IMAGES",
    "NODE_MODELS",
    "PERSISTENT_VOLUMES",
    "PODS",
    "POD_MONITORS",
    "PRIORITY_CLASSES",
    "RESOURCE_QUOTAS",
    "SCALED_OBJECTS",
    "SECRETS",
    "SELF_SUBJECT_REVIEWS",
    "SERVICES",
    "SUBJECT_ACCESS_REVIEWS",
    "TOKEN_REVIEWS",
    "WORKLOADS",
    "Expired",
    "Forbidden",
    "Kind",
    "Kube",
    "Listing",
    "Object",
    "Selection",
    "Silent",
    "Subresource",
    "Tunnel",
    "Unanswered",
    "WatchEvent",
    "annotations_of",
    "labels_of",
    "name_of",
    "not_served",
    "uid_of",
    "version_of",
]

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON. Objects are shared: never change one in place.

They have no `metadata.managedFields`: nothing here needs it, and it is a third of a pod.
"""

Subresource = Literal["", "status"]
"""The endpoint of an object: the main one, or its status subresource."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of object and where the API serves it."""

    group: str = ""
    """API group; empty for the core group."""
    version: str = "v1"
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The field `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def custom(self) -> bool:
        """Whether a CustomResourceDefinition defines it, rather than Kubernetes itself."""
        return "." in self.group and not self.group.endswith(".k8s.io")


DEPLOYMENTS = Kind(group="apps", name="Deployment", plural="deployments")
AUTOSCALERS = Kind(group="autoscaling", version="v2", name="HorizontalPodAutoscaler", plural="horizontalpodautoscalers")
JOBS = Kind(group="batch", name="Job", plural="jobs")
API_SERVICES = Kind(group="apiregistration.k8s.io", name="APIService", plural="apiservices", namespaced=False)
NODES = Kind(name="Node", plural="nodes", namespaced=False)
PODS = Kind(name="Pod", plural="pods")
CONFIG_MAPS = Kind(name="ConfigMap", plural="configmaps")
SECRETS = Kind(name="Secret", plural="secrets")
EVENTS = Kind(name="Event", plural="events")
PERSISTENT_VOLUMES = Kind(name="PersistentVolume", plural="persistentvolumes", namespaced=False)
SERVICES = Kind(name="Service", plural="services")
DEPLOYMENTS = Kind(group="apps", name="Deployment", plural="deployments")
AUTOSCALERS = Kind(group="autoscaling", version="v2", name="HorizontalPodAutoscaler", plural="horizontalpodautoscalers")
DISRUPTION_BUDGETS = Kind(group="policy", name="PodDisruptionBudget", plural="poddisruptionbudgets")
LEASES = Kind(group="coordination.k8s.io", name="Lease", plural="leases")
PRIORITY_CLASSES = Kind(group="scheduling.k8s.io", name="PriorityClass", plural="priorityclasses", namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = Kind(
    group="apiextensions.k8s.io", name="CustomResourceDefinition", plural="customresourcedefinitions", namespaced=False
)
MUTATING_WEBHOOKS = Kind(
    group="admissionregistration.k8s.io",
    name="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    namespaced=False,
)
TOKEN_REVIEWS = Kind(group="authentication.k8s.io", name="TokenReview", plural="tokenreviews", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Kind(
    group="authorization.k8s.io", name="SubjectAccessReview", plural="subjectaccessreviews", namespaced=False
)
SELF_SUBJECT_REVIEWS = Kind(
    group="authentication.k8s.io", name="SelfSubjectReview", plural="selfsubjectreviews", namespaced=False
)
"""Reviews: creating one returns the answer in its status, and nothing is stored. Who is authenticated may create a
SelfSubjectReview; its creationTimestamp is the API server's time."""
GPU_NODES = Kind(group="tessera.dev", version="v1alpha1", name="GPUNode", plural="gpunodes", namespaced=False)
IMAGE_WARMUPS = Kind(
    group="tessera.dev", version="v1alpha1", name="ImageWarmup", plural="imagewarmups", namespaced=False
)
NODE_IMAGES = Kind(group="tessera.dev", version="v1alpha1", name="NodeImages", plural="nodeimages", namespaced=False)
MODEL_CACHES = Kind(group="tessera.dev", version="v1alpha1", name="ModelCache", plural="modelcaches", namespaced=False)
NODE_MODELS = Kind(group="tessera.dev", version="v1alpha1", name="NodeModels", plural="nodemodels", namespaced=False)
ENVIRONMENTS = Kind(
    group="tessera.dev", version="v1alpha1", name="Environment", plural="environments", namespaced=False
)
MODEL_SERVERS = Kind(group="tessera.dev", version="v1alpha1", name="ModelServer", plural="modelservers")
RESOURCE_QUOTAS = Kind(name="ResourceQuota", plural="resourcequotas")
CLUSTER_QUEUES = Kind(
    group="kueue.x-k8s.io", version="v1beta2", name="ClusterQueue", plural="clusterqueues", namespaced=False
)
"""Kueue's."""
WORKLOADS = Kind(group="kueue.x-k8s.io", version="v1beta2", name="Workload", plural="workloads")
"""Kueue's: one for each queued Job."""
POD_MONITORS = Kind(group="monitoring.coreos.com", name="PodMonitor", plural="podmonitors")
"""Of the Prometheus operator."""
SCALED_OBJECTS = Kind(group="keda.sh", version="v1alpha1", name="ScaledObject", plural="scaledobjects")
"""KEDA's."""
DESIRED_REPLICAS = Kind(group="external.metrics.k8s.io", version="v1beta1", name="ExternalMetricValue", plural=REPLICAS)
"""How many replicas model servers need; an external metric, which is listed like objects and has none of their
metadata."""
GPU_POLICIES = Kind(group="tessera.dev", version="v1alpha1", name="GPUPolicy", plural="gpupolicies", namespaced=False)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of objects of a kind; all conditions must match."""

    namespace: str = ""
    """Empty for every namespace."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels with exactly these values."""
    having: tuple[str, ...] = ()
    """Labels with any value."""
    fields: tuple[tuple[str, str], ...] = ()
    """Fields with exactly these values: `metadata.name`, and what the API offers for the kind, as `spec.nodeName`."""
    other_fields: tuple[tuple[str, str], ...] = ()
    """Fields with any value but these."""


EVERYTHING = Selection()


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Objects at one resourceVersion."""

    objects: tuple[Object, ...]
    resource_version: str
    """The resourceVersion, to watch from."""


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one object."""

    object: Object
    """The current object; if it was deleted, the last one. Its version is that of the change."""
    gone: bool = False
    """Whether it was deleted, or no longer matches the selection."""
    bookmark: bool = False
    """Whether it is a bookmark: the object is only the version up to which every change was delivered."""


class Expired(Conflict):
    """The version to watch from is too old (HTTP 410); list again."""


class Unanswered(Unavailable):
    """The result is unknown: the request may have been processed or not. Read before retrying."""


class Silent(Unavailable):
    """A watch on which not even a bookmark came for too long."""


class Forbidden(Unavailable):
    """The account lacks a permission; the text is the API server's."""


class Tunnel(Protocol):
    """A connection to a port of a pod."""

    async def send(self, content: bytes) -> None:
        """Send bytes to the pod.

        Raises:
            Unavailable: the connection has ended.

        """
        ...

    async def receive(self) -> bytes:
        """Return the next bytes of the pod; empty when it has ended the connection.

        Raises:
            Unavailable: the connection broke, or no container listens on the port.

        """
        ...


class Kube(Protocol):
    """The Kubernetes API.

    Every call has a deadline. It raises

    - `Unavailable` if the server rejects the request for now or is unreachable: nothing was done; subclasses are
      `Forbidden`, without permission, and `Unanswered`, if the result is unknown;
    - `Conflict` if the object changed, was deleted, or exists already;
    - `InvalidInput` if the server rejects the request for good;
    - `Unsupported` if it does not serve the kind; the error names what to install.
    """

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object; None if it does not exist."""
        ...

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        """Return the current objects of a kind: including every write answered before this call."""
        ...

    async def version(self, kind: Kind, selection: Selection = EVERYTHING) -> str:
        """Return the `resource_version` that `list` returns, without the objects."""
        ...

    def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        """Yield every change after a version, until the server ends the stream; `follow` resumes it.

        No version is left out. Watching again from the version of the last event, including bookmarks, misses nothing.

        Raises:
            Expired: the version is too old.
            Unavailable: the stream broke, or was silent for too long.

        """
        ...

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object and return it as stored."""
        ...

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        """Merge a patch (RFC 7386) into an object and return it as stored.

        With `metadata.resourceVersion` in the patch, the object must not have changed.

        Raises:
            Conflict: the object changed, or was deleted.

        """
        ...

    async def apply(
        self, kind: Kind, body: Object, *, manager: str, force: bool = False, subresource: Subresource = ""
    ) -> Object:
        """Apply the fields in `body` (server-side apply) and return the object as stored.

        The manager owns these fields from now on. Fields that it applied before and that are missing from `body` are
        removed unless another manager owns them, and objects that this leaves empty; to remove all of an object's
        fields leave the object out: an empty one is rejected. A missing object is created, though not by its status. A
        list is one field unless the kind says otherwise. Applying the same again writes nothing.

        Args:
            kind: its kind.
            body: `metadata.name`, `metadata.namespace` if the kind has one, and the fields; with
                `metadata.resourceVersion` the object must not have changed.
            manager: the field manager, at most 128 characters.
            force: take over fields that others own with other values.
            subresource: the endpoint.

        Raises:
            Conflict: another manager owns one of the fields with another value; or the object changed.

        """
        ...

    async def bind(self, name: str, namespace: str, *, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod and merge annotations into it, in one write.

        Raises:
            Conflict: the pod is bound already, terminating or deleted, or another of that name; nothing changed.
            Unanswered: it may be bound or not.

        """
        ...

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete an object, that of this UID if one is given; a missing one is ignored.

        With a grace period of 0 it is deleted immediately.

        Raises:
            Conflict: another object has the name now.

        """
        ...

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Evict a pod, that of this UID if one is given; a missing one is ignored.

        Raises:
            Conflict: another pod has the name now.
            Unavailable: a PodDisruptionBudget forbids it for now.

        """
        ...

    async def ask_pod(self, name: str, namespace: str, *, port: int, path: str, most: int, tls: bool = False) -> bytes:
        """Return the answer of a pod's HTTP endpoint, through the API server.

        Args:
            name: of the pod.
            namespace: its namespace.
            port: of the pod, for HTTP.
            path: one segment, `usage` for `/usage`.
            most: largest answer in bytes; the pod is untrusted.
            tls: whether it is HTTPS; the API server does not verify its certificate.

        Raises:
            Forbidden: the caller may not get `pods/proxy` there.
            Unavailable: the pod does not exist, does not answer, or its answer is larger.

        """
        ...

    def tunnel(self, name: str, namespace: str, *, port: int) -> AbstractAsyncContextManager[Tunnel]:
        """Yield a connection to a port of a pod, including ports on its localhost.

        Whether anything listens shows at the first `receive`.

        Raises:
            Forbidden: the caller may not get `pods/portforward` there, or from Kubernetes 1.35 create it.
            Unavailable: there is no such pod, or it does not run.

        """
        ...

    def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the log of a container of a pod, in pieces; with `follow` until it ends.

        Empty for a pod without a node. A kubelet has rotated away what was written first of a long log.

        Args:
            name: of the pod.
            namespace: of the pod.
            container: its name; empty for the only one.
            follow: whether to wait for what it writes later.
            since: with it each line begins with its time and a space, and those before this second are left out,
                `2026-11-26T20:00:00Z`; empty for all lines.

        Raises:
            InvalidInput: its container has not started yet, or is not named though it has several.
            Unavailable: there is no such pod, or its log broke off.

        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def name_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of an object; the namespace is empty for kinds without."""
    metadata = obj.get("metadata") or {}
    return metadata.get("namespace") or "", metadata.get("name") or ""


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object."""
    return (obj.get("metadata") or {}).get("labels") or {}


def annotations_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of an object."""
    return (obj.get("metadata") or {}).get("annotations") or {}


def uid_of(obj: Mapping[str, Any]) -> str:
    """Return the UID of an object; empty where it has none, as before it is created."""
    return str((obj.get("metadata") or {}).get("uid") or "")


def version_of(obj: Mapping[str, Any]) -> str:
    """Return the version of an object (`metadata.resourceVersion`); opaque, but for equality."""
    return (obj.get("metadata") or {}).get("resourceVersion") or ""


def not_served(kind: Kind, subject: str) -> Unsupported:
    """Return the error of an unknown kind; it says what to install."""
    if kind == DESIRED_REPLICAS:
        hint = "set metricsApi.enabled=true in the chart, see docs/metrics-api.md"
        return Unsupported(subject, found=f"the API server does not serve {kind.api_version}", hint=hint)
    whose = "; the chart installs it, see docs/install.md" if kind.group.endswith("tessera.dev") else " of its project"
    definition = f"the CustomResourceDefinition {kind.plural}.{kind.group}{whose}"
    return Unsupported(
        subject,
        found=f"the API server does not serve {kind.plural} of {kind.api_version}",
        hint=f"install it: {definition}" if kind.custom else f"use a Kubernetes version with {kind.api_version}",
    )
