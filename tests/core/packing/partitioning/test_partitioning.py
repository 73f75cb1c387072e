"""Demand-driven partitioning: what is desired of GPUs for pending pods, and what never happens."""

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import requests
from builders.fleets import pod_of
from builders.gpufacts import at
from builders.shares import mig_share, share, whole
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState, UnhealthyDevice
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Running, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement, is_legal
from tessera.core.gpu.sharing import AUTO, GPU_RESOURCE, Mode, Sharing, mig_resource
from tessera.core.packing.partitioning import (
    PartitioningDecision,
    PartitioningLimits,
    PartitioningMemory,
    PartitioningState,
    advance,
)
from tessera.core.workload.need import DeviceRequest, Isolation, Need, Pod, PodKey

A100 = model("A100-40GB")
SOON = PartitioningLimits(idle_s=0, longest_s=0, protect_s=0)


def asking(name: str, *requests: DeviceRequest, priority: int = 0) -> Pod:
    return pod_of(Need(requests=requests), f"a/{name}", priority)


def exact(name: str, count: int = 1) -> DeviceRequest:
    return DeviceRequest(resource=GPU_RESOURCE if name == "gpu" else mig_resource(name), count=count)


def need(memory_gib: int, isolation: Isolation = Isolation.NONE) -> DeviceRequest:
    return requests.need(memory_gib * 1024, isolation=isolation)


def places(*names: str) -> tuple[Placement, ...]:
    read = (name.split("@") for name in names)
    return at(A100, *((profile, int(start)) for profile, start in read))


def wish(gpu: int, *names: str) -> DesiredDevices:
    uuid = f"GPU-{gpu}"
    return (
        DesiredDevices(gpu=uuid, whole=True)
        if names == ("gpu",)
        else DesiredDevices(gpu=uuid, instances=places(*names))
    )


def part(gpu: int, name: str, resource: str = "") -> Share:
    """Return a share: `1g.5gb@0`, `gpu`, or MiB of memory."""
    if name.isdecimal():
        return share(gpu, int(name), Mode.MPS, resource=resource)
    if name == "gpu":
        return whole(gpu, A100.memory_mib)
    profile, _, start = name.partition("@")
    found = mig_share(gpu, profile, int(start))
    return msgspec.structs.replace(found, resource=resource or found.resource)


class Scene:
    """One node with A100s, an agent that creates what is desired, and a scheduler that binds what it finds."""

    def __init__(self, gpus: int = 1, *, sharing: Sharing = AUTO, limits: PartitioningLimits = SOON) -> None:
        self.limits = limits
        self.sharings = [sharing] * gpus
        self.desired: tuple[DesiredDevices, ...] = ()
        self.offered: tuple[DesiredDevices, ...] = ()
        self.running: list[Running] = []
        self.pending: list[Pod] = []
        self.unhealthy: tuple[UnhealthyDevice, ...] = ()
        self.fixed = False
        self.memory = PartitioningMemory()
        self.now_s = 1000.0

    def want(self, *desired: DesiredDevices) -> None:
        self.desired = desired

    @property
    def observed(self) -> PartitioningState:
        gpus = tuple(
            Gpu(index=i, model=A100, memory_mib=A100.memory_mib, sharing=sharing, uuid=f"GPU-{i}")
            for i, sharing in enumerate(self.sharings)
        )
        name = NodeName("n")
        return PartitioningState(
            nodes=(Node(name=name, cpu_milli=1 << 20, memory_mib=1 << 30, gpus=gpus),),
            states=(
                GpuNodeState(
                    name=name,
                    gpus=gpus,
                    desired=self.desired,
                    offered=self.offered,
                    unhealthy=self.unhealthy,
                    reported=True,
                ),
            ),
            running=tuple(self.running),
            pending=tuple(self.pending),
            fixed=frozenset((name,)) if self.fixed else frozenset(),
        )

    def reconcile(self, *, later_s: float = 0) -> PartitioningDecision:
        self.now_s += later_s
        self.memory, decision = advance(self.memory, self.observed, self.now_s, self.limits)
        for _, desired in decision.desired:
            self.desired = desired
        return decision

    def create_desired(self) -> None:
        """Create the desired instances, and keep those that pods use."""
        for i, sharing in enumerate(self.sharings):
            desired = next((each for each in self.desired if each.gpu == f"GPU-{i}"), DesiredDevices(gpu=""))
            held = [s for each in self.running for s in each.assignment.shares if s.gpu == i and s.profile]
            layout = {*desired.instances, *places(*(f"{s.profile}@{s.start}" for s in held))}
            self.sharings[i] = msgspec.structs.replace(sharing, layout=tuple(sorted(layout)) or None)

    def run(self, name: str, *shares: Share, requests: Sequence[DeviceRequest] = ()) -> None:
        key = PodKey(f"a/{name}")
        assignment = Assignment(pod=key, node=NodeName("n"), shares=shares)
        self.running.append(Running(pod=Pod(key=key, need=Need(requests=tuple(requests))), assignment=assignment))

    def bind(self) -> None:
        """Let the scheduler bind each waiting pod of one device that an idle desired device of its name serves."""
        held = {(s.gpu, s.profile, s.start) for each in self.running for s in each.assignment.shares}
        idle = [
            each
            for desired in self.desired
            for each in _shares(desired)
            if (each.gpu, each.profile, each.start) not in held
        ]
        for each in list(self.pending):
            (request,) = each.need.requests
            found = next((s for s in idle if s.resource == request.resource), None)
            if found is not None:
                idle.remove(found)
                self.pending.remove(each)
                self.run(each.key.partition("/")[2], found, requests=(request,))


