"""Answers of the metrics APIs: discovery, values of each version, quantities, errors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.kubernetes.metrics.answers import (
    ExternalSeries,
    MetricValue,
    custom_values,
    discovery,
    external_values,
    quantity_text,
    status,
)
from tessera.api.kubernetes.metrics.paths import Custom, Discovery, External
from tessera.core.workload.units import quantity
from tessera.errors import InvalidInput

GROUP = "custom.metrics.k8s.io"
POD = MetricValue(name="p", namespace="ns", value=399.3, at_s=1_700_000_000.4, window_s=15.2)


@pytest.mark.parametrize(
    ("version", "name"), [("v1beta1", {"metricName": "m"}), ("v1beta2", {"metric": {"name": "m"}})]
)
def test_a_value_of_a_pod(version: str, name: dict[str, object]) -> None:
    requested = Custom(version=version, resource="pods", namespace="ns", metric="m")
    assert custom_values(requested, [POD]) == {
        "kind": "MetricValueList",
        "apiVersion": f"{GROUP}/{version}",
        "metadata": {},
        "items": [
            {
                "describedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": "ns", "name": "p"},
                **name,
                "timestamp": "2023-11-14T22:13:20Z",
                "windowSeconds": 15,
                "value": "399300m",
            }
        ],
    }


def test_a_value_of_a_node_has_no_namespace() -> None:
    requested = Custom(version="v1beta2", resource="nodes", metric="m")
    (item,) = custom_values(requested, [MetricValue(name="n", value=2, at_s=0)])["items"]
    assert item["describedObject"] == {"kind": "Node", "apiVersion": "v1", "name": "n"}
    assert "windowSeconds" not in item


def test_a_series() -> None:
    requested = External(metric="m", namespace="ns")
    found = external_values(requested, [ExternalSeries(labels={"server": "a"}, value=3, at_s=1_700_000_000)])
    assert found == {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {"metricName": "m", "metricLabels": {"server": "a"}, "timestamp": "2023-11-14T22:13:20Z", "value": "3"}
        ],
    }


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0, "0"),
        (3, "3"),
        (399.3, "399300m"),
        (0.0001, "0"),
        (0.0005001, "1m"),
        (-1.5, "-1500m"),
        (1e15, "1" + 15 * "0"),
    ],
)
def test_quantities(value: float, want: str) -> None:
    assert quantity_text(value, "metric m") == want


@given(st.floats(-9e15, 9e15))
def test_a_quantity_is_read_as_it_was_to_the_thousandth(value: float) -> None:
    assert float(quantity(quantity_text(value, "m"), "m")) == pytest.approx(value, rel=1e-14, abs=0.000501)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e16, -1e16])
def test_what_an_autoscaler_cannot_hold(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"metric m: .* is not a number of at most 9223372036854775"):
        quantity_text(value, "metric m")


def test_discovery() -> None:
    served = [("pods", "b"), ("nodes", "a")], ["z", "y"]
    groups = discovery(Discovery(), *served)
    assert [each["name"] for each in groups["groups"]] == [GROUP, "external.metrics.k8s.io"]
    one = discovery(Discovery(GROUP), *served)
    assert one["kind"] == "APIGroup"
    assert one["preferredVersion"] == {"groupVersion": f"{GROUP}/v1beta2", "version": "v1beta2"}
    listed = discovery(Discovery(GROUP, "v1beta1"), *served)
    assert (listed["kind"], listed["groupVersion"]) == ("APIResourceList", f"{GROUP}/v1beta1")
    assert [(each["name"], each["namespaced"], each["kind"]) for each in listed["resources"]] == [
        ("nodes/a", False, "MetricValueList"),
        ("pods/b", True, "MetricValueList"),
    ]
    external = discovery(Discovery("external.metrics.k8s.io", "v1beta1"), *served)
    assert [(each["name"], each["kind"]) for each in external["resources"]] == [
        ("y", "ExternalMetricValueList"),
        ("z", "ExternalMetricValueList"),
    ]


def test_an_error() -> None:
    found = status(404, "no such metric")
    assert (found["kind"], found["code"], found["reason"], found["message"]) == (
        "Status",
        404,
        "NotFound",
        "no such metric",
    )
