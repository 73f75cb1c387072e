"""The container of a process, by its control groups."""

import re
from collections.abc import Iterable, Mapping

from tessera.core.usage.attribution import Owner

__all__ = ["outside_pods", "owner_of"]

_PODS = "kubepods"
_POD = re.compile(
    r"(?:kubepods(?:-(?:\w+-)?|[^\n]*?/(?:[\w.-]*-)?)|:(?:/\.\.)+/(?:(?:burstable|besteffort)/)?)"
    r"pod(?P<uid>[0-9a-zA-Z_-]{4,253}?)(?:\.slice)?(?:[/:](?P<rest>[^\n]*))?(?:\n|$)"
)
"""A pod's control group below the kubelet's, the outermost: a container may name nested ones as it likes.

Below another group than the machine's, the path begins at the pod's: `/../../kubepods-burstable-podUID.slice/...`, and
without systemd `/../../podUID/...`, or `/../../../besteffort/podUID/...` from another quality of service.
Source: kubernetes/kubernetes `pkg/kubelet/cm/{cgroup_manager_linux,pod_container_manager_linux}.go`."""
_CONTAINER = re.compile(r"^(?:[a-z]+(?:-[a-z]+)*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/|$)")
"""`cri-containerd-ID.scope`, `crio-ID.scope`, `ID`; after `:` that of a containerd that does not use systemd under a
kubelet that does: `/system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID`."""


def owner_of(text: str, containers: Mapping[str, str], uids: Iterable[str]) -> Owner | None:
    """Return the pod and container of a process; None for one in no pod, or in a control group of unknown form.

    Args:
        text: its `/proc/PID/cgroup`.
        containers: names of containers by the runtime's id.
        uids: UIDs of the node's pods; systemd's names have `_` where some have `-`.

    """
    found = _POD.search(text)
    if found is None:
        return None
    spelled = {uid.replace("-", "_"): uid for uid in uids}
    written = found["uid"].replace("-", "_")
    container = _CONTAINER.match(found["rest"] or "")
    name = containers.get(container["id"], "") if container else ""
    # Of a pod that is not known, as one that is gone: a UID of the API server has no `_`.
    return Owner(uid=spelled.get(written, found["uid"].replace("_", "-")), container=name)


def outside_pods(text: str) -> bool:
    """Return whether a process is in no pod: its control groups are known, and none is the kubelet's of pods."""
    return bool(text.strip()) and _PODS not in text
