"""A controller of ModelServers on a cluster of this process."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from builders.modelservers import model_server
from tessera.clients.kube import (
    MODEL_SERVERS,
    Kind,
    MemoryKube,
    Object,
    Selection,
    follow,
)
from tessera.controller.modelservers import ModelServers, Pace
from tessera.measures import Measures

NS = "serving"


NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


class Cluster:
    """A controller that may write in one namespace, inside `running`."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.namespaces = [NS]
        self.prometheus = ""
        self.pace = Pace(least_s=0.01, most_s=0.05, repair_s=0.05)

    @asynccontextmanager
    async def running(self, measures: Measures | None = None) -> AsyncIterator[None]:
        controller = ModelServers(
            self.kube, self.namespaces, prometheus=self.prometheus, now=lambda: NOW, pace=self.pace
        )
        task = asyncio.create_task(controller.run(measures or Measures()))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def make(self, spec: dict[str, Any] | None = None, **metadata: Any) -> Object:
        return await self.kube.create(MODEL_SERVERS, model_server(spec, **{"namespace": NS, **metadata}))

    async def change(self, spec: dict[str, Any]) -> None:
        await self.kube.patch(MODEL_SERVERS, "ranker", {"spec": spec}, namespace=NS)

    async def until(self, kind: Kind, holds: Callable[[Any], bool], namespace: str = NS) -> Any:
        """Return an object of the server's name when it is as desired; None where it is expected to be gone, and is."""
        selection = Selection(namespace=namespace, fields=(("metadata.name", "ranker"),))
        async with asyncio.timeout(20):
            async for change in follow(self.kube, kind, selection, on_error=lambda _: None):
                nothing = change.listing is not None and not change.listing.objects
                if (nothing or change.object is not None) and holds(None if change.gone else change.object):
                    return None if change.gone else change.object
        raise AssertionError

    async def condition(self, name: str, holds: Callable[[Any], bool], namespace: str = NS) -> Any:
        def found(each: Object | None) -> Any:
            conditions = ((each or {}).get("status") or {}).get("conditions") or ()
            return next((one for one in conditions if one["type"] == name), None)

        def settled(each: Object | None) -> bool:
            one = found(each)
            return one is not None and holds(one)

        return found(await self.until(MODEL_SERVERS, settled, namespace))


def is_there(each: Object | None) -> bool:
    return each is not None


def failed(each: Any) -> bool:
    return bool(each["status"] == "False")


COMMAND = (
    "kubectl create rolebinding tessera-model-servers -n {} --clusterrole=tessera-model-servers "
    "--serviceaccount=tessera-system:tessera-controller"
)


class Passes(Measures):
    """Reports the passes of a controller."""

    def __init__(self) -> None:
        super().__init__()
        self._reconciled = asyncio.Event()

    def turned(self, loop: str) -> None:
        super().turned(loop)
        self._reconciled.set()

    async def again(self) -> None:
        """Wait for one more pass."""
        self._reconciled.clear()
        async with asyncio.timeout(20):
            await self._reconciled.wait()
