"""`tessera inspect`: the gpushare table, every GPU drawn, JSON, files and live clusters, at any width."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from builders.kubeobjects import Object, gpu, gpunode, kubectl, mig_share, node, place, pod, share
from judges import gpusharecli
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.cli import main
from tessera.cli.inspect import _Choice, _frames
from tessera.cli.inspect.devices import devices
from tessera.cli.inspect.summary import summary
from tessera.cli.livecluster import follow, observe
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, name_of
from tessera.core.cluster.cluster import Cluster
from tessera.core.cluster.gpunodestate import DesiredDevices, UnhealthyDevice, Used
from tessera.core.explain.inspection import Inspection, inspect
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import InvalidInput, Unavailable

LONG = "gke-cluster-europe-west4-pool-2-a1b2c3d4-x7k2"
A100 = "A100-40GB"
NEED = {"tessera.dev/gpu-memory": 4}
MEMORY = "aliyun.com/gpu-mem"
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
LAYOUT = (place(A100, "1g.5gb", 6), place(A100, "2g.10gb", 0), place(A100, "2g.10gb", 2))

CLUSTER: list[Object] = [
    node("gpu-a"),
    gpunode(
        "gpu-a",
        *(gpu(index, layout=None if index else LAYOUT, node="gpu-a") for index in range(4)),
        driver="580.95.05",
        policy="batch",
        unhealthy=(UnhealthyDevice(device=DeviceId("GPU-gpu-a-3"), reason="Xid 79"),),
        used=(Used(gpu="GPU-gpu-a-0", memory_mib=3072), Used(gpu="GPU-gpu-a-1", memory_mib=19456)),
        desired=(DesiredDevices(gpu="GPU-gpu-a-0", instances=(place(A100, "1g.5gb", 4),)),),
    ),
    node(LONG),
    gpunode(LONG, gpu(0, "T4", SLICED, node=LONG), gpu(1, "T4", SLICED, node=LONG)),
    pod("embed-7d9f-x2x4", {"nvidia.com/mig-1g.5gb": 1}, mig_share(0, "1g.5gb", 6), node="gpu-a"),
    pod("train-0", {"nvidia.com/mig-2g.10gb": 1}, mig_share(0, "2g.10gb", 0), node="gpu-a"),
    pod("vllm-0", {"tessera.dev/gpu-memory": 16}, share(1, 16384, Mode.MPS, percent=40), node="gpu-a"),
    pod("vllm-1", {"tessera.dev/gpu-memory": 8}, share(1, 8192, Mode.MPS, percent=20), node="gpu-a", phase="Pending"),
    pod("big", {"nvidia.com/gpu": 1}, share(2, 40960, Mode.WHOLE, percent=100), node="gpu-a"),
    pod("old", NEED, share(3, 4096), node="gpu-a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    *(
        pod(f"nb-{n}", {"nvidia.com/gpu.shared": 1}, share(0, 3840, Mode.TIME_SLICING, percent=25), node=LONG)
        for n in range(2)
    ),
    pod("w1", {"nvidia.com/mig-3g.20gb": 1}, node=None, metadata={"namespace": "team"}),
]
BROKEN: list[Object] = [
    node("a"),
    gpunode("a", gpu(0), gpu(1)),
    node("odd", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "GeForce-9999"}),
    pod("p0", NEED, mig_share(0, "3g.20gb", 0)),
    pod("p1", NEED, mig_share(0, "2g.10gb", 2)),
    pod("p2", NEED, share(1, 50000)),
    pod("p3", NEED, share(9, 1)),
    pod("p4", NEED),
]


def run(*arguments: str, objects: list[Object] | None = None, columns: int | None = 120) -> Result:
    given_text = kubectl(*CLUSTER if objects is None else objects)
    env = {"COLUMNS": str(columns)} if columns else {"COLUMNS": None}
    return CliRunner().invoke(main, ["inspect", "--cluster", "-", *arguments], input=given_text, env=env)


def found(objects: list[Object]) -> Inspection:
    return inspect(read_cluster(as_fields(objects)))


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [line.rstrip() for line in result.stdout.splitlines()]


NARROW = """\
GPU LAYOUT                              MODE          ALLOCATED    HEALTH
    PODS                                ISOLATION     USED         FRAGMENTED
