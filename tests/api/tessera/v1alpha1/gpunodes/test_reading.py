"""GPUNode objects that people or other versions wrote: what may be left out, and what is refused."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.tessera.v1alpha1.gpunodes import (
    new_object,
    read_gpu_node,
)
from tessera.core.gpu.mig import Placement
from tessera.errors import InvalidInput


def test_a_node_without_status_grants_nothing() -> None:
    """An object that no agent has written to has no GPUs, and says that it was not reported."""
    state = read_gpu_node(new_object("node-a", "uid-1"))
    assert (state.reported, state.gpus, state.unhealthy) == (False, (), ())


GPU = {"index": 0, "uuid": "GPU-0", "model": "A100-40GB", "memoryMiB": 40_000, "sharing": {"modes": ["mig"]}}


def test_the_size_of_an_instance_may_be_left_out() -> None:
    """People write profile and start; the size is the profile's."""
    desired = [{"gpu": "GPU-0", "instances": [{"profile": "3g.20gb", "start": 4}]}]
    each = {"metadata": {"name": "n"}, "spec": {"desired": desired}, "status": {"gpus": [GPU]}}
    assert read_gpu_node(each).desired[0].instances == (Placement(4, 4, "3g.20gb"),)


def product(**more: Any) -> dict[str, Any]:
    profile = {"name": "1g", "computeSlices": 1, "size": 1, "starts": [0], "maxInstances": 1, "memoryMiB": 1} | more
    slices = {"memorySlices": profile.pop("memory_slices", 4), "computeSlices": profile.pop("of_compute", 7)}
    return {"arch": "x", "memoryMiB": 1, "profiles": [profile], **slices}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field of another type": ({"status": {"gpus": 3}}, "status.gpus: 3 is not a list"),
    "half a character": (
        {"status": {"gpus": [GPU | {"sharing": {"modes": ["\ud800"]}}]}},
        "it has half of a character",
    ),
    "a GPU without memory": (
        {"status": {"gpus": [GPU | {"memoryMiB": 0}]}},
        "GPUNode node-a: status.gpus[0].memoryMiB: 0 is not at least 1: see `kubectl explain gpunode`",
    ),
    "an index out of range": (
        {"status": {"gpus": [GPU | {"index": 256}]}},
        "node-a: status.gpus[0].index: 256 is not at most 255",
    ),
    "an index twice": ({"status": {"gpus": [GPU, GPU | {"uuid": "GPU-1"}]}}, "indices of GPUs"),
    "a UUID twice": (
        {"status": {"gpus": [GPU, GPU | {"index": 1}]}},
        "UUIDs of GPUs: 'GPU-0' is there twice: name each once",
    ),
    "a model nobody knows": ({"status": {"gpus": [GPU | {"model": "Z9"}]}}, "GPU model"),
    "a unit of nothing": ({"status": {"unitMiB": 0}}, "node-a: status.unitMiB: 0 is not at least 1"),
    "too many GPUs": (
        {"status": {"gpus": [GPU | {"index": i % 256, "uuid": f"GPU-{i}"} for i in range(257)]}},
        "node-a: status.gpus: it has 257 elements, and at most 256 are accepted",
    ),
    "a layout that cannot be": (
        {"status": {"gpus": [GPU | {"sharing": {"layout": [{"profile": "7g.40gb", "start": 3}]}}]}},
        "layout of GPU 0",
    ),
    "a wish for the whole and for parts": (
        {
            "status": {"gpus": [GPU]},
            "spec": {"desired": [{"gpu": "GPU-0", "whole": True, "instances": [{"profile": "1g.5gb", "start": 0}]}]},
        },
        "the whole GPU and instances of it",
    ),
    "a profile without memory": (
        {"status": {"gpus": [GPU | {"product": product(memoryMiB=0)}]}},
        "node-a: status.gpus[0].product.profiles[0].memoryMiB: 0 is not at least 1",
    ),
    "a profile of many units": (
        {"status": {"gpus": [GPU | {"product": product(size=99)}]}},
        "node-a: status.gpus[0].product.profiles[0].size: 99 is not at most 64",
    ),
    "a start beyond the axis": (
        {"status": {"gpus": [GPU | {"product": product(starts=[99])}]}},
        "profiles[0].starts[0]: 99 is not at most 64",
    ),
    "a model of many units": (
        {"status": {"gpus": [GPU | {"product": product(memory_slices=99)}]}},
        "node-a: status.gpus[0].product.memorySlices: 99 is not at most 64",
    ),
    "more states than a table can have": (
        {"status": {"gpus": [GPU | {"product": product(memory_slices=17)}]}},
        "node-a: product of GPU 0: 17 memory slices and kinds of media engines, and at most 16 are read",
    ),
    "a placement beyond the GPU": (
        {"status": {"gpus": [GPU | {"product": product(starts=[4])}]}},
        "product of GPU 0: profile 1g of size 1 at start 4 exceeds the 4 memory slices",
    ),
    "starts without a size": (
        {"status": {"gpus": [GPU | {"product": product(size=0)}]}},
        "profile 1g has starts, and no memory slice",
    ),
    "no compute slice of the GPU": (
        {"status": {"gpus": [GPU | {"product": product(of_compute=0)}]}},
        "profile 1g with 1 of 0 compute slices",
    ),
    "more placements than a class of states can tell": (
        {
            "status": {
                "gpus": [GPU | {"product": product() | {"profiles": product(starts=[0, 1, 2, 3])["profiles"] * 16}}]
            }
        },
        "64 placements, and at most 62 are read",
    ),
    "fewer clients than none": (
        {"status": {"gpus": [GPU | {"sharing": {"modes": ["mps"], "replicas": [{"clients": -1}]}}]}},
        "node-a: status.gpus[0].sharing.replicas[0].clients: -1 is not at least 1",
    ),
    "more clients than memory can hold": (
        {"status": {"gpus": [GPU | {"sharing": {"modes": ["mps"], "replicas": [{"clients": 1 << 40}]}}]}},
        "node-a: status.gpus[0].sharing.replicas[0].clients: 1099511627776 is not at most 4096",
    ),
    "a claim of a pod without a namespace": (
        {"spec": {"claims": [{"uid": "u", "pod": "a", "shares": []}]}},
        "spec.claims[0].pod: it has 1 characters, and at least 3 are accepted",
    ),
    "an unhealthy GPU in a former word": (
        {"status": {"gpus": [GPU, GPU | {"index": 1, "uuid": "GPU-1", "sick": [{"reason": "Xid 79"}]}]}},
        "sick of status.gpus[1] is a field of agents from before 23 November 2026, 03:00 UTC: upgrade Tessera",
    ),
    "repartitioning in a former word": (
        {"status": {"gpus": [GPU | {"sharing": {"modes": ["mig"], "recut": True}}]}},
        "recut of status.gpus[0]",
    ),
    "a model in former words": (
        {"status": {"gpus": [GPU | {"product": product() | {"units": 4}}]}},
        "units of status.gpus[0]",
    ),
    "desired devices in a former word": ({"spec": {"wanted": [{"gpu": "GPU-0", "whole": True}]}}, "spec.wanted"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_objects_that_are_refused(case: str) -> None:
    """What cannot be is refused with node and field."""
    fields, want = REFUSED[case]
    with pytest.raises(InvalidInput) as caught:
        read_gpu_node({"metadata": {"name": "node-a"}, **fields})
    assert "GPUNode" in str(caught.value)
    assert "node-a" in str(caught.value)
    assert want in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.sampled_from(("gpus", "status", "spec", "desired", "sharing")), v),
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    """Nothing but InvalidInput comes out of an object, whatever is in it."""
    with contextlib.suppress(InvalidInput):
        assert read_gpu_node({"metadata": {"name": "n"}, "status": value, "spec": value}).name == "n"
