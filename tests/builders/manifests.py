"""Manifests as text, read as `tessera plan -f` reads them."""

import textwrap

from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.core.workload.need import Need


def pods_of(text: str, *, share_unit_mib: int = 1024) -> workloads.ReadWorkloads:
    """Return the pods of manifests."""
    return workloads.read(documents.read("pods.yaml", textwrap.dedent(text)), share_unit_mib=share_unit_mib)


def need_of(limits: str, *, annotations: str = "{}", more: str = "") -> Need:
    """Return what a pod with one container `main` needs; `more` are fields of its spec."""
    text = f"""
kind: Pod
metadata: {{name: a, annotations: {annotations}}}
spec:
  containers:
  - name: main
    resources: {{limits: {limits}}}
{textwrap.indent(textwrap.dedent(more), "  ")}
"""
    return pods_of(text).pods[0].need
