"""Files of rules: those that are published are read as they are, and errors are reported with their line."""

import time
from pathlib import Path

import pytest

from builders.adapterrules import PUBLISHED, SAMPLE, corrected, rule
from tessera.api.kubernetes.metrics.adapter.rules import read_adapter_rules
from tessera.errors import InvalidInput

OURS = Path(__file__).parents[5] / "deploy/chart/files/monitoring/prometheus-adapter.yaml"


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_rules_are_read_without_a_remark(case: str) -> None:
    found = read_adapter_rules("config.yaml", PUBLISHED[case].encode())
    assert (len(found.rules), found.remarks) == (1, ())


def test_the_generated_rules_are_read() -> None:
    found = read_adapter_rules("config.yaml", OURS.read_bytes())
    assert ([each.external for each in found.rules], found.remarks) == ([False] * 4 + [True] * 3, ())


def test_the_published_sample_is_no_yaml_and_its_line_is_reported() -> None:
    with pytest.raises(InvalidInput, match=r"sample.yaml, document 1, line 11, column \d+: broken syntax"):
        read_adapter_rules("sample.yaml", SAMPLE.read_bytes())


def test_the_published_sample_with_right_quotes_is_read_but_for_the_kind_of_others() -> None:
    found = read_adapter_rules("sample.yaml", corrected().encode())
    assert [each.external for each in found.rules] == [False] * 4 + [True] * 2
    place = "sample.yaml, document 1, line 30: rules[3].resources.overrides.brand"
    assert found.remarks == (f"{place}: not served, because brand.cheese.io is no kind of Kubernetes itself",)
    seconds, others, rest, cheddar, _, depth = found.rules
    assert seconds.metric("container_cpu_usage_seconds_total") == "cpu_usage"
    assert (seconds.metric("container_fs_reads_total"), others.metric("container_fs_reads_total")) == ("", "fs_reads")
    assert others.metric("container_cpu_usage_seconds_total") == ""
    assert [rest.resource(label) for label in ("pod", "service", "namespace", "verb")] == [
        "pods",
        "services",
        "namespaces",
        None,
    ]
    assert (rest.label("pods"), rest.label("deployments.apps")) == ("pod", "deployment")
    assert (cheddar.metric("cheddar"), cheddar.resource("brand")) == ("cheesy_goodness", None)
    assert (depth.namespaced, found.rules[4].namespaced) == (False, True)


def test_labels_by_a_template_with_a_group() -> None:
    one = rule(resources={"template": "kube_<<.Group>>_<<.Resource>>"})
    labels = {
        "kube_apps_deployment": "deployments.apps",
        "kube_app_statefulsets": "statefulsets.apps",
        "kube_networking_ingress": "ingresses.networking.k8s.io",
        "kube_batch_pod": None,
        "pod": None,
    }
    assert {label: one.resource(label) for label in labels} == labels
    assert one.label("ingresses.networking.k8s.io") == "kube_networking_k8s_io_ingress"


def test_overrides_come_before_the_template() -> None:
    one = rule(resources={"template": "<<.Resource>>", "overrides": {"exported_pod": {"resource": "Pods"}}})
    assert (one.label("pods"), one.resource("exported_pod"), one.resource("pod")) == ("exported_pod", "pods", "pods")
    assert one.label("services") == "service"


def test_a_filter_takes_the_series_that_it_names_alone() -> None:
    one = rule(seriesFilters=[{"is": "^a"}, {"isNot": "z$"}])
    assert [one.metric(name) for name in ("ab", "az", "b")] == ["ab", "", ""]


REMARKS = {
    "metrics of resources": (
        "resourceRules: {cpu: {containerQuery: x}}\nrules: []",
        "resourceRules: ignored, because metrics-server serves metrics.k8s.io: install it, or keep it",
    ),
    "a rule about nothing": (
        "rules: [{seriesQuery: up, metricsQuery: up}]",
        "rules[0]: it serves nothing, because its resources name no label: write overrides",
    ),
}


@pytest.mark.parametrize("case", REMARKS)
def test_what_is_not_served_is_a_remark(case: str) -> None:
    text, want = REMARKS[case]
    assert read_adapter_rules("config.yaml", text.encode()).remarks == (f"config.yaml, document 1, line 1: {want}",)


