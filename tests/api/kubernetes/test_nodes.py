"""Node objects: capacity, and GPUs as GPU feature discovery, GKE and the device plugins show them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.api.tessera.cluster import fleets
from tessera.core.cluster.snapshot import Node, Snapshot, Taint
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import counts_of, is_legal
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.errors import InvalidInput

Plain = documents.Plain


def snapshot(labels: dict[str, str], allocatable: dict[str, str] | None = None) -> Snapshot:
    metadata: Plain = {"name": "n", "labels": dict(labels)}
    data: dict[str, Plain] = {"kind": "Node", "metadata": metadata}
    if allocatable is not None:
        data["status"] = {"allocatable": dict(allocatable)}
    return fleets.read(documents.read("nodes.yaml", documents.write(data)))


def read_node(labels: dict[str, str], allocatable: dict[str, str] | None = None) -> Node:
    return snapshot(labels, allocatable).nodes[0]


def labels(product: str, *pairs: str) -> dict[str, str]:
    """Labels of GPU feature discovery: `labels("Tesla-T4", "gpu.count=2")`."""
    return {"nvidia.com/gpu.product": product} | dict(f"nvidia.com/{pair}".split("=") for pair in pairs)


def gke(accelerator: str, *pairs: str) -> dict[str, str]:
    """Labels of GKE: `gke("nvidia-l4", "gpu-partition-size=1g.5gb")`."""
    named = {"cloud.google.com/gke-accelerator": accelerator}
    return named | dict(f"cloud.google.com/gke-{pair}".split("=") for pair in pairs)


def gpus(count: str) -> dict[str, str]:
    return {"nvidia.com/gpu": count}


def test_capacity_is_what_is_allocatable() -> None:
    text = """
    kind: Node
    metadata: {name: n, labels: {b: "2", a: "1"}}
    spec:
      unschedulable: true
      taints: [{key: x, value: y, effect: NoSchedule}, {key: z, effect: PreferNoSchedule}]
    status:
      capacity: {cpu: "8", memory: 16Gi, pods: "110"}
      allocatable:
        {cpu: 7910m, memory: 15000000Ki, pods: "58", models.tessera.dev/llama: "256", models.tessera.dev/gone: 0}
    """
    assert fleets.read(documents.read("n", text)).nodes == (
        Node(
            name=read_node({}).name,
            cpu_milli=7910,
            memory_mib=14648,
            max_pods=58,
            labels=(("a", "1"), ("b", "2")),
            taints=(Taint(key="x", value="y", effect="NoSchedule"), Taint(key="z", effect="PreferNoSchedule")),
            unschedulable=True,
            cached_models=("llama",),
        ),
    )


def test_capacity_stands_in_where_nothing_is_allocatable() -> None:
    text = "kind: Node\nmetadata: {name: n}\nstatus: {capacity: {cpu: 8}}\n"
    got = fleets.read(documents.read("n", text)).nodes[0]
    assert (got.cpu_milli, got.memory_mib, got.max_pods) == (8000, 64 << 20, 110)


T4, H100 = "Tesla-T4", "NVIDIA-H100-80GB-HBM3"
WHOLE: dict[str, tuple[dict[str, str], dict[str, str] | None, list[Sharing]]] = {
    "no GPU": ({}, {"cpu": "4"}, []),
    "a GPU of another maker": ({}, {"amd.com/gpu": "8"}, []),
    "whole GPUs are managed": (labels(H100, "gpu.count=8"), gpus("8"), [AUTO] * 8),
    "without capacity the label counts": (labels(T4, "gpu.count=2"), None, [AUTO] * 2),
    "without anything it is one": (labels(T4), None, [AUTO]),
    "without a count capacity counts": (labels(T4), gpus("2"), [AUTO] * 2),
    "of GPUs that are not offered the last is closed": (
        labels(T4, "gpu.count=2"),
        gpus("1"),
        [AUTO, Sharing(modes=())],
    ),
    "the instance type counts where GPU feature discovery does not": (
        {"node.kubernetes.io/instance-type": "g4dn.12xlarge"},
        gpus("4"),
        [AUTO] * 4,
    ),
    "replicas by the instance type": (
        {"node.kubernetes.io/instance-type": "g4dn.12xlarge"},
        gpus("40"),
        [Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 10),))] * 4,
    ),
    "gpushare needs no model": (
        {},
        {"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2"},
        [Sharing(modes=(Mode.MEMORY_SHARE,))] * 2,
    ),
    "time-slicing": (
        labels("Tesla-T4-SHARED", "gpu.count=2", "gpu.replicas=4", "gpu.sharing-strategy=time-slicing"),
        gpus("8"),
        [Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))] * 2,
    ),
    "renamed MPS": (
        labels(T4, "gpu.count=1", "gpu.replicas=4", "gpu.sharing-strategy=mps"),
        {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"},
        [Sharing(modes=(Mode.MPS,), replicas=(("", 4),), renamed=True)],
    ),
    "replicas that no label tells": (
        labels(T4, "gpu.count=2"),
        gpus("20"),
        [Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 10),))] * 2,
    ),
    "no sharing as GPU feature discovery may write it": (
        labels(T4, "gpu.count=1", "gpu.replicas=0", "gpu.sharing-strategy=none"),
        gpus("1"),
        [AUTO],
    ),
    "GKE without sharing": (gke("nvidia-tesla-t4", "accelerator-count=2"), gpus("2"), [AUTO] * 2),
    "GKE time-sharing": (
        gke("nvidia-tesla-t4", "gpu-sharing-strategy=time-sharing", "max-shared-clients-per-gpu=3"),
        gpus("6"),
        [Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))] * 2,
    ),
    "GKE MPS": (
        gke("nvidia-l4", "gpu-sharing-strategy=mps", "max-shared-clients-per-gpu=20"),
        gpus("20"),
        [Sharing(modes=(Mode.MPS,), replicas=(("", 20),))],
    ),
    "gpushare": (
        labels(T4, "gpu.count=2"),
        {"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2"},
        [Sharing(modes=(Mode.MEMORY_SHARE,))] * 2,
    ),
    "gpushare beside NVIDIA's plugin, no count": (
        labels(T4),
        {"aliyun.com/gpu-mem": "14", "nvidia.com/gpu": "1"},
        [Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))],
    ),
    "the owner fixes whole GPUs": (
        labels(T4) | {"tessera.dev/sharing": "whole"},
        gpus("1"),
        [Sharing(modes=(Mode.WHOLE,))],
    ),
    "the owner leaves replicas to Tessera": (
        labels(T4, "gpu.replicas=4") | {"tessera.dev/sharing": "auto"},
        gpus("4"),
        [AUTO],
    ),
    "Tessera's label names the model before all others": (
        labels("Something-New") | {"tessera.dev/gpu-model": "L4"},
        gpus("1"),
        [AUTO],
    ),
}


@pytest.mark.parametrize(("shown", "allocatable", "want"), WHOLE.values(), ids=WHOLE)
def test_whole_gpus(shown: dict[str, str], allocatable: dict[str, str] | None, want: list[Sharing]) -> None:
    got = read_node(shown, allocatable)
    assert [gpu.sharing for gpu in got.gpus] == want
    assert [gpu.index for gpu in got.gpus] == list(range(len(want)))


MIG: dict[str, tuple[dict[str, str], dict[str, str] | None, list[dict[str, int]]]] = {
    "GKE partitions": (gke("nvidia-h100-80gb", "gpu-partition-size=1g.10gb"), gpus("56"), [{"1g.10gb": 7}] * 8),
    "GKE partitions with a count": (
        gke("nvidia-tesla-a100", "gpu-partition-size=3g.20gb", "accelerator-count=2"),
        None,
        [{"3g.20gb": 2}] * 2,
    ),
    "GKE partitions with time-sharing": (
        gke(
            "nvidia-tesla-a100",
            "gpu-partition-size=2g.10gb",
            "gpu-sharing-strategy=time-sharing",
            "max-shared-clients-per-gpu=2",
        ),
        gpus("12"),
        [{"2g.10gb": 3}] * 2,
    ),
    "strategy single": (
        labels("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "mig.strategy=single", "gpu.count=14", "gpu.memory=4864"),
        gpus("14"),
        [{"1g.5gb": 7}] * 2,
    ),
    "strategy single without a count": (
        labels("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED", "mig.strategy=single"),
        gpus("3"),
        [{"3g.20gb": 2}, {"3g.20gb": 1}],
    ),
    "strategy mixed, alike on all GPUs": (
        labels(
            "NVIDIA-A100-SXM4-40GB",
            "mig.strategy=mixed",
            "gpu.count=2",
            "mig-1g.5gb.count=4",
            "mig-2g.10gb.count=2",
            "mig-3g.20gb.count=2",
        ),
        {"nvidia.com/mig-1g.5gb": "4", "nvidia.com/mig-2g.10gb": "2", "nvidia.com/mig-3g.20gb": "2"},
        [{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}] * 2,
    ),
    "strategy mixed beside whole GPUs": (
        labels("NVIDIA-A100-SXM4-40GB", "mig.strategy=mixed", "gpu.count=4", "mig-3g.20gb.count=3"),
        {"nvidia.com/gpu": "2", "nvidia.com/mig-3g.20gb": "3"},
        [{"3g.20gb": 2}, {"3g.20gb": 1}, {}, {}],
    ),
    "strategy mixed without labels": (
        labels("NVIDIA-A100-SXM4-40GB"),
        {"nvidia.com/mig-1g.5gb": "9", "nvidia.com/mig-1g.5gb.me": "1"},
        [{"1g.5gb": 7}, {"1g.5gb": 2, "1g.5gb+me": 1}],
    ),
    "MIG is on everywhere, some GPUs are empty": (
        labels("NVIDIA-A100-SXM4-40GB", "gpu.count=2", "mig-7g.40gb.count=1"),
        {"nvidia.com/mig-7g.40gb": "1"},
        [{"7g.40gb": 1}, {}],
    ),
}


@pytest.mark.parametrize(("shown", "allocatable", "want"), MIG.values(), ids=MIG)
def test_mig_instances(shown: dict[str, str], allocatable: dict[str, str] | None, want: list[dict[str, int]]) -> None:
    got = read_node(shown, allocatable)
    assert [dict(counts_of(gpu.model, gpu.sharing.layout or ())) for gpu in got.gpus] == want
    assert all(gpu.memory_mib == gpu.model.memory_mib for gpu in got.gpus)
    assert not any(gpu.sharing.layout and gpu.sharing.allow_repartition for gpu in got.gpus)


def test_slices_of_gke_are_advertised_as_gpus() -> None:
    time_shared = ("gpu-sharing-strategy=time-sharing", "max-shared-clients-per-gpu=2")
    got = read_node(gke("nvidia-h100-80gb", "gpu-partition-size=1g.10gb", *time_shared), gpus("14")).gpus[0]
    assert got.sharing.modes == (Mode.MIG, Mode.MIG_TIME_SLICING)
    assert {(device.resource, device.clients) for device in got.devices} == {("nvidia.com/gpu", 2)}


def test_replicas_of_mixed_instances() -> None:
    pairs = ("gpu.count=1", "mig-3g.20gb.count=2", "mig-3g.20gb.replicas=4", "mig-3g.20gb.sharing-strategy=mps")
    got = read_node(labels("NVIDIA-A100-SXM4-40GB", *pairs), {"nvidia.com/mig-3g.20gb.shared": "8"}).gpus[0]
    assert {(device.mode, device.resource, device.clients) for device in got.devices} == {
        (Mode.MIG_MPS, "nvidia.com/mig-3g.20gb.shared", 4)
    }


def test_unused_instances_may_be_allow_repartition_where_the_owner_says_so() -> None:
    shown = labels("NVIDIA-A100-SXM4-40GB", "mig-3g.20gb.count=2") | {"tessera.dev/sharing": "auto"}
    got = read_node(shown, {"nvidia.com/mig-3g.20gb": "2"}).gpus[0].sharing
    assert (got.allow_repartition, got.modes, len(got.layout or ())) == (True, AUTO.modes, 2)


MEMORY = {
    "the driver's figure": ("15109", 15109),
    "a share's figure is not the GPU's": ("3840", 15360),
    "none": ("", 15360),
}


SHARED = {
    "less than the GPU has": ({"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2"}, T4, 14336),
    "rounded to units": ({"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}, T4, 15360),
    "in MiB": ({"aliyun.com/gpu-mem": "30218", "aliyun.com/gpu-count": "2"}, T4, 15109),
    "of a model that nobody knows": ({"aliyun.com/gpu-mem": "46", "aliyun.com/gpu-count": "2"}, "", 23552),
    "of a model that Tessera does not know": ({"aliyun.com/gpu-mem": "46", "aliyun.com/gpu-count": "2"}, "X9", 23552),
}


@pytest.mark.parametrize(("allocatable", "product", "want"), SHARED.values(), ids=SHARED)
def test_no_more_memory_than_gpushare_shares_out(allocatable: dict[str, str], product: str, want: int) -> None:
    got = read_node(labels(product) if product else {}, allocatable).gpus
    assert [(gpu.memory_mib, gpu.model.memory_mib) for gpu in got] == [(want, 15360 if product == T4 else want)] * 2


def test_a_part_of_a_gpu_cannot_be_partitioned_any_further() -> None:
    quarter = {"name": "rtx-pro-server-6000", "memory": "24576", "count": "0", "manufacturer": "nvidia"}
    shown = {f"karpenter.k8s.aws/instance-gpu-{key}": value for key, value in quarter.items()}
    (got,) = read_node(shown, gpus("1")).gpus
    whole = model("RTX-PRO-6000-Blackwell-96GB")
    assert whole.profiles
    assert (got.model.name, got.memory_mib) == (whole.name, 24576)
    assert (got.model.profiles, got.model.memory_slices, got.model.compute_slices) == ((), 0, 0)


LOST = {
    "a GPU": (
        labels(T4, "gpu.count=4"),
        {"nvidia.com/gpu": "3"},
        "1 of its 4 GPUs is not offered (3 allocatable of 4)",
    ),
    "two GPUs with replicas": (
        labels(T4, "gpu.count=4", "gpu.replicas=5"),
        {"nvidia.com/gpu": "10"},
        "2 of its 4 GPUs are not offered (10 allocatable of 20)",
    ),
    "an instance of strategy single": (
        labels("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "mig.strategy=single", "gpu.count=4"),
        {"nvidia.com/gpu": "3"},
        "1 of its 4 instances 3g.20gb is not offered (3 allocatable of capacity 4)",
    ),
    "instances of strategy mixed": (
        labels("NVIDIA-A100-SXM4-40GB", "gpu.count=2", "mig-1g.5gb.count=14", "mig-1g.5gb.replicas=2"),
        {"nvidia.com/mig-1g.5gb": "10"},
        "9 of its 14 instances 1g.5gb are not offered (10 allocatable of capacity 28)",
    ),
}


@pytest.mark.parametrize(("shown", "allocatable", "want"), LOST.values(), ids=LOST)
def test_what_is_lost_is_offered_to_nobody(shown: dict[str, str], allocatable: dict[str, str], want: str) -> None:
    (name,) = allocatable
    most = want.rpartition(" ")[2].removesuffix(")")
    metadata: Plain = {"name": "n", "labels": dict(shown)}
    status: Plain = {"allocatable": dict(allocatable), "capacity": {name: most}}
    data: Plain = {"kind": "Node", "metadata": metadata, "status": status}
    got = fleets.read(documents.read("nodes.yaml", documents.write(data)))
    assert want in got.notes[0]
    offered = sum(device.clients for gpu in got.nodes[0].gpus for device in gpu.devices)
    whole = sum(gpu.sharing == AUTO for gpu in got.nodes[0].gpus)
    assert offered or whole == int(allocatable[name])
    assert not offered or offered == int(allocatable[name])


READY = {"True": [], "False": ["node.kubernetes.io/not-ready"], "Unknown": ["node.kubernetes.io/unreachable"], "": []}


@pytest.mark.parametrize(("status", "want"), READY.items())
def test_a_node_that_is_not_ready_takes_no_pods(status: str, want: list[str]) -> None:
    def taints(spec: str) -> list[str]:
        conditions = f"[{{type: MemoryPressure, status: 'False'}}, {{type: Ready, status: '{status}'}}]"
        text = f"kind: Node\nmetadata: {{name: n}}\nspec: {spec}\nstatus: {{conditions: {conditions}}}\n"
        return [taint.key for taint in fleets.read(documents.read("n", text)).nodes[0].taints]

    assert taints("{}") == want
    present = "{taints: [{key: node.kubernetes.io/not-ready, effect: NoExecute}]}"
    assert taints(present) == ["node.kubernetes.io/not-ready"]


def hami(*gpus: str, labels: dict[str, str] | None = None, product: str = "NVIDIA-Tesla T4") -> Snapshot:
    listed = ",".join(
        f'{{"id":"GPU-{index}","index":{index},"count":10,"type":"{product}","health":true,{more}}}'
        for index, more in enumerate(gpus)
    )
    metadata: Plain = {
        "name": "n",
        "labels": dict(labels or {}),
        "annotations": {"hami.io/node-nvidia-register": f"[{listed}]"},
    }
    data: Plain = {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "20"}}}
    return fleets.read(documents.read("nodes.yaml", documents.write(data)))


def test_gpus_that_hami_registered() -> None:
    got = hami('"devmem":15109', '"devmem":30720').nodes[0]
    assert [(gpu.uuid, gpu.model.name, gpu.memory_mib) for gpu in got.gpus] == [
        ("GPU-0", "T4", 15109),
        ("GPU-1", "T4", 15360),
    ]
    assert {gpu.sharing for gpu in got.gpus} == {Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))}
    assert got.ordered
    managed = hami('"devmem":15109', labels={"tessera.dev/sharing": "auto"}).nodes[0]
    assert managed.gpus[0].sharing == AUTO
    partitioned = hami('"devmem":15109,"mode":"mig"').nodes[0]
    assert partitioned.gpus[0].sharing == Sharing(modes=(Mode.MEMORY_SHARE,))
    unhealthy = hami('"devmem":15109,"health":false').nodes[0]
    assert unhealthy.gpus[0].sharing == Sharing(modes=())


def test_a_registration_of_hami_that_cannot_be_used_is_noted() -> None:
    got = hami('"devmem":15109', labels={"nvidia.com/gpu.product": T4}, product="NVIDIA-X9")
    assert "HAMi's annotation hami.io/node-nvidia-register is not used: " in got.notes[0]
    assert len(got.nodes[0].gpus) == 20


@pytest.mark.parametrize(("label", "want"), MEMORY.values(), ids=MEMORY)
def test_memory_is_that_of_a_whole_gpu(label: str, want: int) -> None:
    pairs = (f"gpu.memory={label}",) if label else ()
    assert read_node(labels(T4, *pairs), gpus("1")).gpus[0].memory_mib == want


NOTES = {
    "a label without GPUs": (
        labels(T4, "gpu.count=1"),
        gpus("0"),
        "node n: it is labeled nvidia.com/gpu.product=Tesla-T4 but advertises no GPU, so it has none here",
    ),
    "more instances than fit": (
        labels("NVIDIA-A100-SXM4-40GB", "gpu.count=1", "mig-3g.20gb.count=3"),
        {"nvidia.com/mig-3g.20gb": "3"},
        "node n: 1 x 3g.20gb do not fit its 1 MIG GPUs and are omitted",
    ),
    "more GPUs than a node has": (
        {},
        {"aliyun.com/gpu-mem": "1k", "aliyun.com/gpu-count": "1k"},
        "node n: it says that it has 1000 GPUs, and the first 256 are read",
    ),
}


@pytest.mark.parametrize(("shown", "allocatable", "want"), NOTES.values(), ids=NOTES)
def test_what_does_not_agree_is_noted(shown: dict[str, str], allocatable: dict[str, str], want: str) -> None:
    assert snapshot(shown, allocatable).notes == (want,)


REFUSED: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "an unknown model": (
        labels("NVIDIA-X9000"),
        gpus("1"),
        "nodes.yaml, document 1, line 4: Node n: metadata.labels[nvidia.com/gpu.product]: GPU model: 'NVID",
    ),
    "no model": (
        {},
        gpus("1"),
        "Node n: GPUs of an unknown model: set the label tessera.dev/gpu-model=MODEL",
    ),
    "a partition the model does not offer": (
        gke("nvidia-h100-80gb", "gpu-partition-size=1g.5gb"),
        gpus("7"),
        "gke-gpu-partition-size]: MIG profile of H100-80GB: '1g.5gb' is not a profile this model offers",
    ),
    "a product with an unknown profile": (
        labels("NVIDIA-A100-SXM4-40GB-MIG-9g.5gb", "mig.strategy=single"),
        gpus("7"),
        "gpu.product]: MIG profile of A100-40GB",
    ),
    "instances of an unknown profile": (
        labels("NVIDIA-A100-SXM4-40GB", "mig-9g.5gb.count=1"),
        {"nvidia.com/mig-9g.5gb": "1"},
        "metadata.labels[nvidia.com/mig-9g.5gb.count]: MIG profile of A100-40GB",
    ),
    "a profile without placements": (
        labels("RTX-PRO-5000-Blackwell-48GB-MIG-1g.12gb", "mig.strategy=single"),
        gpus("4"),
        "a profile of RTX-PRO-5000-Blackwell-48GB whose placements are known",
    ),
    "a count that is none": (labels(T4, "gpu.count=many"), gpus("1"), "gpu.count]: 'many' is not a Kubernetes"),
    "an unknown wish": (labels(T4) | {"tessera.dev/sharing": "x"}, gpus("1"), "'x' is not one of the words"),
    "half a GPU": (
        labels(T4),
        gpus("0.5"),
        "allocatable[nvidia.com/gpu]: '0.5' is not a whole",
    ),
}


@pytest.mark.parametrize(("shown", "allocatable", "want"), REFUSED.values(), ids=REFUSED)
def test_a_node_that_cannot_be_read_is_refused(shown: dict[str, str], allocatable: dict[str, str], want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        snapshot(shown, allocatable)
    assert want in str(caught.value)


_PROFILES = [each.name for each in model("A100-40GB").profiles]


@given(
    st.dictionaries(st.sampled_from(_PROFILES), st.integers(0, 20)),
    st.integers(0, 4),
    st.none() | st.integers(0, 6),
)
def test_any_mixture_of_instances_is_laid_out_legally(counts: dict[str, int], whole: int, count: int | None) -> None:
    resources = {f"nvidia.com/mig-{name.replace('+', '.')}": str(number) for name, number in counts.items()}
    shown = labels("NVIDIA-A100-SXM4-40GB", *([] if count is None else [f"gpu.count={count}"]))
    got = read_node(shown, resources | gpus(str(whole)))
    held: dict[str, int] = {}
    for gpu in got.gpus:
        assert is_legal(gpu.model, gpu.sharing.layout or ())
        for name, number in counts_of(gpu.model, gpu.sharing.layout or ()):
            held[name] = held.get(name, 0) + number
    assert all(held[name] <= counts[name] for name in held)


_KEYS = st.sampled_from(
    [
        *("nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas"),
        *("nvidia.com/mig.strategy", "nvidia.com/mig-1g.5gb.count", "nvidia.com/mig-x.count"),
        *("cloud.google.com/gke-accelerator", "cloud.google.com/gke-gpu-partition-size", "tessera.dev/sharing"),
        *("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "aliyun.com/gpu-mem", "cpu", "pods"),
    ]
)
_VALUES = st.sampled_from(
    [
        "1",
        "8",
        "0",
        "-1",
        "9" * 30,
        "single",
        "mixed",
        "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "nvidia-l4",
        "1g.5gb",
        "auto",
    ]
)


@given(st.dictionaries(_KEYS, _VALUES), st.none() | st.dictionaries(_KEYS, _VALUES))
def test_any_node_is_read_or_refused(shown: dict[str, str], allocatable: dict[str, str] | None) -> None:
    with contextlib.suppress(InvalidInput):
        assert len(read_node(shown, allocatable).gpus) <= 256
