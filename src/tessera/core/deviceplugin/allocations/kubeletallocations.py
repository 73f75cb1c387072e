"""The kubelet's allocations to containers, by its own record: a row of its checkpoint, or of its PodResources.

The checkpoint names a pod by UID, PodResources by namespace and name; the observed pods fill in the rest.
"""

from typing import NamedTuple

import msgspec

__all__ = ["KubeletAllocation", "RequestKey"]


class RequestKey(NamedTuple):
    """A container of a pod, and a resource it requests."""

    namespace: str
    pod: str
    container: str
    resource: str

    def __str__(self) -> str:
        """Return its name for people."""
        return f"pod {self.namespace}/{self.pod}, container {self.container}"


class KubeletAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one resource that the kubelet allocated to one container."""

    uid: str = ""
    """Of the pod; empty where only its name is known."""
    namespace: str = ""
    pod: str = ""
    """Both empty where only the UID is known."""
    container: str
    resource: str
    device_ids: tuple[str, ...]
    """Sorted."""

    @property
    def key(self) -> RequestKey:
        """The container and the resource."""
        return RequestKey(self.namespace, self.pod, self.container, self.resource)

    @property
    def container_key(self) -> tuple[str, str, str]:
        """The container and the resource, as `AgentAllocation.container_key`."""
        return self.uid, self.container, self.resource
