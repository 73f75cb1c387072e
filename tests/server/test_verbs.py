"""kube-scheduler's questions: which nodes, how good, which one, who must end; answered in words that people read."""

import msgspec
import pytest

from builders.kubeobjects import gpu, mig_share, pod, share
from harness.servers import (
    FULL,
    NEED,
    SHARE,
    Asked,
    FaultyKube,
    claims,
    hold,
    make_node,
    make_pod,
    regrant,
    servers,
    settle,
)
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.clients.kube import NODES, PODS, MemoryKube, Object, Unanswered, annotations_of
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.plan import plan
from tessera.core.workload.need import PodKey

pytestmark = pytest.mark.anyio

ALL = ("a", "b", "plain")


async def test_reasons_are_reported_by_node_and_hopeless_ones_apart(kube: MemoryKube, server: Asked) -> None:
    for index in range(2):
        await hold(kube, f"full-{index}", FULL, share(index, 40000), node="a")
    await settle()
    waiting = await make_pod(kube, "p", NEED)
    _, answer = await server.post("/filter", {"Pod": waiting, "NodeNames": [*ALL, "new"]})
    assert answer["NodeNames"] == ["b"]
    assert sorted(answer["FailedNodes"]) == ["a", "new"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["plain"]


# Keyed by a sentence: the GPUs of the node, what pods hold there, the limits and isolation of the pod, its obstacle.
OBSTACLES: dict[str, tuple[tuple[Gpu, ...], tuple[Share, ...], int, str, str]] = {
    "GPU memory": (
        (gpu(0), gpu(1)),
        (share(0, 30 << 10, Mode.MPS), share(1, 36 << 10, Mode.MPS)),
        20,
        "driver",
        "too little free GPU memory: 20 GiB requested, at most 10 GiB free on one GPU (GPU 0)",
    ),
    "another mode": (
        (gpu(0),),
        (share(0, 1 << 10, Mode.MEMORY_SHARE),),
        4,
        "driver",
        "no room for 4 GiB with driver isolation: 1 GPU is shared by memory",
    ),
    "memory slices": (
        (gpu(0),),
        (mig_share(0, "1g.5gb", 1), mig_share(0, "3g.20gb", 4)),
        16,
        "hardware",
        "no room for 3g.20gb: GPU 0 has memory slices 0, 2, 3 free, but 3g.20gb starts only at 0, 4",
    ),
    "a GPU that is shared otherwise": (
        (gpu(0), gpu(1, sharing=Sharing(modes=(Mode.MEMORY_SHARE,)))),
        (share(0, 30 << 10, Mode.MPS),),
        20,
        "driver",
        (
            "too little free GPU memory: 20 GiB requested, at most 10 GiB free on one GPU (GPU 0); 1 x A100-40GB of "
            "40960 MiB shared as memory-share cannot provide it"
        ),
    ),
    "devices by name": (
        (gpu(0, sharing=Sharing(modes=(Mode.WHOLE,))),),
        (),
        4,
        "driver",
        (
            "its devices are allocated by name (nvidia.com/gpu): request one by name, or set allocator: scheduler in "
            "the node's GPUPolicy"
        ),
    ),
    "smaller GPUs": ((gpu(0),), (), 41, "driver", "no GPU of the node can provide 41 GiB with driver isolation"),
    "no GPU": ((), (), 4, "driver", "the node has no GPU"),
}


@pytest.mark.parametrize("sentence", OBSTACLES)
async def test_plan_extender_and_explain_pod_agree_word_for_word(sentence: str) -> None:
    gpus, held, gib, isolation, want = OBSTACLES[sentence]
    kube = MemoryKube()
    await make_node(kube, "a", *gpus)
    async with servers(kube) as (server,):
        for number, each in enumerate(held):
            await hold(kube, f"held-{number}", FULL, each, node="a")
        asking = await make_pod(
            kube, "p", {"tessera.dev/gpu-memory": gib}, annotations={"tessera.dev/isolation": isolation}
        )
        await settle()
        _, answer = await server.post("/filter", {"Pod": asking, "NodeNames": ["a"]})
        view = server.server.view
        cluster = read_cluster(as_fields([*view.objects(), asking]), authority=view.keys.authority)
    assert {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]} == {"a": want}
    explained = explain_pod(cluster, PodKey("ns/p"))
    assert explained is not None
    assert [each.obstacle and each.obstacle.text for each in explained.nodes] == [want]
    assert f"; {want} (a" in plan(cluster.snapshot).pending[0].reason


