"""What Prometheus is asked, by the published cases of prometheus-adapter and by askers that mean no good."""

import pytest

from builders.adapterrules import rule
from tessera.api.kubernetes.labelselectors import read_selector
from tessera.api.kubernetes.metrics.adapter.discovery import Named
from tessera.api.kubernetes.metrics.adapter.queries import custom_query, external_query
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.errors import InvalidInput


def custom(query: str, names: tuple[str, ...], *, selector: str = "", resource: str = "pods") -> str:
    named = Named(rule(metricsQuery=query), "up")
    namespace = "" if resource == "namespaces" else "ns"
    metric_selector = read_selector(selector, "test")
    asked = Custom(
        version="v1beta1", resource=resource, metric="m", namespace=namespace, metric_selector=metric_selector
    )
    return custom_query(named, asked, names)


# Source: kubernetes-sigs/prometheus-adapter 0.12.0 `pkg/naming/metrics_query_test.go`, the cases rewritten.
CUSTOM = {
    "the series": ("series <<.Series>>", ("a",), "series up"),
    "one object": ("<<.LabelMatchers>>", ("a",), 'namespace="ns",pod="a"'),
    "several objects": ("<<.LabelMatchers>>", ("a", "b"), 'namespace="ns",pod=~"a|b"'),
    "a dot is no other character": ("<<.LabelMatchers>>", ("a.x", "b"), r'namespace="ns",pod=~"a\\.x|b"'),
    "the values of a label": ('<<index .LabelValuesByName "pod">>', ("a",), "a"),
    "several values": ('<<index .LabelValuesByName "pod">>', ("a", "b"), "a|b"),
    "those of the namespace": ('<<index .LabelValuesByName "namespace">>', ("a", "b"), "ns"),
    "what it is grouped by": ("<<.GroupBy>>", ("a",), "pod"),
    "that as a list": ("<<.GroupBySlice>>", ("a",), "[pod]"),
    "the first of the list": ("<<index .GroupBySlice 0>>", ("a",), "pod"),
}


@pytest.mark.parametrize("case", CUSTOM)
def test_for_objects(case: str) -> None:
    query, names, want = CUSTOM[case]
    assert custom(query, names) == want


def test_a_namespace_is_an_object_in_none() -> None:
    assert custom("<<.LabelMatchers>> <<.GroupBy>>", ("ns",), resource="namespaces") == 'namespace="ns" namespace'


SELECTED = {
    "nothing": ("", ""),
    "a value": ("a=b", 'a="b",'),
    "not a value": ("a!=b", 'a!="b",'),
    "values": ("a in (c,b)", 'a=~"b|c",'),
    "not values": ("a notin (c,b.x)", r'a!~"b\\.x|c",'),
    "one of one": ("a in (b)", 'a="b",'),
    "any value": ("a", 'a!="",'),
    "no value": ("!a", 'a="",'),
    "an empty value": ("a=", 'a="",'),
    "several, by name": ("b=1,a=2", 'a="2",b="1",'),
}


@pytest.mark.parametrize("case", SELECTED)
def test_selected(case: str) -> None:
    selector, want = SELECTED[case]
    assert custom("<<.LabelMatchers>>", ("p",), selector=selector) == f'{want}namespace="ns",pod="p"'
    named = Named(rule(external=True), "up")
    asked = External(metric="m", namespace="ns", selector=read_selector(selector, "test"))
    assert external_query(named, asked) == f'{want}namespace="ns"'


EXTERNAL = {
    "no grouping": ("x<<.GroupBy>>x <<.GroupBySlice>>", True, "xx []"),
    "the namespace": ("<<.LabelMatchers>>", True, 'queue="q",namespace="ns"'),
    "none": ("<<.LabelMatchers>> <<.LabelValuesByName>>", False, 'queue="q" map[queue:q]'),
}


@pytest.mark.parametrize("case", EXTERNAL)
def test_for_external_metrics(case: str) -> None:
    query, namespaced, want = EXTERNAL[case]
    resources = {"namespaced": namespaced, "overrides": {"namespace": {"resource": "namespace"}}}
    named = Named(rule(external=True, metricsQuery=query, resources=resources), "up")
    assert external_query(named, External(metric="m", namespace="ns", selector=read_selector("queue=q", "t"))) == want


@pytest.mark.parametrize("name", ['a"}', "a|b", "a\\", "a\nb", "", "..", "a" * 300, "a,b", "ä"])
def test_what_is_no_name_of_an_object_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not one that Kubernetes has"):
        custom("<<.LabelMatchers>>", (name,))


REFUSED = {
    "a label that Prometheus cannot have": (
        "app.kubernetes.io/name=x",
        "is not a label: Prometheus calls it app_kubernetes_io_name, where it has it",
    ),
    "a comparison": ("a>1", "label a of a selector: Prometheus has neither < nor >: use =, !=, in, notin"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_selectors_that_prometheus_does_not_have_are_refused(case: str) -> None:
    selector, want = REFUSED[case]
    with pytest.raises(InvalidInput) as error:
        custom("<<.LabelMatchers>>", ("p",), selector=selector)
    assert want in str(error.value)


def test_a_rule_that_names_no_label_says_so() -> None:
    only = {"overrides": {"pod": {"resource": "pod"}}}
    asked = Custom(version="v1beta1", resource="pods", metric="m", namespace="ns")
    with pytest.raises(InvalidInput, match="line 2: the rule says no label that names namespaces: write "):
        custom_query(Named(rule(resources=only), "up"), asked, ("p",))
    with pytest.raises(InvalidInput, match="namespaces, or resources"):
        external_query(Named(rule(external=True, resources={}), "up"), External(metric="m", namespace="ns"))


def test_a_query_that_prometheus_would_not_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="characters, more than 500000: request fewer objects"):
        custom("<<.LabelMatchers>>", tuple(f"{number:0200}" for number in range(3_000)))
