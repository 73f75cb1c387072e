"""Containers that may not start: why, since when, and which pods have waited too long for what does not come."""

from collections.abc import Callable
from typing import NamedTuple

from tessera.agent.pods.nodeview import PodsInView, is_ended, is_ending
from tessera.core.deviceplugin.allocations import Allocation

__all__ = ["Refusals"]

_HELD_UP_S = 60.0
"""After so long a container that is refused again and again waits for what will not come by itself."""


class _Refused(NamedTuple):
    """A container that cannot start."""

    pod: str
    text: str
    since_s: float
    rival: str
    """UID of the pod that has what it needs; empty where that is not why."""


class Refusals:
    """The containers that could not start when they were to start last.

    Args:
        view: the pods of this node.
        clock_s: a monotonic clock: the time of day may jump.

    """

    def __init__(self, view: PodsInView, clock_s: Callable[[], float]) -> None:
        self._view = view
        self._clock_s = clock_s
        self._refused: dict[tuple[str, str], _Refused] = {}
        """By UID of the pod and name of the container."""

    def add(self, holder: Allocation, text: str, rival: str = "") -> None:
        """Remember that a container may not start, and why, as long as that goes on."""
        key = holder.uid, holder.container
        before = self._refused.get(key)
        since_s = self._clock_s() if before is None else before.since_s
        self._refused[key] = _Refused(pod=holder.pod, text=text, since_s=since_s, rival=rival)

    def remove(self, holder: Allocation) -> None:
        """Forget a container that may start."""
        self._refused.pop((holder.uid, holder.container), None)

    def held_up(self) -> dict[str, tuple[str, str]]:
        """Return the pods that were refused for a minute, by UID, each with why.

        Who waits for a pod that is being deleted waits for what will come by itself; but not who waits for processes
        that a pod left behind when it was gone.
        """
        find = self._view.find
        self._refused = {
            key: each
            for key, each in self._refused.items()
            if not is_ending(find(key[0])) and (is_ended(find(each.rival)) or not is_ending(find(each.rival)))
        }
        late_s = self._clock_s() - _HELD_UP_S
        return {uid: (each.pod, each.text) for (uid, _), each in self._refused.items() if each.since_s < late_s}
