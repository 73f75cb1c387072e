"""Obstacles: each cause in its words, the same from the ledger and for the plan."""

import msgspec
import pytest

from builders.fleets import A30, A100, T4, amount, gpu, node, plain_share, slices
from builders.gpufacts import at
from builders.ledgerentries import entry
from builders.shares import share, whole
from tessera.core.cluster.closing import closed
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Running, Snapshot
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.ledger import Ledger, LedgerEntry
from tessera.core.packing.reasons import Reasons
from tessera.core.workload.need import DeviceRequest, Isolation, Need, Pod, PodKey

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
FIXED = Sharing(modes=(Mode.WHOLE,))
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),))


def two_models(need: Need) -> Need:
    return msgspec.structs.replace(need, models=("A100-40GB", "A30-24GB"))


REASONS = {
    "a node without GPU": (node("n"), (), amount(1), "hopeless", "the node has no GPU"),
    "another model": (
        node("n", gpu(0, T4)),
        (),
        two_models(amount(1)),
        "hopeless",
        "the node has no GPU of model A100-40GB or A30-24GB",
    ),
    "more memory than any GPU has": (
        node("n", gpu(0, T4)),
        (),
        amount(80 * 1024),
        "hopeless",
        "no GPU of the node can provide 80 GiB",
    ),
    "isolation and compute in the words of the need": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.MEMORY_SHARE,)))),
        (),
        amount(1_024, Isolation.DRIVER, compute_percent=30),
        "hopeless",
        "no GPU of the node can provide 1 GiB and 30 % compute with driver isolation",
    ),
    "fewer GPUs than asked for": (
        node("n", gpu(0, T4), gpu(1, T4)),
        (),
        amount(4_096, count=3),
        "hopeless",
        "too few devices: 3 x 4 GiB requested, the node can provide 2",
    ),
    "instances that do not fit even if nothing runs": (
        node("n", gpu(0, A30)),
        (),
        slices("2g.12gb", 3),
        "hopeless",
        "too few devices: 3 x nvidia.com/mig-2g.12gb requested, the node can provide 2",
    ),
    "devices that do not exist": (
        node("n", gpu(0, T4, SLICED)),
        (),
        Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=3),)),
        "hopeless",
        "too few devices: 3 x nvidia.com/gpu requested, the node can provide 2",
    ),
    "memory is short": (
        node("n", gpu(0, T4), gpu(1, T4)),
        (entry("a", share(0, memory_mib=12_000)), entry("b", share(1, memory_mib=11_000))),
        plain_share(6 * 1024),
        "failed",
        "too little free GPU memory: 6 GiB requested, at most 4.2 GiB free on one GPU (GPU 1)",
    ),
    "compute is short": (
        node("n", gpu(0, T4)),
        (entry("a", share(0, memory_mib=1, percent=90)),),
        amount(1_024, compute_percent=30),
        "failed",
        "too little free compute: 30 % requested, at most 10 % free on a GPU with enough memory (GPU 0)",
    ),
    "one of two GPUs has room": (
        node("n", gpu(0, T4), gpu(1, T4)),
        (entry("a", share(0, memory_mib=12_000)),),
        amount(8 * 1024, count=2),
        "failed",
        "too few free devices: 2 x 8 GiB requested, 1 free",
    ),
    "in use in another mode": (
        node("n", gpu(0, A30)),
        (entry("a", share(0, at="1g.6gb@0")),),
        plain_share(1_024),
        "failed",
        "no room for 1 GiB: 1 GPU is partitioned by MIG",
    ),
    "memory slices in pieces": (
        node("n", gpu(0, A30)),
        (entry("a", share(0, at="1g.6gb@0")), entry("b", share(0, at="1g.6gb@2"))),
        slices("2g.12gb"),
        "failed",
        "no room for 2g.12gb: GPU 0 has memory slices 1, 3 free, but 2g.12gb starts only at 0, 2",
    ),
    "nothing can be cut": (
        node("n", gpu(0, A30)),
        (entry("a", share(0)),),
        slices("2g.12gb"),
        "failed",
        "no room for nvidia.com/mig-2g.12gb: 1 GPU is shared by memory",
    ),
    "no GPU is free": (
        node("n", gpu(0, T4)),
        (entry("a", share(0)),),
        WHOLE,
        "failed",
        "no room for nvidia.com/gpu: 1 GPU is shared by memory",
    ),
    "MPS serves several GPUs to nobody": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.MPS,))), gpu(1, T4, Sharing(modes=(Mode.MPS,)))),
        (),
        amount(1_024, count=2),
        "hopeless",
        "no GPU of the node can provide 1 GiB on 2 GPUs: MPS gives a container a part of one GPU alone",
    ),
    "the kubelet allocates what would serve": (
        node("n", gpu(0, T4), gpu(1, T4, Sharing(modes=(Mode.WHOLE,)))),
        (),
        amount(12_000, Isolation.HARDWARE, count=2),
        "hopeless",
        (
            "too few devices: 2 x 11.8 GiB with hardware isolation requested, the node can provide 1; 1 x T4 whose "
            "devices are allocated by name cannot provide it"
        ),
    ),
    "the kubelet allocates all that would serve": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.MEMORY_SHARE,))), gpu(1, T4, Sharing(modes=(Mode.WHOLE,)))),
        (),
        amount(12_000, Isolation.HARDWARE),
        "hopeless",
        (
            "its devices are allocated by name (nvidia.com/gpu): request one by name, or set allocator: scheduler in "
            "the node's GPUPolicy; 1 x T4 of 15360 MiB shared as memory-share cannot provide it"
        ),
    ),
    "the scheduler allocates all that has the name": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.WHOLE,), allocator="scheduler"))),
        (),
        WHOLE,
        "hopeless",
        (
            "its devices are allocated by the scheduler: request an amount of tessera.dev/gpu-memory instead of "
            "nvidia.com/gpu"
        ),
    ),
    "some devices of the name are the scheduler's": (
        node("n", gpu(0, T4, FIXED), gpu(1, T4, Sharing(modes=(Mode.WHOLE,), allocator="scheduler"))),
        (),
        Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),)),
        "hopeless",
        (
            "too few devices: 2 x nvidia.com/gpu requested, the node can provide 1; 1 x T4 whose devices are allocated "
            "by the scheduler cannot provide it"
        ),
    ),
    "memory is short, and other GPUs are shared otherwise": (
        node("n", gpu(0, T4), gpu(1, T4, SLICED), gpu(2, A30, SLICED), gpu(3, A30, Sharing(modes=())), gpu(4, T4)),
        (entry("a", share(0, memory_mib=12_000)), entry("b", whole(4))),
        plain_share(6 * 1024),
        "failed",
        (
            "too little free GPU memory: 6 GiB requested, at most 3.2 GiB free on one GPU (GPU 0); 1 more GPU is "
            "allocated; 1 x A30-24GB offering nothing and 1 x A30-24GB offering nvidia.com/gpu and 1 x T4 offering "
            "nvidia.com/gpu cannot provide it"
        ),
    ),
    "compute is short, and GPUs of other models do not count": (
        node("n", gpu(0, A30), gpu(1, T4), gpu(2, T4)),
        (entry("a", share(0, memory_mib=1, percent=90)),),
        two_models(amount(1_024, compute_percent=30)),
        "failed",
        (
            "too little free compute: 30 % requested, at most 10 % free on a GPU with enough memory (GPU 0); 2 x T4 "
            "cannot provide it"
        ),
    ),
    "memory slices in pieces on several GPUs": (
        node("n", gpu(0, A30), gpu(1, A30), gpu(2, A30), gpu(3, T4)),
        (
            *(entry(f"{i}-{at}", share(i, at=f"1g.6gb@{at}")) for i in range(2) for at in (0, 2)),
            entry("c", share(2)),
        ),
        slices("2g.12gb"),
        "failed",
        (
            "no room for 2g.12gb: GPU 0 has memory slices 1, 3 free, but 2g.12gb starts only at 0, 2; 1 more GPU "
            "has no room for it either, 1 is shared by memory; 1 x T4 without MIG cannot provide it"
        ),
    ),
    "no device is free, and some GPUs have none": (
        node("n", gpu(0, T4), gpu(1, T4, SLICED)),
        (entry("a", share(0)),),
        amount(1_024, Isolation.HARDWARE),
        "failed",
        (
            "no room for 1 GiB with hardware isolation: 1 GPU is shared by memory; 1 x T4 offering "
            "nvidia.com/gpu cannot provide it"
        ),
    ),
    "each alone, but not together": (
        node("n", gpu(0, A30)),
        (),
        Need(requests=(*WHOLE.requests, *slices("1g.6gb").requests)),
        "failed",
        "room for each request of the pod alone, but not for all of them together",
    ),
    "a GPU that serves amounts in another mode": (
        node("n", gpu(0, T4)),
        (entry("a", share(0)),),
        amount(800, Isolation.DRIVER),
        "failed",
        "no room for 800 MiB with driver isolation: 1 GPU is shared by memory",
    ),
    "one memory slice where no instance starts": (
        node("n", gpu(0)),
        tuple(entry(f"p{i}", share(0, at=f"1g.5gb@{i}")) for i in range(7)),
        slices("1g.5gb"),
        "failed",
        "no room for 1g.5gb: GPU 0 has memory slice 7 free, but 1g.5gb starts only at 0, 1, 2, 3, 4, 5, 6",
    ),
    "no memory slice": (
        node("n", gpu(0)),
        (entry("a", share(0, at="3g.20gb@0")), entry("b", share(0, at="3g.20gb@4"))),
        slices("3g.20gb"),
        "failed",
        "no room for 3g.20gb: GPU 0 has no free memory slice",
    ),
    "no memory slice on two GPUs": (
        node("n", gpu(0), gpu(1)),
        tuple(entry(f"{index}@{at}", share(index, at=f"3g.20gb@{at}")) for index in (0, 1) for at in (0, 4)),
        slices("3g.20gb"),
        "failed",
        "no room for 3g.20gb: GPU 0 has no free memory slice; 1 more GPU has no room for it either",
    ),
    "media engines that are allocated": (
        node("n", gpu(0)),
        (entry("a", share(0, at="1g.5gb+me@0")),),
        slices("1g.5gb.me"),
        "failed",
        (
            "no room for 1g.5gb+me: GPU 0 has memory slices 1, 2, 3, 4, 5, 6, 7 free, but the media engines it needs "
            "are allocated"
        ),
    ),
    "existing instances that could be repartitioned": (
        node("n", gpu(0, A30, Sharing(layout=(Placement(0, 2, "2g.12gb"),)))),
        (entry("a", share(0, at="2g.12gb@0")), entry("b", share(0, at="2g.12gb@2"))),
        slices("2g.12gb"),
        "failed",
        "no room for 2g.12gb: GPU 0 has no free memory slice",
    ),
    "each GPU has its own cause": (
        node("n", *(gpu(index, A30) for index in range(5))),
        (
            entry("a", share(0, at="1g.6gb@0")),
            entry("b", whole(1)),
            entry("c", whole(2)),
            entry("d", share(3, mode=Mode.MPS)),
            entry("e", share(4)),
        ),
        WHOLE,
        "failed",
        (
            "no room for nvidia.com/gpu: 2 GPUs are allocated, 1 is partitioned by MIG, 1 is shared by memory, 1 "
            "is shared by MPS"
        ),
    ),
    "more GPUs than are counted": (
        node("n", *(gpu(index, T4, FIXED) for index in range(32))),
        tuple(entry(f"p{index}", whole(index)) for index in range(32)),
        WHOLE,
        "failed",
        "no room for nvidia.com/gpu: 31 or more GPUs are allocated",
    ),
    "replicas that are allocated": (
        node("n", gpu(0, T4, SLICED)),
        tuple(entry(each, share(0, mode=Mode.TIME_SLICING)) for each in "ab"),
        WHOLE,
        "failed",
        "no room for nvidia.com/gpu: 1 GPU is allocated",
    ),
}