def _shares(desired: DesiredDevices) -> list[Share]:
    index = int(desired.gpu.removeprefix("GPU-"))
    whole = [part(index, "gpu")] if desired.whole else []
    return [*whole, *(part(index, f"{each.profile}@{each.start}") for each in desired.instances)]


def test_a_slice_is_desired_for_a_pod_that_waits() -> None:
    """Nobody named a place: the best start for the fragmentation is chosen, and the event says what and why."""
    world = Scene()
    world.pending = [asking("one", exact("1g.5gb"))]
    decision = world.reconcile()
    assert world.desired == (wish(0, "1g.5gb@4"),)
    assert [(each.reason, each.message) for each in decision.events] == [
        ("DevicesDesired", "GPU 0: 1g.5gb at 4, for pending pods")
    ]


def test_a_whole_gpu_is_desired_for_a_pod_that_waits() -> None:
    """Managed GPUs advertise none whole until somebody asks for one."""
    world = Scene(2)
    world.run("other", part(0, "4096"))
    world.pending = [asking("one", exact("gpu"))]
    world.reconcile()
    assert world.desired == (wish(1, "gpu"),)


def test_what_is_decided_is_decided_once() -> None:
    """The same look again, after the wish was written and after it was carried out, changes nothing."""
    world = Scene(2)
    world.pending = [asking("one", exact("3g.20gb")), asking("two", exact("gpu"))]
    assert world.reconcile().desired
    assert world.reconcile(later_s=1).desired == ()
    world.create_desired()
    assert world.reconcile(later_s=1).desired == ()
    world.bind()
    assert world.pending == []
    assert world.reconcile(later_s=1).desired == ()


def test_idle_slices_serve_before_new_ones_are_cut() -> None:
    """A pod that an idle desired device serves changes nothing."""
    world = Scene()
    world.want(wish(0, "1g.5gb@3"))
    world.create_desired()
    world.pending = [asking("one", exact("1g.5gb"))]
    assert world.reconcile().desired == ()


def test_devices_that_serve_stay_where_they_are() -> None:
    """A pod that waits for an idle device keeps it there although another is cut on the same GPU."""
    world = Scene(limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=1000))
    world.pending = [asking("one", exact("1g.5gb"))]
    world.reconcile()
    world.pending.append(asking("two", exact("3g.20gb")))
    world.reconcile(later_s=1)
    assert world.desired == (wish(0, "3g.20gb@0", "1g.5gb@4"),)


def test_devices_that_serve_go_where_that_places_more() -> None:
    """One small pod that is served already does not keep two others waiting."""
    world = Scene(2)
    world.want(wish(0, "3g.20gb@0"), wish(1, "gpu"))
    world.run("amount", part(1, "4096"))
    world.pending = [asking("one", exact("3g.20gb"))]
    world.reconcile()
    world.pending += [asking("two", exact("4g.20gb"))]
    world.reconcile()
    assert world.desired == (wish(0, "3g.20gb@4", "4g.20gb@0"),)


