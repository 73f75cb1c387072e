"""Fleet files, and what is read of them."""

import textwrap

from tessera.api import documents
from tessera.api.tessera.cluster import fleets
from tessera.core.cluster.snapshot import Snapshot


def read(text: str) -> Snapshot:
    return fleets.read(documents.read("fleet.yaml", textwrap.dedent(text)))


OPERATORS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: custom-mig-config, namespace: gpu-operator}
data:
  config.yaml: |
    version: v1
    mig-configs:
      half-half:
      - {devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2, 2g.10gb: 1}}
      - {devices: [1], mig-enabled: false}
      all-1g.5gb:
      - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3}}
"""
