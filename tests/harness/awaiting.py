"""Objects of an API that a test waits for."""

import asyncio
from collections.abc import Callable

from tessera.clients.kube import Kind, Kube, Object, Selection, follow


async def until_object(
    kube: Kube, kind: Kind, name: str, ready: Callable[[Object], bool], namespace: str = "", within_s: float = 20
) -> Object:
    """Return an object when it is as desired."""
    selection = Selection(namespace=namespace, fields=(("metadata.name", name),))
    async with asyncio.timeout(within_s):
        async for change in follow(kube, kind, selection, on_error=lambda _: None):
            if change.object is not None and ready(change.object):
                return change.object
    raise AssertionError
