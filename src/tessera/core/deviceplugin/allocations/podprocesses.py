"""Which containers of a pod may have processes: a device in use is never taken for a free one."""

from collections.abc import Collection, Iterable

import msgspec

__all__ = ["PodProcess", "running_containers"]

_PAUSE = "pause"
"""Name of the sandbox's process with these runtimes. CRI-O leaves it out.
Source: containerd and cri-dockerd run Kubernetes `build/pause`; CRI-O, `drop_infra_ctr`."""
_STARTING_PAUSE = frozenset({"containerd", "docker"})


class PodProcess(msgspec.Struct, frozen=True):
    """A process in a pod's control groups."""

    container: str = ""
    """The container it is in; empty if that is not known, as while the pod's status is late."""
    name: str = ""
    """Its own choice."""
    started: int = 0
    """When it started, in ticks of the clock; 0 if unknown."""


def running_containers(containers: Iterable[str], processes: Collection[PodProcess], runtime: str) -> frozenset[str]:
    """Return those of a pod's containers that may have running processes.

    One whose container is unknown may be in any. Only the pod sandbox's is in none: the runtime starts it before the
    pod's first container. A tenant may choose a process's name, but not that it is the first.

    Args:
        containers: names of the pod's containers.
        processes: all of the pod's.
        runtime: of the pod's containers, as `containerd`; empty if unknown.

    """
    first, *later = sorted(each.started for each in processes) or (0,)
    sandbox = first if runtime in _STARTING_PAUSE and first not in later[:1] else 0
    found = {
        each.container for each in processes if each.container or each.name != _PAUSE or not each.started == sandbox > 0
    }
    return frozenset(each for each in containers if not found.isdisjoint({each, ""}))
