"""The agent's side of its Node object: labels, annotations, a condition and events, written only where they differ."""

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from tessera.api.tessera.node.nodereports import CONDITION, CONFIGURATION, Report, condition, impairment_report
from tessera.clients.kube import NODES, Kube, Object, annotations_of, labels_of, record_event
from tessera.core.cluster.gpunodestate import Impairment
from tessera.core.workload.resources import SHARE_COUNT, SHARE_MEMORY
from tessera.core.workload.units import count
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.log import Logger

__all__ = ["NodeRecord"]

_EVENTS = {
    "configuration": "ConfigurationImpaired",
    "conflicts": "DeviceConflict",
    "by-name": "ResourceNotAdvertised",
    "enforcement": "EnforcementImpaired",
    "mig-config": "ConfigurationImpaired",
    "other-form": "ResourceNotAdvertised",
    "plugins": "ResourceNotAdvertised",
    "policy": "LayoutFailed",
    "desired": "LayoutFailed",
}
"""Reasons of the node's events about impairments."""


class NodeRecord:
    """Writes the agent's facts to its Node.

    Args:
        kube: the Kubernetes API.
        node: the node's name.
        log: for changes.
        now: the wall clock.

    """

    def __init__(
        self, kube: Kube, node: str, log: Logger, *, now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    ) -> None:
        self._kube = kube
        self._node = node
        self._log = log
        self._now = now
        self._notes: dict[str, tuple[str, ...]] = {}
        self._unreported: list[Report] = []

    async def read(self) -> Object:
        """Return the Node object.

        Raises:
            Unavailable: it does not exist, or the API server does not answer.

        """
        found = await self._kube.get(NODES, self._node)
        if found is None:
            raise Unavailable(
                f"node {self._node}", found="there is no such node", hint="set NODE_NAME to the node this agent runs on"
            )
        return found

    async def set_labels(self, desired: Mapping[str, str], *, owned: Callable[[str], bool]) -> bool:
        """Give the node these labels and remove every other `owned` one; return whether any changed."""
        present = labels_of(await self.read())
        stale = {key: None for key in present if owned(key) and key not in desired}
        new = {key: value for key, value in desired.items() if present.get(key) != value}
        if not stale and not new:
            return False
        await self._kube.patch(NODES, self._node, {"metadata": {"labels": {**stale, **new}}})
        self._log.info("labels_changed", node=self._node, set=new, removed=sorted(stale))
        return True

    async def annotate(self, desired: Mapping[str, str | None]) -> bool:
        """Set annotations, or remove those that are None; return whether any changed."""
        present = annotations_of(await self.read())
        new = {key: value for key, value in desired.items() if present.get(key) != value}
        if new:
            await self._kube.patch(NODES, self._node, {"metadata": {"annotations": new}})
        return bool(new)

    async def announce(self, node: Object, counts: Mapping[str, int]) -> bool:
        """Show the scheduler fewer devices before the kubelet has fewer; return whether anything was written.

        Otherwise a pod is bound for a device that the kubelet no longer has, and fails (`UnexpectedAdmissionError`).
        The kubelet overwrites it with its own count in its next report.

        Args:
            node: the last observed Node object.
            counts: how many devices of a resource there will be.

        """
        present = _allocatable(node)
        return await self._count({name: new for name, new in counts.items() if present.get(name, new) > new})

    async def count_bound(self, node: Object, counts: Mapping[str, int]) -> bool:
        """Show a restarted kubelet at least so many devices; return whether anything was written.

        It overwrites this, too. Nothing of these counts is free, so no further pod is bound for them.

        Args:
            node: the last observed Node object.
            counts: how many devices of a resource bound pods request, of those that are healthy.

        """
        present = _allocatable(node)
        return await self._count({name: new for name, new in counts.items() if present.get(name, new) < new})

    async def _count(self, counts: Mapping[str, int]) -> bool:
        if counts:
            amounts = {name: str(new) for name, new in counts.items()}
            await self._kube.patch(NODES, self._node, {"status": {"allocatable": amounts}}, subresource="status")
        return bool(counts)

    async def count_gpus(self, node: Object, gpus: int) -> bool:
        """Report how many GPUs the node's gpushare memory is of, 0 for none; return whether that changed.

        A device plugin counts units of memory, so gpushare's own plugin patches the number of GPUs beside them, as an
        extended resource. The kubelet keeps it.

        Args:
            node: the last observed Node object.
            gpus: as `core.deviceplugin.gpucount.gpus_to_count` gives it.

        Source: AliyunContainerService/gpushare-device-plugin `pkg/gpu/nvidia/podmanager.go` (`patchGPUCount`).
        """
        present = (node.get("status") or {}).get("capacity") or {}
        offers = present.get(SHARE_MEMORY, "0") != "0"
        reported = str(gpus if offers else 0)
        if present.get(SHARE_COUNT, "0") == reported:
            return False
        amounts = {SHARE_COUNT: reported}
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        await self._kube.patch(NODES, self._node, body, subresource="status")
        return True

    async def report_impaired(self, node: Object, impaired: Sequence[Impairment]) -> bool:
        """Set the condition `TesseraConfigurationApplied` to what is not in force; return whether it changed.

        Args:
            node: the last observed Node object.
            impaired: what is not in force; without any the condition is removed.

        Raises:
            Conflict: a concurrent write to the node; call again.

        """
        report = impairment_report(impaired)
        present = (node.get("status") or {}).get("conditions") or []
        former = next((each for each in present if each.get("type") == CONFIGURATION), None)
        if report is None:
            return former is not None and await self.remove_condition(CONFIGURATION)
        new = condition("False", report, self._now(), former, CONFIGURATION)
        if former and all(former.get(key) == new[key] for key in ("status", "reason", "message")):
            return False
        return await self.set_condition("False", report, CONFIGURATION)

    async def set_condition(
        self, status: Literal["True", "False", "Unknown"], report: Report, kind: str = CONDITION
    ) -> bool:
        """Set a condition of this type, keeping all others; return whether it changed.

        The list of conditions is replaced under the version it was read at, because a merge patch cannot name one.

        Raises:
            Conflict: a concurrent write to the node; call again.

        """
        node = await self.read()
        conditions = list((node.get("status") or {}).get("conditions") or [])
        former = next((each for each in conditions if each.get("type") == kind), None)
        new = condition(status, report, self._now(), former, kind)
        if former and all(former.get(key) == new[key] for key in ("status", "reason", "message")):
            return False
        others = [each for each in conditions if each.get("type") != kind]
        body = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "status": {"conditions": [*others, new]},
        }
        await self._kube.patch(NODES, self._node, body, subresource="status")
        return True

    async def remove_condition(self, kind: str = CONDITION) -> bool:
        """Remove the condition of this type; return whether there was one.

        Raises:
            Conflict: a concurrent write to the node; call again.

        """
        node = await self.read()
        conditions = list((node.get("status") or {}).get("conditions") or [])
        others = [each for each in conditions if each.get("type") != kind]
        if len(others) < len(conditions):
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            body = {"metadata": version, "status": {"conditions": others}}
            await self._kube.patch(NODES, self._node, body, subresource="status")
        return len(others) < len(conditions)

    async def report(self, report: Report) -> bool:
        """Record an event about the node; a repeated one is counted. Return whether it was written.

        A failed write is logged.
        """
        write = self._log.warning if report.warning else self._log.info
        write("node_event", node=self._node, event_reason=report.reason, reason=report.message)
        try:
            await record_event(self._kube, self._node, report, self._now())
        except (Conflict, Unavailable) as error:
            self._log.warning("event_not_written", node=self._node, reason=str(error))
            return False
        return True

    def note(self, about: str, sentences: Iterable[str]) -> None:
        """Log what is impaired, and report it in the node's events, once for each change."""
        now = tuple(sentences)
        if self._notes.get(about, ()) == now:
            return
        self._notes[about] = now
        self._log.warning("impaired" if now else "unimpaired", what=about, reason=list(now))
        if now and about in _EVENTS:
            self._unreported.append(Report(reason=_EVENTS[about], message="; ".join(now), warning=True))

    async def report_notes(self) -> None:
        """Record the events noted since the last call."""
        while self._unreported:
            await self.report(self._unreported.pop(0))


def _allocatable(node: Object) -> dict[str, int]:
    """Return how many a Node object counts of each resource; what is no whole number of devices is left out."""
    counts = dict[str, int]()
    for name, amount in ((node.get("status") or {}).get("allocatable") or {}).items():
        with contextlib.suppress(InvalidInput):
            counts[name] = count(amount, name)
    return counts