gpu-a  10.0.0.5  4 x A100-40GB  driver 580.95.05  policy batch
0   │2g.10gb│- 2g   │?  │░░░│1g │░░░│   MIG           14.3/40 GiB  healthy
    ns/embed-7d9f-x2x4, ns/train-0      hardware      3 GiB        43 %
1   │16 GiB      │8 GiB │░░░░░░░░░░░░░│ MPS           24/40 GiB    healthy
    ns/vllm-0, ns/vllm-1 (starting)     MPS           19 GiB       57 %
2   │whole big                        │ whole         40/40 GiB    healthy
    ns/big                              hardware      -            -
3   │4 │░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│ memory share  4/40 GiB     Xid 79
    ns/old (ending)                     none          -            -
gke-cluster-europe-west4-pool-2-a1b2c3d4-x7k2  10.0.0.45  2 x T4
0   │3.7 GiB│3.7 GiB │░░░░░░░░░░░░░░░░│ time-sliced   7.5/15 GiB   healthy
    ns/nb-0, ns/nb-1                    none          -            0 %
1   │░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│ (time-sliced) 0/15 GiB     healthy
                                        -             -            0 %
pending: team/w1 needs nvidia.com/mig-3g.20gb; see tessera explain pod
░ free   - unused MIG instance   ? MIG instance to be created"""


def test_every_gpu_drawn_on_80_columns() -> None:
    got = lines(run(columns=80))
    assert got[: len(NARROW.splitlines())] == NARROW.splitlines()
    assert " ".join(got[len(NARROW.splitlines()) :]).startswith(
        "5 of 6 GPUs in use; 89.8 GiB of 190 GiB allocated (47 %)"
    )


HEADER = "NODE GPU MODEL LAYOUT MODE ISOLATION ALLOCATED COMPUTE USED HEALTH FRAG PODS"
SECOND = (
    "gpu-a 1 A100-40GB │16 GiB vllm-0 │8 GiB │░░░░░░░░░░░░░░░░░░░│ MPS MPS 24/40 GiB 60 % 19 GiB healthy 57 %"
    " ns/vllm-0, ns/vllm-1 (starting)"
)


def test_one_line_a_gpu_where_the_output_is_piped() -> None:
    got = lines(run("-o", "wide", columns=None))
    assert [" ".join(got[number].split()) for number in (0, 2)] == [HEADER, SECOND]
    assert got[5].startswith(f"{LONG} 0 ")


@pytest.mark.parametrize("columns", [80, 100, 120, 169, 170, 200])
@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_lines_are_no_longer_than_the_terminal_and_name_every_gpu(columns: int, gpus: int) -> None:
    every = [gpu(index, "H100-80GB", node=LONG) for index in range(gpus)]
    names = [f"inference-{n}-6c8d9f7b5-q{n}x4z" for n in range(gpus * 8)]
    pods = [pod(name, NEED, share(n // 8, 9 * 1024), node=LONG) for n, name in enumerate(names)]
    seen = found([node(LONG), gpunode(LONG, *every), *pods])
    console = Console(width=columns)
    with console.capture() as capture:
        console.print(devices(seen, columns))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= columns
    assert f"{gpus} of {gpus} GPU" in text
    assert [text.count(f"{index} ") > 0 for index in range(gpus)] == [True] * gpus
    table = summary(seen, columns).splitlines()
    assert max(map(len, table)) <= columns or columns == 80
    cells = re.findall(r"\b72/79\b", "\n".join(table))
    assert len(cells) >= gpus


def test_the_mode_of_a_gpu_without_agent_is_unknown_where_nothing_fixes_it() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "1"}
    fixed = gpunode("b", gpu(0, sharing=Sharing(modes=()), node="b"))
    got = lines(
        run("-o", "wide", objects=[node("a", {"nvidia.com/gpu": "1"}, **labels), node("b"), fixed], columns=170)
    )
    assert [line.split("│")[2].split()[0] for line in got[1:3]] == ["-", "(nothing)"]


def test_colors_are_for_terminals_alone() -> None:
    console = Console(width=120, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(devices(found(CLUSTER), 120))
    assert "\x1b[" in capture.get()
    assert "\x1b[" not in run().stdout


def test_what_is_wrong_is_shown_below() -> None:
    text = " ".join(" ".join(lines(run(objects=BROKEN))).split())
    for words in (
        "!!!!!",
        "! allocated twice",
        "conflict",
        "a: ns/p3 is allocated GPU 9, which the node does not have",
        "a GPU 0: conflicting MIG instances: 3g.20gb at 0 and 2g.10gb at 2 share memory slice 2",
        "a GPU 1: 50000 MiB is more than the GPU's 40960 MiB",
        "a: ns/p4 runs here, and its GPU is not recorded",
        "GeForce-9999",
        "(97 %)",
    ):
        assert words in text


def test_many_that_wait_and_many_conflicts_are_counted() -> None:
    waiting = [pod(f"w{n}", NEED, node=None) for n in range(15)]
    wrong = [pod(f"x{n}", NEED, share(9, 4096)) for n in range(25)]
    text = run(objects=[node(), gpunode("a", gpu(0)), *waiting, *wrong]).stdout
    assert "and 3 more pods pending" in text
    assert "and 5 more; -o json has all" in text


TABLE = f"""\
NAME                                           IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
gpu-b                                          10.0.0.5   8/15                   0/0                    8/15
{LONG}  10.0.0.45  8/15                   0/15                   8/30
{"-" * 119}
Allocated/Total GPU Memory In Cluster:
16/45 (35%)
"""
SHORT = f"""\
Allocated/Total of each GPU
NAME                                           IPADDRESS  GPU0  GPU Memory(GiB)
                                                          GPU1