async def test_a_request_that_cannot_be_read_is_refused_in_the_words_of_explain_pod_and_of_plan() -> None:
    want = (
        "metadata.annotations[tessera.dev/isolation]: 'strong' is not one of the words accepted: hardware, driver, none"
    )
    kube = MemoryKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (server,):
        asking = await make_pod(kube, "p", NEED, annotations={"tessera.dev/isolation": "strong"})
        await settle()
        _, answer = await server.post("/filter", {"Pod": asking, "NodeNames": ["a"]})
        cluster = read_cluster(as_fields([*server.server.view.objects(), asking]))
    assert answer["FailedAndUnresolvableNodes"] == {"a": want}
    explained = explain_pod(cluster, PodKey("ns/p"))
    assert explained is not None
    assert [each.obstacle and each.obstacle.text for each in explained.nodes] == [want]
    assert [note for note in plan(cluster.snapshot).warnings + cluster.notes if want in note] != []


PASSING = {
    "no GPU": {"cpu": 1},
    "a GPU by name": {"nvidia.com/gpu": 1},
    "a slice by name": {"nvidia.com/mig-1g.5gb": 1},
    "none of a GPU by name": {"nvidia.com/gpu": 0},
}


@pytest.mark.parametrize("case", PASSING)
async def test_pods_that_the_kubelet_serves_pass_and_get_no_assignment(
    kube: MemoryKube, server: Asked, case: str
) -> None:
    waiting = await make_pod(kube, "p", PASSING[case])
    assert await server.fitting(waiting, *ALL) == list(ALL)
    assert await server.schedule(waiting, *ALL) == ""
    bound = await kube.get(PODS, "p", "ns")
    assert bound is not None
    assert bound["spec"]["nodeName"]
    assert "tessera.dev/assignment" not in annotations_of(bound)


