"""The metrics APIs over real HTTP and TLS: the 18 published cases, who may ask, errors with reasons."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from harness.metricsserver import AS_HPA, MetricsServer, serving_metrics
from tessera.api.kubernetes.labelselectors import selects
from tessera.api.kubernetes.metrics.answers import ExternalSeries, MetricValue
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.clients.connections import Broken, Unreachable
from tessera.errors import Unavailable
from tessera.server.metrics.sources import JoinedSources, MetricAbsent

pytestmark = pytest.mark.anyio

CUSTOM = "/apis/custom.metrics.k8s.io/v1beta1"
EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1"
SELECTED = "labelSelector=foo%3Dbar"


class Fleet:
    """4 nodes, 16 pods and a namespace with a metric, half of the nodes and pods labeled; two external series."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None

    def custom(self) -> frozenset[tuple[str, str]]:
        return frozenset((resource, "some-metric") for resource in ("nodes", "pods", "namespaces"))

    def external(self) -> frozenset[str]:
        return frozenset({"my-external-metric"})

    async def values(self, requested: Custom) -> Sequence[MetricValue]:
        if self.trouble:
            raise self.trouble
        names = {"nodes": ["foo", "b", "c", "d"], "namespaces": ["ns"], "pods": ["foo", *(f"p{n}" for n in range(15))]}
        found = [
            MetricValue(name=name, namespace=requested.namespace, value=1.5, at_s=1_700_000_000)
            for number, name in enumerate(names[requested.resource])
            if requested.name in {"", name} and selects(requested.selector, {"foo": "bar"} if number % 2 else {})
        ]
        if not found:
            raise MetricAbsent(f"metric {requested.metric}", found="no such object", expected="another")
        return found

    async def series(self, requested: External) -> Sequence[ExternalSeries]:
        if self.trouble:
            raise self.trouble
        labels = ({"foo": "bar"}, {"foo": "baz"})
        found = [
            ExternalSeries(labels=each, value=42, at_s=1.0) for each in labels if selects(requested.selector, each)
        ]
        if not found:
            raise MetricAbsent(
                f"external metric {requested.metric}", found="no series has such labels", expected="foo=bar"
            )
        return found


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def server(certificates: Path, fleet: Fleet) -> AsyncIterator[MetricsServer]:
    async with serving_metrics(JoinedSources((fleet,)), certificates) as one:
        yield one


# Source of the cases: kubernetes-sigs/custom-metrics-apiserver `pkg/apiserver/installer/apiserver_test.go`.
CASES = {
    "custom: a long prefix": ("/apis/", 404, None),
    "custom: no such resource at the root": (f"{CUSTOM}/blah", 404, None),
    "custom: a root resource without a metric": (f"{CUSTOM}/nodes/foo", 404, None),
    "custom: a namespaced resource without a metric": (f"{CUSTOM}/namespaces/ns/pods/bar", 404, None),
    "custom: all nodes": (f"{CUSTOM}/nodes/*/some-metric", 200, 4),
    "custom: all pods": (f"{CUSTOM}/namespaces/ns/pods/*/some-metric", 200, 16),
    "custom: the namespace": (f"{CUSTOM}/namespaces/ns/metrics/some-metric", 200, 1),
    "custom: selected nodes": (f"{CUSTOM}/nodes/*/some-metric?{SELECTED}", 200, 2),
    "custom: selected pods": (f"{CUSTOM}/namespaces/ns/pods/*/some-metric?{SELECTED}", 200, 8),
    "custom: one node": (f"{CUSTOM}/nodes/foo/some-metric", 200, 1),
    "custom: one pod": (f"{CUSTOM}/namespaces/ns/pods/foo/some-metric", 200, 1),
    "external: a long prefix": ("/apis/external.metrics.k8s.io/", 404, None),
    "external: at the root": (f"{EXTERNAL}/my-external-metric", 404, None),
    "external: without a metric": (f"{EXTERNAL}/namespaces/default", 404, None),
    "external: a metric with slashes": (f"{EXTERNAL}/namespaces/default/group/metric", 404, None),
    "external: all series": (f"{EXTERNAL}/namespaces/default/my-external-metric", 200, 2),
    "external: selected series": (f"{EXTERNAL}/namespaces/default/my-external-metric?{SELECTED}", 200, 1),
    "external: no such metric": (f"{EXTERNAL}/namespaces/default/foo", 200, 0),
}


@pytest.mark.parametrize("case", CASES)
async def test_the_published_cases(server: MetricsServer, case: str) -> None:
    path, want_status, want_items = CASES[case]
    code, body = await server.get(path)
    assert code == want_status
    if want_items is None:
        assert (body["kind"], body["code"]) == ("Status", 404)
    else:
        assert body["kind"].endswith("MetricValueList")
        assert len(body["items"]) == want_items


async def test_the_second_version_names_metrics_by_an_object(server: MetricsServer) -> None:
    path = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/foo/some-metric"
    _, body = await server.get(path)
    assert body["apiVersion"] == "custom.metrics.k8s.io/v1beta2"
    assert body["items"][0]["metric"] == {"name": "some-metric"}
    assert body["items"][0]["value"] == "1500m"


async def test_discovery(server: MetricsServer) -> None:
    _, groups = await server.get("/apis")
    assert len(groups["groups"]) == 2
    _, listed = await server.get("/apis/custom.metrics.k8s.io/v1beta2")
    assert {each["name"] for each in listed["resources"]} == {
        f"{each}/some-metric" for each in ("nodes", "pods", "namespaces")
    }
    _, external = await server.get(EXTERNAL)
    assert [each["name"] for each in external["resources"]] == ["my-external-metric"]


