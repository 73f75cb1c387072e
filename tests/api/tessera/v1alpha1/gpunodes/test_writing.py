"""GPUNode objects: what is written is read again."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.profiles import profile
from builders.shares import share
from tessera.api.tessera.v1alpha1.gpunodes import (
    claims_field,
    desired_field,
    new_object,
    offered_field,
    read_gpu_node,
    status_fields,
)
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, GpuNodeState, Impairment, UnhealthyDevice, Used
from tessera.core.cluster.snapshot import Gpu, NodeName
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import CATALOG, GpuModel, model
from tessera.core.gpu.mig import Layout, Placement, all_layouts
from tessera.core.gpu.sharing import Mode, Offer, Sharing
from tessera.core.workload.need import PodKey

A100 = model("A100-40GB")
UNKNOWN = GpuModel(
    name="NVIDIA Z1",
    arch="unknown",
    memory_mib=1000,
    memory_slices=4,
    compute_slices=4,
    profiles=(profile("1g.1gb", 1, range(4), 200, media="none"),),
)
SHARE = share(0, 6144, Mode.MPS, percent=30, resource="r", container="c")


def written(state: GpuNodeState) -> dict[str, Any]:
    """Return the object that holds a state, as the API server would store and send it."""
    metadata = {"name": state.name, "resourceVersion": state.version}
    spec = {"desired": desired_field(state.desired), "claims": claims_field(state.claims)}
    if state.policy:
        spec["policy"] = {"name": state.policy, "document": {"kind": "NodePolicy"}}  # type: ignore[assignment]
    status = status_fields(state, observed_generation=3) | {"offered": offered_field(state.offered)}
    each = {"metadata": metadata, "spec": spec, "status": status}
    sent: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(each))
    return sent


def sharings(known: GpuModel) -> st.SearchStrategy[Sharing]:
    layouts: st.SearchStrategy[Layout | None] = st.sampled_from((None, *all_layouts(known)[:50]))
    counts = st.lists(st.tuples(st.sampled_from(("", "1g.5gb")), st.integers(2, 9)), max_size=2).map(tuple)
    places = st.none() | st.builds(Placement, st.integers(0, 7), st.integers(1, 8), st.just("1g.5gb"))
    offers = st.builds(
        Offer,
        placement=places,
        mode=st.sampled_from(Mode),
        clients=st.integers(0, 4),
        resource=st.sampled_from(("", "x/y")),
        single_request=st.sampled_from((None, True, False)),
    )
    return st.builds(
        Sharing,
        modes=st.lists(st.sampled_from(Mode), unique=True).map(tuple),
        layout=layouts,
        allow_repartition=st.booleans(),
        replicas=counts,
        renamed=st.booleans(),
        strategy=st.sampled_from(("none", "single", "mixed")),
        offers=st.lists(offers, max_size=2).map(tuple),
        single_request=st.sampled_from((None, True, False)),
        allocator=st.sampled_from(("kubelet", "scheduler")),
    )


@st.composite
def states(draw: st.DrawFn) -> GpuNodeState:
    models = draw(st.lists(st.sampled_from((*CATALOG[:3], model("T4"), UNKNOWN)), max_size=3))
    gpus = tuple(
        Gpu(index=i, model=each, memory_mib=each.memory_mib - i, sharing=draw(sharings(each)), uuid=f"GPU-{i}")
        for i, each in enumerate(models)
    )
    place = st.none() | st.just(Placement(0, 1, "1g.5gb"))
    unhealthy = tuple(
        UnhealthyDevice(device=DeviceId(gpu.uuid, draw(place)), reason="XID 79") for gpu in gpus if draw(st.booleans())
    )
    used = tuple(Used(gpu=gpu.uuid, placement=draw(place), memory_mib=5) for gpu in gpus if draw(st.booleans()))
    desired = tuple(
        DesiredDevices(gpu=gpu.uuid, whole=True)
        if draw(st.booleans())
        else DesiredDevices(gpu=gpu.uuid, instances=draw(st.sampled_from(all_layouts(gpu.model)[:20])))
        for gpu in gpus
    )
    return GpuNodeState(
        name=NodeName("node-a"),
        gpus=gpus,
        unhealthy=unhealthy,
        used=used,
        unit_mib=draw(st.sampled_from((1, 1024))),
        driver="580.1",
        reported=True,
        impaired=draw(st.sampled_from(((), IMPAIRED))),
        desired=desired,
        offered=draw(st.sampled_from((desired, ()))),
        claims=(Claim(uid="u", pod=PodKey("a/b"), shares=(SHARE,), attempt="r/1"),),
        policy=draw(st.sampled_from(("", "default"))),
        version="7",
    )


IMPAIRED = (
    Impairment(kind="Overridden", subject="label gpushare=true", by="GPUPolicy batch", message="a"),
    Impairment(kind="Refused", message="b"),
)


def test_reports_are_no_longer_than_the_schema_takes() -> None:
    """However much is not in force, the status can be written."""
    long = Impairment(kind="Withheld", subject="s" * 9000, by="b" * 9000, message="m" * 9000)
    found = status_fields(GpuNodeState(name=NodeName("n"), impaired=(long,) * 100))["impaired"]
    assert [len(found), *(len(found[0][key]) for key in ("subject", "by", "message"))] == [64, 512, 512, 4096]


@given(states())
def test_what_is_written_is_read_again(state: GpuNodeState) -> None:
    """Reading what was written gives the state it was written from."""
    assert read_gpu_node(written(state)) == state


def test_the_driver_s_word_about_a_known_model_is_kept() -> None:
    """A GPU that has other profiles than its model in the catalog is read with its own."""
    other = msgspec.structs.replace(A100, profiles=tuple(each for each in A100.profiles if each.name == "1g.5gb"))
    state = GpuNodeState(name=NodeName("n"), gpus=(Gpu(index=0, model=other, memory_mib=40_000, uuid="GPU-0"),))
    found = read_gpu_node(written(state)).gpus[0].model
    assert [each.name for each in found.profiles] == ["1g.5gb"]


@pytest.mark.parametrize("known", CATALOG, ids=[each.name for each in CATALOG])
def test_what_a_driver_may_say_of_a_model_like_one_of_the_catalog_is_read(known: GpuModel) -> None:
    """No bound on reports is below what a real GPU has."""
    other = msgspec.structs.replace(known, arch="another")
    state = GpuNodeState(name=NodeName("n"), gpus=(Gpu(index=0, model=other, memory_mib=40_000, uuid="GPU-0"),))
    found = read_gpu_node(written(state)).gpus[0].model
    assert (found.arch, found.memory_slices, [each.starts for each in found.profiles]) == (
        "another",
        known.memory_slices,
        [each.starts for each in known.profiles],
    )


def test_the_object_goes_with_its_node() -> None:
    """The Node owns the object, so that Kubernetes removes both."""
    want = [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1"}]
    assert new_object("node-a", "uid-1")["metadata"]["ownerReferences"] == want


def test_a_wish_for_a_gpu_that_is_not_there_is_passed_over() -> None:
    """A GPU may be gone since the controller wrote its wish."""
    each = written(GpuNodeState(name=NodeName("n"), desired=(DesiredDevices(gpu="GPU-9", whole=True),)))
    assert read_gpu_node(each).desired == ()


def test_what_is_offered_is_never_passed_over() -> None:
    """Of a GPU that is lost for now, and in each other's place: what the kubelet has is nobody else's."""
    gpus = (Gpu(index=0, model=A100, memory_mib=40_000, uuid="GPU-0"),)
    small, large = Placement(0, 1, "1g.5gb"), Placement(0, 4, "3g.20gb")
    offered = (
        DesiredDevices(gpu="GPU-0", whole=True, instances=(small, large)),
        DesiredDevices(gpu="GPU-9", instances=(small,)),
    )
    each = written(GpuNodeState(name=NodeName("n"), gpus=gpus, offered=offered))
    assert read_gpu_node(each).offered == offered
    del each["status"]["offered"][0]["instances"][1]["size"]
    assert read_gpu_node(each).offered == offered


def test_a_report_leaves_alone_what_is_offered() -> None:
    """It is a field of its own, so that a report never writes back what was read long before."""
    state = GpuNodeState(name=NodeName("n"), offered=(DesiredDevices(gpu="GPU-0", whole=True),))
    assert "offered" not in status_fields(state)


def test_the_kubelet_is_the_allocator_where_nothing_is_said() -> None:
    sharing = Sharing(modes=(Mode.WHOLE,))
    state = GpuNodeState(
        name=NodeName("n"), gpus=(Gpu(index=0, model=A100, memory_mib=40_000, uuid="GPU-0", sharing=sharing),)
    )
    assert "allocator" not in written(state)["status"]["gpus"][0]["sharing"]
