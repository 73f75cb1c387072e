"""What Tessera asks of agents about the use of GPUs."""

from typing import Protocol

from tessera.api.tessera.usagereports import UsageReport

__all__ = ["NodeUsages"]


class NodeUsages(Protocol):
    """The agents of some nodes."""

    async def read(self) -> tuple[UsageReport, ...]:
        """Return the report of each, sorted by node.

        Raises:
            Unavailable: one does not answer, or with something else than a report.

        """
        ...

    async def close(self) -> None:
        """End all connections."""
        ...
