"""How busy GPUs are by Prometheus' answers, however broken they are."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from builders.prometheusanswers import BROKEN, GPU, OTHER, POD, answer, now
from harness.prometheusserver import serving_history
from tessera.api.prometheus import gpuloads
from tessera.api.prometheus.gpuloads import load_queries, read_activity, read_contention, read_loads, read_memory
from tessera.core.usage.contention import ContainerLoad, Contention, DeviceLoad, GpuLoad
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput


def loads(**given: bytes) -> dict[tuple[str, str], GpuLoad]:
    return read_loads(dict.fromkeys(load_queries(), answer()) | given, "Prometheus", now=False)


def devices(**given: bytes) -> dict[str, tuple[DeviceLoad, ...]]:
    return {uuid: each.devices for (_, uuid), each in loads(**given).items()}


def activity(*series: dict[str, Any]) -> dict[PodKey, float]:
    return {pod: each for (_, pod), each in read_activity(loads(utilization=answer(*series))).items()}


def part(number: int, profile: str, labels: dict[str, str]) -> dict[str, str]:
    return {**labels, "GPU_I_ID": str(number), "GPU_I_PROFILE": profile}


def test_a_pod_is_as_busy_as_it_can_be_on_its_busiest_device() -> None:
    assert activity(now("12.5", POD), now("100.9", OTHER)) == {"ml/p": 12.5, "ml/q": 100}
    assert activity(now("12.5", POD), now("30", {**POD, "UUID": "b"})) == {"ml/p": 30}


def test_a_shared_gpu_has_loads_of_its_own_and_of_its_containers() -> None:
    allocations = answer(now("1", POD), now("1", OTHER))
    found = devices(
        allocations=allocations, utilization=answer(now("99", GPU), now("9", OTHER)), sm_active=answer(now("60", GPU))
    )
    containers = (ContainerLoad(name="ml/p/c", percent=None), ContainerLoad(name="ml/q/c", percent=9))
    assert found == {"a": (DeviceLoad(percent=99, containers=containers),)}
    assert read_activity({("n", "a"): GpuLoad(devices=found["a"])}) == {("n", "ml/q"): 9}


def test_load_of_processes_that_have_ended_is_said() -> None:
    allocations = answer(now("1", POD), now("1", OTHER))
    for percent, want in (("60", True), ("4", False), ("NaN", False)):
        given = {
            "allocations": allocations,
            "utilization_now": answer(now("99", GPU)),
            "ended": answer(now(percent, GPU)),
        }
        found = read_loads(dict.fromkeys(load_queries(), answer()) | given, "Prometheus", now=True)
        (each,) = found["n", "a"].devices
        assert each.ended is want
        ((contention,),) = read_contention(found).values()
        assert (contention.cause, contention.ended) == ("saturated", want)


def test_labels_that_prometheus_gives_the_agent_make_it_no_user_of_the_gpu() -> None:
    agent = {**GPU, "namespace": "tessera-system", "pod": "tessera-agent-x7k2p", "container": "agent"}
    found = devices(
        allocations=answer(now("1", POD), now("1", OTHER)), utilization=answer(now("99", agent), now("98", GPU))
    )
    names = ("ml/p/c", "ml/q/c")
    assert found == {"a": (DeviceLoad(percent=99, containers=tuple(ContainerLoad(name=each) for each in names)),)}


def test_an_exclusive_device_is_as_busy_as_its_container() -> None:
    found = devices(allocations=answer(now("1")), utilization=answer(now("99")), sm_active=answer(now("60")))
    assert found == {"a": (DeviceLoad(percent=60, containers=(ContainerLoad(name="ml/p/c", percent=60),)),)}


def test_instances_have_the_part_of_their_profile_where_it_is_known() -> None:
    large, unknown = part(1, "3g.40gb", POD), part(2, "9g.1gb", OTHER)
    foreign = {**part(3, "1g.10gb", OTHER), "modelName": "something"}
    found = devices(sm_active=answer(*(now("50", each) for each in (large, unknown, foreign))))
    assert [each.part for each in found["a"]] == [3 / 7, None, None]


def slow(*throttled: tuple[str, str], allocations: bytes, utilization: bytes) -> dict[str, tuple[Contention, ...]]:
    series = (now("1", {"Hostname": "n", "UUID": uuid, "cause": cause}) for uuid, cause in throttled)
    found = read_contention(loads(throttled=answer(*series), allocations=allocations, utilization=utilization))
    return {uuid: each for (_, uuid), each in found.items()}


def test_the_pods_that_slow_down_a_gpu_are_named_as_agents_name_them() -> None:
    causes = (("a", "power-cap"), ("b", "none"))
    busy = answer(now("99", GPU), now("90", POD), now("9", OTHER))
    names: dict[str, Any] = {"caused_by": ("ml/p/c",), "affected": ("ml/q/c",)}
    want = (Contention(cause="power-cap", **names), Contention(cause="saturated", **names))
    assert slow(*causes, allocations=answer(now("1", OTHER)), utilization=busy) == {"a": want}
    apart = answer(now("9", POD), now("90", {**OTHER, "UUID": "b"}), now("95", {**OTHER, "UUID": "c", "Hostname": "m"}))
    found = slow(("a", "power-cap"), ("a", "thermal"), allocations=answer(), utilization=apart)
    of_node = Contention(cause="thermal", caused_by=("ml/q/c",), affected=("ml/p/c",), scope="node")
    assert found == {"a": (of_node,)}, "GPUs of its own node; a pod alone at its power limit slows nobody"
    (unknown, _) = slow(*causes, allocations=answer(now("1")), utilization=answer(now("99", GPU), now("9", OTHER)))["a"]
    assert unknown.caused_by == ()


UNBELIEVED = {
    "no number": now("much"),
    "NaN": now("NaN"),
    "infinite": now("+Inf"),
    "negative": now("-1"),
    "more than all": now("250"),
    "of no pod": now("1", {**POD, "pod": ""}),
    "of no namespace": now("1", {**POD, "namespace": ""}),
    "of no GPU": now("1", {**POD, "UUID": ""}),
    "no value": {"metric": POD},
}


@pytest.mark.parametrize("case", UNBELIEVED)
def test_what_cannot_be_is_left_out(case: str) -> None:
    assert activity(UNBELIEVED[case]) == {}
    assert loads(allocations=answer(UNBELIEVED[case])) == {}


def test_a_pod_uses_the_memory_of_its_containers_where_all_of_it_is_known() -> None:
    side, elsewhere, lost = {**POD, "container": "side"}, {**POD, "UUID": "b"}, {**OTHER, "container": "lost"}
    instances = (part(1, "1g.5gb", POD), part(2, "1g.5gb", POD))
    for series, want in (
        ((now("12.4", POD), now("0", OTHER)), {("n", "a"): {"ml/p": 12, "ml/q": 0}}),
        ((now("12", POD), now("3", side), now("7", elsewhere)), {("n", "a"): {"ml/p": 15}, ("n", "b"): {"ml/p": 7}}),
        (tuple(now("4", each) for each in instances), {("n", "a"): {"ml/p": 8}}),
        ((now("12", OTHER), now("NaN", lost)), {}),
        ((now("12", OTHER), now("1e12", lost)), {}),
    ):
        allocations = answer(*(now("1", each["metric"]) for each in series))
        answers = {"memory": answer(*series, now("99", GPU)), "allocations": allocations}
        assert read_memory(answers, "Prometheus") == want


@pytest.mark.parametrize("case", BROKEN)
def test_an_answer_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(InvalidInput, match="an answer of Prometheus' HTTP API"):
        loads(utilization=BROKEN[case])


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpuloads, "_MOST_LOADS", 1)
    with pytest.raises(InvalidInput, match="2 series are more than 1"):
        loads(allocations=answer(now("1"), now("2")))


def test_a_gpu_is_throttled_for_causes_that_there_are() -> None:
    labels: tuple[dict[str, str], ...] = (
        {"UUID": "a", "cause": "thermal"},
        {"UUID": "a", "cause": "power-brake"},
        {"UUID": "b", "cause": "none"},
        {},
    )
    found = read_contention(loads(throttled=answer(*(now("1", each) for each in labels))))
    assert {uuid: [each.cause for each in contention] for (_, uuid), contention in found.items()} == {
        "a": ["thermal", "power-brake"]
    }


def test_a_pod_that_worked_a_minute_ago_slows_no_other_now(tmp_path: Path) -> None:
    """A did until 30 s ago, B does since then, and now the GPU is throttled: B is named, and A is not idle yet."""
    device = 'Hostname="n",hostname="n",gpu="0",UUID="G",modelName="Tesla T4"'
    pods = [f'{device},namespace="team",pod="{pod}",container="c",pod_uid="u{pod}"' for pod in "ab"]
    before, after, began_s = 10, 3, time.time() - 3600
    series = {
        f"DCGM_FI_DEV_GPU_UTIL{{{pods[0]}}}": (90, 0),
        f"DCGM_FI_DEV_GPU_UTIL{{{pods[1]}}}": (0, 90),
        f"DCGM_FI_DEV_GPU_UTIL{{{device}}}": (90, 90),
        f"DCGM_FI_DEV_FB_USED{{{pods[0]}}}": (100, 100),
        f"DCGM_FI_DEV_FB_USED{{{pods[1]}}}": (100, 100),
        f'tessera_gpu_throttled{{{device},cause="power-cap"}}': (0, 1),
    }
    samples = "".join(
        f"{name} {values[step >= before]} {began_s + 15 * step:.3f}\n"
        for name, values in series.items()
        for step in range(before + after)
    )
    at_s = began_s + 15 * (before + after - 1)
    with serving_history(tmp_path, samples) as prometheus:
        asked = {name: urlencode({"query": query, "time": f"{at_s:.3f}"}) for name, query in load_queries().items()}
        answers = {
            name: urlopen(f"{prometheus}/api/v1/query?{each}", timeout=20).read() for name, each in asked.items()
        }
    by_mean, by_now = (read_loads(answers, "Prometheus", now=now) for now in (False, True))
    assert read_contention(by_now) == {
        ("n", "G"): (Contention(cause="power-cap", caused_by=("team/b/c",), affected=("team/a/c",)),)
    }
    assert read_memory(answers, "Prometheus") == {("n", "G"): {"team/a": 100, "team/b": 100}}
    assert read_activity(by_mean)["n", PodKey("team/a")] > 50


def test_a_gpu_on_which_a_process_of_no_pod_may_compute_is_not_one_that_nobody_slows(tmp_path: Path) -> None:
    """A MIG instance without a container: the driver does not measure its load before Hopper."""
    began_s = time.time() - 600
    samples = []
    for node, used_mib in (("empty", 14), ("used", 300)):
        gpu = f'Hostname="{node}",hostname="{node}",gpu="0",UUID="G",modelName="NVIDIA A100-SXM4-40GB"'
        instance = f'{gpu},GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"'
        samples.append(f"tessera_device_memory_used_bytes{{{instance}}} {used_mib << 20} {began_s:.3f}\n")
        samples.append(f'tessera_gpu_throttled{{{gpu},cause="thermal"}} 1 {began_s:.3f}\n')
    with serving_history(tmp_path, "".join(sorted(samples))) as prometheus:
        asked = {name: urlencode({"query": query, "time": f"{began_s:.3f}"}) for name, query in load_queries().items()}
        answers = {
            name: urlopen(f"{prometheus}/api/v1/query?{each}", timeout=20).read() for name, each in asked.items()
        }
    found = read_contention(read_loads(answers, "Prometheus", now=True))
    assert {node: each.nobody for (node, _), (each,) in found.items()} == {"empty": True, "used": False}
