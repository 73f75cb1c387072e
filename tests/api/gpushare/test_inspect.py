"""gpushare's inspect JSON, and the same numbers as the published kubectl-inspect-gpushare shows on the same objects."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import Object, gpu, gpunode, mig_share, node, pod, share
from judges import gpusharecli
from tessera.api.gpushare.inspect import gpushare_inspect
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.explain.inspection import inspect

MEMORY = "aliyun.com/gpu-mem"


def answer(*objects: Object, name: str = "") -> Any:
    return json.loads(gpushare_inspect(inspect(read_cluster(as_fields(objects))), name))


def test_the_answer_has_gpushares_fields() -> None:
    got = answer(
        node(),
        gpunode("a", gpu(0, "T4"), gpu(1, "T4")),
        pod("p", {MEMORY: 5}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}),
        pod("q", {MEMORY: 2}, annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":1},"1":{"1":1}}'}),
    )
    want_pods = [{"name": "p", "namespace": "ns", "usedGPU": 5}, {"name": "q", "namespace": "ns", "usedGPU": 1}]
    assert got == {
        "nodes": [
            {
                "name": "a",
                "totalGPU": 30,
                "usedGPU": 7,
                "devs": [
                    {"id": 0, "totalGPU": 15, "usedGPU": 1, "pods": [want_pods[1]]},
                    {"id": 1, "totalGPU": 15, "usedGPU": 6, "pods": want_pods},
                ],
            }
        ]
    }


def test_what_is_held_otherwise_counts_with_its_memory_rounded_up() -> None:
    objects = (node(), gpunode("a", gpu(0)), pod("p", {"nvidia.com/mig-1g.5gb": 1}, mig_share(0, "1g.5gb", 6)))
    assert answer(*objects)["nodes"][0]["usedGPU"] == 5


def test_the_unit_is_the_nodes() -> None:
    objects = (node(), gpunode("a", gpu(0, "T4"), unit_mib=1), pod("p", {MEMORY: 5000}, share(0, 5000)))
    assert (answer(*objects)["nodes"][0]["totalGPU"], answer(*objects)["nodes"][0]["usedGPU"]) == (15360, 5000)


def test_one_node_and_one_that_is_not_there() -> None:
    objects = (node("a"), node("b"), gpunode("a", gpu(0)), gpunode("b", gpu(0, node="b")))
    assert [each["name"] for each in answer(*objects)["nodes"]] == ["a", "b"]
    assert [each["name"] for each in answer(*objects, name="b")["nodes"]] == ["b"]
    assert answer(*objects, name="gone") == {"nodes": None, "error": 'node "gone" not found'}
    assert answer() == {"nodes": []}


@st.composite
def clusters(draw: st.DrawFn) -> list[Object]:
    """Return a cluster of gpushare pods whose GPUs the agent reports, and advertises as gpushare's plugin does."""
    objects: list[Object] = []
    unit_mib = draw(st.sampled_from([1024, 1]))
    per_gpu = 15360 // unit_mib
    for number in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 4))
        name = f"n{number}"
        objects.append(node(name, {MEMORY: str(count * per_gpu), "aliyun.com/gpu-count": str(count)}))
        objects.append(gpunode(name, *(gpu(i, "T4", node=name) for i in range(count)), unit_mib=unit_mib))
        for index in range(draw(st.integers(0, 5))):
            requested, place = draw(st.integers(1, 5)) * (1024 // unit_mib), draw(st.integers(0, count - 1))
            annotations = draw(
                st.sampled_from(
                    [
                        {"ALIYUN_COM_GPU_MEM_IDX": str(place)},
                        {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(place): requested}})},
                        {"ALIYUN_COM_GPU_MEM_IDX": "-1"},
                        {"ALIYUN_COM_GPU_MEM_IDX": "none"},
                        {},
                    ]
                )
            )
            phase = draw(st.sampled_from(["Running", "Pending", "Succeeded"]))
            objects.append(pod(f"{name}-{index}", {MEMORY: requested}, node=name, annotations=annotations, phase=phase))
    return objects


@given(clusters())
def test_the_rules_of_gpushares_client_give_the_same_numbers(objects: list[Object]) -> None:
    want = gpusharecli.shown(objects)
    found = inspect(read_cluster(as_fields(objects)))
    got = json.loads(gpushare_inspect(found))["nodes"]
    for row, each, view in zip(want.rows, got, found.nodes, strict=True):
        assert (row.name, row.address) == (each["name"], view.address)
        shown = [(device["usedGPU"], device["totalGPU"]) for device in each["devs"]]
        assert list(row.gpus) == shown + [(0, 0)] * (len(row.gpus) - len(shown))
        assert row.total == each["totalGPU"]
        assert row.pending == view.unplaced_mib // view.unit_mib
        assert row.allocated == each["usedGPU"] + row.pending


def test_a_gpu_has_no_more_units_in_use_than_it_has() -> None:
    halves = (pod("p", {MEMORY: 39}, share(0, 40_700)), pod("q", {MEMORY: 39}, share(0, 40_700)))
    got = answer(node(), gpunode("a", gpu(0, "H100-80GB")), *halves)["nodes"][0]
    assert (got["totalGPU"], got["usedGPU"]) == (79, 79)
    more = answer(node(), gpunode("a", gpu(0, "H100-80GB")), *halves, pod("r", {MEMORY: 9}, share(0, 9216)))["nodes"][0]
    assert (more["totalGPU"], more["usedGPU"]) == (79, 89)
