"""Events of a node about its devices: health changes, and devices still used by processes of deleted pods."""

from collections.abc import Iterable

from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.api.tessera.node.nodereports import health_report, orphan_report
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.health import HealthChange

__all__ = ["DeviceEvents"]


class DeviceEvents:
    """Reports each change once; failed events are retried.

    Args:
        record: the Node object.

    """

    def __init__(self, record: NodeRecord) -> None:
        self._record = record
        self._changes: list[HealthChange] = []
        self._orphaned = frozenset[DeviceId]()
        """Devices reported as used only by processes of a deleted pod."""

    def judged(self, changes: Iterable[HealthChange]) -> None:
        """Take changes of health, to be reported with the next write."""
        self._changes += changes

    async def write(self, inventory: Inventory, orphaned: Iterable[UnhealthyDevice]) -> None:
        """Report the changes.

        Args:
            inventory: of the driver.
            orphaned: the devices used only by processes of deleted pods.

        """
        while self._changes and await self._record.report(health_report(self._changes[0], inventory)):
            del self._changes[0]
        found = {each.device: each for each in orphaned}
        self._orphaned &= found.keys()
        for device in sorted(found.keys() - self._orphaned, key=DeviceId.order):
            if await self._record.report(orphan_report(found[device], inventory)):
                self._orphaned |= {device}