def test_gpus_that_new_pods_get_nothing_of_are_unhealthy_or_closed() -> None:
    gpus = tuple(gpu(index, T4, FIXED) for index in range(4))
    spec = msgspec.structs.replace(node("n", *gpus), unhealthy=(1,))
    ledger = Ledger()
    ledger.put_node(spec, reserved=(named_share(gpus[1], None), named_share(gpus[3], None)))
    for each in (entry("a", whole(0)), entry("b", whole(2)), entry("c", whole(2))):
        ledger.put_pod(each)
    want = "no room for nvidia.com/gpu: 2 GPUs are allocated, 1 is unhealthy, 1 is closed to new pods"
    assert ledger.filter(WHOLE, ["n"]).failed == {"n": want}
    planned = (gpus[0], closed(gpus[1], ()), closed(gpus[2], (whole(2),)), gpus[3])
    running = tuple(
        Running(
            pod=Pod(key=PodKey(f"ns/{index}"), need=WHOLE),
            assignment=Assignment(pod=PodKey(f"ns/{index}"), node=NodeName("n"), shares=(whole(index),)),
        )
        for index in (0, 2, 3)
    )
    reasons = Reasons(Snapshot(nodes=(msgspec.structs.replace(spec, gpus=planned),), running=running))
    assert reasons.verdicts(WHOLE)[0].obstacle == ledger.obstacles(WHOLE, ["n"])["n"]
    ledger.put_node(spec)
    assert ledger.fits(WHOLE, "n")