async def test_exact_requests_are_scored(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", {"nvidia.com/mig-1g.5gb": 1})
    _, answer = await server.post("/prioritize", {"Pod": waiting, "NodeNames": ALL})
    assert {each["Host"]: each["Score"] for each in answer}["a"] == 10
    assert {each["Host"]: each["Score"] for each in answer}["plain"] == 0


CHOSEN: dict[str, tuple[dict[str, str | int], list[str]]] = {
    "one node of two for a need": ({"tessera.dev/gpu-memory": 10}, ["a"]),
    "the node with a free GPU for a whole one by name": ({"nvidia.com/gpu": 1}, ["a"]),
    "all nodes for a pod without GPUs": ({"cpu": 1}, [*ALL]),
    "all nodes for a pod of zero GPUs": ({"nvidia.com/gpu": 0}, [*ALL]),
    "all nodes for a pod of zero slices": ({"nvidia.com/mig-1g.5gb": "0"}, [*ALL]),
    "all nodes for a device that nobody has, which the kubelet counts": ({"nvidia.com/mig-7g.141gb": 1}, [*ALL]),
    "none for more than there is": ({"tessera.dev/gpu-memory": 41}, []),
    "none for nonsense": ({"tessera.dev/gpu-memory": -1}, []),
}


@pytest.mark.parametrize("case", CHOSEN)
async def test_choose_answers_with_the_one_node_that_filter_and_prioritize_lead_to(
    kube: MemoryKube, server: Asked, case: str
) -> None:
    for index in range(2):
        await hold(kube, f"old-{index}", NEED, share(index, 10240), node="b")
    await settle()
    limits, want = CHOSEN[case]
    waiting = await make_pod(kube, "p", limits)
    requested = {"Pod": waiting, "NodeNames": ALL}
    _, filtered = await server.post("/filter", requested)
    _, chosen = await server.post("/choose", requested)
    assert chosen["NodeNames"] == want
    if len(want) == 1:
        _, scores = await server.post("/prioritize", {"Pod": waiting, "NodeNames": filtered["NodeNames"]})
        assert [each["Host"] for each in scores if each["Score"] == 10] == want
        assert (chosen["FailedNodes"], chosen["FailedAndUnresolvableNodes"]) == ({}, {})
    else:
        assert chosen == filtered


async def test_of_equal_nodes_the_one_with_the_image_is_chosen_and_explained(kube: MemoryKube, server: Asked) -> None:
    containers = [{"name": "main", "image": "server:1", "resources": {"limits": {"tessera.dev/gpu-memory": "10"}}}]
    waiting = await make_pod(kube, "p", {}, spec={"containers": containers})
    for holder, other in ("b", "a"), ("a", "b"):
        image = {"names": ["docker.io/library/server:1"], "sizeBytes": 5 << 30}
        await kube.patch(NODES, holder, {"status": {"images": [image]}}, subresource="status")
        await kube.patch(NODES, other, {"status": {"images": None}}, subresource="status")
        await settle()
        _, chosen = await server.post("/choose", {"Pod": waiting, "NodeNames": ALL})
        assert chosen["NodeNames"] == [holder]
        explained = explain_pod(read_cluster(as_fields([*server.server.view.objects(), waiting])), PodKey("ns/p"))
        assert explained is not None
        assert f", best on {holder}" in " ".join(explained.sentences)


NONSENSE: dict[str, tuple[dict[str, str | int], dict[str, str], str]] = {
    "a negative amount": ({"tessera.dev/gpu-memory": -1}, {}, "limits[tessera.dev/gpu-memory]"),
    "no amount": ({"tessera.dev/gpu-memory": 0}, {}, "'0' is not 1 or more: leave the limit out"),
    "a fraction": ({"tessera.dev/gpu-memory": "1500m"}, {}, "limits[tessera.dev/gpu-memory]"),
    "an unknown grade": ({"tessera.dev/gpu-memory": 1}, {"tessera.dev/isolation": "total"}, "tessera.dev/isolation"),
    "several GPUs in the words of nodes": (
        {"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-count": 2},
        {},
        "aliyun.com/gpu-count is a number of nodes",
    ),
    "more than any GPU has": ({"tessera.dev/gpu-memory": 500}, {}, "500 GiB"),
}


@pytest.mark.parametrize("case", NONSENSE)
async def test_nonsense_waits_with_a_reason_and_is_never_bound(kube: MemoryKube, server: Asked, case: str) -> None:
    limits, annotations, want = NONSENSE[case]
    waiting = await make_pod(kube, "p", limits, annotations=annotations)
    _, answer = await server.post("/filter", {"Pod": waiting, "NodeNames": ["a", "b"]})
    assert answer["NodeNames"] == []
    assert want in answer["FailedAndUnresolvableNodes"]["a"]
    assert await server.bind(waiting, "a") != ""
    left = await kube.get(PODS, "p", "ns")
    assert left is not None
    assert "nodeName" not in left["spec"]
    _, scores = await server.post("/prioritize", {"Pod": waiting, "NodeNames": ["a", "b"]})
    assert [each["Score"] for each in scores] == [0, 0]
    _, answer = await server.post(
        "/preempt", {"Pod": waiting, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}]}}}
    )
    assert answer == {"NodeNameToMetaVictims": {}}


async def test_preempt_names_the_cheapest_victims_of_one_device(kube: MemoryKube, server: Asked) -> None:
    made: dict[str, Object] = {}
    for name, index, mib, priority in (("big", 0, 40000, 5), ("small", 1, 20000, 1), ("tiny", 1, 20000, 0)):
        body = pod(name, FULL, node="a", spec={"priority": priority})
        made[name] = await kube.create(PODS, body)
        await regrant(kube, name, share(index, mib, Mode.MPS))
    await settle()
    waiting = await make_pod(kube, "p", NEED, spec={"priority": 10})
    everybody = {"Pods": [{"UID": each["metadata"]["uid"]} for each in made.values()], "NumPDBViolations": 0}
    _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToMetaVictims": {"a": everybody, "plain": {}}})
    want = {"a": {"Pods": [{"UID": made["tiny"]["metadata"]["uid"]}], "NumPDBViolations": 0}}
    assert answer == {"NodeNameToMetaVictims": want}
    _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToVictims": {"b": {"Pods": []}}})
    assert answer == {"NodeNameToMetaVictims": {}}, "it fits on b already"


