"""The agent and the cluster's scheduler on a real node: GPUNode, desired devices, slices that pods were assigned."""

import asyncio
import itertools
import json
import re
from typing import Any

import pytest

from builders.kubeobjects import amount
from judges.allocated import shares_of
from kube.gpunode import GpuNode
from kube.pods import allocatable, busybox, create, devices, run
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, desired_field, read_gpu_node
from tessera.clients.kubelet import PodResources
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, GpuNodeState
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Layout, Placement, placements_of
from tessera.core.workload.need import PodKey
from tessera.errors import Unavailable
from tessera.sim.nvmlsim import Machine
from testbed.processes import until

GPUS = ("A100-40GB", "H100-80GB")
UNITS = "tessera.dev/gpu-memory"
ALL_UNITS = 39 + 78
ASSIGNMENT = "tessera.dev/assignment"
AUTO = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}


def place(name: str, profile: str, start: int) -> Placement:
    return next(each for each in placements_of(model(name), profile) if each.start == start)


SMALL = tuple(place("A100-40GB", "1g.5gb", start) for start in (0, 1))
HALF = place("A100-40GB", "3g.20gb", 4)
HOPPER = place("H100-80GB", "3g.40gb", 0)


def assigned(name: str, units: int, placed: Share) -> dict[str, Any]:
    """Return a pod with an assignment, as a server writes it when it binds."""
    one = busybox(name, limits={UNITS: units})
    one["metadata"]["annotations"] = {ASSIGNMENT: write_shares((placed,))}
    return one


class ManagedNode:
    """A node whose GPUs are managed, by a GPUPolicy."""

    def __init__(self, node: GpuNode, flags: dict[str, Any] | None = None) -> None:
        self.node = node
        self.cluster = node.cluster
        node.start_agent(flags=flags)
        until("the GPUNode", self.exists, timeout_s=60, found=node.agent_log)
        self.say({"policy": {"name": "all", "document": AUTO}})
        node.until_offered((UNITS, ALL_UNITS), ("nvidia.com/gpu", 0))

    def exists(self) -> bool:
        try:
            return bool(self.object().get("status"))
        except Unavailable:
            return False

    def object(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("gpunode", self.node.node.name)
        return found

    def state(self) -> GpuNodeState:
        return read_gpu_node(self.object())

    def layouts(self) -> list[Layout | None]:
        return [gpu.sharing.layout for gpu in self.state().gpus]

    def say(self, spec: dict[str, Any]) -> None:
        self.cluster.kubectl(
            "patch", "gpunode", self.node.node.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}"
        )

    def want(self, *desired: DesiredDevices) -> None:
        self.say({"desired": desired_field(desired)})

    def assignment(self, name: str) -> list[dict[str, Any]]:
        """Return the shares written on a pod, as soon as there are any."""
        found: list[dict[str, Any]] = []

        def is_published() -> bool:
            found[:] = shares_of(self.cluster.get("pod", name))
            return bool(found)

        until(f"assignment of {name}", is_published, timeout_s=60, found=self.node.agent_log)
        return found

    def until_layouts(self, *want: Layout | None) -> None:
        until(f"layouts {want}", lambda: self.layouts() == list(want), timeout_s=60, found=lambda: str(self.layouts()))

    def places(self) -> dict[str, tuple[int, str, int]]:
        """Return GPU, profile and start of each MIG device, by UUID, as the driver has them."""
        with Machine(self.node.node.gpu_state) as machine:
            gpus = machine.describe()["gpus"]
        return {
            part["uuid"]: (gpu["index"], each["profile"], each["start"])
            for gpu in gpus
            for each in gpu["instances"]
            for part in each["compute_instances"]
        }


@pytest.fixture
def managed(gpu_node: GpuNode) -> ManagedNode:
    return ManagedNode(gpu_node)