def test_a_reason_names_the_devices_of_the_first_gpu_whatever_was_seen_before() -> None:
    cut = at("A100-40GB", ("1g.5gb", 0))
    sliced, whole = Sharing(modes=(Mode.MIG,), layout=cut, allow_repartition=False), Sharing(modes=(Mode.WHOLE,))
    fresh, lived = Ledger(), Ledger()
    lived.put_node(node("m", gpu(0, A100, whole)))
    for each in (fresh, lived):
        each.put_node(node("n", gpu(0, A100, sliced), gpu(1, A100, whole)))
    (found,) = {each.filter(amount(2_000, Isolation.HARDWARE), ["n"]).hopeless["n"] for each in (fresh, lived)}
    assert found.startswith("its devices are allocated by name (nvidia.com/mig-1g.5gb)")


def test_a_reason_is_about_the_modes_of_its_own_node_whatever_others_serve() -> None:
    ledger = Ledger()
    ledger.put_node(node("mps", gpu(0, T4, Sharing(modes=(Mode.MPS,))), gpu(1, T4, Sharing(modes=(Mode.MPS,)))))
    ledger.put_node(node("turns", gpu(0, A30, Sharing(modes=(Mode.TIME_SLICING,)))))
    hopeless = ledger.filter(amount(1_024, count=2), ["mps", "turns"]).hopeless
    said = "no GPU of the node can provide 1 GiB on 2 GPUs"
    assert hopeless["mps"] == f"{said}: MPS gives a container a part of one GPU alone"
    assert hopeless["turns"] == "no GPU of the node can provide 1 GiB"


@pytest.mark.parametrize(("spec", "pods", "need", "where", "want"), REASONS.values(), ids=REASONS)
def test_ledger_and_plan_name_one_obstacle_in_the_same_words(
    spec: Node, pods: tuple[LedgerEntry, ...], need: Need, where: str, want: str
) -> None:
    ledger = Ledger()
    ledger.put_node(spec)
    for each in pods:
        ledger.put_pod(each)
    got = ledger.filter(need, ["n"])
    assert got._asdict() == {"fitting": (), "failed": {}, "hopeless": {}} | {where: {"n": want}}
    assert ledger.choose(need, "n") == want
    assert not ledger.fits(need, "n")
    assert ledger.scores(need, ["n"]) == (0,)
    assert ledger.best(need, ["n"]) is None
    running = tuple(
        Running(
            pod=Pod(key=each.key, need=each.need),
            assignment=Assignment(pod=each.key, node=each.node, shares=each.shares),
        )
        for each in pods
    )
    reasons = Reasons(Snapshot(nodes=(spec,), running=running))
    (verdict,) = reasons.verdicts(need)
    assert verdict.obstacle == ledger.obstacles(need, ["n"])["n"]
    assert f"; {want} (n" in reasons.why(need)[1]
