"""The parts of the page together: what it observes, its permissions, and the application that serves it."""

import asyncio

from tessera.log import Logger
from tessera.measures import Measures
from tessera.server.page.app import make_page_app
from tessera.server.page.feed import FleetFeed
from tessera.server.page.signin import SignIn
from tessera.server.page.source import PageSources, Source
from tessera.server.settings import Page

__all__ = ["FleetPage"]


class FleetPage:
    """The page of one server.

    Args:
        sources: where its facts come from.
        settings: address, TLS and permissions.
        measures: has the age of its loop, and a monotonic clock.
        log: records errors.

    Attributes:
        app: the HTTP application.

    """

    def __init__(self, sources: PageSources, settings: Page, measures: Measures, log: Logger) -> None:
        self._source = Source(sources, self.changed, log)
        self._feed = FleetFeed(self._source.observe, measures, log)
        sign_in = SignIn(sources.kube, measures.clock_s) if settings.sign_in else None
        self.app = make_page_app(
            self._feed,
            sign_in,
            waiting_for=sources.waiting_for,
            limits=settings.limits,
            log=log,
            clock_s=measures.clock_s,
        )

    def changed(self) -> None:
        """Refresh soon, if the page is open."""
        self._feed.changed()

    def close(self) -> None:
        """End all live updates: pages reconnect to another server."""
        self._feed.close()

    async def run(self, prepared: asyncio.Event) -> None:
        """Keep the page up to date once the cluster was read, until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._source.run())
            await prepared.wait()
            tasks.create_task(self._feed.run())