def test_desired_devices_are_allocatable_and_a_pod_gets_its_instance(managed: ManagedNode) -> None:
    first, second = managed.node.gpu_uuids()
    managed.want(DesiredDevices(gpu=first, instances=SMALL), DesiredDevices(gpu=second, whole=True))
    managed.node.until_offered(("nvidia.com/mig-1g.5gb", 2), ("nvidia.com/gpu", 1), (UNITS, ALL_UNITS))
    run(
        managed.cluster,
        busybox("small", limits={"nvidia.com/mig-1g.5gb": 1}),
        busybox("whole", limits={"nvidia.com/gpu": 1}),
    )
    (told,) = managed.assignment("small")
    visible = devices(managed.cluster, "small")
    assert managed.places()[visible] == (told["gpu"], told["profile"], told["start"])
    assert (told["container"], told["resource"], told["mode"]) == ("main", "nvidia.com/mig-1g.5gb", "mig")
    (told,) = managed.assignment("whole")
    assert (told["gpu"], told["mode"], told["memoryMiB"]) == (1, "whole", managed.state().gpus[1].memory_mib)
    # What a pod holds stays and stays offered; what nobody holds is offered no more.
    managed.want()
    managed.node.until_offered(("nvidia.com/mig-1g.5gb", 1), ("nvidia.com/gpu", 1), (UNITS, ALL_UNITS))
    managed.until_layouts(tuple(sorted(SMALL)), None)
    columns = re.split(r" {2,}", managed.cluster.kubectl("get", "gpunodes").splitlines()[1])
    assert columns[1:6] == ["2/2", "1 A100-40GB, 1 H100-80GB", "auto", "2 1g.5gb", "all"]


def test_a_slice_is_cut_for_a_need_and_goes_for_an_amount(managed: ManagedNode) -> None:
    first, _ = managed.node.gpu_uuids()
    managed.want(DesiredDevices(gpu=first, instances=SMALL))
    managed.node.until_offered(("nvidia.com/mig-1g.5gb", 2))
    run(managed.cluster, assigned("half", 16, amount(0, HALF, 16384)), assigned("hopper", 30, amount(1, HOPPER, 30720)))
    for name, want in (("half", (0, HALF)), ("hopper", (1, HOPPER))):
        visible = devices(managed.cluster, name)
        assert managed.places()[visible] == (want[0], want[1].profile, want[1].start)
    managed.until_layouts((*SMALL, HALF), (HOPPER,))
    assert allocatable(managed.cluster, managed.node.node.name, "nvidia.com/mig-3g.20gb") == 0
    managed.want()
    managed.cluster.kubectl("delete", "pod", "half", "hopper", "--timeout=60s")
    amounts = (assigned(f"amount{gpu}", 4, amount(gpu, None, 4096)) for gpu in (0, 1))
    run(managed.cluster, *amounts)
    given = [devices(managed.cluster, f"amount{gpu}") for gpu in (0, 1)]
    assert tuple(given) == managed.node.gpu_uuids()
    managed.until_layouts(None, None)


