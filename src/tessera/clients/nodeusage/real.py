"""Reports of agents over HTTP: `/usage` at their metrics port."""

import asyncio
import re
from collections.abc import Iterable
from functools import partial
from urllib.parse import urlsplit

from tessera.api.tessera.usage.usagejson import read_usage
from tessera.clients.connections import Broken, Connections, Unreachable, reached
from tessera.clients.nodeusage.protocol import METRICS_PORT, MOST_BYTES, NodeReports
from tessera.clients.nodeusage.reading import AgentReads
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["HttpUsage"]

_HINT = (
    f"check the address, or run kubectl -n tessera-system port-forward POD {METRICS_PORT}, "
    f"and --agent http://127.0.0.1:{METRICS_PORT}"
)


class HttpUsage:
    """Agents by their addresses.

    Args:
        addresses: `http://HOST:PORT`, or `HOST`, or `HOST:PORT`.
        deadline_s: longest wait for the report of an agent.

    Raises:
        InvalidInput: an invalid address.

    """

    def __init__(self, addresses: Iterable[str], deadline_s: float = 10.0) -> None:
        self._deadline_s = deadline_s
        self._agents = {address: Connections(reached(_url(address)), None) for address in addresses}
        self._reads = AgentReads()

    async def read(self) -> NodeReports:
        """Return the report of each agent."""
        asks = {f"agent {name}": partial(self._ask, f"agent {name}", each) for name, each in self._agents.items()}
        return await self._reads.read(asks)

    async def _ask(self, subject: str, connections: Connections) -> UsageReport:
        try:
            async with asyncio.timeout(self._deadline_s):
                answer = await connections.read("/usage", {"Accept": "application/json"}, most=MOST_BYTES)
        except TimeoutError as error:
            found = f"no answer in {self._deadline_s:g} s"
            raise Unavailable(subject, found=found, hint=_HINT) from error
        except Unreachable as error:
            raise Unavailable(subject, found=re.sub(r" to \S+: ", ": ", str(error)), hint=_HINT) from error
        except Broken as error:
            raise Unavailable(subject, found=shown(str(error)), hint=_HINT) from error
        if not answer.success:
            raise Unavailable(subject, found=f"HTTP {answer.status}", hint=_HINT)
        try:
            return read_usage(answer.content, subject)
        except InvalidInput as error:
            raise Unavailable(subject, found=error.found, hint=_HINT) from error

    async def close(self) -> None:
        """End all connections."""
        await self._reads.close()
        await asyncio.gather(*(each.close() for each in self._agents.values()))


def _url(address: str) -> str:
    full = address if "://" in address else f"http://{address}"
    try:
        port = urlsplit(full).port
    except ValueError:
        return full  # reported with its other mistakes
    return full.rstrip("/") if port is not None else f"{full.rstrip('/')}:{METRICS_PORT}"