# Keyed by a sentence: when pods come, and when they are planned for, by 2 s without a new one and 5 s in all.
BATCHES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "a lone pod waits for a quarter of that": ((0,), (0.5,)),
    "pods that come together are a batch of one moment": ((0, 0, 0), (0.5,)),
    "each new pod prolongs": ((0, 0.4), (0.9,)),
    "as long as pods have come, so long the next is awaited": ((0, 0.4, 0.8), (1.6,)),
    "but not longer than for the idle time": ((0, 0.4, 0.8, 1.2, 1.6, 2.2, 2.6), (4.6,)),
    "nor longer than in all": (tuple(0.4 * i for i in range(13)), (5.0,)),
    "who comes after the end opens the next batch": ((0, 0.6), (0.5, 1.1)),
    "who comes at the end is in it": ((0, 0.5), (1.0,)),
    "single pods do not wait for each other": ((0, 1, 2, 3), (0.5, 1.5, 2.5, 3.5)),
    "after a long batch a lone pod is lone again": ((*(0.4 * i for i in range(13)), 9), (5.0, 9.5)),
}


@pytest.mark.parametrize("sentence", BATCHES)
def test_a_batch_is_awaited(sentence: str) -> None:
    """New pods are planned together; there is a look at each arrival, and whenever one was announced."""
    arrivals, want = BATCHES[sentence]
    world = Scene(9, limits=PartitioningLimits(idle_s=2, longest_s=5, protect_s=0))
    begin_s, left, decided = world.now_s, list(arrivals), []
    due_s: float | None = None
    while left or due_s is not None:
        moment_s = begin_s + left[0] if left else math.inf
        if due_s is None or moment_s <= due_s:
            world.pending += [asking(str(len(left)), exact("7g.40gb"))]
            left.pop(0)
        world.now_s = min(moment_s, math.inf if due_s is None else due_s)
        if left and begin_s + left[0] == world.now_s:
            continue
        decision = world.reconcile()
        if decision.pending is not None:
            decided.append(round(world.now_s - begin_s, 9))
        world.create_desired()
        world.bind()
        due_s = decision.again_s if world.pending else None
    assert tuple(decided) == want


def test_by_default_a_lone_pod_waits_for_no_batch() -> None:
    """What must be made for it is decided within a quarter of a second."""
    world = Scene(limits=PartitioningLimits())
    world.pending = [asking("one", exact("1g.5gb"))]
    assert world.reconcile().again_s == world.now_s + 0.25
    world.reconcile(later_s=0.25)
    assert world.desired == (wish(0, "1g.5gb@4"),)


def test_who_waits_already_opens_no_batch() -> None:
    """A pod that was planned for and did not fit is planned for at each look, since a place may have become free."""
    world = Scene(limits=PartitioningLimits(idle_s=2, longest_s=5, protect_s=0))
    world.run("big", part(0, "gpu"))
    world.want(wish(0, "gpu"))
    world.pending = [asking("one", exact("1g.5gb"))]
    world.reconcile()
    (pending,) = world.reconcile(later_s=2).pending or ()
    assert pending.pod == "a/one"
    world.running.clear()
    world.reconcile(later_s=0.1)
    assert world.desired == (wish(0, "1g.5gb@4"),)


def test_idle_devices_stay_for_a_while() -> None:
    """A device is given up when nobody has held it for the time to keep it, and the look for it is announced."""
    world = Scene(limits=PartitioningLimits(keep_s=100))
    world.want(wish(0, "1g.5gb@6"))
    world.run("one", part(0, "1g.5gb@6"))
    world.create_desired()
    assert world.reconcile(later_s=500).again_s is None
    world.running.clear()
    assert world.reconcile().again_s == world.now_s + 100
    assert world.reconcile(later_s=99).desired == ()
    decision = world.reconcile(later_s=1)
    assert world.desired == ()
    assert [each.message for each in decision.events] == ["GPU 0: 1g.5gb at 6, which no pod uses"]


def test_idle_devices_go_where_they_are_in_the_way() -> None:
    """A pod that needs their place gets it; the event says what went."""
    world = Scene()
    world.want(wish(0, "1g.5gb@0", "1g.5gb@4"))
    world.create_desired()
    world.run("held", part(0, "1g.5gb@0"))
    world.pending = [asking("one", exact("3g.20gb"))]
    decision = world.reconcile(later_s=1)
    assert world.desired == (wish(0, "1g.5gb@0", "3g.20gb@4"),)
    want = "GPU 0: 3g.20gb at 4 instead of 1g.5gb at 4, for pending pods"
    assert [each.message for each in decision.events] == [want]