@pytest.mark.parametrize("lost", [False, True], ids=["unbound", "with an unanswered Binding"])
async def test_preempt_evicts_nobody_for_the_memory_that_the_pod_claims_itself(lost: bool) -> None:
    # 40 GiB: 25 of `low`, 10 of `p`, claimed where its Binding was not answered. What `p` lacks is a CPU.
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    low = await kube.create(PODS, pod("low", {"tessera.dev/gpu-memory": 25}, node="a", spec={"priority": 0}))
    await regrant(kube, "low", share(0, 25 << 10, Mode.MPS))
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED | {"cpu": 1}, spec={"priority": 10})
        await settle()
        if lost:
            kube.faults = {"bind": [Unanswered("the Binding", found="nothing", expected="an answer")]}
            assert await server.schedule(waiting, "a")
            assert await claims(kube) == ["ns/p"]
        filler = await kube.create(PODS, pod("filler", {"cpu": 64}, node="a", spec={"priority": 0}))
        await settle()
        everybody = {"Pods": [{"UID": each["metadata"]["uid"]} for each in (low, filler)], "NumPDBViolations": 0}
        _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToMetaVictims": {"a": everybody}})
    chosen = [each["UID"] for each in answer["NodeNameToMetaVictims"]["a"]["Pods"]]
    assert chosen == [filler["metadata"]["uid"]]


async def test_preempt_leaves_pods_without_gpus_to_kube_scheduler(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", {"cpu": 1})
    requested = {"plain": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
    _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToMetaVictims": requested})
    assert answer == {"NodeNameToMetaVictims": requested}


async def test_inspect_tells_who_holds_what_as_gpushare_does(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", SHARE)
    assert await server.bind(waiting, "b") == ""
    await settle()
    code, text = await server.get("/gpushare-scheduler/inspect")
    found = {each["name"]: each for each in msgspec.json.decode(text)["nodes"]}
    assert code == 200
    assert (found["a"]["usedGPU"], found["b"]["usedGPU"], len(found["b"]["devs"])) == (0, 6, 2)
    assert [pod for each in found["b"]["devs"] for pod in each["pods"]] == [
        {"name": "p", "namespace": "ns", "usedGPU": 6}
    ]
    _, text = await server.get("/gpushare-scheduler/inspect/b")
    assert msgspec.json.decode(text)["nodes"] == [found["b"]]
    code, text = await server.get("/gpushare-scheduler/inspect/none")
    assert (code, "not found" in text) == (200, True)


def replicas(*, renamed: bool = False) -> Sharing:
    return Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),), renamed=renamed)


WHOLE = Sharing(modes=(Mode.WHOLE,))
SINGLE = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"

# Keyed by a sentence: the GPUs of the node, the resource, the pod's annotation, and words of the obstacle if any.
RESTRICTED: dict[str, tuple[tuple[Gpu, ...], str, dict[str, str], str | None]] = {
    "a replica for one that wants its own slices": (
        (gpu(0, sharing=replicas()),),
        SINGLE,
        {"tessera.dev/isolation": "hardware"},
        "no GPU of the node can provide nvidia.com/gpu",
    ),
    "a renamed replica for one that wants its own slices": (
        (gpu(0, sharing=replicas(renamed=True)),),
        SHARED,
        {"tessera.dev/isolation": "hardware"},
        "no GPU of the node can provide nvidia.com/gpu.shared",
    ),
    "a time-sliced replica for one that wants limits": (
        (gpu(0, sharing=replicas(renamed=True)),),
        SHARED,
        {"tessera.dev/isolation": "driver"},
        "no GPU of the node can provide nvidia.com/gpu.shared",
    ),
    "a replica for one that wants nothing": (
        (gpu(0, sharing=replicas(renamed=True)),),
        SHARED,
        {"tessera.dev/isolation": "none"},
        None,
    ),
    "another model": ((gpu(0),), SINGLE, {"tessera.dev/gpu-model": "H100-80GB"}, "no GPU of model H100-80GB"),
    "its model": ((gpu(0),), SINGLE, {"tessera.dev/gpu-model": "A100-40GB"}, None),
    "a whole GPU": ((gpu(0, sharing=WHOLE),), SINGLE, {"tessera.dev/isolation": "hardware"}, None),
    "a whole GPU beside replicas of its name": (
        (gpu(0, sharing=WHOLE), gpu(1, sharing=replicas())),
        SINGLE,
        {"tessera.dev/isolation": "hardware"},
        "not every nvidia.com/gpu of the node is one with hardware isolation, and the kubelet chooses by name alone",
    ),
    "a whole GPU beside replicas of another name": (
        (gpu(0, sharing=WHOLE), gpu(1, sharing=replicas(renamed=True))),
        SINGLE,
        {"tessera.dev/isolation": "hardware"},
        None,
    ),
    "a GPU beside one of another model": (
        (gpu(0, sharing=WHOLE), gpu(1, "H100-80GB", sharing=WHOLE)),
        SINGLE,
        {"tessera.dev/gpu-model": "A100-40GB"},
        "not every nvidia.com/gpu of the node is one of model A100-40GB",
    ),
}


