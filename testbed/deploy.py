"""What is deployed: the chart rendered for a testbed."""

from pathlib import Path
from typing import Any

from tessera.api import documents
from tessera.api.tessera.chart import installation
from tessera.cli.manifests import chart_folder, render_chart

__all__ = [
    "ANY_IMAGE",
    "EXTENDER_URL",
    "FOLDER",
    "KUBE_VERSION",
    "NAMESPACE",
    "objects",
    "rendered",
    "scheduler_configuration",
]

FOLDER = Path(__file__).parents[1] / "deploy"
NAMESPACE = "tessera-system"
EXTENDER_URL = "http://127.0.0.1:39999"
"""Where `tessera server` answers the scheduler beside it: plain HTTP stays on loopback. The port is gpushare's."""
KUBE_VERSION = "1.36.3"

ANY_IMAGE: dict[str, Any] = {
    "image": {"repository": "tessera"},
    "createNamespace": True,
    "metricsApi": {"enabled": True},
}
"""Values of the chart that a testbed needs."""


def objects(*names: str, values: dict[str, Any] | None = None) -> tuple[dict[str, Any], ...]:
    """Return the objects in templates of the chart, or in other files of deploy/, in order.

    Args:
        names: templates, or folders for all templates in them: `crds`, `rbac/agent.yaml`; or `quota/FILE`.
        values: of the chart; those of the testbed where it is left out.

    """
    texts = render_chart(installation.read_values({**ANY_IMAGE, **(values or {})}), KUBE_VERSION)
    found = list[dict[str, Any]]()
    for name in names:
        if (FOLDER / name).is_file():
            found += _read(name, (FOLDER / name).read_text())
        place = f"templates/{name}"
        named = (path for path in texts if path == place or path.startswith(f"{place}/"))
        found += [each for path in named for each in _read(path, texts[path])]
    assert found, f"nothing in {names}"
    return tuple(found)


def rendered(values: dict[str, Any], kube_version: str = KUBE_VERSION) -> tuple[dict[str, Any], ...]:
    """Return all objects that the chart makes of values, in an order in which they can be applied."""
    texts = render_chart(installation.read_values(values), kube_version)
    return tuple(each for path, text in texts.items() if path.endswith(".yaml") for each in _read(path, text))


def scheduler_configuration() -> dict[str, Any]:
    """Return the configuration of the second scheduler."""
    (found,) = _read("scheduler.yaml", (chart_folder() / "files" / "scheduler.yaml").read_text())
    return found


def _read(path: str, text: str) -> list[dict[str, Any]]:
    return [document.data for document in documents.read(path, text) if isinstance(document.data, dict)]
