"""What a forged assignment on one pod does to the picture of a whole cluster: nothing."""

from collections.abc import Iterable

import pytest

from builders.kubeobjects import Object, amount, gpu, gpunode, node, pod, share
from builders.signed import AGENT, SERVER, STRANGER, authority, keys, signed
from tessera.api.tessera.cluster.clusters import PodMemory, as_fields, read_cluster
from tessera.api.tessera.pods.assignedrequests import corrected, read_assigned_requests
from tessera.api.tessera.pods.recordedpods import honored, recorded_assignment
from tessera.api.tessera.pods.signatures import Authority, InvalidAssignment, key_id, keys_text
from tessera.core.cluster.cluster import Cluster, Record
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import Correction
from tessera.core.explain.inspection import NodeInspection, inspect
from tessera.core.gpu.sharing import Mode

NEED = {"tessera.dev/gpu-memory": 4}
WHOLE = share(0, 40960, Mode.WHOLE, resource="tessera.dev/gpu-memory")
NODES = (node(), gpunode("a", gpu(0), gpu(1), assignment_keys=keys_text([AGENT.public])))
HONEST = signed(pod("honest", NEED, amount(0)))


def look(*pods: Object, known: Authority | None, memory: PodMemory | None = None) -> Cluster:
    return read_cluster(as_fields((*NODES, *pods)), authority=known, memory=memory)


def inspected(*pods: Object) -> NodeInspection:
    (found,) = inspect(look(*pods, known=authority())).nodes
    return found


def test_a_forged_claim_to_a_whole_gpu_puts_nobody_into_conflict() -> None:
    forged = pod("forged", NEED, WHOLE)
    assert inspect(look(HONEST, forged, known=None)).nodes[0].gpus[0].conflicts, "without keys it is believed"
    found = inspected(HONEST, forged)
    assert (found.gpus[0].conflicts, found.conflicts) == ((), ())
    assert [each.pod for each in found.gpus[0].pods] == ["ns/honest"]
    (marked,) = found.unplaced
    assert (marked.pod, marked.memory_mib) == ("ns/forged", 0)
    assert "assignment not signed by Tessera, pod ns/forged" in marked.problem


def test_it_holds_nothing_for_planners_either() -> None:
    seen = look(HONEST, pod("forged", NEED, WHOLE), known=authority())
    held = {each.pod.key: each.assignment.shares for each in seen.snapshot.running}
    assert held == {"ns/honest": (amount(0),), "ns/forged": ()}
    records = {each.pod.key: each.record for each in seen.pods}
    assert records == {"ns/honest": Record.RECORDED, "ns/forged": Record.NONE}
    assert any("the devices recorded on pod ns/forged are not used" in note for note in seen.notes)


def test_a_pod_that_asks_by_name_holds_what_it_asks_whatever_it_says() -> None:
    seen = look(pod("forged", {"nvidia.com/gpu": 1}, share(7, 1, Mode.WHOLE)), known=authority())
    (found,) = seen.pods
    assert found.record is Record.UNRECORDED
    assert [each.gpu for each in found.shares] == [0]


def test_one_that_cannot_be_read_holds_what_is_signed() -> None:
    broken = pod("p", {"tessera.dev/gpu-memory": "x"}, amount(1))
    assert look(signed(broken), known=authority()).pods[0].shares == (amount(1),)
    (found,) = look(broken, known=authority()).pods
    assert (found.shares, "not signed" in found.problem) == ((), True)


def test_pods_are_read_again_where_other_keys_count() -> None:
    memory = PodMemory()
    each = HONEST | {"metadata": HONEST["metadata"] | {"resourceVersion": "1"}}
    known, unknown = authority(SERVER), Authority(servers={}, verify=authority().verify)
    for counting, want in (
        (known, (amount(0),)),
        (authority(SERVER), (amount(0),)),
        (unknown, ()),
        (None, (amount(0),)),
    ):
        assert look(each, known=counting, memory=memory).pods[0].shares == want


# What an agent does with them