@pytest.mark.parametrize("path", ["/choose", "/filter"])
@pytest.mark.parametrize("sentence", RESTRICTED)
async def test_a_pod_by_name_is_sent_where_every_device_of_the_name_is_what_it_says(sentence: str, path: str) -> None:
    gpus, resource, annotations, want = RESTRICTED[sentence]
    kube = MemoryKube()
    await make_node(kube, "a", *gpus)
    await kube.patch(NODES, "a", {"status": {"allocatable": {resource: "1"}}}, subresource="status")
    async with servers(kube) as (server,):
        asking = await make_pod(kube, "p", {resource: 1}, annotations=annotations)
        await settle()
        _, answer = await server.post(path, {"Pod": asking, "NodeNames": ["a", "new"]})
        victims = {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}
        _, preempted = await server.post("/preempt", {"Pod": asking, "NodeNameToMetaVictims": victims})
        view = server.server.view
        cluster = read_cluster(as_fields([*view.objects(), asking]), authority=view.keys.authority)
    explained = explain_pod(cluster, PodKey("ns/p"))
    assert explained is not None
    (told,) = [each.obstacle and each.obstacle.text for each in explained.nodes]
    refused = answer["FailedAndUnresolvableNodes"]
    if want is None:
        known = annotations == {"tessera.dev/isolation": "none"}  # it restricts nothing, so that any node will do
        assert answer["NodeNames"] == (["a", "new"] if known and path == "/filter" else ["a"])
        assert preempted["NodeNameToMetaVictims"] == victims
        assert told is None
    else:
        assert answer["NodeNames"] in ([], None)
        assert want in refused["a"]
        assert "not known here yet" in refused["new"]
        assert preempted["NodeNameToMetaVictims"] == {}
        assert told == refused["a"]


async def test_where_the_right_nodes_are_full_a_pod_by_name_goes_to_no_wrong_one() -> None:
    kube = MemoryKube()
    await make_node(kube, "right", gpu(0, sharing=WHOLE))
    await make_node(kube, "wrong", gpu(0, sharing=replicas()))
    async with servers(kube) as (server,):
        await hold(kube, "held", {SINGLE: 1}, share(0, 40960, Mode.WHOLE), node="right")
        annotations = {"tessera.dev/isolation": "hardware"}
        asking = await make_pod(kube, "p", {SINGLE: 1}, annotations=annotations)
        both = {SINGLE: 1, "tessera.dev/gpu-memory": 4}
        containers = [
            {"name": name, "resources": {"limits": {resource: str(count)}}}
            for name, (resource, count) in zip("mn", both.items(), strict=True)
        ]
        mixed = await make_pod(kube, "q", {}, annotations=annotations, spec={"containers": containers})
        await settle()
        names = ["right", "wrong"]
        # kube-scheduler counts what is free: it asks about the full node only to see who could end there.
        assert await server.fitting(asking, *names, path="/choose") == ["right"]
        assert await server.fitting(asking, "wrong", path="/choose") == []
        assert await server.fitting(mixed, *names, path="/choose") == []
