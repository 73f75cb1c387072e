"""`tessera explain pod`: its output about a pod of a cluster, which may have the name of a workload."""

import datetime as dt
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console, Group

from builders.kubeobjects import Object, gpu, gpunode, kubectl, node, pod, share
from builders.usagereports import REPORT
from harness.agents import serving_reports
from tessera.api.kubernetes.leases import write_lease
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.cli import main
from tessera.cli.clusteraccess import ClusterSource
from tessera.cli.explain.pod import _Answer, _observed_contention, _parts, observe_contention, observe_pod
from tessera.cli.explain.pod import pod as command
from tessera.cli.livecluster import events_of, read_file
from tessera.clients.kube import EVENTS, LEASES, NODES, PODS, MemoryKube
from tessera.core.cluster.protocols.leadership import Lease
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.gpu.sharing import Mode
from tessera.core.usage.usagereport import UsageReport
from tessera.core.workload.need import PodKey
from tessera.errors import Unavailable

NEED = {"tessera.dev/gpu-memory": 8}
UNITS = {"tessera.dev/gpu-memory": "40"}


def event(name: str, count: int, message: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{count}", "namespace": "ns"},
        "involvedObject": {"kind": "Pod", "namespace": "ns", "name": name},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": message,
        "count": count,
        "lastTimestamp": f"2026-01-01T00:00:0{count}Z",
    }


CLUSTER: list[Object] = [
    node("gpu-a", UNITS),
    gpunode("gpu-a", gpu(0, node="gpu-a")),
    *(each for n in range(30) for each in (node(f"t4-{n}"), gpunode(f"t4-{n}", gpu(0, "T4", node=f"t4-{n}")))),
    pod("vllm-0", NEED, share(0, 8192, Mode.MPS, percent=20), node="gpu-a"),
    pod("large", {"tessera.dev/gpu-memory": 36}, node=None),
    pod("other", NEED, node=None, metadata={"namespace": "team"}),
    event("large", 2, "0/31 nodes are available"),
    event("large", 1, "0/30 nodes are available"),
    event("vllm-0", 1, "not about the other"),
]


def run(*arguments: str, columns: int = 100, objects: list[Object] | None = None) -> Result:
    text = kubectl(*CLUSTER if objects is None else objects)
    return CliRunner().invoke(main, ["explain", *arguments], input=text, env={"COLUMNS": str(columns)})


