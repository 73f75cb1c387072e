"""Grafana's dashboards of Tessera's metrics, written by `scripts/generate`: `python -m generate.dashboards FOLDER`."""

from generate.dashboards.cost import COST
from generate.dashboards.fleet import FLEET
from generate.dashboards.grafana import model
from generate.dashboards.nodes import NODES
from generate.dashboards.panels import Dashboard, Panel
from generate.dashboards.processes import PROCESSES
from generate.dashboards.serving import SERVING

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "model"]

DASHBOARDS = (FLEET, NODES, COST, SERVING, PROCESSES)
