"""In-memory reports, for demos and tests."""

from tessera.clients.nodeusage.protocol import NodeReports
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

__all__ = ["MemoryUsage"]


class MemoryUsage:
    """A `UsageSource` of given reports."""

    def __init__(self, *reports: UsageReport) -> None:
        self.reports = reports
        self.silent = ""
        """Which node does not answer; empty for none."""

    async def read(self) -> NodeReports:
        """Return the reports; none while a node is silent."""
        if self.silent:
            return NodeReports(silent=(Unavailable(self.silent, found="no answer", hint="try again"),))
        return NodeReports(tuple(sorted(self.reports, key=lambda each: each.node)))

    async def close(self) -> None:
        """Nothing is open."""
