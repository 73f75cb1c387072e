"""Devices that are made ready for a container before it starts, and what it gets of them."""

import msgspec
import pytest

from builders.gpunodes import facts, sevenths
from builders.signed import signed
from harness.pluginnode import CDI, GPU, MEMORY, MINORS, NEED, SLICE, WHOLE, Node, mig, share
from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.kubelet import Container
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.poddevices import assigned_instances
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("how", [CDI, None])
@pytest.mark.parametrize(
    ("placed", "models", "why"),
    [
        (
            share(0, 40960, mode=Mode.WHOLE, isolation=Mode.WHOLE.isolation, compute_percent=100),
            (),
            "15360 MiB and not 30720",
        ),
        (share(0, 4096), ("A100-40GB",), "T4 and not A100-40GB"),
    ],
)
async def test_nobody_starts_on_other_hardware_than_was_asked_for(
    node: Node, placed: Share, models: tuple[str, ...], why: str, how: PluginOptions | None
) -> None:
    """A node of the same name has other GPUs under the same indices."""
    units = 4 if models else 30
    node.assign("p", units, placed)
    request = DeviceRequest(form=Form.NEED, resource=NEED, memory_mib=units << 10, container="main")
    annotations = {ASSIGNMENT: write_shares((placed,), Need(requests=(request,), models=models))}
    pod = node.pods["default", "p"]
    pod = signed({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})
    node.pods["default", "p"] = node.watched["default", "p"] = pod
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), (facts(2, "T4"), MEMORY), how=how)
    with pytest.raises(Conflict, match=why if how else "no pod|theirs|other amounts"):
        await node.run("p", NEED, units)


async def test_an_instance_is_cut_before_its_container_is_created(node: Node) -> None:
    gpu = facts(0, layout=())
    node.minors.write_text(MINORS)
    await node.offer((gpu, Sharing(layout=())), how=CDI)
    place = sevenths()[3]
    node.assign("p", 4, share(0, 4864, mode=Mode.MIG, profile=place.profile, start=place.start))
    got = await node.run("p", NEED, 4)
    assert node.created == [(gpu.uuid, place)]
    edits = node.spec(got)
    assert "TESSERA_GPU_UUIDS=MIG-new-3" in edits["env"]
    assert "/dev/nvidia-caps/nvidia-cap39" in [each["path"] for each in edits["deviceNodes"]]
    await node.kubelet.create("default", "p", "main")
    assert len(node.created) == 1
    assert assigned_instances(node.plugins.shares.assigned_requests(), node.inventory) == {(gpu.uuid, place)}
    assert sorted(node.offers((node.inventory.gpus[0], Sharing(layout=(place,))))) == ["aliyun.com/gpu-mem", NEED]


