"""The dashboard page: the fleet live in a browser, limited to what each viewer may see."""

from tessera.server.page.agents import AgentMetrics
from tessera.server.page.fleetpage import FleetPage
from tessera.server.page.prometheus import PrometheusMetrics
from tessera.server.page.source import NO_METRICS, PageMetrics, PageSources

__all__ = ["NO_METRICS", "AgentMetrics", "FleetPage", "PageMetrics", "PageSources", "PrometheusMetrics"]