gpu-b                                          10.0.0.5   8/15  8/15
                                                          0/0
{LONG}  10.0.0.45  8/15  8/30
                                                          0/15
{"-" * 79}
Allocated/Total GPU Memory In Cluster:
16/45 (35%)
"""
TWO = [node("gpu-b"), gpunode("gpu-b", gpu(0, "T4")), pod("p", NEED, share(0, 7700), node="gpu-b"), *CLUSTER[2:4]]
TWO += [each for each in CLUSTER if each["metadata"]["name"].startswith("nb-")]


def test_the_gpushare_table() -> None:
    assert run("-o", "gpushare", objects=TWO, columns=None).stdout == TABLE
    assert summary(found(TWO), 119) == TABLE
    assert summary(found(TWO), 80) == SHORT


def test_details_are_each_pod_of_each_node() -> None:
    got = lines(run("-o", "gpushare", "-d", "gpu-a"))
    assert got[:6] == [
        "NAME:       gpu-a",
        "IPADDRESS:  10.0.0.5",
        "",
        "NAME             NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  GPU2(Allocated)  GPU3(Allocated)",
        "embed-7d9f-x2x4  ns         5                0                0                0",
        "train-0          ns         10               0                0                0",
    ]
    assert got[-1] == "Allocated/Total GPU Memory In Cluster:  83/160 (51%)"


def test_pods_whose_gpu_nobody_knows_are_pending() -> None:
    objects = [node(), gpunode("a", gpu(0, "T4")), pod("p", {MEMORY: 5})]
    assert [line.split() for line in lines(run("-o", "gpushare", objects=objects))[:2]] == [
        ["NAME", "IPADDRESS", "GPU0(Allocated/Total)", "PENDING(Allocated)", "GPU", "Memory(GiB)"],
        ["a", "10.0.0.1", "0/15", "5", "5/15"],
    ]
    assert "p     ns         0                5" in run("-o", "gpushare", "-d", objects=objects).stdout


@st.composite
def gpushare_clusters(draw: st.DrawFn) -> list[Object]:
    objects: list[Object] = []
    for number in range(draw(st.integers(0, 3))):
        count, name = draw(st.integers(1, 4)), f"n{number}"
        objects.append(node(name, {MEMORY: str(15 * count), "aliyun.com/gpu-count": str(count)}))
        objects.append(gpunode(name, *(gpu(i, "T4", node=name) for i in range(count))))
        for index, requested in enumerate(draw(st.lists(st.integers(1, 5), max_size=5))):
            where = draw(st.sampled_from(["", *map(str, range(count))]))
            notes = {"ALIYUN_COM_GPU_MEM_IDX": where} if where else {}
            objects.append(pod(f"{name}-{index}", {MEMORY: requested}, node=name, annotations=notes))
    return objects


@given(gpushare_clusters())
def test_the_table_shows_what_the_rules_of_gpushares_client_give(objects: list[Object]) -> None:
    want = gpusharecli.shown(objects)
    got = summary(found(objects), None).splitlines()
    pending = any(row.pending for row in want.rows)
    for row, line in zip(want.rows, got[1:], strict=False):
        cells = [f"{allocated}/{total}" for allocated, total in row.gpus]
        own = [str(row.pending)] if row.pending else []
        assert line.split() == [row.name, row.address, *cells, *own, f"{row.allocated}/{row.total}"]
    assert ("PENDING(Allocated)" in got[0]) == pending
    assert got[-1] == f"{want.allocated}/{want.total} ({want.percent}%)"
    assert f"GPU Memory({want.unit})" in got[0]


def test_units_of_one_mib_are_shown_in_mib() -> None:
    objects = [node(), gpunode("a", gpu(0, "T4"), unit_mib=1), pod("p", {MEMORY: 1024}, share(0, 1024))]
    assert lines(run("-o", "gpushare", objects=objects))[1].split()[2:] == ["1024/15360", "1024/15360"]


# What programs may rely on: the fields of each record in the JSON.
FIELDS = {
    "nodes": "name address ready driver policy unit_mib reported gpus unplaced conflicts problem",
    "gpus": "index uuid model memory_mib memory_slices modes auto level slices pods allocated_mib allocated_percent"
    " used_mib free_percent fragmentation_percent health reasons conflicts",
    "slices": "start size profile state pods",
    "pods": "pod phase ending record level share",
    "pending": "pod need scheduler message",
}


def test_json_has_every_value() -> None:
    got = json.loads(run("-o", "json").stdout)
    assert list(got) == ["nodes", "pending", "notes"]
    a_gpu = got["nodes"][0]["gpus"][0]
    records = {"nodes": got["nodes"], "gpus": [a_gpu], "pending": got["pending"]}
    records |= {name: a_gpu[name] for name in ("slices", "pods")}
    assert {name: " ".join(each[0]) for name, each in records.items()} == FIELDS


# Keyed by a sentence: arguments; desired are the nodes shown, and the pods that wait.
CHOICES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "all": ([], ["gpu-a", LONG], ["team/w1"]),
    "by name": ([LONG], [LONG], ["team/w1"]),
    "by namespace": (["-n", "ns"], ["gpu-a", LONG], []),
    "by another namespace": (["-n", "team"], [], ["team/w1"]),
    "by label": (["-l", "zone=b"], [LONG], ["team/w1"]),
    "by labels": (["-l", "zone=b,pool=x"], [], ["team/w1"]),
}


@pytest.mark.parametrize("sentence", CHOICES)
def test_nodes_are_chosen(sentence: str) -> None:
    arguments, want, waiting = CHOICES[sentence]
    objects = [
        node(LONG, zone="b") if each["metadata"]["name"] == LONG and each["kind"] == "Node" else each
        for each in CLUSTER
    ]
    got = json.loads(run("-o", "json", *arguments, objects=objects).stdout)
    assert [each["name"] for each in got["nodes"]] == want
    assert [each["pod"] for each in got["pending"]] == waiting
    for output in ("table", "wide"):
        assert run("-o", output, *arguments, objects=objects).exit_code == 0


# Keyed by a sentence: arguments, standard input; desired are words of the one error line.
BAD: dict[str, tuple[list[str], str, list[str]]] = {
    "a node that is not there": (["--cluster", "-", "gone"], kubectl(*CLUSTER), ["node gone", "gpu-a"]),
    "a file that is not there": (["--cluster", "missing.json"], "", ["missing.json", "No such file"]),
    "a file without nodes": (["--cluster", "-"], kubectl(), ["no Node object", "kubectl get nodes,pods,gpunodes"]),
    "a file of nonsense": (["--cluster", "-"], "{", ["standard input"]),
    "a node without a name alone": (["--cluster", "-"], kubectl({"kind": "Node", "metadata": {}}), ["metadata.name"]),
    "a selector without a value": (["--cluster", "-", "-l", "zone"], kubectl(*CLUSTER), ["--selector", "zone=a"]),
    "a file beside a cluster": (["--cluster", "-", "--context", "x"], kubectl(*CLUSTER), ["--context", "--cluster"]),
    "a file to watch": (["--cluster", "-", "--watch"], kubectl(*CLUSTER), ["--watch", "--cluster"]),
    "details of a drawing": (["--cluster", "-", "-d", "-o", "wide"], kubectl(*CLUSTER), ["--details", "-o is wide"]),
    "a kubeconfig that is not there": (["--kubeconfig", "missing"], "", ["kubeconfig missing"]),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_is_one_clear_error(sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, text, named = BAD[sentence]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["inspect", *arguments], input=text)
    assert result.exit_code == 2
    assert result.stdout == ""
    (error,) = [line for line in result.stderr.splitlines() if not line.startswith("note:")]
    assert [word for word in named if word not in error] == []


def test_notes_are_distinguished_from_the_table() -> None:
    odd = [pod(f"odd-{n}", {"nvidia.com/gpu": "-1"}, node="gpu-a") for n in range(12)]
    result = run(objects=[*CLUSTER, *odd])
    assert result.stderr.count("note: pod ns/odd-") == 10
    assert "and 2 more" in result.stderr
    assert "odd" not in result.stdout


# Live


async def filled(objects: list[Object]) -> MemoryKube:
    kube = MemoryKube()
    kinds = {"Node": NODES, "Pod": PODS, "GPUNode": GPU_NODES}
    for each in objects:
        await kube.create(kinds[each["kind"]], each)
        if each["kind"] == "GPUNode":
            await kube.patch(GPU_NODES, each["metadata"]["name"], {"status": each["status"]}, subresource="status")
    return kube


@pytest.mark.anyio
async def test_a_live_cluster_is_read_as_a_file_of_it() -> None:
    kube = await filled(CLUSTER)
    assert inspect(await observe(kube)) == found(sorted(CLUSTER, key=name_of))


@pytest.mark.anyio
async def test_a_cluster_without_the_kind_is_read_from_labels() -> None:
    kube = await filled([node("a", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "Tesla-T4"})])
    kube.uninstall(GPU_NODES)
    assert [each.gpus[0].model for each in inspect(await observe(kube)).nodes] == ["T4"]


class Shown:
    """Where clusters are shown; tells when the next one is."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Cluster] = asyncio.Queue()
        self.troubles: asyncio.Queue[Exception] = asyncio.Queue()

    async def next(self) -> Cluster:
        async with asyncio.timeout(20):
            return await self.shown.get()


