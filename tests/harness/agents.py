"""Agents that report their GPUs' usage over HTTP, in a thread of their own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial

from tessera.api.tessera.usage.usagejson import write_usage
from tessera.core.usage.usagereport import UsageReport
from tessera.processports import MetricsPort, serving_metrics

__all__ = ["serving_reports"]


@contextmanager
def serving_reports(*reports: UsageReport) -> Iterator[list[str]]:
    """Give the address of an agent for each report."""
    loop, ready, end, addresses = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), list[str]()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for each in reports:
                port = await stack.enter_async_context(
                    serving_metrics(MetricsPort(port=0), bytes, partial(write_usage, each))
                )
                addresses.append(f"127.0.0.1:{port}")
            ready.set()
            await end.wait()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield addresses
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
