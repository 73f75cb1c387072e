"""What is deployed: the chart rendered for a testbed; the generated files of deploy/, written by `scripts/generate`."""

import json
import sys
from pathlib import Path
from typing import Any

from tessera.api import documents
from tessera.api.tessera.chart import installation
from tessera.api.tessera.v1alpha1 import crds
from tessera.cli.manifests import chart_folder, render_chart
from testbed.generation import queuerules, quotafiles, uninstalllists, valuesreference
from testbed.generation.schedulerconfiguration import configuration

__all__ = [
    "EXTENDER_URL",
    "FOLDER",
    "KUBE_VERSION",
    "NAMESPACE",
    "objects",
    "rendered",
    "scheduler_configuration",
    "write",
]

FOLDER = Path(__file__).parents[1] / "deploy"
NAMESPACE = "tessera-system"
EXTENDER_URL = "http://127.0.0.1:39999"
"""Where `tessera server` answers the scheduler beside it: plain HTTP stays on loopback. The port is gpushare's."""
KUBE_VERSION = "1.36.3"

_HEAD = "# Made by scripts/generate; do not edit.\n"
_ANY_IMAGE: dict[str, Any] = {
    "image": {"repository": "tessera"},
    "createNamespace": True,
    "metricsApi": {"enabled": True},
}


_ALL_PARTS: dict[str, Any] = {
    "disks": {"enabled": True},
    "server": {"page": True},
    "agent": {"modelSecrets": ["models"], "pullSecrets": ["registry"], "modelPeers": "peers"},
    "metrics": {"podMonitor": True, "alertRules": True, "dashboards": True},
}
_WITHOUT_POLICIES = "1.35.0"
"""A version of Kubernetes whose API server has no MutatingAdmissionPolicies."""


def objects(*names: str, values: dict[str, Any] | None = None) -> tuple[dict[str, Any], ...]:
    """Return the objects in templates of the chart, or in other files of deploy/, in order.

    Args:
        names: templates, or folders for all templates in them: `crds`, `rbac/agent.yaml`; or `quota/FILE`.
        values: of the chart; those of the testbed where it is left out.

    """
    texts = render_chart(installation.read_values({**_ANY_IMAGE, **(values or {})}), KUBE_VERSION)
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


def write(folder: Path) -> None:
    """Write the generated files below a folder that stands for deploy/."""
    sources = {module.__name__: Path(module.__file__ or "").read_text() for module in crds.SOURCES}
    source = {installation.MODULE: Path(installation.__file__).read_text()}
    files = {
        f"chart/templates/crds/{name}": _kind(each)
        for name, each in crds.definitions(crds.descriptions(sources)).items()
    }
    files["chart/files/scheduler.yaml"] = _HEAD + documents.write(configuration(EXTENDER_URL))
    files["chart/values.yaml"] = _HEAD + "\n" + valuesreference.values_file(source).rstrip("\n") + "\n"
    files["chart/values.schema.json"] = json.dumps(valuesreference.schema_of_values(source), indent=2) + "\n"
    files["quota/needs-only.yaml"] = _HEAD + documents.write(quotafiles.needs_only())
    files["quota/kueue-resources.yaml"] = _HEAD + documents.write(quotafiles.kueue_resources())
    rules = {"model-servers": queuerules.prometheus_rules(), "prometheus-adapter": queuerules.adapter_rules()}
    for name, content in rules.items():
        files[f"chart/files/monitoring/{name}.yaml"] = _HEAD + documents.write(content, block=True)
    everything = {**_ANY_IMAGE, **_ALL_PARTS}
    objects = [each for version in (_WITHOUT_POLICIES, KUBE_VERSION) for each in rendered(everything, version)]
    files["uninstall"] = uninstalllists.with_lists((FOLDER / "uninstall").read_text(), objects)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _kind(definition: dict[str, documents.Plain]) -> str:
    """Return the template of a definition, which stays, with all objects of its kind, when the chart goes."""
    metadata = definition["metadata"]
    assert isinstance(metadata, dict)
    metadata["annotations"] = {"helm.sh/resource-policy": "keep"}
    return f"{_HEAD}{{{{- if .Values.crds.install }}}}\n{documents.write(definition)}{{{{- end }}}}\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