# sentence: (units and shares of the pod's assignment, or None; units asked; what the pod's event says)
IMPOSSIBLE: dict[str, tuple[tuple[int, list[Share]] | None, int, str]] = {
    "no assignment": (None, 2, "no pod of this node has an assignment for them"),
    "an assignment to another size": ((3, [share(0, 3072)]), 2, "assigned pods request other amounts"),
    "a GPU that is not there": (
        (2, [share(5, 2048)]),
        2,
        "it is assigned GPU 5, which is not on this node any more: delete and recreate the pod",
    ),
    "an instance that cannot be": (
        (2, [share(1, 2048, mode=Mode.MIG, profile="9g.1gb", start=0)]),
        2,
        "GPU 1 .* profile '9g.1gb' at 0 is not a MIG instance that A100-40GB can have: 1g.5gb, ",
    ),
    "a replica of an instance that cannot be": (
        (2, [share(1, 2048, mode=Mode.MIG_MPS, profile="9g.1gb")]),
        2,
        "GPU 1 .* profile '9g.1gb' at no start",
    ),
    "an instance that cannot be made now": (
        (2, [share(1, 2048, mode=Mode.MIG, profile="1g.5gb", start=0)]),
        2,
        "no MIG instance 1g.5gb at 0",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
async def test_shares_that_cannot_be_given(node: Node, case: str) -> None:
    node.hurry(late_s=0.1)
    assignment, units, want = IMPOSSIBLE[case]

    node.able = False
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=CDI)
    if assignment:
        node.assign("p", assignment[0], *assignment[1])
    with pytest.raises(Conflict, match=want):
        await node.run("p", NEED, units)


async def test_an_assignment_that_cannot_be_harms_no_other_pod(node: Node) -> None:
    pairs = (facts(0), MEMORY), (facts(1, layout=sevenths()[:2]), mig(sevenths()[:2]))
    await node.offer(*pairs, how=CDI)
    node.assign("hostile", 2, share(1, 2048, mode=Mode.MIG_MPS, profile="no such", start=9))
    with pytest.raises(Conflict, match=r"GPU 1 .* profile 'no such' at 9"):
        await node.run("hostile", NEED, 2)
    assert node.created == []
    node.assign("good", 3, share(0, 3072))
    assert node.spec(await node.run("good", NEED, 3))
    assert node.offers(*pairs) == ["aliyun.com/gpu-mem", SLICE, NEED]


async def test_a_lost_gpu_is_given_to_nobody(node: Node) -> None:
    lost = msgspec.structs.replace(facts(0), lost=True)
    await node.offer((lost, MEMORY), (facts(1), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    for _ in range(2):
        with pytest.raises(Conflict, match="a GPU that the driver has lost"):
            await node.kubelet.create("default", "p", "main")
        node.passed_s += 61
    assert list(node.plugins.gate.refusals.blocked_pods()) == ["uid-p"], "it is evicted: other GPUs may be free"


@pytest.mark.parametrize("how", [CDI, PluginOptions(list_strategies=("envvar",))], ids=["cdi", "envvar"])
@pytest.mark.parametrize("kind", [GPU, SLICE, NEED])
async def test_a_container_whose_device_is_gone_from_the_node_is_refused_and_its_pod_evicted(
    node: Node, how: PluginOptions, kind: str
) -> None:
    """As when a GPU was taken out of a machine, or a MIG instance was destroyed behind our back."""
    layout = sevenths()[:1]
    gpu = facts(1, layout=layout if kind == SLICE else None)
    sharing = {GPU: Sharing(modes=(Mode.WHOLE,)), SLICE: mig(layout), NEED: MEMORY}[kind]
    await node.offer((facts(0), MEMORY), (gpu, sharing), how=how)
    if kind == NEED:
        node.assign("p", 2, share(1, 2048))
    await node.run("p", kind, 2 if kind == NEED else 1)
    await node.kill()
    node.plugins = node.started()
    left = [(facts(0), MEMORY)] + ([(facts(1, layout=()), mig(()))] if kind == SLICE else [])
    await node.offer(*left, how=how)
    said = "does not exist any more" if kind == SLICE else "is not on this node any more"
    for _ in range(2):
        with pytest.raises(Conflict, match=f"{said}.*: delete and recreate the pod"):
            await node.kubelet.create("default", "p", "main")
        node.passed_s += 61
    assert list(node.plugins.gate.refusals.blocked_pods()) == ["uid-p"]


async def test_more_than_a_gpu_has_is_given_to_nobody(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), how=CDI)
    node.assign("p", 15, share(0, facts(0, "T4").memory_mib))
    await node.run("p", NEED, 15)
    node.assign("q", 1, share(0, 1024))
    with pytest.raises(Conflict, match=r"together with container main of pod default/p it requests more memory"):
        await node.run("q", NEED, 1)


async def test_device_nodes_that_the_host_has_not_are_left_out(node: Node) -> None:
    (node.root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm-tools"):
        (node.root / "dev" / name).touch()
    await node.offer((facts(0, "T4"), WHOLE), how=PluginOptions(pass_device_specs=True))
    paths = [each.host_path for each in (await node.run("p")).device_nodes]
    assert paths == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


async def test_a_pod_whose_instance_cannot_be_created_is_evicted_in_the_end(node: Node) -> None:
    await node.offer((facts(0, layout=sevenths()[1:2]), AUTO), how=CDI)
    node.able = False
    node.assign("p", 4, share(0, 4864, mode=Mode.MIG, profile="1g.5gb", start=0))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 4),)))
    for blocked in ([], ["uid-p"]):
        with pytest.raises(Conflict, match=r"it has no MIG instance 1g\.5gb at 0"):
            await node.kubelet.create("default", "p", "main")
        assert list(node.plugins.gate.refusals.blocked_pods()) == blocked
        node.passed_s += 61
    node.able = True
    await node.kubelet.create("default", "p", "main")
    assert node.plugins.gate.refusals.blocked_pods() == {}
