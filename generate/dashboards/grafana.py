"""A dashboard as Grafana imports it.

Source: grafana.com/docs, "Dashboard JSON model".
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from generate.dashboards.panels import Dashboard

__all__ = ["model"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_SERIES: Final = re.compile(r"\b((?:tessera|DCGM_FI)_\w+)(?:\{([^}]*)\})?")
"""A selector of Tessera's metrics."""


def model(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it; it asks for the data source and the cluster when it is opened.

    Where series have no label `cluster`, there is none to choose, and the empty value is that of all series.
    """
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _labels("cluster", "label_values(tessera_loop_age_seconds, cluster)"),
    ]
    if dashboard.by_node:
        every = {"multi": True, "includeAll": True, "current": {"text": ["All"], "value": ["$__all"]}}
        variables.append(_labels("node", f"label_values({_of_cluster('tessera_gpu_lost')}, hostname)") | every)
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


def _labels(name: str, query: str) -> dict[str, Any]:
    """Return a variable with the values of a label."""
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


def _of_cluster(expr: str) -> str:
    """Return an expression of the chosen cluster: each selector names it."""
    return _SERIES.sub(
        lambda found: f'{found[1]}{{cluster="$cluster"' + (f", {found[2]}" if found[2] else "") + "}", expr
    )


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
                    "expr": _of_cluster(expr),
                    "legendFormat": legend or "__auto",
                    **({"instant": True, "range": False} if each.kind == "stat" else {}),
                }
                for place, (expr, legend) in enumerate(each.queries)
            ],
        }
        x += wide
