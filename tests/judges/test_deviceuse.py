"""The checker of the soak finds what it is for: a checker that cannot fail proves nothing."""

import pytest

from judges.deviceuse import Container, Entry, Gpu, Instance, Node, doubled, judged, uses_of

G0, G1 = "GPU-0", "GPU-1"
NODE = Node(
    name="n",
    gpus=(Gpu(G0, 0, 40000), Gpu(G1, 1, 40000)),
    instances=(Instance("MIG-a", G1, 4864), Instance("MIG-b", G1, 4864)),
    capabilities={"nvidia-cap3": "MIG-a", "nvidia-cap4": "MIG-a", "nvidia-cap12": "MIG-b"},
)


def holds(name: str, device: str, mode: str, mib: int = 0, requested: int | None = None) -> Container:
    environment = {"NVIDIA_VISIBLE_DEVICES": device, "TESSERA_GPU_MODE": mode, "TESSERA_GPU_MEMORY_MIB": str(mib)}
    return Container("n", name, f"id-{name}", environment, asked_mib=requested)


def deleted(name: str, device: str) -> Container:
    """Return a container with an instance whose pod the API does not have any more."""
    return holds(name, device, "mig")._replace(deleted=True)


CASES: dict[str, tuple[tuple[Container, ...], list[str]]] = {
    "two shares of a GPU within its memory": (
        (holds("p", G0, "memory-share", 20000, 20480), holds("q", G0, "mps", 20000, 20480)),
        [],
    ),
    "an instance in two containers": ((holds("p", "MIG-a", "mig"), holds("q", "MIG-a", "mig")), ["twice"]),
    "two instances of one GPU": ((holds("p", "MIG-a", "mig"), holds("q", "MIG-b", "mig")), []),
    "a whole GPU in two containers": ((holds("p", G0, "whole"), holds("q", G0, "whole")), ["twice"]),
    "a whole GPU beside a share of it": ((holds("p", G0, "whole"), holds("q", G0, "mps", 1024, 1024)), ["twice"]),
    "a GPU and an instance of it": ((holds("p", G1, "whole"), holds("q", "MIG-a", "mig")), ["overlap"]),
    "a share of a GPU with MIG instances": ((holds("p", G1, "mps", 9, 9), holds("q", "MIG-a", "mig")), ["overlap"]),
    "more memory than the GPU has": (
        (holds("p", G0, "memory-share", 20480, 20480), holds("q", G0, "memory-share", 20480, 20480)),
        ["memory"],
    ),
    "more memory than an instance has, under time-slicing of it": (
        (holds("p", "MIG-a", "mig-mps", 2432), holds("q", "MIG-a", "mig-mps", 2433)),
        ["memory"],
    ),
    "a forged pod that runs with nothing": ((Container("n", "p", "id-p", {}, forged=True),), []),
    "a forged pod that got a device": ((holds("p", G0, "mps", 9, 9)._replace(forged=True),), ["forged pod served"]),
    "more than asked": ((holds("p", G0, "mps", 38000, 1024),), ["more than asked"]),
    "more instances than asked": (
        (holds("p", "MIG-a,MIG-b", "mig,mig")._replace(asked_devices=1),),
        ["more devices than asked"],
    ),
    "as many instances as asked": ((holds("p", "MIG-a,MIG-b", "mig,mig")._replace(asked_devices=2),), []),
    "two containers of a pod with an instance": (
        (holds("p", "MIG-a", "mig")._replace(name="main"), holds("p", "MIG-a", "mig")._replace(name="beside", id="2")),
        ["twice"],
    ),
    "two containers of a pod, each with its part of a GPU": (
        (holds("p", G0, "memory-share", 3072, 3072), holds("p", G0, "memory-share", 2048, 2048)._replace(id="2")),
        [],
    ),
    "two containers of a pod, one with the part of both": (
        (holds("p", G0, "memory-share", 3072, 3072), holds("p", G0, "memory-share", 5120, 2048)._replace(id="2")),
        ["more than asked"],
    ),
    "an instance larger than what was asked": ((holds("p", "MIG-a", "mig", 4864, 4096),), []),
    "a device for a pod that asked for none": ((holds("p", G0, "whole", requested=0),), ["not asked for"]),
    "an instance that is no more": ((holds("p", "MIG-gone", "mig"),), ["device gone"]),
    "an instance whose former holder was deleted by force and runs on": (
        (deleted("p", "MIG-a"), holds("q", "MIG-a", "mig")),
        ["twice, one deleted by force"],
    ),
    "an instance of two that live beside one that was deleted by force": (
        (deleted("p", "MIG-a"), holds("q", "MIG-a", "mig"), holds("r", "MIG-a", "mig")),
        ["twice"],
    ),
    "a limit of MPS above what was asked": (
        (
            Container(
                "n",
                "p",
                "id-p",
                {
                    "TESSERA_GPU_UUIDS": G0,
                    "TESSERA_GPU_MODE": "mps",
                    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G",
                },
                asked_mib=1024,
            ),
        ),
        ["more than asked"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found(case: str) -> None:
    containers, kinds = CASES[case]
    assert [each.kind for each in judged(NODE, containers)] == kinds


def test_devices_are_seen_by_their_files_too() -> None:
    instance = Container(
        "n", "p", "1", {"NVIDIA_VISIBLE_DEVICES": "void"}, frozenset({"nvidia1", "nvidia-cap3", "nvidia-cap4"})
    )
    whole = Container("n", "q", "2", {}, frozenset({"nvidia0", "nvidiactl"}))
    assert [(each.device, each.gpu) for each in uses_of(instance, NODE)] == [("MIG-a", G1)]
    assert [(each.device, each.gpu) for each in uses_of(whole, NODE)] == [(G0, G0)]
    both = judged(NODE, (instance, holds("r", "MIG-a", "mig")))
    assert [(each.kind, each.where, each.who) for each in both] == [("twice", "MIG-a", ("p", "r"))]


def test_amounts_of_several_devices_belong_to_them_in_order() -> None:
    environment = {"TESSERA_GPU_UUIDS": f"{G1},{G0}", "TESSERA_GPU_MODE": "mps,mps", "TESSERA_GPU_MEMORY_MIB": "5,7"}
    used = uses_of(Container("n", "p", "1", environment, asked_mib=6), NODE)
    assert [(each.device, each.exclusive, each.memory_mib) for each in used] == [(G0, False, 7), (G1, False, 5)]


def test_an_id_twice_in_the_checkpoint() -> None:
    once = (Entry("p", "main", "r/x", ("a", "b")), Entry("q", "main", "r/x", ("c",)), Entry("q", "main", "r/y", ("a",)))
    assert doubled(once) == []
    found = doubled((*once, Entry("r", "main", "r/x", ("b",))))
    assert [(each.kind, each.where, each.who) for each in found] == [("checkpoint", "r/x b", ("p", "r"))]


def test_an_init_container_leaves_its_devices_to_its_pod_alone() -> None:
    first = Entry("p", "init", "r/x", ("a",), initial=True)
    main = Entry("p", "main", "r/x", ("a", "b"))
    assert doubled((first, main)) == []
    assert [each.where for each in doubled((first, main, Entry("p", "beside", "r/x", ("b",))))] == ["r/x b"]
    assert [each.who for each in doubled((first, Entry("q", "main", "r/x", ("a",))))] == [("p", "q")]
