"""What rules serve of the series that there are."""

import pytest

from builders.adapterrules import corrected, rule
from tessera.api.kubernetes.metrics.adapter.discovery import Named, discover
from tessera.api.kubernetes.metrics.adapter.rules import read_adapter_rules
from tessera.errors import InvalidInput

PODS = frozenset({"namespace", "pod", "container"})


def test_the_published_sample() -> None:
    rules = read_adapter_rules("sample.yaml", corrected().encode()).rules
    containers = frozenset(
        {("container_cpu_usage_seconds_total", PODS), ("container_fs_reads_total", PODS), ("container_x", PODS)}
    )
    others = {("http_requests_total", PODS | {"service", "verb"}), ("node_boots_total", frozenset({"node"}))}
    series = {
        rules[0].series_query: containers,
        rules[1].series_query: frozenset({("container_fs_reads_total", PODS)}),
        rules[2].series_query: containers | others,
        rules[3].series_query: frozenset({("cheddar", frozenset({"brand", "sharp"}))}),
        rules[4].series_query: frozenset({("queue_consumer_lag", frozenset({"name"}))}),
    }
    found = discover(rules, series)
    assert {f"{resource}/{metric}" for resource, metric in found.custom} == {
        *("pods/cpu_usage", "namespaces/cpu_usage", "pods/fs_reads", "namespaces/fs_reads"),
        *("pods/http_requests", "services/http_requests", "namespaces/http_requests", "nodes/node_boots"),
        *("pods/container_cpu_usage_seconds", "namespaces/container_cpu_usage_seconds"),
        *("pods/container_fs_reads", "namespaces/container_fs_reads"),
    }
    assert found.external == {"queue_consumer_lag": Named(rules[4], "queue_consumer_lag")}
    assert found.custom["services", "http_requests"].series == "http_requests_total"


def test_of_two_rules_for_a_metric_the_later_counts() -> None:
    rules = [rule(name={"as": "same"}, metricsQuery=query) for query in ("first", "second")]
    found = discover(rules, {"up": frozenset({("up", PODS)})})
    assert all(named.rule is rules[1] for named in found.custom.values())
    assert len(found.custom) == 2


def test_series_of_one_name_with_other_labels_are_one_metric() -> None:
    found = discover([rule()], {"up": frozenset({("up", frozenset({"pod"})), ("up", frozenset({"namespace"}))})})
    assert found.custom.keys() == {("pods", "up"), ("namespaces", "up")}


@pytest.mark.parametrize("name", ["a/b", "..", "a%2f", "", "ä", "a b", "a" * 300])
def test_a_name_that_is_no_part_of_a_path_is_not_served(name: str) -> None:
    found = discover([rule(external=True, name={"as": name or "$9"})], {"up": frozenset({("up", PODS)})})
    assert found.external == {}


def test_more_rules_and_series_than_can_be_compared_are_refused() -> None:
    series = frozenset((f"series_{number}", PODS) for number in range(6_000))
    with pytest.raises(
        InvalidInput, match="rules: 1000 rules are for 6000000 names of series together, more than 1000000"
    ):
        discover([rule(seriesFilters=[{"is": "^x"}])] * 1_000, {"up": series})
