"""Values of objects and series of Prometheus' answers: quantities as the adapter's, and none that would mislead."""

import math

import pytest

from tessera.api.kubernetes.metrics.adapter.values import series_of, values_of
from tessera.api.prometheus.answers import Sampled
from tessera.errors import InvalidInput


def sampled(value: float, **labels: str) -> Sampled:
    return Sampled(labels, value, 5.0)


def test_requested_objects_have_their_values() -> None:
    answer = [sampled(2, pod="b"), sampled(1, pod="a"), sampled(3, pod="other"), sampled(4, node="a")]
    found = values_of(answer, "pod", ["a", "b", "c"], "ns")
    assert [(each.name, each.namespace, each.value, each.at_s) for each in found] == [
        ("a", "ns", 1, 5.0),
        ("b", "ns", 2, 5.0),
    ]


CUT = {1.2345: 1.234, 1.9999: 1.999, -1.2345: -1.234, 0.0009: 0.0, 9e15: 9e15}


@pytest.mark.parametrize("value", CUT)
def test_values_are_cut_to_the_thousandth(value: float) -> None:
    assert [each.value for each in values_of([sampled(value, pod="a")], "pod", ["a"], "ns")] == [CUT[value]]
    assert [each.value for each in series_of([sampled(value)])] == [CUT[value]]


def test_a_division_by_nothing_is_0_of_an_object_and_nothing_of_a_series() -> None:
    assert values_of([sampled(math.nan, pod="a")], "pod", ["a"], "ns")[0].value == 0
    with pytest.raises(InvalidInput, match="series 'queue=q': nan is not a number that an autoscaler can use"):
        series_of([sampled(math.nan, queue="q")])


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e16, -1e300])
def test_what_no_autoscaler_could_use_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"pod 'a': .* is not a number that an autoscaler can use"):
        values_of([sampled(value, pod="a")], "pod", ["a"], "ns")
    with pytest.raises(InvalidInput, match="is not a number that an autoscaler can use"):
        series_of([sampled(value)])


def test_an_object_with_two_series_is_refused() -> None:
    answer = [sampled(1, pod="a", container="x"), sampled(2, pod="a", container="y")]
    with pytest.raises(InvalidInput, match=r"pod 'a' has two series: .*container=y.*by \(<<.GroupBy>>\)"):
        values_of(answer, "pod", ["a"], "ns")


def test_series_keep_their_labels() -> None:
    assert [(each.labels, each.value) for each in series_of([sampled(1, a="b"), sampled(2)])] == [
        ({"a": "b"}, 1),
        ({}, 2),
    ]
