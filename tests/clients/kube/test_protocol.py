"""What is read of an object, however little of it there is, and what a kind that is not served says."""

from typing import Any

import pytest

from tessera.clients.kube import (
    DESIRED_REPLICAS,
    GPU_NODES,
    PODS,
    SCALED_OBJECTS,
    annotations_of,
    labels_of,
    name_of,
    uid_of,
)
from tessera.clients.kube.protocol import not_served, version_of

BARE: tuple[dict[str, Any], ...] = (
    {},
    {"metadata": None},
    {"metadata": {}},
    {"metadata": {"labels": None, "annotations": None, "namespace": None, "name": None, "uid": None}},
)


@pytest.mark.parametrize("each", BARE)
def test_what_is_not_there_is_empty(each: dict[str, Any]) -> None:
    got = (name_of(each), labels_of(each), annotations_of(each), uid_of(each), version_of(each))
    assert got == (("", ""), {}, {}, "", "")


def test_what_is_there_is_read() -> None:
    metadata = {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
    each = {"metadata": metadata}
    assert (name_of(each), labels_of(each), uid_of(each), version_of(each)) == (("ns", "p"), {"a": "b"}, "u", "7")


def test_who_lacks_a_kind_learns_what_to_install() -> None:
    assert str(not_served(GPU_NODES, "GPUNode n1")).endswith("the chart installs it, see docs/install.md")
    assert str(not_served(PODS, "pods")).endswith("use a Kubernetes version with v1")
    assert str(not_served(SCALED_OBJECTS, "x")).endswith(
        "CustomResourceDefinition scaledobjects.keda.sh of its project"
    )
    assert str(not_served(DESIRED_REPLICAS, "x")) == (
        "x: the API server does not serve external.metrics.k8s.io/v1beta1: "
        "set metricsApi.enabled=true in the chart, see docs/metrics-api.md"
    )