@pytest.mark.parametrize(
    ("pending", "want"),
    [
        ((), "GPU 0: 4g.20gb at 0, which a pod uses"),
        (("1g.5gb",), "GPU 0: 1g.5gb at 4, for pending pods; 4g.20gb at 0, which a pod uses"),
        (("7g.40gb",), "GPU 0: 4g.20gb at 0, which a pod uses"),
    ],
    ids=["nothing pends", "one pod can be served beside it", "one pod cannot"],
)
def test_a_device_that_a_running_pod_has_becomes_desired_for_that_pod(pending: tuple[str, ...], want: str) -> None:
    """The event says for whom: no pending pod gets what is in use."""
    world = Scene()
    world.run("held", part(0, "4g.20gb@0"))
    world.create_desired()
    world.pending = [asking("other", exact(each)) for each in pending]
    decision = world.reconcile(later_s=20)
    assert [each.message for each in decision.events] == [want]


def test_a_device_in_use_takes_the_place_of_one_that_is_desired() -> None:
    world = Scene()
    world.want(wish(0, "1g.5gb@0", "1g.5gb@6"))
    world.run("held", part(0, "4g.20gb@0"))
    world.create_desired()
    decision = world.reconcile()
    assert [each.message for each in decision.events] == [
        "GPU 0: 4g.20gb at 0 instead of 1g.5gb at 0, which a pod uses"
    ]


def test_devices_rest_before_they_make_way() -> None:
    """What has just become desired is not taken away for another pod at once: shapes shall not chase each other."""
    world = Scene(limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=30))
    world.pending = [asking("one", exact("4g.20gb"))]
    world.reconcile()
    world.pending = [asking("two", exact("7g.40gb"))]
    assert world.reconcile(later_s=1).again_s == world.now_s + 29
    assert world.desired == (wish(0, "4g.20gb@0"),)
    world.reconcile(later_s=29)
    assert world.desired == (wish(0, "7g.40gb@0"),)


def test_devices_rest_before_they_are_given_up() -> None:
    """Also where idle ones are kept for a shorter time."""
    world = Scene(limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=30, keep_s=10))
    world.pending = [asking("one", exact("4g.20gb"))]
    world.reconcile()
    world.pending = []
    world.reconcile()
    decision = world.reconcile(later_s=10)
    assert decision.again_s == world.now_s + 20
    assert len(world.desired) == 1
    world.reconcile(later_s=20)
    assert not world.desired


