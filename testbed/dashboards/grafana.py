"""A dashboard as Grafana imports it.

Source: grafana.com/docs, "Dashboard JSON model".
"""

from collections.abc import Iterator
from typing import Any

from testbed.dashboards.panels import Dashboard

__all__ = ["model"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


def model(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it; it asks for the data source when it is opened."""
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if dashboard.by_node:
        query = "label_values(tessera_gpu_lost, hostname)"
        variables.append(
            {
                "name": "node",
                "type": "query",
                "datasource": _SOURCE,
                "query": {"query": query, "refId": "node"},
                "definition": query,
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return {
        "uid": f"tessera-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["tessera", "gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels(dashboard)),
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Yield the panels in rows: four stats, or two with time series."""
    x, y, height = 0, 0, 0
    for number, each in enumerate(dashboard.panels, 1):
        wide, high = (6, 5) if each.kind == "stat" else (12, 8)
        if x + wide > _COLUMNS or (height and high != height):
            x, y = 0, y + height
        height = high
        yield {
            "id": number,
            "type": each.kind,
            "title": each.title,
            **({"description": each.text} if each.text else {}),
            "datasource": _SOURCE,
            "gridPos": {"h": high, "w": wide, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": each.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": chr(ord("A") + place),
                    "datasource": _SOURCE,
                    "expr": expr,
                    "legendFormat": legend or "__auto",
                    **({"instant": True, "range": False} if each.kind == "stat" else {}),
                }
                for place, (expr, legend) in enumerate(each.queries)
            ],
        }
        x += wide
