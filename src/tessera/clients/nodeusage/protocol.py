"""The interface of GPU usage reports."""

from typing import Protocol

from tessera.core.usage.usagereport import UsageReport

__all__ = ["NodeUsages"]


class NodeUsages(Protocol):
    """The agents of some nodes."""

    async def read(self) -> tuple[UsageReport, ...]:
        """Return the report of each, sorted by node.

        Raises:
            Unavailable: one does not answer, or not with a report, and is not to be left out.

        """
        ...

    async def close(self) -> None:
        """End all connections."""
        ...