# Keyed by a sentence: GPUs, what has just become desired and whether its pod is gone, who comes then, what is desired.
AROUND: dict[str, tuple[int, str, bool, tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "another shape takes the GPU that is free": (2, "4g.20gb", True, ("7g.40gb",), (("4g.20gb@0",), ("7g.40gb@0",))),
    "or what is free beside it": (1, "4g.20gb", True, ("3g.20gb",), (("3g.20gb@4", "4g.20gb@0"),)),
    "its own pod keeps it": (2, "4g.20gb", False, ("7g.40gb",), (("4g.20gb@0",), ("7g.40gb@0",))),
    "the next pod of its name takes it": (2, "4g.20gb", True, ("4g.20gb",), (("4g.20gb@0",),)),
    "who finds no other place waits, and holds up nobody else": (
        2, "4g.20gb", True, ("7g.40gb", "7g.40gb", "3g.20gb"), (("3g.20gb@4", "4g.20gb@0"), ("7g.40gb@0",)),
    ),
    "nothing that serves moves, where it has just become desired": (
        1, "7g.40gb", False, ("3g.20gb", "3g.20gb"), (("7g.40gb@0",),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", AROUND)
def test_what_has_just_become_desired_is_planned_around(sentence: str) -> None:
    """A GPU that rests holds up nobody who can be served elsewhere: the rest is waited for where nothing else helps."""
    gpus, first, gone, names, want = AROUND[sentence]
    world = Scene(gpus, limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=30))
    world.pending = [asking("first", exact(first))]
    world.reconcile()
    if gone:
        world.pending.clear()
    world.pending += [asking(str(i), exact(name)) for i, name in enumerate(names)]
    world.reconcile(later_s=1)
    assert {each.instances for each in world.desired} == {places(*each) for each in want}


def test_a_pod_that_starves_waits_for_no_rest() -> None:
    """Rest holds a pod up no longer than the time after which it starves, and it goes before its equals."""
    world = Scene(limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=1000, starving_s=100))
    world.pending = [asking("old", exact("7g.40gb"))]
    world.want(wish(0, "1g.5gb@0"))
    world.reconcile()
    world.reconcile(later_s=50)
    assert world.desired == (wish(0, "1g.5gb@0"),)
    world.pending = [*(asking(str(i), exact("1g.5gb")) for i in range(3)), *world.pending]
    world.reconcile(later_s=50)
    assert world.desired == (wish(0, "7g.40gb@0"),)


def test_what_a_pod_has_had_makes_way_at_once() -> None:
    """The rest is for the pods that a device was desired for; who asks otherwise waits for nobody who is gone."""
    world = Scene(limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=1000))
    world.run("first", part(0, "1g.5gb@0"))
    world.want(wish(0, "1g.5gb@0"))
    world.reconcile()
    world.running.clear()
    world.pending = [asking("next", exact("7g.40gb"))]
    world.reconcile(later_s=1)
    assert world.desired == (wish(0, "7g.40gb@0"),)


def test_a_pod_that_starves_in_vain_does_not_hold_up_others() -> None:
    """Nothing serves it, so nothing makes way: the next pod gets the GPU that is free."""
    world = Scene(2, limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=30, starving_s=100))
    world.pending = [asking("never", exact("9g.99gb"))]
    world.reconcile()
    world.pending.append(asking("one", exact("4g.20gb")))
    world.reconcile(later_s=100)
    world.pending[1] = asking("two", exact("7g.40gb"))
    world.reconcile(later_s=1)
    assert {each.instances for each in world.desired} == {places("4g.20gb@0"), places("7g.40gb@0")}


def test_priority_goes_before_starvation() -> None:
    """A pod of higher priority is never held up by one that has waited longer."""
    world = Scene(limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=0, starving_s=100))
    world.run("first", part(0, "gpu"))
    world.pending = [asking("old", exact("7g.40gb"))]
    world.reconcile()
    world.running.clear()
    world.pending.append(asking("high", exact("1g.5gb"), priority=1))
    world.reconcile(later_s=100)
    assert world.desired == (wish(0, "1g.5gb@4"),)


def test_needs_are_the_extender_s_unless_idle_devices_keep_them_out() -> None:
    """A need that fits beside what is desired changes nothing; one that does not makes idle devices go."""
    world = Scene()
    world.want(wish(0, "3g.20gb@0"))
    world.create_desired()
    world.pending = [asking("small", need(4, Isolation.HARDWARE))]
    assert world.reconcile().desired == ()
    world.pending = [asking("large", need(30))]
    world.reconcile()
    assert world.desired == ()


def test_without_idle_devices_needs_are_left_to_the_extender() -> None:
    """Nothing is desired for them."""
    world = Scene()
    world.pending = [asking("one", need(4))]
    assert world.reconcile().desired == ()


def test_shares_that_pods_hold_win() -> None:
    """A desired device in the way of what a pod was assigned is given up; instances created for needs count as used."""
    world = Scene(2)
    world.want(wish(0, "1g.5gb@0"), wish(1, "gpu"))
    world.run("amount", part(0, "4096"))
    world.run("slice", part(1, "3g.20gb@0", "tessera.dev/gpu-memory"))
    world.pending = [asking("one", exact("3g.20gb"))]
    world.reconcile()
    assert world.desired == (wish(1, "3g.20gb@4"),)


def test_a_pod_whose_record_is_not_written_holds_a_device_of_its_name() -> None:
    """The kubelet has given it one; which, is known when the agent has written it."""
    world = Scene(2)
    world.want(wish(0, "1g.5gb@6"), wish(1, "gpu"))
    world.create_desired()
    world.run("one", requests=(exact("1g.5gb"), need(1)))
    world.run("two", requests=(exact("gpu"),))
    world.pending = [asking("three", exact("1g.5gb"))]
    world.reconcile()
    assert len(world.desired[0].instances) == 2
    assert world.desired[1] == wish(1, "gpu")


