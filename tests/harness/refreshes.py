"""The page's metrics, which are asked for in the background, at the moment when they have been answered."""

import asyncio

from tessera.server.page import PageMetrics

__all__ = ["refreshed"]


async def refreshed(metrics: PageMetrics) -> None:
    """Refresh, and return when what that began has ended."""
    others = asyncio.all_tasks()
    metrics.refresh(lambda: None)
    if begun := asyncio.all_tasks() - others:
        await asyncio.wait(begun)
