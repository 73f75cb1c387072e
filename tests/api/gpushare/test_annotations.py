"""gpushare's annotations: what a binding writes is read again, and nothing else is taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import pod
from tessera.api.fields import Field
from tessera.api.gpushare.annotations import ASSUMED, INDEX, assigned_mib, assumed_ns, binding, is_assigned
from tessera.api.tessera.pods.clusterpods import object_field
from tessera.errors import InvalidInput

ALLOCATION = "scheduler.framework.gpushare.allocation"


def annotations(**given: str) -> Field:
    return object_field("Pod", pod("p", annotations=given)).get("metadata", "annotations")


@given(
    units=st.dictionaries(st.integers(0, 9), st.integers(1, 99), min_size=1, max_size=3),
    gpu=st.integers(0, 255),
    unit_mib=st.sampled_from([1, 256, 1024]),
    now_ns=st.integers(0, 1 << 62),
)
def test_a_binding_is_read_again(units: dict[int, int], gpu: int, unit_mib: int, now_ns: int) -> None:
    made = annotations(**binding(units, gpu, 40, now_ns=now_ns))
    requested_mib = sum(units.values()) * unit_mib
    assert is_assigned(made)
    assert assumed_ns(made) == now_ns
    assert assigned_mib(made, 0, unit_mib) == {gpu: requested_mib}
    assert assigned_mib(annotations(**{INDEX: str(gpu)}), requested_mib, unit_mib) == {gpu: requested_mib}


def test_containers_of_one_pod_have_one_limit_on_each_gpu() -> None:
    made = annotations(**{ALLOCATION: '{"0": {"1": 5}, "1": {"0": 2, "1": 1}}'})
    assert list((assigned_mib(made, 0, 1024) or {}).items()) == [(0, 2048), (1, 6144)]


@pytest.mark.parametrize("given_annotations", [{}, {INDEX: "1"}])
def test_nothing_is_assigned_without_a_gpu_or_without_a_request(given_annotations: dict[str, str]) -> None:
    assert assigned_mib(annotations(**given_annotations), 0, 1024) is None
    assert is_assigned(annotations(**given_annotations)) is bool(given_annotations)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "9" * 20])
def test_a_time_that_is_none_is_no_time(text: str) -> None:
    assert assumed_ns(annotations(**{ASSUMED: text})) is None
    assert assumed_ns(annotations()) is None


@pytest.mark.parametrize("text", ["", "-1", "1000", "x"])
def test_an_index_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="the index of a GPU"):
        assigned_mib(annotations(**{INDEX: text}), 1024, 1024)


@pytest.mark.parametrize("text", ["{", "[]", '{"0": {"x": 1}}', '{"0": {"1": -1}}', '{"0": {"1": 1048577}}'])
def test_an_allocation_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not JSON of container index, GPU index and amount"):
        assigned_mib(annotations(**{ALLOCATION: text}), 1024, 1024)