def test_of_many_remarks_twenty_are_kept() -> None:
    text = "rules:\n" + "- {seriesQuery: up, metricsQuery: up}\n" * 30
    found = read_adapter_rules("config.yaml", text.encode())
    assert (len(found.remarks), found.remarks[-1]) == (21, "config.yaml: 10 more remarks like these")


ONE = "seriesQuery: up, metricsQuery: up"
REFUSED = {
    "no document": ("", "config.yaml: it has 0 documents"),
    "another document": ("- a", "a list is not a mapping"),
    "a misspelled key": (
        "rule: []",
        "line 1: rule: it is an unknown field: remove it, or write one of rules, externalRules, ",
    ),
    "a misspelled field": (
        f"rules:\n- {{{ONE}}}\n- seriesQuery: up\n  metricQuery: up",
        "line 4: rules[1].metricQuery: it is an unknown field",
    ),
    "no rule": ("rules: [null]", "line 1: rules[0]: it is missing: write a rule"),
    "no series": ("rules: [{metricsQuery: up}]", "rules[0].seriesQuery: it is missing"),
    "empty series": ("rules: [{seriesQuery: ' ', metricsQuery: up}]", "rules[0].seriesQuery: it is empty"),
    "no query": ("rules: [{seriesQuery: up}]", "rules[0].metricsQuery: it is missing"),
    "a broken template": (
        "rules:\n- seriesQuery: up\n  metricsQuery: sum(<<.Sries>>)",
        "line 3: rules[0].metricsQuery: template: '<<.Sries>>' is not one that is read",
    ),
    "a broken filter": (
        f"rules: [{{{ONE}, seriesFilters: [{{is: '('}}]}}]",
        "rules[0].seriesFilters[0].is: regular expression: '(' (missing ): () is not",
    ),
    "a filter of two": (
        f"rules: [{{{ONE}, seriesFilters: [{{is: a, isNot: b}}]}}]",
        "rules[0].seriesFilters[0]: it has both of is and isNot",
    ),
    "a filter of none": (
        f"rules: [{{{ONE}, seriesFilters: [{{is: ''}}]}}]",
        "rules[0].seriesFilters[0]: it has neither is nor isNot",
    ),
    "a broken name": (
        f"rules: [{{{ONE}, name: {{matches: '*'}}}}]",
        "rules[0].name.matches: regular ",
    ),
    "a name of two groups": (
        f"rules: [{{{ONE}, name: {{matches: '(a)(b)'}}}}]",
        "rules[0].name.as: it is missing, and `matches` has 2 groups: write the name of the metric",
    ),
    "an unknown resource": (
        f"rules: [{{{ONE}, resources: {{overrides: {{pod: {{resource: podd}}}}}}}}]",
        "rules[0].resources.overrides.pod.resource: 'podd' is not a resource that is known: name one of pods, services",
    ),
    "no resource": (
        f"rules: [{{{ONE}, resources: {{overrides: {{pod: {{group: apps}}}}}}}}]",
        "rules[0].resources.overrides.pod.resource: it is missing",
    ),
    "a label that is none": (
        f"rules: [{{{ONE}, resources: {{overrides: {{'a-b': {{resource: pod}}}}}}}}]",
        "its key is no label of Prometheus",
    ),
    "a template without resources": (
        f"rules: [{{{ONE}, resources: {{template: x}}}}]",
        "rules[0].resources.template: it does not have <<.Resource>>",
    ),
    "a template that is no expression": (
        f"rules: [{{{ONE}, resources: {{template: '(<<.Resource>>'}}}}]",
        "rules[0].resources.template: regular expression: ",
    ),
    "too many": ("rules:\n" + f"- {{{ONE}}}\n" * 10_001, "config.yaml: 10001 rules are more than 10000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_work_is_refused_with_its_place(case: str) -> None:
    text, want = REFUSED[case]
    with pytest.raises(InvalidInput) as error:
        read_adapter_rules("config.yaml", text.encode())
    assert want in str(error.value)


def test_ten_thousand_rules_are_read_in_seconds() -> None:
    one = PUBLISHED["the walk-through"].partition("rules:\n")[2]
    text = "rules:\n" + "".join(one.replace("^(.*)_total", f"^(.*)_total_{number}$") for number in range(10_000))
    begun_s = time.process_time()
    assert len(read_adapter_rules("config.yaml", text.encode()).rules) == 10_000
    assert time.process_time() - begun_s < 60
