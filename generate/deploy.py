"""The generated files of deploy/: `python -m generate.deploy FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from generate import queuerules, quotafiles, uninstalllists, valuesreference
from generate.schedulerconfiguration import configuration
from tessera.api import documents
from tessera.api.tessera.chart import installation
from tessera.api.tessera.v1alpha1 import crds
from testbed.deploy import ANY_IMAGE, EXTENDER_URL, FOLDER, KUBE_VERSION, rendered

__all__ = ["write"]

_HEAD = "# Made by scripts/generate; do not edit.\n"
_ALL_PARTS: dict[str, Any] = {
    "disks": {"enabled": True},
    "server": {"page": True},
    "agent": {"modelSecrets": ["models"], "pullSecrets": ["registry"], "modelPeers": "peers"},
    "metrics": {"podMonitor": True, "alertRules": True, "dashboards": True},
}
_WITHOUT_POLICIES = "1.35.0"
"""A version of Kubernetes whose API server has no MutatingAdmissionPolicies."""


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
    everything = {**ANY_IMAGE, **_ALL_PARTS}
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
