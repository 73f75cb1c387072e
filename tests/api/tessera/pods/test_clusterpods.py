"""Pod objects of a live cluster, whatever is in them; and what a binding writes on them."""

from typing import Any

import pytest

from builders.kubeobjects import pod, share
from tessera.api.tessera.pods.clusterpods import LivePod, read_live_pod

NEED = {"tessera.dev/gpu-memory": 6}


def test_a_pod_is_read_without_what_kube_scheduler_decides() -> None:
    plain = read_live_pod(pod("p", NEED, node="a"))
    picky = read_live_pod(pod("p", NEED, node="b", spec={"nodeSelector": {"disk": "fast"}, "priority": 7}))
    assert plain.need == picky.need
    assert (plain.uid, plain.key, plain.node, picky.priority) == ("uid-p", "ns/p", "a", 7)
    assert plain.gpus
    assert plain.claiming
    others = {"rdma/hca": 1, "models.tessera.dev/llama": 1}
    assert read_live_pod(pod("p", NEED | others)).need == plain.need, "the node has them, not a GPU"


KINDS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "a need": (pod("p", NEED), True, True),
    "a share": (pod("p", {"aliyun.com/gpu-mem": 3}), True, True),
    "a slice by name": (pod("p", {"nvidia.com/mig-1g.10gb": 1}), True, False),
    "no GPU": (pod("p", {"cpu": 1}), False, False),
    "another vendor's": (pod("p", {"example.com/fpga": 1}), False, False),
    "zero devices by name": (pod("p", {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 0}), False, False),
}


@pytest.mark.parametrize("case", KINDS)
def test_which_pods_ask_gpus_and_which_need_an_assignment(case: str) -> None:
    each, gpus, claiming = KINDS[case]
    live = read_live_pod(each)
    assert (live.gpus, live.claiming, live.wrong) == (gpus, claiming, "")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a fraction": (pod("p", {"tessera.dev/gpu-memory": "0.5"}), "limits[tessera.dev/gpu-memory]"),
    "a negative amount": (pod("p", {"tessera.dev/gpu-memory": -3}), "limits[tessera.dev/gpu-memory]"),
    "an unknown grade": (pod("p", NEED, annotations={"tessera.dev/isolation": "very"}), "hardware, driver, none"),
    "an unknown resource": (pod("p", {"tessera.dev/gpu-memry": 1}), "a resource Tessera knows"),
    "more compute than there is": (pod("p", NEED | {"tessera.dev/gpu-compute": 101}), "percentage"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_request_that_makes_no_sense_is_reported_by_its_field(case: str) -> None:
    each, want = WRONG[case]
    live = read_live_pod(each)
    assert live.gpus
    assert want in live.wrong
    assert "line" not in live.wrong
    assert not live.need.requests


def test_what_a_pod_holds_counts_also_where_its_request_cannot_be_read() -> None:
    live = read_live_pod(pod("p", {"tessera.dev/gpu-memry": 1}, share(0, 4096)))
    assert [each.memory_mib for each in live.shares] == [4096]


def test_shares_that_cannot_be_read_are_reported() -> None:
    live = read_live_pod(pod("p", NEED, annotations={"tessera.dev/assignment": "{"}))
    assert live.shares == ()
    assert "tessera.dev/assignment" in live.unread


def test_finished_pods() -> None:
    assert read_live_pod(pod("p", NEED, phase="Succeeded")).finished
    assert not read_live_pod(pod("p", NEED)).finished


HOSTILE: tuple[dict[str, Any], ...] = (
    {},
    {"metadata": None, "spec": None, "status": None},
    {"metadata": 1, "spec": [], "status": "x"},
    {"metadata": {"name": 1, "uid": []}, "spec": {"containers": 1, "nodeName": 7, "priority": "x"}},
    {"spec": {"containers": [1, None, {"resources": 1}, {"resources": {"limits": [1]}}]}},
)


@pytest.mark.parametrize("each", HOSTILE, ids=repr)
def test_hostile_pods_are_read_as_far_as_they_can_be(each: dict[str, Any]) -> None:
    live = read_live_pod(each)
    assert isinstance(live, LivePod)
    assert live.wrong


# Bindings
