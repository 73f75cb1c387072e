"""Names of Kubernetes, by the cases of k8s.io/apimachinery `pkg/util/validation/validation_test.go`."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.workload.objectnames import LabelName, ObjectName, is_label, is_pod, is_qualified, is_subdomain

LABELS = ("a", "ab", "abc", "a1", "a-1", "a--1--2--b", "0", "01", "012", "1a", "1-a", "1--a--b--2", "a" * 63)
NO_LABELS = (
    *("", "A", "ABC", "aBc", "A1", "A-1", "1-A", "-", "a-", "-a", "1-", "-1", "_", "a_", "_a", "a_b", "1_", "_1"),
    *("a.b", "1.2", " ", "a ", " a", "a b", "1 2", "a\n", "a" * 64),
)
SUBDOMAINS = ("a", "0.0.0.0", "1.2.3", "a.b.c", "a-1.b-2", "a--b.c--d", "a" * 253)
NO_SUBDOMAINS = ("", "A.b", "a.B", ".a", "a.", "-a.b", "a b.c", "a_b.c", "a" * 254)
QUALIFIED = ("simple/a", "now-with-dashes.io/A", "1-num.2-num/3-num", "example.com/under_score.Dots", f"a.b/{'x' * 63}")
NOT_QUALIFIED = ("simple", "a/", "/b", "a/b/c", "A/b", "a/_b", "a/b-", "a b/c", f"a/{'x' * 64}", f"{'a' * 254}/b")


@pytest.mark.parametrize("name", LABELS)
def test_a_label(name: str) -> None:
    assert is_label(name)
    assert msgspec.convert(name, LabelName) == name


@pytest.mark.parametrize("name", NO_LABELS)
def test_not_a_label(name: str) -> None:
    assert not is_label(name)


@pytest.mark.parametrize("name", SUBDOMAINS)
def test_the_name_of_an_object(name: str) -> None:
    assert is_subdomain(name)
    assert msgspec.convert(name, ObjectName) == name


@pytest.mark.parametrize("name", NO_SUBDOMAINS)
def test_not_the_name_of_an_object(name: str) -> None:
    assert not is_subdomain(name)


def test_a_pod_is_an_object_in_a_namespace() -> None:
    assert is_pod("team-a", "web-0.blue")
    assert not is_pod("team.a", "web-0")
    assert not is_pod("team-a", "")


@pytest.mark.parametrize("name", QUALIFIED)
def test_a_name_with_a_domain(name: str) -> None:
    assert is_qualified(name)


@pytest.mark.parametrize("name", NOT_QUALIFIED)
def test_not_a_name_with_a_domain(name: str) -> None:
    assert not is_qualified(name)


@given(st.text("ab0-.", max_size=70))
def test_fields_take_what_the_predicates_take(name: str) -> None:
    for field, holds in ((LabelName, is_label), (ObjectName, is_subdomain)):
        try:
            msgspec.convert(name, field)
        except msgspec.ValidationError:
            assert not holds(name)
        else:
            assert holds(name)


@given(st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"), fullmatch=True))
def test_a_label_names_an_object_too(name: str) -> None:
    assert is_label(name)
    assert is_subdomain(name)