def test_a_pod_may_hold_what_is_just_being_taken_back() -> None:
    """The kubelet gave it away before it received that it is no longer desired."""
    world = Scene(2)
    world.offered = (wish(0, "1g.5gb@6"), wish(1, "gpu"))
    world.run("one", requests=(exact("1g.5gb"),))
    world.reconcile()
    assert world.desired == (wish(0, "1g.5gb@6"),)


def test_what_is_desired_is_guessed_before_what_is_being_taken_back() -> None:
    world = Scene(2)
    world.offered = (wish(0, "1g.5gb@6"),)
    world.want(wish(1, "1g.5gb@0"))
    world.run("one", requests=(exact("1g.5gb"),))
    world.reconcile(later_s=1000)
    assert world.desired == (wish(1, "1g.5gb@0"),)


def test_what_a_server_claims_is_desired_no_more_at_once() -> None:
    """Neither the rest of what is new nor the budget of changes keeps it desired, on whatever GPU it is."""
    world = Scene(2, limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=1000, most_changing=1))
    world.pending = [asking("one", exact("1g.5gb")), asking("two", exact("7g.40gb"))]
    world.reconcile()
    world.create_desired()
    world.reconcile()
    assert len(world.desired) == 2
    world.pending = []
    for gpu in range(2):
        world.run(f"claim-{gpu}", part(gpu, "4096"))
    world.reconcile(later_s=1)
    assert not world.desired


def test_a_gpu_whose_devices_are_being_taken_back_is_changing() -> None:
    world = Scene(2, limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=0, most_changing=1))
    world.offered = (wish(0, "gpu"),)
    world.run("need", part(0, "1g.5gb@0", "tessera.dev/gpu-memory"))
    world.pending = [asking("one", exact("gpu"))]
    world.reconcile()
    assert not world.desired
    world.offered = ()
    world.reconcile()
    assert world.desired == (wish(1, "gpu"),)


def test_at_most_so_many_gpus_change_at_once() -> None:
    """The others wait until those are done."""
    world = Scene(3, limits=PartitioningLimits(idle_s=1, longest_s=1, protect_s=0, most_changing=1))
    world.pending = [asking(str(i), exact("7g.40gb")) for i in range(3)]
    world.reconcile()
    counts = []
    for _ in range(3):
        world.reconcile(later_s=1)
        counts.append(len(world.desired))
        world.reconcile(later_s=1)
        world.create_desired()
    assert counts == [1, 2, 3]


def test_a_gpu_that_is_not_cut_is_left_alone() -> None:
    """After a while another GPU is tried, with a warning; later it is tried again."""
    world = Scene(2, limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=0, stuck_s=60))
    world.pending = [asking("one", exact("7g.40gb"))]
    world.reconcile()
    (first,) = world.desired
    decision = world.reconcile(later_s=60)
    assert [each.reason for each in decision.events if each.warning] == ["DevicesNotCreated"]
    assert [each.gpu for each in world.desired] == [{"GPU-0": "GPU-1", "GPU-1": "GPU-0"}[first.gpu]]
    world.reconcile(later_s=60)
    assert [each.gpu for each in world.desired] == [first.gpu]


def test_unhealthy_gpus_get_nothing_new() -> None:
    """What is held on them stays desired."""
    world = Scene(2)
    world.unhealthy = (UnhealthyDevice(device=DeviceId("GPU-0"), reason="XID 79"),)
    world.run("one", part(0, "1g.5gb@0"))
    world.want(wish(0, "1g.5gb@0"))
    world.pending = [asking("two", exact("1g.5gb"))]
    world.reconcile()
    assert world.desired == (wish(0, "1g.5gb@0"), wish(1, "1g.5gb@4"))


@pytest.mark.parametrize("protect_s", [0, 30])
def test_what_is_desired_of_a_unhealthy_gpu_stops_nobody(protect_s: float) -> None:
    """Its idle devices are neither offered nor in anybody's way."""
    world = Scene(2, limits=PartitioningLimits(idle_s=0, longest_s=0, protect_s=protect_s))
    world.want(wish(0, "1g.5gb@0"))
    world.unhealthy = (UnhealthyDevice(device=DeviceId("GPU-0"), reason="XID 79"),)
    world.pending = [asking("one", exact("1g.5gb")), asking("need", need(4))]
    world.reconcile()
    assert wish(1, "1g.5gb@4") in world.desired


