"""The dashboard page: the fleet live in a browser, limited to what each viewer may see."""

from tessera.server.page.agents import AgentsMemory
from tessera.server.page.history import PrometheusHistory
from tessera.server.page.served import FleetPage
from tessera.server.page.source import NO_METRICS, PageMetrics, PageSources

__all__ = ["NO_METRICS", "AgentsMemory", "FleetPage", "PageMetrics", "PageSources", "PrometheusHistory"]