def test_a_pod_with_both_gets_all_in_the_order_it_asks(managed: ManagedNode) -> None:
    first, _ = managed.node.gpu_uuids()
    managed.want(DesiredDevices(gpu=first, instances=SMALL))
    managed.node.until_offered(("nvidia.com/mig-1g.5gb", 2))
    one = assigned("both", 4, amount(1, None, 4096))
    more = json.loads(json.dumps(one["spec"]["containers"][0]))
    more["name"], more["resources"] = "exact", {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    one["spec"]["containers"].append(more)
    run(managed.cluster, one)
    until("both", lambda: len(managed.assignment("both")) > 1, timeout_s=60, found=managed.node.agent_log)
    told = [(each["container"], each["gpu"], each["mode"]) for each in managed.assignment("both")]
    assert told == [("exact", 0, "mig"), ("main", 1, "memory-share")]
    assert managed.assignment("both")[1] == json.loads(write_shares((amount(1, None, 4096),)))["shares"][0]


def test_the_status_is_exact_and_is_not_written_again_without_need(managed: ManagedNode) -> None:
    first, second = managed.node.gpu_uuids()
    managed.want(DesiredDevices(gpu=first, instances=(HALF,)))
    managed.until_layouts((HALF,), None)
    state = managed.state()
    assert [(gpu.index, gpu.uuid, gpu.model.name) for gpu in state.gpus] == [
        (0, first, "A100-40GB"),
        (1, second, "H100-80GB"),
    ]
    assert all(gpu.sharing.managed for gpu in state.gpus)
    assert (state.unit_mib, state.unhealthy, state.policy) == (1024, (), "all")
    assert {each.gpu for each in state.used} == {first, second}
    found = managed.object()
    node = managed.cluster.get("node", managed.node.node.name)
    assert found["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    until(
        "observedGeneration",
        lambda: managed.object()["status"]["observedGeneration"] == managed.object()["metadata"]["generation"],
        timeout_s=60,
    )
    claim = Claim(uid="u", pod=PodKey("default/p"), shares=(amount(1, None, 4096),))
    managed.say({"claims": claims_field([claim])})
    version = managed.object()["metadata"]["resourceVersion"]
    managed.node.let_it_run(12)
    assert managed.object()["metadata"]["resourceVersion"] == version


SEVENTHS = tuple(
    (gpu, place(name, profile, start))
    for gpu, name, profile in ((0, "A100-40GB", "1g.5gb"), (1, "H100-80GB", "1g.10gb"))
    for start in range(7)
)


def seventh_pods() -> tuple[dict[str, Any], ...]:
    """Return fourteen pods, each assigned a slice that is not there."""
    return tuple(assigned(f"p{number}", 4, amount(gpu, spot, 4096)) for number, (gpu, spot) in enumerate(SEVENTHS))


def check_sevenths(managed: ManagedNode) -> None:
    """Check that each pod has the slice on record for it, that all have one, and that there is no other.

    Who has which is the kubelet's to say: pods that ask the same may have changed.
    """
    where, names = managed.places(), [f"p{number}" for number in range(len(SEVENTHS))]
    found = [where[devices(managed.cluster, name)] for name in names]
    told = [(one["gpu"], one["profile"], one["start"]) for name in names for one in managed.assignment(name)]
    assert found == told
    assert sorted(found) == sorted((gpu, spot.profile, spot.start) for gpu, spot in SEVENTHS)
    managed.until_layouts(*(tuple(spot for gpu, spot in SEVENTHS if gpu == index) for index in (0, 1)))


@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
def test_many_slices_at_once(gpu_node: GpuNode, strategy: str) -> None:
    managed = ManagedNode(gpu_node, flags={"plugin": {"deviceListStrategy": [strategy]}})
    run(managed.cluster, *seventh_pods(), timeout_s=120)
    check_sevenths(managed)


@pytest.mark.anyio
async def test_what_an_agent_began_before_it_was_killed_another_ends(gpu_node: GpuNode) -> None:
    """By CDI the kubelet has admitted all pods before their slices are there; the agent dies while it creates them."""
    managed = ManagedNode(gpu_node, flags={"plugin": {"deviceListStrategy": ["cdi-cri"]}})
    pods = seventh_pods()
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.fault("nvmlDeviceCreateGpuInstance*", latency_ms=700, times=100)
    create(managed.cluster, *pods)
    async with PodResources(gpu_node.node.pod_resources) as record, asyncio.timeout(60):
        for _ in itertools.count():
            if len(await record.list()) == len(pods):
                break
            await asyncio.sleep(0.05)
    gpu_node.kill_agent()
    cut = len(managed.places())
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.clear_faults()
    gpu_node.start_again()
    run(managed.cluster, *pods, timeout_s=150)
    check_sevenths(managed)
    assert cut < len(pods), "the agent was killed too late for this test to prove anything"
