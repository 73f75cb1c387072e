"""What the kubelet's record makes of the assignment of a pod that asked for devices by name."""

from typing import Any

import msgspec
import pytest

from builders.kubeobjects import containers, pod
from builders.shares import whole
from tessera.api.tessera.pods.assignedrequests import read_assigned_requests
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.recordedpods import allocated, awaits_memory, recorded_assignment, requests_by_name
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.errors import InvalidInput

GPU, SLICE, NEED, GPUSHARE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory", "aliyun.com/gpu-mem"
NIC = "rdma/hca"


DEVICES = {f"d{number}": whole(number, 40960, resource="none", container="") for number in range(4)}


def asking(
    limits: dict[str, dict[str, int]], *assigned: Share, phase: str = "Running", init: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return a Pod object with a container for each name in `limits`, and an init container."""
    spec = {"containers": containers(limits), "initContainers": containers({"init": init} if init else {})}
    return pod("p", None, *assigned, node=None, phase=phase, spec=spec, metadata={"namespace": "default"})


def allocation(container: str, resource: str, *ids: str, name: str = "p") -> KubeletAllocation:
    return KubeletAllocation(namespace="default", pod=name, container=container, resource=resource, device_ids=ids)


A0, A2 = (whole(number, 40960, resource=GPU, container="a") for number in (0, 2))
B1 = whole(1, 40960, resource=SLICE, container="b")
AMOUNT = whole(3, 4096, resource=NEED, container="c")

# sentence: (pod, the kubelet's record, the shares told; None for nothing)
CASES: dict[str, tuple[dict[str, Any], list[KubeletAllocation], list[Share] | None]] = {
    "one device": (asking({"a": {GPU: 1}}), [allocation("a", GPU, "d0")], [A0]),
    "before it runs": (asking({"a": {GPU: 1}}, phase="Pending"), [allocation("a", GPU, "d0")], [A0]),
    "several containers in the order of the pod": (
        asking({"a": {GPU: 1}, "b": {SLICE: 1}}),
        [allocation("b", SLICE, "d1"), allocation("a", GPU, "d0")],
        [A0, B1],
    ),
    "several devices of one name": (
        asking({"a": {GPU: 2}}),
        [allocation("a", GPU, "d0", "d2")],
        [A0, A2],
    ),
    "beside resources that are no GPUs": (
        asking({"a": {NIC: 1, GPU: 1}}),
        [allocation("a", NIC, "n0"), allocation("a", GPU, "d0")],
        [A0],
    ),
    "an assignment that is wrong": (asking({"a": {GPU: 1}}, A2), [allocation("a", GPU, "d0")], [A0]),
    "an assignment of another number": (asking({"a": {GPU: 1}}, A0, A0), [allocation("a", GPU, "d0")], [A0]),
    "shares of a scheduler come after": (
        asking({"c": {NEED: 4}, "a": {GPU: 1}}, AMOUNT),
        [allocation("a", GPU, "d0"), allocation("c", NEED, "u0", "u1", "u2", "u3")],
        [A0, AMOUNT],
    ),
    "and stay when it was written before": (
        asking({"c": {NEED: 4}, "a": {GPU: 1}}, A2, AMOUNT),
        [allocation("a", GPU, "d0")],
        [A0, AMOUNT],
    ),
    "a memory share too": (
        asking({"c": {GPUSHARE: 4}, "a": {GPU: 1}}, whole(3, 4096, resource=GPUSHARE, container="c")),
        [allocation("a", GPU, "d0")],
        [A0, whole(3, 4096, resource=GPUSHARE, container="c")],
    ),
    "a pod that asks nothing by name": (asking({"c": {NEED: 4}}, AMOUNT), [allocation("c", NEED, "u0")], None),
    "a pod with shares that does not run yet": (
        asking({"c": {NEED: 4}, "a": {GPU: 1}}, AMOUNT, phase="Pending"),
        [allocation("a", GPU, "d0")],
        None,
    ),
    "a pod whose shares nobody assigned": (asking({"c": {NEED: 4}, "a": {GPU: 1}}), [allocation("a", GPU, "d0")], None),
    "a pod that was assigned another number of shares": (
        asking({"c": {NEED: 4}, "a": {GPU: 1}}, AMOUNT, AMOUNT, AMOUNT),
        [allocation("a", GPU, "d0")],
        None,
    ),
    "a pod that the record does not show": (asking({"a": {GPU: 1}}), [allocation("a", GPU, "d0", name="q")], None),
    "a container that the record does not show": (
        asking({"a": {GPU: 1}, "b": {SLICE: 1}}),
        [allocation("a", GPU, "d0")],
        None,
    ),
    "a device that nobody knows": (asking({"a": {GPU: 1}}), [allocation("a", GPU, "x")], None),
    "fewer devices than asked": (asking({"a": {GPU: 2}}), [allocation("a", GPU, "d0")], None),
    "one of two devices that nobody knows": (asking({"a": {GPU: 1}}), [allocation("a", GPU, "d0", "x")], None),
    "devices of an init container beyond the others": (
        asking({"a": {GPU: 1}}, init={GPU: 2}),
        [allocation("a", GPU, "d0")],
        None,
    ),
    "an init container that uses the others' devices": (
        asking({"a": {GPU: 1}}, init={GPU: 1}),
        [allocation("a", GPU, "d0")],
        [A0],
    ),
}


def shares(text: str | None) -> Any:
    """Return the shares in the text of an assignment."""
    return None if text is None else msgspec.json.decode(text)["shares"]


@pytest.mark.parametrize("case", CASES)
def test_what_is_recorded(case: str) -> None:
    each, record, want = CASES[case]
    text = recorded_assignment(each, record, DEVICES)
    assert shares(text) == (None if want is None else shares(write_shares(tuple(want))))


@pytest.mark.parametrize("case", [name for name, (_, _, want) in CASES.items() if want])
def test_what_is_recorded_is_read_again_and_stays(case: str) -> None:
    each, record, _ = CASES[case]
    text = recorded_assignment(each, record, DEVICES)
    told = {**each, "metadata": {**each["metadata"], "annotations": {"tessera.dev/assignment": text}}}
    assert recorded_assignment(told, record, DEVICES) == text
    assert read_assigned_requests([told]).notes == ()
    amounts = [request.shares for request in read_assigned_requests([told]).requests]
    before = [request.shares for request in read_assigned_requests([each]).requests]
    assert not before or amounts == before


def test_which_pods_ask_by_name() -> None:
    assert requests_by_name(asking({"a": {GPU: 1}}))
    assert requests_by_name(asking({"c": {NEED: 4}, "a": {SLICE: 1}}))
    assert not requests_by_name(asking({"a": {GPU: 1}}, phase="Succeeded"))
    assert not requests_by_name(asking({"c": {NEED: 4}, "d": {NIC: 1}}))
    with pytest.raises(InvalidInput):
        requests_by_name(asking({"a": {GPU: -1}}))


def test_an_assignment_that_cannot_be_read_is_reported() -> None:
    each = asking({"c": {NEED: 4}, "a": {GPU: 1}}, AMOUNT)
    each["metadata"]["annotations"]["tessera.dev/assignment"] = msgspec.json.encode({"gpu": 1}).decode()
    with pytest.raises(InvalidInput, match="list of shares"):
        recorded_assignment(each, [allocation("a", GPU, "d0")], DEVICES)


def assigned(limits: dict[str, dict[str, int]], text: str = "false", phase: str = "Pending") -> dict[str, Any]:
    made = asking(limits, phase=phase)
    made["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_ASSIGNED": text, "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
    return made


BOTH = {"a": {GPUSHARE: 2}, "b": {GPUSHARE: 1}, "c": {GPU: 1}}
TOLD = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7"}
MEMORY: dict[str, tuple[dict[str, Any], list[KubeletAllocation], dict[str, str]]] = {
    "nothing is held": (assigned(BOTH), [], {}),
    "one of two containers holds its units": (assigned(BOTH), [allocation("a", GPUSHARE, "u1", "u2")], {}),
    "another pod, and another resource": (
        assigned({"a": {GPUSHARE: 1}}),
        [allocation("a", GPUSHARE, "u1", name="q"), allocation("a", GPU, "d0")],
        {},
    ),
    "both hold theirs": (
        assigned(BOTH),
        [allocation("a", GPUSHARE, "u1", "u2"), allocation("b", GPUSHARE, "u3")],
        TOLD,
    ),
    "it runs, and the kubelet has just started": (assigned(BOTH, phase="Running"), [], TOLD),
    "no container asks for memory": (assigned({"a": {GPU: 1}}), [allocation("a", GPUSHARE, "u1")], {}),
}


@pytest.mark.parametrize(("each", "record", "want"), MEMORY.values(), ids=MEMORY)
def test_memory_is_marked_as_allocated_when_all_of_it_is(
    each: dict[str, Any], record: list[KubeletAllocation], want: dict[str, str]
) -> None:
    assert awaits_memory(each)
    assert allocated(each, record, now_ns=7) == want


def test_who_waits_for_memory() -> None:
    assert not awaits_memory(assigned(BOTH, "true"))
    assert not awaits_memory(assigned(BOTH, phase="Succeeded"))
    assert not awaits_memory(asking(BOTH))