def words(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def test_a_pod_that_waits() -> None:
    got = words(run("pod", "large", "-n", "ns", "--cluster", "-"))
    for want in (
        "ns/large needs 36 GiB with driver isolation pending",
        "What would make it fit - free 4 GiB on GPU 0 of gpu-a - when ns/vllm-0 on gpu-a ends, this pod gets 36 GiB",
        "2026-01-01T00:00:01Z Warning FailedScheduling: 0/30 nodes are available - 2026-01-01T00:00:02Z",
        "FailedScheduling (2 times): 0/31 nodes are available",
        "t4-0 and 29 more no GPU of the node can provide 36 GiB with driver isolation",
    ):
        assert want in got
    assert "not about the other" not in got


def test_a_pod_that_runs() -> None:
    got = words(run("pod", "-n", "ns", "vllm-0", "--cluster", "-"))
    for want in (
        "running on gpu-a",
        "8 GiB of GPU 0 (MPS), A100-40GB, 20 % compute, isolation in force: driver-mps, alone on the GPU",
        "tessera-scheduler bound it to gpu-a",
        "Each node, if the pod were scheduled again",
    ):
        assert want in got


def test_a_pod_whose_request_cannot_be_read() -> None:
    odd = pod("p", NEED, node=None, annotations={"tessera.dev/isolation": "strong"})
    got = words(run("pod", "p", "-n", "ns", "--cluster", "-", objects=[*CLUSTER[:2], odd]))
    why = "metadata.annotations[tessera.dev/isolation]: 'strong' is not one of the words accepted: hardware,"
    assert f"ns/p pending Why - its request cannot be read: {why}" in got
    assert "it fits on" not in got
    assert "has room" not in got


def test_a_pod_that_has_finished() -> None:
    ended = pod("p", NEED, share(0, 8192, Mode.MPS), node="gpu-a", phase="Failed", status={"reason": "Evicted"})
    result = run(
        "pod", "p", "-n", "ns", "--cluster", "-", objects=[*CLUSTER[:2], ended, event("p", 1, "low on memory")]
    )
    got = words(result)
    assert got.startswith("ns/p finished on gpu-a Why - it has failed: Evicted - its assignment was 8 GiB of GPU 0")
    assert "FailedScheduling: low on memory" in got
    assert "gpu-b" not in got, "the nodes are of no interest any more"


def test_a_pod_on_a_gpu_that_is_not_there() -> None:
    objects = [node(), gpunode("a", gpu(0)), pod("p", NEED, share(3, 8192))]
    assert "8 GiB of GPU 3 (memory-share), the node has no such GPU" in words(
        run("pod", "p", "-n", "ns", "--cluster", "-", objects=objects)
    )


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_lines_are_no_longer_than_the_terminal(columns: int) -> None:
    for name in ("large", "vllm-0"):
        result = run("pod", name, "-n", "ns", "--cluster", "-", columns=columns)
        assert max(map(len, result.stdout.splitlines())) <= columns


def test_json_has_every_value() -> None:
    got = json.loads(run("pod", "vllm-0", "-n", "ns", "--cluster", "-", "-o", "json").stdout)
    assert list(got) == ["explanation", "events", "contention"]
    assert " ".join(got["explanation"]) == (
        "pod need phase node scheduler devices record sentences remedies nodes ways"
    )
    assert " ".join(got["explanation"]["devices"][0]) == "uuid model share level neighbours"
    assert " ".join(got["explanation"]["nodes"][0]) == "node obstacle detail"
    assert [each["message"] for each in got["events"]] == ["not about the other"]


# Keyed by a sentence: arguments; desired are words of the one error line.
BAD: dict[str, tuple[list[str], list[str]]] = {
    "a pod of another namespace": (["pod", "other", "-n", "ns", "--cluster", "-"], ["pod ns/other", "-n team"]),
    "a pod that is not there": (["pod", "gone", "-n", "ns", "--cluster", "-"], ["pod ns/gone", "vllm-0, large"]),
    "a pod of an empty namespace": (["pod", "gone", "--cluster", "-"], ["pod default/gone", "another -n"]),
    "no name": (["pod", "-n", "ns", "--cluster", "-"], ["NAME: it is missing: try"]),
    "a file beside a cluster": (["pod", "large", "--cluster", "-", "--context", "x"], ["--context", "--cluster"]),
    "a kubeconfig that is not there": (["pod", "large", "--kubeconfig", "missing"], ["kubeconfig missing"]),
    "a workload called pod": (["pod", "--gpus", "T4"], ["workload pod", "give manifests with -f"]),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_is_one_clear_error(sentence: str) -> None:
    arguments, named = BAD[sentence]
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert [word for word in named if word not in result.stderr] == []


def test_help_is_that_of_the_pod() -> None:
    assert "Explain where pod NAME of a live cluster runs" in words(run("pod", "--help"))
    assert "explain pod notebook-3" in words(run("--help"))
    assert all(
        f"--{(each.name or '').replace('_', '-')}" in each.opts for each in command.params if each.name != "name"
    )


def test_options_have_names_in_the_environment() -> None:
    result = CliRunner().invoke(
        main,
        ["explain", "pod", "large", "--cluster", "-"],
        input=kubectl(*CLUSTER),
        env={"TESSERA_EXPLAIN_POD_NAMESPACE": "ns", "COLUMNS": "100"},
    )
    assert "ns/large needs" in words(result)


@pytest.mark.anyio
async def test_events_of_a_live_pod() -> None:
    kube = MemoryKube()
    for each in CLUSTER[-3:]:
        await kube.create(EVENTS, each)
    found = await events_of(kube, PODS, "large", "ns")
    assert sorted(each["count"] for each in found) == [1, 2]


@pytest.mark.anyio
async def test_a_live_pod_that_the_cluster_does_not_show_is_looked_up() -> None:
    kube = MemoryKube()
    await kube.create(NODES, node())
    for each in (pod("runs"), pod("ended", phase="Succeeded"), event("ended", 1, "done")):
        await kube.create(PODS if each["kind"] == "Pod" else EVENTS, each)
    for name, want in (("runs", []), ("ended", ["Succeeded"]), ("gone", [])):
        cluster, events, found = await observe_pod(kube, PodKey(f"ns/{name}"))
        assert [each.pod.key for each in cluster.pods] == ["ns/runs"]
        assert [each["status"]["phase"] for each in found] == want
        assert len(events) == (name == "ended")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("age_s", "want"),
    [
        (5, ""),
        (3700, "no controller has renewed its Lease for 370"),
        (None, "no controller runs: kubectl get pods -n tessera-system"),
    ],
)
async def test_whether_a_controller_runs_is_known_by_its_lease(age_s: int | None, want: str) -> None:
    kube = MemoryKube()
    await kube.create(NODES, node())
    if age_s is not None:
        moment = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)
        lease = write_lease(Lease(holder="a", lease_s=15), moment, acquired=True)
        metadata = {"namespace": "tessera-system", "name": "tessera-controller"}
        await kube.create(LEASES, lease | {"metadata": metadata})
    cluster, _, _ = await observe_pod(kube, PodKey("ns/p"))
    assert cluster.controller_silent.startswith(want)
    assert bool(cluster.controller_silent) == bool(want)


