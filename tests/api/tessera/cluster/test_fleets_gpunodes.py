"""Fleets whose agents report their GPUs: GPUNode objects win over labels, claims and health are heeded."""

import json

import pytest

from builders.kubeobjects import Object, gpu, gpunode, kubectl, mig_share, node, place, pod, share
from tessera.api import documents
from tessera.api.tessera.cluster import fleets
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, UnhealthyDevice
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.plan import plan
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput

NEED = {"tessera.dev/gpu-memory": "4"}
LAYOUT = (place("A100-40GB", "1g.5gb", 6),)


def read(*items: Object) -> Snapshot:
    return fleets.read(documents.read("cluster.json", kubectl(*items)))


def gpus_by_pod(snapshot: Snapshot) -> dict[str, list[int]]:
    return {each.pod.key: [share.gpu for share in each.assignment.shares] for each in snapshot.running}


def test_a_report_wins_over_labels() -> None:
    labeled = node("a", {"nvidia.com/gpu": "8"}, **{"nvidia.com/gpu.product": "Tesla-T4"})
    exact = (gpu(0, layout=LAYOUT), gpu(3, "T4", Sharing(modes=(Mode.WHOLE,))))
    got = read(labeled, gpunode("a", *exact))
    assert got.nodes[0].gpus == exact
    assert got.notes == ()


def test_a_report_needs_no_label_and_no_known_name() -> None:
    unknown = node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "GeForce-9999"})
    assert read(unknown, gpunode("a", gpu(0))).nodes[0].gpus == (gpu(0),)
    with pytest.raises(InvalidInput, match="GeForce-9999"):
        read(unknown)


def test_without_a_report_labels_are_read() -> None:
    labeled = node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "Tesla-T4"})
    empty = gpunode("a")
    del empty["status"]
    assert [each.model.name for each in read(labeled, empty).nodes[0].gpus] == ["T4"]


def test_a_report_without_a_node_is_noted() -> None:
    got = read(node("a"), gpunode("gone", gpu(0)))
    assert got.notes == ("GPUNode gone is left out: there is no node of this name",)


def test_the_unit_is_the_one_that_agents_report() -> None:
    objects = [node("a"), gpunode("a", gpu(0), unit_mib=1), pod("p", {"aliyun.com/gpu-mem": "900"}, share(0, 900))]
    assert fleets.share_unit_mib(documents.read("c", kubectl(*objects))) == 1
    assert read(*objects).running[0].pod.need.requests[0].memory_mib == 900
    assert fleets.share_unit_mib(documents.read("c", kubectl(node("a"), gpunode("a", gpu(0), unit_mib=256)))) == 1024


def test_where_nodes_differ_the_largest_unit_counts_and_a_note_says_so() -> None:
    objects = [node("a"), gpunode("a", gpu(0), unit_mib=1), node("b"), gpunode("b", gpu(0)), node("c")]
    got = read(*objects, pod("p", {"aliyun.com/gpu-mem": "9"}, node=None))
    assert got.pending[0].need.requests[0].memory_mib == 9 * 1024
    assert any("in units of 1 MiB and 1024 MiB" in each for each in got.notes)


def test_a_claimed_place_is_held() -> None:
    claim = Claim(uid="uid-p", pod=PodKey("ns/p"), shares=(share(1, 4096),))
    got = read(node(), gpunode("a", gpu(0), gpu(1), claims=(claim,)), pod("p", NEED, node=None))
    assert gpus_by_pod(got) == {"ns/p": [1]}
    assert got.pending == ()


def test_a_claim_of_a_pod_that_is_bound_or_gone_counts_for_nothing() -> None:
    claims = tuple(
        Claim(uid=f"uid-{name}", pod=PodKey(f"ns/{name}"), shares=(share(1, 4096),)) for name in ("p", "gone")
    )
    got = read(node(), gpunode("a", gpu(0), gpu(1), claims=claims), pod("p", NEED, share(0, 4096)))
    assert gpus_by_pod(got) == {"ns/p": [0]}


def test_what_is_unhealthy_is_given_to_nobody_new() -> None:
    unhealthy = (UnhealthyDevice(device=DeviceId("GPU-a-0"), reason="Xid 79"),)
    objects = (node(), gpunode("a", gpu(0), gpu(1), unhealthy=unhealthy), pod("old", NEED, share(0, 4096)))
    got = read(*objects, *(pod(f"new-{number}", NEED, node=None) for number in range(20)))
    assert gpus_by_pod(got) == {"ns/old": [0]}
    placed = plan(got).assignments
    assert {share.gpu for each in placed for share in each.shares} == {1}


def test_a_wish_alone_holds_nothing() -> None:
    desired = (DesiredDevices(gpu="GPU-a-0", instances=LAYOUT),)
    got = read(
        node(),
        gpunode("a", gpu(0), desired=desired),
        pod("p", {"nvidia.com/mig-1g.5gb": "1"}, mig_share(0, "1g.5gb", 6)),
    )
    assert gpus_by_pod(got) == {"ns/p": [0]}


def test_devices_that_the_controller_keeps_for_pods_by_name_are_noted_where_they_are_idle() -> None:
    free = "the controller keeps idle devices for pods that request them by name; here they count as free"
    whole = DesiredDevices(gpu="GPU-a-1", whole=True)
    seventh = DesiredDevices(gpu="GPU-a-0", instances=LAYOUT)
    gone = DesiredDevices(gpu="GPU-b-0", whole=True)
    running = pod("p", {"nvidia.com/mig-1g.5gb": "1"}, mig_share(0, "1g.5gb", 6))

    def notes(*desired: DesiredDevices, pods: tuple[Object, ...] = ()) -> tuple[str, ...]:
        return read(node(), gpunode("a", gpu(0), gpu(1), desired=desired), *pods).notes

    assert notes(whole, seventh) == (f"GPUs 0, 1 of a: {free}",)
    assert notes(seventh, gone) == (f"GPU 0 of a: {free}",)
    assert notes(seventh, gone, pods=(running,)) == notes(gone) == ()


# Keyed by a sentence: objects beside the node; desired words of the error.
BAD: dict[str, tuple[list[Object], str]] = {
    "two reports of one name": (
        [gpunode("a", gpu(0)), gpunode("a", gpu(0))],
        "GPUNode a: GPUNode a is there twice: name each once",
    ),
    "a GPU twice": ([gpunode("a", gpu(0), gpu(0))], "GPUNode a"),
    "a report that is no mapping": ([{"kind": "GPUNode", "metadata": {"name": "a"}, "status": 5}], "GPUNode"),
    "a report without a name": ([{"kind": "GPUNode", "metadata": {}}], "metadata.name"),
    "metadata that is a text": ([{"kind": "GPUNode", "metadata": "a"}], "metadata"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_reports_are_one_error_with_their_place(sentence: str) -> None:
    objects, want = BAD[sentence]
    with pytest.raises(InvalidInput, match=want) as error:
        fleets.read(documents.read("cluster.json", json.dumps({"kind": "List", "items": [node(), *objects]})))
    assert "cluster.json" in str(error.value)