def test_a_unhealthy_instance_leaves_the_rest_of_its_gpu() -> None:
    """It stays where it is, whether it is desired or not, and serves nobody new."""
    for desired in ((), (wish(0, "3g.20gb@4"),)):
        world = Scene(sharing=Sharing(layout=places("3g.20gb@4")))
        world.want(*desired)
        world.unhealthy = (UnhealthyDevice(device=DeviceId("GPU-0", places("3g.20gb@4")[0]), reason="XID 43"),)
        world.pending = [asking(name, exact("3g.20gb")) for name in ("one", "two")]
        decision = world.reconcile()
        (found,) = world.desired
        assert set(places("3g.20gb@0")) <= set(found.instances)
        assert [each.pod for each in decision.pending or ()] == ["a/two"]


@pytest.mark.parametrize("name", ["3g.20gb@4", "7g.40gb@0"])
def test_a_gpu_with_a_unhealthy_instance_is_not_given_whole(name: str) -> None:
    world = Scene(sharing=Sharing(layout=places(name)))
    world.unhealthy = (UnhealthyDevice(device=DeviceId("GPU-0", places(name)[0]), reason="XID 43"),)
    world.pending = [asking("one", DeviceRequest(resource="nvidia.com/gpu"))]
    decision = world.reconcile()
    assert world.desired == ()
    assert [each.pod for each in decision.pending or ()] == ["a/one"]


FIXED = {
    "a node whose policy forbids it": (AUTO, True),
    "a layout the administrator fixed": (
        Sharing(modes=(Mode.MIG,), layout=places("7g.40gb@0"), allow_repartition=False),
        False,
    ),
    "replicas the administrator fixed": (Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),)), False),
}


@pytest.mark.parametrize("case", FIXED)
def test_gpus_that_are_not_tessera_s(case: str) -> None:
    """They are never repartitioned, and the pods wait with a reason."""
    sharing, fixed = FIXED[case]
    world = Scene(sharing=sharing)
    world.fixed = fixed
    world.pending = [asking("one", exact("1g.5gb"))]
    decision = world.reconcile()
    assert decision.desired == ()
    assert [each.pod for each in decision.pending or ()] == ["a/one"]


def test_devices_the_administrator_fixed_serve_without_change() -> None:
    """A pod that finds one free is the scheduler's."""
    world = Scene(sharing=FIXED["a layout the administrator fixed"][0])
    world.pending = [asking("one", exact("7g.40gb"))]
    assert world.reconcile() == PartitioningDecision(pending=())


def test_a_node_without_agent_is_passed_over() -> None:
    """Nothing is known of its GPUs."""
    world = Scene()
    world.pending = [asking("one", exact("1g.5gb"))]
    observed = msgspec.structs.replace(world.observed, states=())
    _, decision = advance(PartitioningMemory(), observed, 0, SOON)
    assert decision.desired == ()


HOSTILE = {
    "a profile the GPU does not have": (("9g.99gb", 0),),
    "a start that is none": (("3g.20gb", 1),),
    "instances that overlap": (("4g.20gb", 0), ("3g.20gb", 0)),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory"])
def test_what_a_pod_s_record_cannot_mean_never_becomes_desired(case: str, resource: str) -> None:
    """Anybody may write an annotation; a wish that no GPU can fulfil would make its node unreadable to all."""
    world = Scene()
    world.want(wish(0, "1g.5gb@6"))
    for number, (profile, start) in enumerate(HOSTILE[case]):
        held = msgspec.structs.replace(part(0, "1g.5gb@0", resource), profile=profile, start=start)
        world.run(str(number), held)
    world.reconcile()
    for desired in world.desired:
        assert is_legal(A100, desired.instances)


@pytest.mark.parametrize("protect_s", [0, 30])
def test_what_cannot_be_held_together_stops_nobody_else(protect_s: float) -> None:
    """A node whose pods' records contradict each other is left out of the plan."""
    world = Scene()
    world.run("one", part(0, "4g.20gb@0"))
    world.run("two", part(0, "3g.20gb@0"))
    world.want(wish(0, "1g.5gb@6"))
    world.pending = [asking("three", exact("1g.5gb")), asking("need", need(4))]
    other = Scene()
    gpu = other.observed.nodes[0].gpus[0]
    gpu = msgspec.structs.replace(gpu, uuid="GPU-9")
    node = msgspec.structs.replace(other.observed.nodes[0], name=NodeName("m"), gpus=(gpu,))
    state = GpuNodeState(name=NodeName("m"), gpus=(gpu,), reported=True)
    before = world.observed
    observed = msgspec.structs.replace(before, nodes=(*before.nodes, node), states=(*before.states, state))
    _, decision = advance(PartitioningMemory(), observed, 0, msgspec.structs.replace(SOON, protect_s=protect_s))
    assert dict(decision.desired)[NodeName("m")] == (DesiredDevices(gpu="GPU-9", instances=places("1g.5gb@4")),)


NAMES = ("gpu", "7g.40gb", "4g.20gb", "3g.20gb", "2g.10gb", "1g.5gb")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from(NAMES)),
        st.tuples(st.just("go"), st.integers(0, 9)),
        st.tuples(st.just("need"), st.integers(1, 20)),
        st.tuples(st.sampled_from(("cut", "bind")), st.none()),
        st.tuples(st.just("wait"), st.sampled_from((0, 1, 40, 400))),
    ),
    max_size=16,
)


