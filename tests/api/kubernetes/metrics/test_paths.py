"""Where paths of the metrics APIs lead, and the right that each takes, as kube-apiserver names it."""

import pytest

from tessera.api.kubernetes.metrics.paths import Custom, Discovery, External, find_resource, read_path
from tessera.api.kubernetes.reviews import Attributes
from tessera.core.workload.need import Requirement
from tessera.errors import InvalidInput

C1, C2 = "/apis/custom.metrics.k8s.io/v1beta1", "/apis/custom.metrics.k8s.io/v1beta2"
E1 = "/apis/external.metrics.k8s.io/v1beta1"
GROUP = "custom.metrics.k8s.io"

CASES = {
    "/apis": (Discovery(), Attributes(path="/apis")),
    "/apis/custom.metrics.k8s.io": (Discovery(GROUP), Attributes(path="/apis/custom.metrics.k8s.io")),
    C2: (Discovery(GROUP, "v1beta2"), Attributes(path=C2)),
    f"{C1}/namespaces/ns/pods/*/m": (
        Custom(version="v1beta1", resource="pods", namespace="ns", metric="m"),
        Attributes(group=GROUP, version="v1beta1", resource="pods", name="*", subresource="m", namespace="ns"),
    ),
    f"{C2}/namespaces/ns/deployments.apps/d/m": (
        Custom(version="v1beta2", resource="deployments.apps", namespace="ns", name="d", metric="m"),
        Attributes(group=GROUP, version="v1beta2", resource="deployments", name="d", subresource="m", namespace="ns"),
    ),
    f"{C1}/namespaces/ns/metrics/m": (
        Custom(version="v1beta1", resource="namespaces", name="ns", metric="m"),
        Attributes(group=GROUP, version="v1beta1", resource="metrics", name="m", namespace="ns"),
    ),
    f"{C1}/nodes/*/m": (
        Custom(version="v1beta1", resource="nodes", metric="m"),
        Attributes(group=GROUP, version="v1beta1", resource="nodes", name="*", subresource="m"),
    ),
    f"{E1}/namespaces/ns/m": (
        External(metric="m", namespace="ns"),
        Attributes(verb="list", group="external.metrics.k8s.io", version="v1beta1", resource="m", namespace="ns"),
    ),
}


@pytest.mark.parametrize("path", CASES)
def test_what_is_asked(path: str) -> None:
    assert read_path(path.split("/")[1:], {}) == CASES[path]


def test_selectors() -> None:
    found = read_path(
        f"{C1}/namespaces/ns/pods/*/m".split("/")[1:], {"labelSelector": "a=b", "metricLabelSelector": "c", "x": "y"}
    )
    assert found is not None
    want = Custom(
        version="v1beta1",
        resource="pods",
        namespace="ns",
        metric="m",
        selector=(Requirement(key="a", operator="In", values=("b",)),),
        metric_selector=(Requirement(key="c", operator="Exists"),),
    )
    assert found[0] == want


NOWHERE = (
    "/",
    "",
    "/apis/",
    "/api/v1/pods",
    "/apis/apps",
    "/apis/custom.metrics.k8s.io/v1",
    "/apis/external.metrics.k8s.io/v1beta2",
    f"{C1}/",
    f"{C1}/blah",
    f"{C1}/nodes/foo",
    f"{C1}/nodes//m",
    f"{C1}/pods/p/m",
    f"{C1}/namespaces/ns/nodes/n/m",
    f"{C1}/namespaces/ns/m",
    f"{C1}/namespaces/ns/secrets/s/m",
    f"{C1}/namespaces/ns/namespaces/ns/m",
    f"{C1}/namespaces/ns/pods/p/m/n",
    f"{E1}/m",
    f"{E1}/namespaces/ns",
    f"{E1}/namespaces/ns/m/n",
    "/openapi/v2",
)


@pytest.mark.parametrize("path", NOWHERE)
def test_paths_that_lead_nowhere(path: str) -> None:
    assert read_path(path.split("/")[1:], {}) is None


def test_a_selector_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="parameter labelSelector: '=' is not a label selector"):
        read_path(f"{E1}/namespaces/ns/m".split("/")[1:], {"labelSelector": "="})


FOUND = {
    ("pod", ""): "pods",
    ("Pods", ""): "pods",
    ("deployment", ""): "deployments.apps",
    ("ingresses", "networking"): "ingresses.networking.k8s.io",
    ("deployment", "batch"): None,
    ("pod", "apps"): None,
    ("podd", ""): None,
}


@pytest.mark.parametrize("name", FOUND)
def test_resources_by_name_and_group(name: tuple[str, str]) -> None:
    assert find_resource(*name) == FOUND[name]
