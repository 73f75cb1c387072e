"""Where a pod is and why, or what it waits for, and what would make it fit."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpunodes import sevenths
from builders.kubeobjects import Object, gpu, gpunode, mig_share, node, pod, share
from builders.randomclusters import advertise
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.api.tessera.shares import MOST_GPUS, MOST_MEMORY_SLICES, MOST_MIB
from tessera.core.cluster.cluster import FinishedPod, Phase, Record
from tessera.core.cluster.enforcement import Level
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, Impairment, UnhealthyDevice
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.explain.inspection import inspect
from tessera.core.explain.podexplanation import PodExplanation, explain_finished, explain_pod
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode, Sharing, names_device
from tessera.core.packing.obstacles import Cause
from tessera.core.packing.plan import plan
from tessera.core.workload.need import PodKey

NEED = "tessera.dev/gpu-memory"
SHARES = Sharing(modes=(Mode.MEMORY_SHARE,))
SEVENTHS = Sharing(modes=(Mode.MIG,), layout=sevenths(), allow_repartition=False)
KEPT = (DesiredDevices(gpu="GPU-a-0", instances=sevenths()[:2]),)
WHOLE = (DesiredDevices(gpu="GPU-a-0", whole=True),)
UNITS = {NEED: "80", "aliyun.com/gpu-mem": "80"}
EXACT = {"nvidia.com/gpu": "1", "nvidia.com/mig-3g.20gb": "1"}
ME = PodKey("ns/me")
LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "1"}
PLAIN = node("n", {"nvidia.com/gpu": "1"}, **LABELS)
IN_MIB = (
    f"the pod counts {NEED} in MiB and the node in GiB, and kube-scheduler compares 6000 units with 80: "
    f"request it in GiB, without the annotation {NEED}-unit"
)
NOTHING = "it has no devices any more"


def explanation(*objects: Object) -> PodExplanation:
    found = explain_pod(read_cluster(as_fields(objects)), ME)
    assert found is not None
    return found


def me(limits: Mapping[str, int | str], *shares: Any, **more: Any) -> Object:
    return pod("me", limits, *shares, **({"node": None} | more))


def grade(isolation: str) -> dict[str, str]:
    return {"tessera.dev/isolation": isolation}


def machine(name: str = "a", **more: Any) -> Object:
    made = node(name, UNITS | EXACT)
    made["spec"] = more
    return made


def test_nobody_of_this_name() -> None:
    assert explain_pod(read_cluster(as_fields([node()])), ME) is None


# Keyed by a sentence: objects; desired are words of sentences, of remedies, and the nodes' answers.
CASES: dict[str, tuple[list[Object], list[str], list[str], list[str]]] = {
    "room on a node": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4})],
        ["it fits on a now: 4 GiB of GPU 0 (MPS)"],
        [],
        [""],
    ),
    "room on many nodes": (
        [*(each for name in "abcde" for each in (machine(name), gpunode(name, gpu(0, node=name)))), me({NEED: 4})],
        ["it fits on a, b, c and 2 more now, best on a"],
        [],
        ["", "", "", "", ""],
    ),
    "another scheduler": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4}, spec={"schedulerName": "default-scheduler"})],
        ["it is scheduled by default-scheduler", "set spec.schedulerName: tessera-scheduler"],
        [],
        [""],
    ),
    "another scheduler for a device by name is none of our business": (
        [machine(), gpunode("a", gpu(0)), me({"nvidia.com/gpu": 1}, spec={"schedulerName": "default-scheduler"})],
        ["it fits on a now: the whole GPU 0"],
        [],
        [""],
    ),
    "zero devices by name are no request": (
        [node("a"), me({"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": "0"})],
        ["it fits on a now: no GPU"],
        [],
        [""],
    ),
    "MiB where the node offers GiB": (
        [
            machine(),
            gpunode("a", gpu(0)),
            machine("b"),
            gpunode("b", gpu(0, node="b"), unit_mib=1),
            me({NEED: 6000}, annotations={f"{NEED}-unit": "MiB"}),
        ],
        ["it fits on b now: 5.8 GiB of GPU 0 (MPS)"],
        [],
        [IN_MIB, ""],
    ),
    "MiB where all nodes offer GiB": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 6000}, annotations={f"{NEED}-unit": "MiB"})],
        [],
        [f"if it requested {NEED} in GiB, without the annotation {NEED}-unit: a"],
        [IN_MIB],
    ),
    "a resource that nobody advertises and nobody could": (
        [machine(), gpunode("a", gpu(0)), me({"nvidia.com/mig-1g.10gb.me": 1})],
        ["no node advertises nvidia.com/mig-1g.10gb.me, and no GPU of the cluster could provide it"],
        [],
        ["no GPU of the node can provide nvidia.com/mig-1g.10gb.me"],
    ),
    "a resource that could be made": (
        [machine(), gpunode("a", gpu(0), gpu(1)), me({"nvidia.com/mig-1g.5gb": 1})],
        [
            "no node advertises nvidia.com/mig-1g.5gb yet; 2 GPUs could provide it: the controller creates it on one",
            "there is room on a: 1g.5gb at 4 of GPU 0",
        ],
        [],
        [""],
    ),
    "more of a resource than a node can ever have": (
        [machine(), gpunode("a", gpu(0), gpu(1)), me({"nvidia.com/mig-1g.5gb": 15})],
        [
            "no node can have the nvidia.com/mig-1g.5gb that it requests: a: too few devices: 15 x",
        ],
        [],
        ["too few devices"],
    ),
    "a resource of a model that no node has": (
        [
            machine(),
            gpunode("a", gpu(0)),
            me({"nvidia.com/mig-1g.5gb": 1}, annotations={"tessera.dev/gpu-model": "H100-80GB"}),
        ],
        ["no node can have the nvidia.com/mig-1g.5gb that it requests: a: the node has no GPU of model H100-80GB"],
        [],
        ["the node has no GPU of model H100-80GB"],
    ),
    "a resource that one GPU could make": (
        [machine(), gpunode("a", gpu(0)), me({"nvidia.com/mig-1g.5gb": 1})],
        ["1 GPU could provide it: the controller creates it there when there is room"],
        [],
        [""],
    ),
    "a resource that one healthy GPU could make, and nobody on a node without an agent": (
        [
            machine(),
            gpunode("a", gpu(0), gpu(1), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-a-0"), reason="Xid 79"),)),
            PLAIN,
            me({"nvidia.com/mig-1g.5gb": 1}),
        ],
        [
            "1 GPU could provide it: the controller creates it there when there is room",
            "there is room on a: 1g.5gb at 4 of GPU 1",
        ],
        [],
        ["", "the node does not advertise nvidia.com/mig-1g.5gb and has no agent"],
    ),
    "a resource that one node advertises and another could make": (
        [
            *(each for name in "ab" for each in (node(name, UNITS), gpunode(name, gpu(0, node=name)))),
            node("c", {"nvidia.com/mig-1g.5gb": "1"}, **LABELS),
            me({"nvidia.com/mig-1g.5gb": 1}),
        ],
        ["it fits on c now: 1g.5gb at 6 of GPU 0"],
        [],
        ["", "", ""],
    ),
    "a resource of which an idle device is desired": (
        [
            node("a", {"nvidia.com/mig-1g.5gb": "2"}),
            gpunode("a", gpu(0, layout=sevenths()[:2]), desired=KEPT, offered=KEPT),
            pod("x", {"nvidia.com/mig-1g.5gb": 1}, mig_share(0, "1g.5gb", 0)),
            me({"nvidia.com/mig-1g.5gb": 1}, spec={"schedulerName": "default-scheduler"}),
        ],
        ["it fits on a now: 1g.5gb at 1 of GPU 0"],
        [],
        [""],
    ),
    "a resource of which one device is idle and another could be made": (
        [
            node("a", {"nvidia.com/mig-1g.5gb": "2"}),
            gpunode("a", gpu(0, layout=sevenths()[:2]), desired=KEPT, offered=KEPT),
            pod("x", {"nvidia.com/mig-1g.5gb": 1}, mig_share(0, "1g.5gb", 0)),
            me({"nvidia.com/mig-1g.5gb": 2}),
        ],
        [
            "no node has enough free nvidia.com/mig-1g.5gb yet; 1 GPU could provide it: the controller creates it",
            "there is room on a: 1g.5gb at 1 of GPU 0, 1g.5gb at 2 of GPU 0",
        ],
        [],
        [""],
    ),
    "a resource of which the devices of two GPUs are idle, one of them fixed": (
        [
            node("a", {"nvidia.com/mig-1g.5gb": "3"}),
            gpunode(
                "a",
                gpu(0, layout=sevenths()[:2]),
                gpu(1, sharing=msgspec.structs.replace(SEVENTHS, layout=sevenths()[6:])),
                desired=KEPT,
                offered=(*KEPT, DesiredDevices(gpu="GPU-a-1", instances=sevenths()[6:])),
            ),
            me({"nvidia.com/mig-1g.5gb": 3}),
        ],
        ["it fits on a now: 1g.5gb at 0 of GPU 0, 1g.5gb at 1 of GPU 0, 1g.5gb at 6 of GPU 1"],
        [],
        [""],
    ),
    "a resource that a pod has which would have to end, where no device is idle": (
        [
            node("a", {"nvidia.com/gpu": "1"}),
            gpunode("a", gpu(0), desired=WHOLE, offered=WHOLE),
            pod("x", {"nvidia.com/gpu": 1}, share(0, 40960, Mode.WHOLE, percent=100)),
            me({"nvidia.com/gpu": 1}),
        ],
        ["no node has enough free nvidia.com/gpu yet; 1 GPU could provide it"],
        ["when ns/x on a ends, this pod gets the whole GPU 0"],
        ["no room for nvidia.com/gpu: 1 GPU is allocated"],
    ),
    "a resource that agents do not advertise, of GPUs that have it": (
        [node("a"), gpunode("a", gpu(0, sharing=SEVENTHS)), me({"nvidia.com/mig-1g.5gb": 1})],
        ["no node advertises nvidia.com/mig-1g.5gb: GPUs of a could provide it, and no agent reports it; check the"],
        [],
        ["the node does not advertise nvidia.com/mig-1g.5gb: check its agent"],
    ),
    "a resource of which the used device is unhealthy, so that kube-scheduler counts none": (
        [
            node("a", {"nvidia.com/mig-1g.5gb": "1"}),
            gpunode(
                "a",
                gpu(0, sharing=msgspec.structs.replace(SEVENTHS, layout=sevenths()[:2])),
                unhealthy=(UnhealthyDevice(device=DeviceId("GPU-a-0", sevenths()[0])),),
            ),
            pod("x", {"nvidia.com/mig-1g.5gb": 1}, mig_share(0, "1g.5gb", 0)),
            me({"nvidia.com/mig-1g.5gb": 1}),
        ],
        [],
        [],
        ["too few free devices: 1 x nvidia.com/mig-1g.5gb requested, 0 of 1 advertised are free"],
    ),
    "a selector, for a device by name that is idle": (
        [
            node("a", {"nvidia.com/gpu": "1"}),
            gpunode("a", gpu(0), desired=WHOLE, offered=WHOLE),
            me({"nvidia.com/gpu": 1}, spec={"nodeSelector": {"zone": "b"}}),
        ],
        [],
        ["if it did not select the label zone=b, or the node had it: a"],
        ["the node has no label zone=b, which the pod selects"],
    ),
    "a resource that nobody creates, for want of an agent or of health": (
        [
            machine(),
            gpunode("a", gpu(0), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-a-0"), reason="Xid 79"),)),
            PLAIN,
            me({"nvidia.com/mig-1g.5gb": 1}),
        ],
        [("no node advertises nvidia.com/mig-1g.5gb; GPUs that could provide it are unhealthy or have no agent: a, n")],
        [],
        ["no room", "the node does not advertise nvidia.com/mig-1g.5gb and has no agent"],
    ),
    "a resource that a node without an agent has no GPU for": (
        [PLAIN, me({"nvidia.com/mig-1g.10gb.me": 1})],
        ["no node advertises nvidia.com/mig-1g.10gb.me, and no GPU of the cluster could provide it"],
        [],
        ["no GPU of the node can provide nvidia.com/mig-1g.10gb.me"],
    ),
    "amounts that nobody advertises": (
        [node(), gpunode("a", gpu(0)), me({NEED: 4})],
        [
            f"no node advertises {NEED}: GPUs of a could serve it, and no agent reports it; check the agents there",
            "there is room on a: 4 GiB of GPU 0 (MPS)",
        ],
        [],
        [""],
    ),
    "amounts that no GPU could serve": (
        [node(), gpunode("a", gpu(0)), me({NEED: 4000})],
        [f"no node advertises {NEED}, and no GPU of the cluster could serve it"],
        [],
        ["no GPU of the node can provide 4,000 GiB"],
    ),
    "a need where all devices are allocated by name": (
        [
            node("a", EXACT),
            gpunode("a", gpu(0, sharing=SEVENTHS), policy="slices"),
            me({NEED: 4}, annotations=grade("hardware")),
        ],
        [
            (
                f"no node advertises {NEED}: a (GPUPolicy slices): its devices are allocated by name "
                "(nvidia.com/mig-1g.5gb): request one by name, or set allocator: scheduler in the node's GPUPolicy"
            )
        ],
        [],
        ["its devices are allocated by name (nvidia.com/mig-1g.5gb): request one by name, or set allocator: scheduler"],
    ),
    "a need where no policy applies": (
        [machine(), gpunode("a", gpu(0, sharing=Sharing(modes=(Mode.WHOLE,)))), me({NEED: 4})],
        [],
        [],
        ["by name (nvidia.com/gpu): request one by name, or set allocator: scheduler in the node's GPUPolicy"],
    ),
    "a name where all devices are the scheduler's": (
        [
            machine(),
            gpunode("a", gpu(0, sharing=msgspec.structs.replace(SEVENTHS, allocator="scheduler"))),
            me({"nvidia.com/mig-1g.5gb": 1}),
        ],
        ["no node advertises nvidia.com/mig-1g.5gb, and no GPU of the cluster could provide it"],
        [],
        ["its devices are allocated by the scheduler: request an amount of tessera.dev/gpu-memory instead of nvidia"],
    ),
    "amounts that the agent withholds": (
        [
            node(),
            gpunode("a", gpu(0), impaired=(Impairment(kind="Withheld", subject=NEED, message="too many units"),)),
            machine("b"),
            gpunode("b", gpu(0, node="b")),
            me({NEED: 4}),
        ],
        ["it fits on b now"],
        [],
        ["too many units", ""],
    ),
    "amounts that all agents withhold": (
        [
            node(),
            gpunode("a", gpu(0), impaired=(Impairment(kind="Withheld", subject=NEED, message="too many units"),)),
            me({NEED: 4}),
        ],
        [f"no node advertises {NEED}; on a: too many units"],
        [],
        ["too many units"],
    ),
    "amounts of a node where something else is withheld": (
        [
            machine(),
            gpunode("a", gpu(0), impaired=(Impairment(kind="Withheld", subject="nvidia.com/gpu", message="x"),)),
            me({NEED: 4}),
        ],
        ["it fits on a now"],
        [],
        [""],
    ),
    "the scheduler's word and foreign names": (
        [
            machine(),
            gpunode("a", gpu(0)),
            me(
                {"nvidia.com/gpumem": 4},
                status={"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/9 nodes"}]},
            ),
        ],
        ["scheduler: 0/9 nodes", "HAMi"],
        [],
        ["no GPU of the node can provide nvidia.com/gpumem"],
    ),
    "no nodes": ([me({NEED: 4})], ["there are no nodes"], [], []),
    "a pod that cannot be read": (
        [machine(), gpunode("a", gpu(0)), me({"nvidia.com/gpu": -1})],
        ["its request cannot be read: spec.containers[0].resources.limits[nvidia.com/gpu]: '-1' is not a quantity"],
        [],
        ["spec.containers[0].resources.limits[nvidia.com/gpu]: '-1' is not a quantity of zero or more"],
    ),
    "a GPU with too little left": (
        [
            machine(),
            gpunode("a", gpu(0, sharing=SHARES), gpu(1, sharing=SHARES)),
            pod("x", {NEED: 30}, share(0, 30 << 10)),
            pod("y", {NEED: 34}, share(1, 34 << 10)),
            me({NEED: 12}, annotations=grade("none")),
        ],
        [],
        ["free 2 GiB on GPU 0 of a", "when ns/x on a ends, this pod gets 12 GiB of GPU 0 (memory-share)"],
        ["too little free GPU memory: 12 GiB requested, at most 10 GiB free on one GPU (GPU 0)"],
    ),
    "an instance in the way": (
        [
            machine(),
            gpunode("a", gpu(0)),
            pod("x", {"nvidia.com/mig-1g.5gb": 1}, mig_share(0, "1g.5gb", 1)),
            pod("y", {"nvidia.com/mig-3g.20gb": 1}, mig_share(0, "3g.20gb", 4)),
            me({"nvidia.com/mig-3g.20gb": 1}),
        ],
        [],
        ["when ns/x on a ends, this pod gets 3g.20gb at 0 of GPU 0"],
        ["no room for 3g.20gb: GPU 0 has memory slices 0, 2, 3 free, but 3g.20gb starts only at 0, 4"],
    ),
    "two that would have to end": (
        [
            machine(),
            gpunode("a", gpu(0, sharing=SHARES)),
            pod("x", {NEED: 20}, share(0, 20 << 10)),
            pod("y", {NEED: 19}, share(0, 19 << 10)),
            me({NEED: 40}, annotations=grade("none")),
        ],
        [],
        ["free 39 GiB on GPU 0 of a", "when ns/x, ns/y on a end, this pod gets 40 GiB of GPU 0 (memory-share)"],
        ["too little free GPU memory: 40 GiB requested, at most 1 GiB free on one GPU (GPU 0)"],
    ),
    "nobody could end to make room": (
        [machine(), gpunode("a", gpu(0), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-a-0")),)), me({NEED: 4})],
        [],
        [],
        ["no room for 4 GiB"],
    ),
    "two GPUs where one is held": (
        [
            machine(),
            gpunode("a", gpu(0), gpu(1)),
            pod("x", {"nvidia.com/gpu": 1}, share(0, 40960, Mode.WHOLE, percent=100)),
            me({"nvidia.com/gpu": 2}),
        ],
        [],
        ["when ns/x on a ends, this pod gets the whole GPU 0, the whole GPU 1"],
        ["too few free devices: 2 x nvidia.com/gpu requested, 1 free"],
    ),
    "kept for others by a wish": (
        [
            machine(),
            gpunode("a", gpu(0), desired=(DesiredDevices(gpu="GPU-a-0", whole=True),)),
            me({NEED: 4}),
        ],
        [],
        [],
        ["no room for 4 GiB"],
    ),
    "a taint, a cordon, a selector, an affinity": (
        [
            machine("a", taints=[{"key": "gpu", "value": "x", "effect": "NoSchedule"}]),
            machine("b", taints=[{"key": "gpu", "value": "x", "effect": "NoSchedule"}]),
            machine("c", unschedulable=True),
            *(gpunode(name, gpu(0, node=name)) for name in "abc"),
            me({NEED: 4}),
        ],
        [],
        ["if it tolerated the taint gpu=x:NoSchedule: a, b", "if the node were not cordoned: c"],
        ["does not tolerate the taint", "does not tolerate the taint", "cordoned"],
    ),
    "a selector": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4}, spec={"nodeSelector": {"zone": "b"}})],
        [],
        ["if it did not select the label zone=b, or the node had it: a"],
        ["the node has no label zone=b, which the pod selects"],
    ),
    "an affinity": (
        [
            machine(),
            gpunode("a", gpu(0)),
            me(
                {NEED: 4},
                spec={
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
                            }
                        }
                    }
                },
            ),
        ],
        [],
        ["if its node affinity allowed the node: a"],
        ["node affinity excludes the node"],
    ),
    "a taint on a node that is full": (
        [
            machine("a", taints=[{"key": "gpu", "effect": "NoSchedule"}]),
            gpunode("a", gpu(0)),
            pod("x", {"nvidia.com/gpu": 1}, share(0, 40960, Mode.WHOLE, percent=100)),
            me({NEED: 4}),
        ],
        [],
        [],
        ["does not tolerate the taint"],
    ),
    "short of cpu": (
        [
            machine(),
            gpunode("a", gpu(0)),
            pod("x", {"cpu": 60}),
            me({NEED: 4, "cpu": 8}),
        ],
        [],
        ["when ns/x on a ends, this pod gets 4 GiB of GPU 0 (MPS)"],
        ["too little CPU: 8 requested, 4 free"],
    ),
    "short of memory": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4, "memory": 1 << 40})],
        [],
        [],
        ["too little memory: 1048576 MiB requested, 262144 MiB free"],
    ),
    "full of pods": (
        [
            machine() | {"status": {"allocatable": {"pods": "1", NEED: "40"}}},
            gpunode("a", gpu(0)),
            pod("x"),
            me({NEED: 4}),
        ],
        [],
        ["when ns/x on a ends"],
        ["the node has its maximum number of pods"],
    ),
    "a node that is not ready": (
        [
            machine() | {"status": {"allocatable": UNITS, "conditions": [{"type": "Ready", "status": "Unknown"}]}},
            gpunode("a", gpu(0)),
            me({NEED: 4}),
        ],
        [],
        [],
        ["the pod does not tolerate the taint node.kubernetes.io/unreachable=:NoSchedule"],
    ),
    "a node whose GPUs cannot be told": (
        [node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "GeForce-9999"}), me({NEED: 4})],
        [],
        [],
        ["the node's GPUs are unknown: "],
    ),
    "a name that a node with GPUs of an unknown model advertises": (
        [node("a", {"nvidia.com/gpu": "2"}, **{"nvidia.com/gpu.product": "GeForce-9999"}), me({"nvidia.com/gpu": 1})],
        ["it fits on a now"],
        [],
        [""],
    ),
    "a name that only a node with GPUs of an unknown model might provide": (
        [
            node("a", {"nvidia.com/gpu": "2"}, **{"nvidia.com/gpu.product": "GeForce-9999"}),
            me({"nvidia.com/mig-1g.5gb": 1}),
        ],
        ["no node advertises nvidia.com/mig-1g.5gb; the GPUs of a are unknown"],
        [],
        ["the node's GPUs are unknown: "],
    ),
    "the taint of a node with GPUs of an unknown model comes first": (
        [
            node("a", {"nvidia.com/gpu": "2"}, **{"nvidia.com/gpu.product": "GeForce-9999"})
            | {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}},
            me({"nvidia.com/gpu": 1}),
        ],
        [],
        ["if it tolerated the taint gpu=:NoSchedule: a"],
        ["does not tolerate the taint"],
    ),
    "the taint of a node that withholds the resource comes first": (
        [
            machine("a", taints=[{"key": "gpu", "effect": "NoSchedule"}]),
            gpunode("a", gpu(0), impaired=(Impairment(kind="Withheld", subject=NEED, message="too many units"),)),
            me({NEED: 4}),
        ],
        [],
        ["if it tolerated the taint"],
        ["does not tolerate the taint"],
    ),
    "a pod without a GPU has room, and no remedy is looked for": (
        [node(), me({"cpu": 65})],
        [],
        [],
        ["too little CPU: 65 requested, 64 free"],
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_a_pod_waits_for(sentence: str) -> None:
    objects, want, remedies, answers = CASES[sentence]
    got = explanation(*objects)
    assert (got.phase, got.node, got.devices) == (Phase.WAITING, None, ())
    text = "\n".join(got.sentences)
    assert [words for words in want if words not in text] == []
    assert len(got.remedies) == len(remedies)
    assert [words for words, found in zip(remedies, got.remedies, strict=True) if words not in found] == []
    assert len(got.nodes) == len(answers)
    assert [
        words
        for words, found in zip(answers, got.nodes, strict=True)
        if words not in (found.obstacle.text if found.obstacle else "")
    ] == []
    assert [bool(words) for words in answers] == [found.obstacle is not None for found in got.nodes]


def test_a_pod_that_no_scheduler_has_considered() -> None:
    """As while the second scheduler is down: Kubernetes says nothing about it."""
    unseen = {"phase": "Pending", "qosClass": "BestEffort"}
    pending = me({NEED: 4}) | {"status": unseen}
    seen = unseen | {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}
    said = "no scheduler has considered it yet: if that lasts, no tessera-scheduler runs: "
    said += "kubectl get pods -n tessera-system"
    nodes = machine(), gpunode("a", gpu(0))
    assert explanation(*nodes, pending).sentences[0] == said
    for other in (pending | {"status": seen}, me({NEED: 4})):
        assert said not in explanation(*nodes, other).sentences
    other = me({"nvidia.com/gpu": 1}, spec={"schedulerName": "x"}) | {"status": unseen}
    assert "no scheduler has considered it yet: if that lasts, no x runs" in explanation(*nodes, other).sentences


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_device_that_a_controller_would_create_while_none_runs(gpus: int) -> None:
    objects = machine(), gpunode("a", *map(gpu, range(gpus))), me({"nvidia.com/mig-1g.5gb": 1})
    cluster = msgspec.structs.replace(read_cluster(as_fields(objects)), controller_silent="no controller runs: see")
    found = explain_pod(cluster, ME)
    assert found is not None
    assert found.sentences[0].endswith("when there is room, but no controller runs: see")


# Keyed by a sentence: objects; desired are words of sentences, all of them in order.
PLACED: dict[str, tuple[list[Object], list[str]]] = {
    "the one place there is": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4}, share(0, 4096), node="a")],
        ["tessera-scheduler bound it to a", "it fits no other node now"],
    ),
    "the best of several": (
        [
            *(each for name in "ab" for each in (machine(name), gpunode(name, gpu(0, node=name)))),
            me({NEED: 4}, share(0, 4096), node="a"),
        ],
        ["bound it to a", "of 2 nodes that it fits now, the scheduler would choose this one again"],
    ),
    "a better place by now": (
        [
            *(each for name in "ab" for each in (machine(name), gpunode(name, gpu(0, node=name)))),
            pod("x", {NEED: 4}, share(0, 4096, Mode.MPS), node="a"),
            me({NEED: 4}, share(0, 4096, Mode.MPS), node="b"),
        ],
        ["bound it to b", "scheduled again, it would be placed on a: 4 GiB of GPU 0 (MPS)"],
    ),
    "a node that took a cordon since": (
        [machine(unschedulable=True), gpunode("a", gpu(0)), me({NEED: 4}, share(0, 4096), node="a")],
        ["bound it to a", "it would not fit there today: the node is cordoned"],
    ),
    "a node that is gone": (
        [machine(), me({NEED: 4}, share(0, 4096), node="b")],
        ["bound it to b", "node b no longer exists"],
    ),
    "a request that cannot be read": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4}, share(0, 4096), node="a", annotations=grade("strong"))],
        ["its request cannot be read: metadata.annotations[tessera.dev/isolation]: 'strong'", "bound it to a"],
    ),
    "no GPU": ([machine(), me({}, node="a")], ["bound it to a", "it requests no GPU"]),
    "not running yet": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4}, share(0, 4096), node="a", phase="Pending")],
        ["tessera-scheduler bound it to a, where its containers are not running yet", "no other node"],
    ),
    "being deleted": (
        [machine(), gpunode("a", gpu(0)), me({NEED: 4}, share(0, 4096), node="a", metadata={"deletionTimestamp": "x"})],
        ["bound it to a", "it is being deleted", "no other node"],
    ),
    "claimed": (
        [
            machine(),
            gpunode("a", gpu(0), claims=(Claim(uid="uid-me", pod=ME, shares=(share(0, 4096),)),)),
            me({NEED: 4}),
        ],
        ["a server has chosen its devices on a and is about to bind it", "no other node"],
    ),
    "a guess": (
        [
            node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "Tesla-T4"}),
            me({"nvidia.com/gpu": 1}, node="a"),
        ],
        ["bound it to a", "no record says which devices it is allocated; these fit", "no other node"],
    ),
    "a conflict": (
        [
            machine(),
            gpunode("a", gpu(0)),
            pod("x", {NEED: 4}, share(0, 40000)),
            me({NEED: 4}, share(0, 4096), node="a"),
        ],
        [
            "bound it to a",
            "it would not fit there today",
            "the allocations on GPU 0 conflict: 44096 MiB of 40960 MiB are allocated",
        ],
    ),
}


@pytest.mark.parametrize("sentence", PLACED)
def test_why_a_pod_is_where_it_is(sentence: str) -> None:
    objects, want = PLACED[sentence]
    got = explanation(*objects)
    assert len(got.sentences) == len(want)
    assert [words for words, found in zip(want, got.sentences, strict=True) if words not in found] == []
    assert got.remedies == ()
    assert got.node is not None


def test_units_that_differ_are_the_reason_of_the_plan_too() -> None:
    objects = [machine(), gpunode("a", gpu(0)), me({NEED: 6000}, annotations={f"{NEED}-unit": "MiB"})]
    (pending,) = plan(read_cluster(as_fields(objects)).snapshot).pending
    assert pending.reason == f"needs 5.9 GiB with driver isolation; {IN_MIB} (a)"


KINDS = (
    Sharing(),
    Sharing(modes=(Mode.WHOLE,)),
    SHARES,
    Sharing(modes=(Mode.MIG,), layout=sevenths()[:2], allow_repartition=False),
    Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),)),
)
HELD = (
    None,
    share(0, 4096),
    share(0, 4096, Mode.MPS),
    share(0, 40960, Mode.WHOLE),
    mig_share(0, "1g.5gb", sevenths()[0].start),
)
UNHEALTHY = (
    None,
    UnhealthyDevice(device=DeviceId("GPU-a-0")),
    UnhealthyDevice(device=DeviceId("GPU-a-0", sevenths()[0])),
)


@given(
    first=st.sampled_from(KINDS),
    second=st.sampled_from(KINDS),
    held=st.sampled_from(HELD),
    unhealthy=st.sampled_from(UNHEALTHY),
    requested=st.sampled_from([{NEED: 38}, {"aliyun.com/gpu-mem": 38}, *({name: n} for name in EXACT for n in (1, 2))]),
)
def test_the_plan_says_the_same_of_every_node_word_for_word(
    first: Sharing, second: Sharing, held: Share | None, unhealthy: UnhealthyDevice | None, requested: dict[str, int]
) -> None:
    """Where the records can be: what no GPU can be told to have been given says nothing of words.

    A planner does not count what a node advertises.
    """
    gpus = gpu(0, sharing=first), gpu(1, sharing=second)
    ill = () if unhealthy is None else (unhealthy,)
    limits = {held.resource: 1} if held is not None and names_device(held.resource) else {NEED: 4}
    pods = [pod("x", limits, held)] if held is not None and held.mode in first.modes else []
    if SHARES.modes[0] in second.modes:
        pods.append(pod("y", {NEED: 4}, share(1, 8192)))
    if unhealthy is not None and unhealthy.device.placement not in (None, *(first.layout or ())):
        ill = ()
    objects = [machine(), gpunode("a", *gpus, unhealthy=ill)]
    advertise(objects, pods)
    cluster = read_cluster(as_fields([*objects, *pods, me(requested)]))
    explained = explain_pod(cluster, ME)
    assert explained is not None
    (verdict,), found = explained.nodes, plan(cluster.snapshot).pending
    if verdict.obstacle is not None and verdict.obstacle.cause is Cause.ADVERTISED:
        return
    assert [verdict.obstacle and verdict.obstacle.text in each.reason for each in found] == [True] * bool(
        verdict.obstacle
    )


def test_a_pod_whose_request_cannot_be_read_fits_nowhere_and_keeps_its_devices() -> None:
    odd = me({NEED: 4}, share(0, 4096), node="a", annotations=grade("strong"))
    got = explanation(machine(), gpunode("a", gpu(0)), odd)
    assert (got.need, [each.share for each in got.devices]) == ("", [share(0, 4096)])
    assert [each.obstacle and (each.obstacle.cause, each.obstacle.cause.lasting) for each in got.nodes] == [
        (Cause.REQUEST, True)
    ]


# Keyed by a sentence: a finished pod; desired are its sentences.
ENDED: dict[str, tuple[FinishedPod, tuple[str, ...]]] = {
    "well": (FinishedPod(pod=ME, node=NodeName("a"), failed=False), ("it has succeeded", NOTHING)),
    "badly, with a reason and devices": (
        FinishedPod(
            pod=ME,
            node=NodeName("a"),
            failed=True,
            reason="Evicted: low on memory",
            containers=("container main ended with exit code 137",),
            shares=(share(0, 4096),),
        ),
        (
            "it has failed: Evicted: low on memory",
            "container main ended with exit code 137",
            f"its assignment was 4 GiB of GPU 0 (memory-share); {NOTHING}",
        ),
    ),
}


@pytest.mark.parametrize("sentence", ENDED)
def test_how_a_pod_ended(sentence: str) -> None:
    ended, want = ENDED[sentence]
    got = explain_finished(ended)
    assert (got.pod, got.phase, got.node, got.sentences) == (ME, Phase.FINISHED, "a", want)
    assert (got.need, got.devices, got.remedies, got.nodes) == ("", (), (), ())


def test_the_devices_it_holds_with_their_neighbors() -> None:
    got = explanation(
        machine(),
        gpunode("a", gpu(0), gpu(1)),
        pod("x", {NEED: 4}, share(0, 4096)),
        me({NEED: 4}, share(0, 4096), share(1, 4096, Mode.MPS), share(9, 4096), node="a"),
    )
    assert [(each.uuid, each.model, each.level, each.neighbors) for each in got.devices] == [
        ("GPU-a-0", "A100-40GB", Level.NONE, ("ns/x",)),
        ("GPU-a-1", "A100-40GB", Level.DRIVER_MPS, ()),
        ("", "", None, ()),
    ]
    assert got.record is Record.RECORDED
    assert [way.option.mode for way in got.ways] == [Mode.MPS, Mode.MIG, Mode.WHOLE]


@given(
    recorded=st.lists(
        st.tuples(
            st.sampled_from(Mode),
            st.sampled_from([0, 1, 7, MOST_GPUS - 1]),
            st.sampled_from([0, 1, 4096, 40960, MOST_MIB]),
            st.sampled_from([0, 1, 60, 100]),
            st.sampled_from([None, "1g.5gb", "3g.20gb", "9g.90gb", "x"]),
            st.sampled_from([None, 0, 1, 4, 6, MOST_MEMORY_SLICES]),
        ),
        max_size=5,
    ),
    amount=st.sampled_from(["1", "9e18", "9223372036854775807"]),
    claimed=st.booleans(),
)
def test_whatever_is_recorded_there_is_an_answer(
    recorded: list[tuple[Mode, int, int, int, str | None, int | None]], amount: str, *, claimed: bool
) -> None:
    shares = tuple(
        msgspec.structs.replace(share(index, mib, mode, percent=percent), profile=profile, start=start)
        for mode, index, mib, percent, profile, start in recorded
    )
    claims = (Claim(uid="uid-x", pod=PodKey("ns/x"), shares=shares),) if claimed and shares else ()
    other = pod(
        "x", {NEED: 4, "cpu": amount, "memory": amount}, *([] if claimed else shares), node=None if claimed else "a"
    )
    objects = (machine(), gpunode("a", gpu(0), gpu(1), claims=claims), other)
    for mine in (me({NEED: 4, "cpu": 1}), me({NEED: 4, "cpu": amount}, *shares, node="a")):
        got = explanation(*objects, mine)
        assert len(got.nodes) == 1
        assert inspect(read_cluster(as_fields((*objects, mine)))).nodes