ONE_FORM = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.mark.parametrize(
    ("accept", "want"), [(f"{ONE_FORM},{ONE_FORM}", 406), (f"{ONE_FORM},application/json", 200), ("*/*", 200)]
)
async def test_kube_apiserver_learns_that_groups_are_served_one_by_one(
    server: MetricsServer, accept: str, want: int
) -> None:
    assert (await server.ask("/apis", {**AS_HPA, "Accept": accept})).status == want


# Reasons


async def test_an_unknown_external_metric_is_empty_with_a_warning(server: MetricsServer) -> None:
    headers = await server.headers(f"{EXTERNAL}/namespaces/ns/foo")
    want = '299 - "external metric foo: there is no such metric: request one of my-external-metric"'
    assert headers["warning"] == want


REASONS = {
    "no such metric": (
        f"{CUSTOM}/namespaces/ns/pods/*/other",
        404,
        "metric other of pods: there is no such metric: request one of some-metric",
    ),
    "no series with such labels": (
        f"{EXTERNAL}/namespaces/ns/my-external-metric?labelSelector=foo%3Dx",
        404,
        "external metric my-external-metric: no series has such labels is not foo=bar",
    ),
    "no such object": (f"{CUSTOM}/nodes/x/some-metric", 404, "metric some-metric: no such object is not another"),
    "a selector that is none": (
        f"{CUSTOM}/nodes/*/some-metric?labelSelector=%2C",
        400,
        "parameter labelSelector: ',' is not a label selector, as app=a,tier in (x,y),!old",
    ),
}


@pytest.mark.parametrize("case", REASONS)
async def test_what_has_no_value_says_why(server: MetricsServer, case: str) -> None:
    path, want_status, want = REASONS[case]
    code, body = await server.get(path)
    assert (code, body["code"], body["message"]) == (want_status, want_status, want)
    named = {"name": path.partition("?")[0].rpartition("/")[2]}
    assert body.get("details") == (named if code == 404 else None), "by it clients know that the API is there"


TROUBLE = {
    "what is behind does not answer": (Unavailable("Prometheus", found="no answer in 5 s", expected="one"), 503),
    "a defect": (ZeroDivisionError("x"), 500),
}


@pytest.mark.parametrize("case", TROUBLE)
async def test_trouble_is_reported_and_the_next_request_answered(
    server: MetricsServer, fleet: Fleet, case: str
) -> None:
    fleet.trouble, want = TROUBLE[case]
    for path in (f"{CUSTOM}/nodes/*/some-metric", f"{EXTERNAL}/namespaces/ns/my-external-metric"):
        code, body = await server.get(path)
        assert (code, body["kind"]) == (want, "Status")
        assert body["message"]
    fleet.trouble = None
    assert (await server.get(f"{CUSTOM}/nodes/*/some-metric"))[0] == 200


HOSTILE = (
    "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/some-metric?" + "&".join(f"a{number}=1" for number in range(100)),
    "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/some-metric?labelSelector=%FF%FE",
    "/apis/custom.metrics.k8s.io/v1beta1/nodes/%2e%2e/some-metric",
    "/apis/custom.metrics.k8s.io/v1beta1/nodes%2Ffoo/some-metric",
    "/apis/" + "a" * 5000,
    "/" + "/".join("a" * 100),
    "//apis",
)


@pytest.mark.parametrize("path", HOSTILE)
async def test_hostile_paths_are_refused_as_the_clients_fault(server: MetricsServer, path: str) -> None:
    code, body = await server.get(path)
    assert code in {400, 404}
    assert body["kind"] == "Status"


# Who may ask


CLIENTS = {
    "the proxy, for somebody who may": ("front-proxy-client", AS_HPA, 200),
    "the proxy, for somebody who may not": ("front-proxy-client", {"X-Remote-User": "jane"}, 403),
    "the proxy, for nobody": ("front-proxy-client", {}, 401),
    "another client of the proxy's authority": ("somebody", AS_HPA, 401),
    "no certificate, with the proxy's headers": ("", AS_HPA, 401),
    "no certificate, with a token of somebody who may": ("", {"Authorization": "Bearer good"}, 200),
    "no certificate, with a token of somebody who may not": ("", {"Authorization": "Bearer weak"}, 403),
    "no certificate, with a token of nobody": ("", {"Authorization": "Bearer bad"}, 401),
    "no certificate, with a huge token": ("", {"Authorization": f"Bearer {'x' * 20_000}"}, 401),
    "no certificate, with a password": ("", {"Authorization": "Basic Z29vZA=="}, 401),
    "a token with the proxy's headers added": ("", {"Authorization": "Bearer weak", **AS_HPA}, 403),
}


@pytest.mark.parametrize("case", CLIENTS)
async def test_who_may_ask(server: MetricsServer, case: str) -> None:
    client, headers, want = CLIENTS[case]
    answer = await server.ask(f"{CUSTOM}/nodes/*/some-metric", headers, client=client)
    assert answer.status == want
    if want == 403:
        assert b"jane may not get nodes of custom.metrics.k8s.io: no role grants it" in answer.content


async def test_a_certificate_of_another_authority_gets_no_connection(server: MetricsServer) -> None:
    with pytest.raises((Broken, Unreachable)):
        await server.ask(f"{CUSTOM}/nodes/*/some-metric", AS_HPA, client="stranger")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_metrics_are_read_only(server: MetricsServer, method: str) -> None:
    answer = await server.ask(f"{CUSTOM}/nodes/*/some-metric", AS_HPA, method=method)
    assert answer.status == 405


async def test_head_has_no_body(server: MetricsServer) -> None:
    answer = await server.ask(CUSTOM, AS_HPA, method="HEAD")
    assert (answer.status, answer.content) == (200, b"")
