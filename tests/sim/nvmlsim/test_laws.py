"""Random repartitions of every family of GPUs: layouts are always legal by core/gpu/mig, and capacities agree."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.nvmlcalls import create_instance
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import Layout, Placement, all_layouts, is_legal, open_placements, placements, remaining
from tessera.sim.nvmlsim import Machine, create_state

FAMILIES = ("A30-24GB", "A100-40GB", "B200-180GB", "RTX-PRO-6000-Blackwell-96GB")
SANITIZED = "fsanitize" in os.environ.get("CFLAGS", "")
EXAMPLES = 15 if SANITIZED else 60


@contextmanager
def machine_of(name: str, folder: Path) -> Iterator[Any]:
    """Give the handle of a GPU of this model with MIG on."""
    path = folder / "state"
    create_state(path, [name])
    former = os.environ.get("TESSERA_NVMLSIM_STATE")
    os.environ["TESSERA_NVMLSIM_STATE"] = str(path)
    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceSetMigMode(gpu, 1)
        yield gpu
    finally:
        pynvml.nvmlShutdown()
        if former is None:
            del os.environ["TESSERA_NVMLSIM_STATE"]
        else:
            os.environ["TESSERA_NVMLSIM_STATE"] = former


@pytest.fixture(scope="module", params=FAMILIES)
def a_gpu(request: pytest.FixtureRequest, loaded: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give a model and the handle of a GPU of it."""
    del loaded
    folder = tmp_path_factory.mktemp("laws")
    with machine_of(request.param, folder) as gpu:
        yield model(request.param), gpu, folder / "state"


def ids(gpu: GpuModel) -> dict[str, int]:
    return {each.name: each.profile_id for each in gpu.profiles if each.profile_id is not None}


def used_layout(state: Path) -> Layout:
    with Machine(state) as machine:
        instances = machine.describe()["gpus"][0]["instances"]
    return tuple(sorted(Placement(each["start"], each["size"], each["profile"]) for each in instances))


def clear(state: Path) -> None:
    with Machine(state) as machine:
        machine.reset_gpu(0)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_layout_is_legal_and_capacities_agree(a_gpu: Any, data: st.DataObject) -> None:
    gpu, device, state = a_gpu
    clear(state)
    made: dict[Placement, Any] = {}
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        kind = data.draw(st.sampled_from(("place", "any", "destroy")), label="step")
        if kind == "destroy":
            if made:
                pynvml.nvmlGpuInstanceDestroy(made.pop(data.draw(st.sampled_from(sorted(made)), label="instance")))
        else:
            create(gpu, device, made, data, placed=kind == "place")
        layout = tuple(sorted(made))
        assert used_layout(state) == layout
        assert is_legal(gpu, layout)
        for name, profile in ids(gpu).items():
            got = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile)
            assert got == remaining(gpu, layout)[name], name


def create(gpu: GpuModel, device: Any, made: dict[Placement, Any], data: st.DataObject, *, placed: bool) -> None:
    """Cut an instance where told or anywhere; it is there exactly when core/gpu/mig says that it fits."""
    layout = tuple(sorted(made))
    place = data.draw(st.sampled_from(placements(gpu)), label="placement")
    free = [each for each in open_placements(gpu, layout) if each.profile == place.profile]
    profile = ids(gpu)[place.profile]
    if not (place in free if placed else free):
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            create_instance(device, profile, place.start, place.size) if placed else create_anywhere(device, profile)
        return
    instance = create_instance(device, profile, place.start, place.size) if placed else create_anywhere(device, profile)
    start = pynvml.nvmlGpuInstanceGetInfo(instance).placement.start
    got = Placement(start, place.size, place.profile)
    assert got == place if placed else got in free
    made[got] = instance


def create_anywhere(device: Any, profile: int) -> Any:
    return pynvml.nvmlDeviceCreateGpuInstance(device, profile)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_every_legal_layout_can_be_cut_in_any_order(a_gpu: Any, data: st.DataObject) -> None:
    gpu, device, state = a_gpu
    clear(state)
    layout = data.draw(st.sampled_from(all_layouts(gpu)), label="layout")
    ids_by_name = ids(gpu)
    seen = set()
    for place in data.draw(st.permutations(layout), label="order"):
        instance = create_instance(device, ids_by_name[place.profile], place.start, place.size)
        seen.add(pynvml.nvmlGpuInstanceGetInfo(instance).id)
    assert used_layout(state) == layout
    assert len(seen) == len(layout), "ids of instances differ"
