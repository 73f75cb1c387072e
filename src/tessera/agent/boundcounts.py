"""Lets the Node object count the devices of its pods while a restarted kubelet admits them again."""

import asyncio
from collections.abc import Callable

from tessera.agent.deviceplugin import Plugins
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.clients.kube import Object
from tessera.log import RepeatedError
from tessera.loops import one_turn

__all__ = ["BoundCounts"]

_ADMIT_S = 3.0
"""A kubelet admits its pods about 0.8 s after its plugins have registered; more where it waits for the processor."""
_LOOK_S = 0.02
_AGAIN_S = 0.2
"""The pause after a write; an API server that is slow, or refuses it, is not asked more often."""


class BoundCounts:
    """Has the Node object count the devices of bound pods for at least three seconds after each registration.

    A kubelet reports 0 devices of each resource whose plugin has not registered yet, 0.1 s after it has started, and
    the true number only in its next report, ten seconds later by default. In between it admits its running pods again.
    Those that its checkpoint lacks must fit what it reported, beside older ones that it admits first, else it ends them
    (docs/kubelet-races.md).

    Args:
        plugins: whose devices they are.
        record: the Node object.
        node: returns it, as last observed.
        complain: called with what keeps it from being written.

    """

    def __init__(
        self,
        plugins: Plugins,
        record: NodeRecord,
        node: Callable[[], Object],
        complain: RepeatedError,
    ) -> None:
        self._plugins = plugins
        self._record = record
        self._node = node
        self._complain = complain
        self._tried = False
        """Whether the last turn wrote, or tried to: the watch shows it later."""

    async def run(self) -> None:
        """Follow registrations, until canceled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._plugins.until_registered()
            end_s = loop.time() + _ADMIT_S
            while loop.time() < end_s:
                await one_turn(self._count, self._complain, self._complain.clear)
                await asyncio.sleep(_AGAIN_S if self._tried else _LOOK_S)

    async def _count(self) -> None:
        self._tried = True
        self._tried = await self._record.count_bound(self._node(), self._plugins.counts_of_bound())