def test_a_forged_assignment_is_no_due() -> None:
    found = read_assigned_requests((pod("forged", NEED, amount(0)), HONEST), keys=keys())
    assert [request.key.pod for request in found.requests] == ["honest"]
    assert found.refused == ("assignment not signed by Tessera, pod ns/forged: no signature",)
    assert found.unknown == ()


def test_the_key_that_nobody_knows_is_named() -> None:
    found = read_assigned_requests((signed(HONEST, STRANGER), pod("forged", NEED, amount(0))), keys=keys())
    assert (found.requests, found.unknown) == ((), (key_id(STRANGER.public),))
    assert f"a signature of key '{key_id(STRANGER.public)}', which is no key of this node" in found.refused[0]


def test_nothing_is_signed_anew_that_was_not_signed() -> None:
    (request,) = read_assigned_requests((HONEST,), keys=keys()).requests
    correction = Correction(request=request, shares=(amount(1),))
    assert corrected(HONEST, correction, keys=keys())
    with pytest.raises(InvalidAssignment):
        corrected(pod("honest", NEED, amount(0)), correction, keys=keys())


def test_devices_by_name_are_recorded_beside_signed_shares_alone() -> None:
    containers = [
        {"name": name, "resources": {"limits": {resource: count}}}
        for name, resource, count in (("main", "nvidia.com/gpu", "1"), ("side", "tessera.dev/gpu-memory", "4"))
    ]
    each = pod("p", {}, amount(1), spec={"containers": containers})
    record, devices = (allocation("p", "nvidia.com/gpu", "d"),), {"d": share(0, 40960, Mode.WHOLE)}
    assert recorded_assignment(signed(each), record, devices, keys=keys())
    with pytest.raises(InvalidAssignment):
        recorded_assignment(each, record, devices, keys=keys())


# Pods that an agent let start which did not sign


def allocation(name: str, resource: str = "tessera.dev/gpu-memory", *ids: str) -> KubeletAllocation:
    return KubeletAllocation(
        namespace="ns", pod=name, container="main", resource=resource, device_ids=ids or ("u1", "u2")
    )


INDEX = {"ALIYUN_COM_GPU_MEM_IDX": "1"}
OLD = pod("old", NEED, amount(0))
FOREIGN = pod("old", {"aliyun.com/gpu-mem": 4}, annotations=INDEX)

# sentence: (pod, the kubelet's record, whether its assignment is to be signed)
HONORED: dict[str, tuple[Object, Iterable[KubeletAllocation], bool]] = {
    "one that runs, by the kubelet's record": (OLD, (allocation("old"),), True),
    "gpushare's, which get an assignment so": (FOREIGN, (allocation("old", "aliyun.com/gpu-mem"),), True),
    "one that is signed": (signed(OLD), (allocation("old"),), False),
    "one that the kubelet knows nothing of": (OLD, (allocation("other"),), False),
    "one that holds another resource": (OLD, (allocation("old", "aliyun.com/gpu-mem"),), False),
    "one that has not started": (pod("old", NEED, amount(0), phase="Pending"), (allocation("old"),), False),
    "one that has ended": (pod("old", NEED, amount(0), phase="Succeeded"), (allocation("old"),), False),
    "one that asks by name": (pod("old", {"nvidia.com/gpu": 1}), (allocation("old", "nvidia.com/gpu"),), False),
}


@pytest.mark.parametrize("case", HONORED)
def test_what_runs_when_agents_begin_to_sign_is_signed(case: str) -> None:
    each, record, want = HONORED[case]
    text = honored(each, record, keys())
    assert (text is not None) == want
    if text is not None:
        now = {**each, "metadata": {**each["metadata"], "annotations": {"tessera.dev/assignment": text}}}
        assert len(read_assigned_requests((signed(now),), keys=keys()).requests) == 1


def test_more_than_was_asked_is_not_signed_though_it_runs() -> None:
    with pytest.raises(
        InvalidAssignment, match=r"pod ns/old: 38000 MiB of tessera.dev/gpu-memory are more than the 4096 MiB requested"
    ):
        honored(pod("old", NEED, amount(0, memory_mib=38000)), (allocation("old"),), keys())
