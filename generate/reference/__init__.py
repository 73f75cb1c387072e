"""The pages of docs/reference, made from the definitions in the program by `scripts/generate`."""

from collections.abc import Iterable
from pathlib import Path

from generate import valuesreference
from generate.reference import commands, kinds, names
from generate.reference.tables import table
from tessera.api.tessera.chart import installation
from tessera.api.tessera.v1alpha1 import crds
from tessera.core.usage.families import Metric
from tessera.core.usage.nodemetrics import NODE_METRICS
from tessera.core.usage.ownmetrics import OWN_METRICS

__all__ = ["pages"]

_MADE = "\n<!-- Made by scripts/generate from the program; do not edit. -->\n"


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the repository."""
    records = {module.__name__: Path(module.__file__ or "").read_text() for module in crds.SOURCES}
    made = {
        "cli": commands.page(),
        "kinds": kinds.page(crds.definitions(crds.descriptions(records))),
        "metrics": _metrics(),
        "names": names.page(),
        "values": _values(),
    }
    return {f"docs/reference/{name}.md": text + _MADE for name, text in made.items()}


def _metrics() -> str:
    return f"""# Metrics

Agent, server, controller and `tessera metrics` answer Prometheus at port 9400, path `/metrics`;
[metrics](../metrics.md) says who may read them, and what has no series. Those that autoscalers read of model servers
are in [metrics APIs](../metrics-api.md).

## GPUs

Of the agent. All have `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, `Hostname` and `hostname`; MIG instances also
`GPU_I_PROFILE` and `GPU_I_ID`.

{_list(NODE_METRICS)}
## Processes

{_list(OWN_METRICS)}"""


def _list(metrics: Iterable[Metric]) -> str:
    rows = (
        (f"`{each.name}`", each.kind, ", ".join(f"`{name}`" for name in each.labels), each.help) for each in metrics
    )
    return table(("metric", "type", "more labels", "meaning"), rows)


def _values() -> str:
    source = {installation.MODULE: Path(installation.__file__).read_text()}
    return f"""# Values of the chart

For `helm install --set KEY=VALUE` and `tessera manifests --set KEY=VALUE`, or a file with `-f`;
[installing](../install.md) says which of them a cluster needs. Helm checks them by `deploy/chart/values.schema.json`.
`null` is refused, because Helm takes it for no value at all: empty a list by `[]`, a mapping by `{{}}`, a text by `""`.

{valuesreference.table_of_values(source)}"""
