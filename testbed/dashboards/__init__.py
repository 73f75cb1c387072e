"""Grafana's dashboards of Tessera's metrics, written by `scripts/generate`: `python -m testbed.dashboards FOLDER`."""

from testbed.dashboards.cost import COST
from testbed.dashboards.fleet import FLEET
from testbed.dashboards.grafana import model
from testbed.dashboards.nodes import NODES
from testbed.dashboards.panels import Dashboard, Panel
from testbed.dashboards.processes import PROCESSES
from testbed.dashboards.serving import SERVING

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "model"]

DASHBOARDS = (FLEET, NODES, COST, SERVING, PROCESSES)