@pytest.mark.anyio
@pytest.mark.parametrize("served", [True, False])
async def test_a_live_cluster_is_followed(*, served: bool) -> None:
    kube = await filled([node("a"), *([gpunode("a", gpu(0))] if served else [])])
    if not served:
        kube.uninstall(GPU_NODES)
    screen = Shown()
    task = asyncio.create_task(follow(kube, screen.shown.put_nowait, screen.troubles.put_nowait))
    assert (await screen.next()).pods == ()
    await kube.create(PODS, pod("p", NEED, share(0, 4096)))
    assert [each.pod.key for each in (await screen.next()).pods] == ["ns/p"]
    kube.stop()
    async with asyncio.timeout(20):
        assert isinstance(await screen.troubles.get(), Unavailable)
    kube.start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.anyio
async def test_what_cannot_be_shown_ends_the_following_with_its_own_error() -> None:
    def refuse(_: Cluster) -> None:
        raise InvalidInput("node x", found="none", expected="one")

    def fail(_: Cluster) -> None:
        raise ZeroDivisionError

    kube = await filled([node("a")])
    with pytest.raises(InvalidInput, match="node x"):
        await follow(kube, refuse, lambda _: None)
    with pytest.raises(ExceptionGroup) as raised:
        await follow(kube, fail, lambda _: None)
    assert raised.group_contains(ZeroDivisionError)


def test_a_node_that_was_there_once_may_go() -> None:
    drawn = _frames(_Choice(("gpu-a",), (), "", details=False, output="json"), Console(width=80))
    whole, without = read_cluster(as_fields(CLUSTER)), read_cluster(as_fields(CLUSTER[2:]))
    with pytest.raises(InvalidInput, match="node gpu-a"):
        drawn(without)
    assert '"name":"gpu-a"' in str(drawn(whole))
    assert '"nodes":[]' in str(drawn(without))


@pytest.mark.parametrize("output", ["table", "gpushare"])
def test_frames_are_what_is_printed_once(output: str) -> None:
    console = Console(width=120, color_system=None)
    drawn = _frames(_Choice((), (), "", details=False, output=output), console)
    with console.capture() as capture:
        console.print(drawn(read_cluster(as_fields(CLUSTER))), soft_wrap=output == "gpushare")
    assert capture.get().split() == run("-o", output).stdout.split()
