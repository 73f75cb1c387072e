"""`tessera inspect --watch`: the cluster shown again after each change, until interrupted."""

import asyncio
import contextlib
from collections.abc import Callable

from rich.console import Console, RenderableType

from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.livecluster import follow
from tessera.cli.screen import Screen
from tessera.cli.signals import cancel_on_signal
from tessera.core.cluster.cluster import Cluster

__all__ = ["watch"]

Drawn = Callable[[Cluster], RenderableType]


async def watch(place: ClusterSource, console: Console, drawn: Drawn) -> None:
    """Show the cluster and follow it until SIGINT or SIGTERM, which end it without an error."""
    cancel_on_signal()
    with contextlib.suppress(asyncio.CancelledError):
        async with connected(place) as kube:
            with Screen(console, drawn) as screen:
                await follow(kube, screen.show, screen.show_error)