@pytest.fixture
def agent() -> Iterator[str]:
    """Give the address of node n1's agent."""
    with serving_reports(REPORT) as addresses:
        yield addresses[0]


TRAIN = [
    node("n1"),
    gpunode("n1", gpu(0, "T4", node="n1")),
    pod("train", NEED, share(0, 8192, Mode.MEMORY_SHARE), node="n1", metadata={"namespace": "team"}),
    pod("calm", NEED, share(0, 4096, Mode.MEMORY_SHARE), node="n1", metadata={"namespace": "team"}),
    pod("away", NEED, node=None, metadata={"namespace": "team"}),
]


def test_who_slows_down_the_gpus_of_a_pod(agent: str) -> None:
    options = ("-n", "team", "--cluster", "-", "--agent", agent)
    got = words(run("pod", "train", *options, objects=TRAIN))
    want = "What slows down its GPUs - GPU 0: thermal, caused by team/train/main; slowed down: team/notebook/main"
    assert want in got
    found = json.loads(run("pod", "train", *options, "-o", "json", objects=TRAIN).stdout)["contention"]
    assert found == [
        {"gpu": 0, "cause": "thermal", "causedBy": ["team/train/main"], "affected": ["team/notebook/main"]}
    ]
    assert "slows down" not in words(run("pod", "calm", *options, objects=TRAIN))


@pytest.mark.anyio
async def test_the_agent_of_the_pod_s_node_is_asked_by_way_of_the_api_by_those_who_may() -> None:
    kube, here = MemoryKube(), "tessera-system"
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    for name, on in (("a", "n1"), ("b", "n2"), ("c", "n4")):
        metadata = {"name": name, "namespace": here, "labels": labels}
        await kube.create(PODS, {"metadata": metadata, "spec": {"nodeName": on}, "status": status})
    kube.answers[here, "a"] = {(9400, "usage"): write_usage(REPORT)}
    (contention,) = await observe_contention(kube, "n1", "team/train")
    assert (contention.cause, contention.caused_by) == ("thermal", ("team/train/main",))
    assert await observe_contention(kube, "n1", "team/calm") == ()
    kube.answers[here, "c"] = {(9400, "usage"): write_usage(UsageReport(node="n4"))}
    for asked, want in (
        ("n2", "agent tessera-system/b: "),
        ("n3", "node n3: no agent pod runs on it: kubectl get nodes"),
        ("n4", "observed no GPU"),
    ):
        with pytest.raises(Unavailable, match=want):
            await observe_contention(kube, asked, "team/train")
    kube.withhold(here, PODS)
    with pytest.raises(Unavailable, match="tessera-usage-viewer"):
        await observe_contention(kube, "n1", "team/train")


def test_what_no_agent_says_is_unknown_and_not_nothing(tmp_path: Path) -> None:
    document = run("pod", "train", "-n", "team", "--cluster", "-", "-o", "json", objects=TRAIN).stdout
    assert json.loads(document)["contention"] is None, "a file has no agent"
    waits = run("pod", "away", "-n", "team", "--cluster", "-", "-o", "json", objects=TRAIN).stdout
    assert json.loads(waits)["contention"] == [], "it has no GPU"
    kubeconfig, objects = tmp_path / "kubeconfig", tmp_path / "objects.json"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"current-context": "c", "clusters": [cluster], "users": users, "contexts": [context]}
    kubeconfig.write_text(json.dumps(config))
    objects.write_text(kubectl(*TRAIN))
    found = explain_pod(read_file(str(objects))[0], PodKey("team/train"))
    assert found is not None
    contention, why = _observed_contention((), ClusterSource(kubeconfig=kubeconfig), found)
    assert contention is None
    assert why.startswith("unknown: the agent of node n1 does not answer (")
    console = Console(width=200, record=True, file=StringIO())
    console.print(Group(*_parts(_Answer(found, (), contention), why)))
    assert f"What slows down its GPUs - {why}" in " ".join(console.export_text().split())


def test_an_agent_of_another_node_is_refused(agent: str) -> None:
    for name, namespace, want in (("vllm-0", "ns", "that of node gpu-a"), ("large", "ns", "on no node")):
        got = run("pod", name, "-n", namespace, "--cluster", "-", "--agent", agent)
        assert (got.exit_code, want in got.stderr, "that of n1" in got.stderr) == (2, True, True), got.output