@pytest.mark.search
@settings(max_examples=30, deadline=None)
@given(STEPS, st.sampled_from((SOON, PartitioningLimits(), PartitioningLimits(idle_s=0, longest_s=0, most_changing=1))))
def test_laws(steps: list[tuple[str, object]], limits: PartitioningLimits) -> None:
    """Whatever happens: what is held stays desired, what is desired can be, and a second look decides nothing more."""
    world = Scene(2, limits=limits)
    for number, (what, how) in enumerate(steps):
        match what, how:
            case "come", str(name):
                world.pending.append(asking(str(number), exact(name)))
            case "need", int(gib):
                _assign(world, str(number), gib)
            case "go", int(index) if world.running:
                world.running.pop(index % len(world.running))
            case "wait", int(seconds):
                world.now_s += seconds
            case "cut", _:
                world.create_desired()
            case "bind", _:
                world.bind()
            case _:
                pass
        world.reconcile()
        _check(world)
        again = world.reconcile()
        assert not again.desired or limits.most_changing


def _assign(world: Scene, name: str, gib: int) -> None:
    """Let the extender grant an amount of an empty GPU; it sees reservations as held."""
    held = {s.gpu for each in world.running for s in each.assignment.shares}
    busy = {int(each.gpu.removeprefix("GPU-")) for each in world.desired}
    free = {0, 1} - held - busy
    if free:
        world.run(name, part(min(free), str(1024 * gib)))


def _check(world: Scene) -> None:
    for index in range(len(world.sharings)):
        desired = next((each for each in world.desired if each.gpu == f"GPU-{index}"), DesiredDevices(gpu=""))
        held = [s for each in world.running for s in each.assignment.shares if s.gpu == index]
        for each in held:
            if each.profile:
                assert places(f"{each.profile}@{each.start}")[0] in desired.instances
            elif each.mode is Mode.WHOLE:
                assert desired.whole
            else:
                assert not desired.whole
                assert not desired.instances
        assert is_legal(A100, desired.instances)
        assert not (desired.whole and desired.instances)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=12))
def test_who_can_be_placed_runs(names: list[str]) -> None:
    """On GPUs that nobody uses as many pods run after looks and repartitions as the planner places at once."""
    world = Scene(2)
    world.pending = [asking(str(i), exact(name)) for i, name in enumerate(names)]
    pending = world.reconcile().pending or ()
    for _ in range(4):
        world.create_desired()
        world.bind()
        world.reconcile(later_s=1)
    assert len(world.running) >= len(names) - len(pending)


@pytest.mark.parametrize("pending", [0, 1, 7])
@pytest.mark.parametrize("desired", ["1g.5gb@4", "1g.5gb@0"])
def test_an_unhealthy_instance_is_not_destroyed_for_what_was_desired_in_its_place(pending: int, desired: str) -> None:
    """Desired before it became unhealthy; pods get what is beside it, and no more of them are called served."""
    world = Scene(sharing=Sharing(layout=places("3g.20gb@4")))
    world.want(wish(0, desired))
    world.unhealthy = (UnhealthyDevice(device=DeviceId("GPU-0", places("3g.20gb@4")[0]), reason="XID 43"),)
    world.pending = [asking(f"p{number}", exact("1g.5gb")) for number in range(pending)]
    for _ in range(3):
        world.reconcile()
        assert not [place for gpu in world.desired for place in gpu.instances if place.start >= 4]
    assert len(world.reconcile().pending or ()) == max(0, pending - 4)
