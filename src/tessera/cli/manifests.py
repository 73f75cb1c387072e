"""`tessera manifests`: all objects of an installation, as Helm would render `deploy/chart`."""

import re
from pathlib import Path
from typing import Any

import click

from tessera import __version__
from tessera._planning import read_bytes
from tessera.api import documents
from tessera.api.documents import Plain
from tessera.api.fields import Field
from tessera.api.kubernetes.helmtemplates import Chart, at_least, render
from tessera.api.tessera.chart.installation import read_values
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.errors import InvalidInput, Unsupported

__all__ = ["chart_folder", "manifests", "render_chart"]

_FIRST = ("templates/namespace", "templates/crds/", "templates/rbac/")
"""Kinds that others depend on."""
_EPILOG = """
\b
Examples:
  tessera manifests --kube-version 1.36.3 \\
    --set image.repository=registry.example/tessera | kubectl apply -f -
  tessera manifests --kube-version 1.35.2 --values values.yaml \\
    --set nvidia.operator=beside > tessera.yaml

Values and what they mean: docs/install.md.
"""


@click.command(epilog=_EPILOG)
@click.option("--values", metavar="FILE", help="Values of the chart, YAML; - is stdin.")
@click.option("--set", multiple=True, metavar="KEY=VALUE", help="Value over those of the file; repeatable.")
@click.option(
    "--kube-version",
    metavar="VERSION",
    required=True,
    help="Version of the API server: the second scheduler gets the same, and from 1.36 on no webhook is needed.",
)
def manifests(*, values: str | None, kube_version: str, **given: tuple[str, ...]) -> None:
    """Print the objects of the Helm chart, for kubectl apply.

    The namespace is among them. It asks no cluster. The values are those of the chart, deploy/chart/values.yaml.
    """
    if not re.fullmatch(r"v?\d+\.\d+\.\d+([-+].*)?", kube_version):
        raise InvalidInput(
            "--kube-version", found=kube_version, expected="a version such as 1.36.3", hint="see kubectl version"
        )
    found: dict[str, Plain] = {"createNamespace": True}
    if values is not None:
        found |= Field((document := documents.one(*read_bytes(values))), document.data).mapping()
    texts = render_chart(read_values(found, given["set"]), kube_version)
    click.echo(
        "".join(f"---\n{text.strip()}\n" for path, text in texts.items() if path.endswith(".yaml") and text.strip())
    )


def render_chart(values: dict[str, Any], kube_version: str) -> dict[str, str]:
    """Return the text of each of the chart's templates by its path, namespace and CRDs first.

    Raises:
        InvalidInput: the chart rejects the values.
        Unsupported: this installation of Tessera has no chart.

    """
    folder = chart_folder()
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    version = f"v{kube_version.removeprefix('v')}"
    chart = documents.one("Chart.yaml", files["Chart.yaml"])
    least = Field(chart, chart.data).get("kubeVersion").text()
    if not at_least(least, version):
        expected = f"{least.removeprefix('>=').removesuffix('-0')} or later, which the agent needs of the kubelet"
        raise InvalidInput("--kube-version", found=kube_version, expected=expected)
    built_in = {
        "Chart": {"Name": "tessera", "Version": __version__, "AppVersion": __version__},
        "Release": {"Name": "tessera", "Namespace": NAMESPACE, "Service": "Tessera"},
        "Capabilities": {"KubeVersion": {"Version": version}},
    }
    texts = render(Chart(files=files, built_in=built_in), values)
    return dict(sorted(texts.items(), key=lambda each: (*(not each[0].startswith(first) for first in _FIRST), each)))


def chart_folder() -> Path:
    """Return the folder of the Helm chart: beside this module if installed, `deploy/chart` in a checkout.

    Raises:
        Unsupported: there is none.

    """
    here = Path(__file__).resolve()
    for folder in (here.with_name("chart"), here.parents[3] / "deploy" / "chart"):
        if folder.is_dir():
            return folder
    raise Unsupported("the Helm chart", found="the distribution has no deploy/chart", hint="install it again")
