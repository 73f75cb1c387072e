"""Fleets: Tessera's fleet file, the short form, and what is refused where."""

import textwrap

from tessera.api import documents, fleets
from tessera.core.snapshot import Snapshot


def read(text: str) -> Snapshot:
    return fleets.read(documents.read("fleet.yaml", textwrap.dedent(text)))


def test_a_group_of_nodes_is_numbered() -> None:
    snapshot = read("nodes: [{name: dgx, count: 2, gpus: 8xH100-80GB}]")
    assert [(node.name, len(node.gpus)) for node in snapshot.nodes] == [("dgx-0", 8), ("dgx-1", 8)]


def test_the_short_form_is_one_node() -> None:
    node = fleets.short("8xH100-80GB", 3)
    assert (node.name, [gpu.index for gpu in node.gpus]) == ("node-3", list(range(8)))
