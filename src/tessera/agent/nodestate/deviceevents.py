"""Events of a node about its devices: which became unhealthy or healthy, and which are closed for what a pod left."""

from collections.abc import Iterable

from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.api.tessera.nodereports import health_report, orphan_report
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.health import HealthChange

__all__ = ["DeviceEvents"]


class DeviceEvents:
    """Says each change once; what could not be written is said the next time.

    Args:
        record: the Node object.

    """

    def __init__(self, record: NodeRecord) -> None:
        self._record = record
        self._changes: list[HealthChange] = []
        self._orphaned = frozenset[DeviceId]()
        """Devices of which an event has said that only processes of a pod that is gone use them."""

    def judged(self, changes: Iterable[HealthChange]) -> None:
        """Take changes of health, to be said with the next write."""
        self._changes += changes

    async def write(self, inventory: Inventory, orphaned: Iterable[UnhealthyDevice]) -> None:
        """Say what has changed.

        Args:
            inventory: what the driver shows.
            orphaned: the devices that only processes of pods that are gone use.

        """
        while self._changes and await self._record.report(health_report(self._changes[0], inventory)):
            del self._changes[0]
        found = {each.device: each for each in orphaned}
        self._orphaned &= found.keys()
        for device in sorted(found.keys() - self._orphaned, key=DeviceId.order):
            if await self._record.report(orphan_report(found[device], inventory)):
                self._orphaned |= {device}
