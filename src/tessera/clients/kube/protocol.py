"""What Tessera asks of the Kubernetes API; objects are plain JSON, as the readers in `api` take them."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol

import msgspec

from tessera.errors import Conflict

__all__ = [
    "CONFIG_MAPS",
    "DISRUPTION_BUDGETS",
    "EVENTS",
    "EVERYTHING",
    "NODES",
    "PODS",
    "Expired",
    "Kind",
    "Kube",
    "Listing",
    "Object",
    "Selection",
    "WatchEvent",
    "annotations_of",
    "labels_of",
    "name_of",
]

Object = dict[str, Any]
"""A Kubernetes object, or a merge patch of one, as JSON. What is read is shared: never change it in place."""


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


NODES = Kind(name="Node", plural="nodes", namespaced=False)
PODS = Kind(name="Pod", plural="pods")
CONFIG_MAPS = Kind(name="ConfigMap", plural="configmaps")
EVENTS = Kind(name="Event", plural="events")
DISRUPTION_BUDGETS = Kind(group="policy", name="PodDisruptionBudget", plural="poddisruptionbudgets")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects of a kind; all conditions must hold."""

    namespace: str = ""
    """Empty for every namespace."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels with exactly these values."""
    fields: tuple[tuple[str, str], ...] = ()
    """Fields with exactly these values: `metadata.name`, and what the API offers for the kind, as `spec.nodeName`."""


EVERYTHING = Selection()


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Objects at one moment."""

    objects: tuple[Object, ...]
    resource_version: str
    """The moment, to watch from."""


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one object."""

    object: Object
    """As it is now; if it is gone, as it was last."""
    gone: bool = False
    """Whether it was deleted, or no longer meets the conditions of the selection."""


class Expired(Conflict):
    """The moment to watch from is too long ago (HTTP 410); list anew."""


class Kube(Protocol):
    """The Kubernetes API.

    Every call has a deadline. Raised are `Unavailable` when the server does not answer or refuses for now, also for
    want of rights; `Conflict` when the object changed or exists already; `InvalidInput` when it refuses for good.
    """

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object; None where there is none."""
        ...

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        """Return the objects of a kind."""
        ...

    def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        """Yield the changes after a moment; use `follow`, which recovers from all that ends this.

        Raises:
            Expired: the moment is too long ago.
            Unavailable: the stream broke, or was silent for so long that it may have.

        """
        ...

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object and return it as stored."""
        ...

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Literal["", "status"] = ""
    ) -> Object:
        """Merge a patch (RFC 7386) into an object and return it as stored.

        With `metadata.resourceVersion` in the patch, the object must still be the one that was read.

        Raises:
            Conflict: the object is another by now, or gone.

        """
        ...

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", grace_s: int | None = None) -> None:
        """Delete an object, at once with a grace of 0; nothing happens where there is none."""
        ...

    async def evict(self, name: str, namespace: str) -> None:
        """Ask that a pod be evicted; nothing happens where there is none.

        Raises:
            Unavailable: a PodDisruptionBudget forbids it for now.

        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def name_of(each: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of an object; the namespace is empty for kinds without."""
    metadata = each.get("metadata") or {}
    return metadata.get("namespace") or "", metadata.get("name") or ""


def labels_of(each: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object."""
    return (each.get("metadata") or {}).get("labels") or {}


def annotations_of(each: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of an object."""
    return (each.get("metadata") or {}).get("annotations") or {}
