"""Which requests a restarted kubelet may still make: it admits its pods again, and allocates what its record lacks.

It does that at its start alone. Later it allocates nothing for containers of started pods, whatever its record lacks.
"""

from collections.abc import Container, Iterable
from collections.abc import Set as AbstractSet

import msgspec

from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest, Units

__all__ = ["admits_again", "by_processes", "continued", "forgotten", "passed_over"]

_ADMISSION_NS = 60 * 10**9
"""A kubelet that reads its pods from the API server at once has admitted them all by then."""


def admits_again(started_ns: int | None, now_ns: int) -> bool:
    """Return whether a kubelet may still admit pods again that it found when it started.

    Args:
        started_ns: when it started, in nanoseconds since 1970; None if unknown, which counts as long ago, as does a
            time that has not come yet: the clock was set back since.
        now_ns: the time now.

    """
    return started_ns is not None and 0 <= now_ns - started_ns < _ADMISSION_NS


def forgotten(
    requests: Iterable[AssignedRequest], allocated: Iterable[KubeletAllocation], created: Container[str]
) -> tuple[AssignedRequest, ...]:
    """Return the requests of started pods of which the kubelet's record lacks a container.

    Args:
        requests: of the pods.
        allocated: the kubelet's record.
        created: UIDs of the pods of which a container was created.

    """
    every, recorded = tuple(requests), {each.key for each in allocated}
    uids = {each.uid for each in every if each.key not in recorded and (each.running or each.uid in created)}
    return tuple(each for each in every if each.uid in uids)


def passed_over(
    requests: Iterable[AssignedRequest], lost: Iterable[AssignedRequest], *, again: bool
) -> tuple[tuple[AssignedRequest, ...], frozenset[RequestKey]]:
    """Return requests as `by_processes`, for a kubelet that admits no pod again: it makes none of the lost requests.

    Args:
        requests: of the pods.
        lost: those that are `forgotten`.
        again: whether no other request waits, so that the kubelet may have started to admit pods late.

    """
    keys = frozenset(each.key for each in lost)
    found = (
        msgspec.structs.replace(each, running=not again and (each.running or each.key in keys)) for each in requests
    )
    return tuple(found), keys


def by_processes(
    requests: Iterable[AssignedRequest],
    lost: Iterable[AssignedRequest],
    running: Container[tuple[str, str]],
    allocated: Iterable[KubeletAllocation],
    *,
    again: bool,
) -> tuple[tuple[AssignedRequest, ...], frozenset[RequestKey]]:
    """Return requests, `running` set by processes, and those the kubelet never asks for: for `matching.unserved`.

    A pod's phase does not tell. It is `Pending` while an init container runs, or another waits for its image, and
    `Running` when all have crashed. A kubelet that lost its record admits pods in the order of their creation, whenever
    they were bound, and a pod's containers in the order in which they start; nothing for those that run. So what it
    lacks of older pods, or of containers that start before one that it has, it does not ask for. A pod that does not
    restart its containers may have ended, which the API reports late: there the phase counts.
    Source: Kubernetes `pkg/kubelet/kubelet.go`, `HandlePodAdditions`; `pkg/kubelet/cm/devicemanager/manager.go`.

    Args:
        requests: of the pods.
        lost: those that are `forgotten`.
        running: the containers of these that may run, by UID of the pod and name.
        allocated: the kubelet's record.
        again: whether no other request waits, so that each that runs by its pod's phase may be admitted again.

    """
    every, lost, recorded = tuple(requests), tuple(lost), {each.key for each in allocated}
    if lost:
        every = tuple(msgspec.structs.replace(each, since_ns=each.created_ns) for each in every)
    unawaited = _unawaited(every, lost, running, recorded)
    last_ns = max((each.created_ns for each in every if each.key in recorded), default=0)
    by_phase = {each.key for each in every if each.running} - {each.key for each in lost if not each.ends}
    done = unawaited.union(by_phase, (each.key for each in lost if each.created_ns < last_ns))
    found = tuple(msgspec.structs.replace(each, running=not again and each.key in done) for each in every)
    return found, unawaited


def _unawaited(
    requests: Iterable[AssignedRequest],
    lost: tuple[AssignedRequest, ...],
    running: Container[tuple[str, str]],
    recorded: AbstractSet[RequestKey],
) -> frozenset[RequestKey]:
    """Return the lost requests of containers that run, or of init containers whose devices a later one has."""
    alive = {each.key for each in lost if (each.uid, each.key.container) in running}
    later = {each.uid for each in requests if not each.initial and each.key in alive | recorded}
    return frozenset(each.key for each in lost if each.key in alive or (each.initial and each.uid in later))


def continued(
    requests: Iterable[AssignedRequest], units: Units, allocated: Iterable[KubeletAllocation]
) -> tuple[AssignedRequest, ...]:
    """Return the requests of the pod that a kubelet is admitting, where that is known: an init container has the ids.

    A pod's later containers get what its init containers had. No other pod does, unless that one was rejected.

    Args:
        requests: of the pods.
        units: those that the kubelet chose.
        allocated: its record.

    """
    every, (resource, ids) = tuple(requests), units
    recorded = {each.key: each for each in allocated if each.resource == resource}
    uids = {
        each.uid
        for each in every
        if each.initial and each.key in recorded and not ids.isdisjoint(recorded[each.key].device_ids)
    }
    return tuple(each for each in every if each.uid in uids and each.key not in recorded and not each.running)
