"""Random clusters as Kubernetes objects: nodes with and without agent, in every state, and a pending pod."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from builders.kubeobjects import gpu, gpunode, node, place, pod
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.api.tessera.pods.clusterpods import read_live_pod
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState, Impairment, UnhealthyDevice
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.protocols.allocators import devices_one_by_one
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Layout
from tessera.core.gpu.sharing import Mode, Sharing, names_device
from tessera.core.packing.ledger import Ledger
from tessera.core.workload.need import PodKey

Object = dict[str, Any]

WANT = PodKey("ns/want")
MODELS = ("A100-40GB", "A30-24GB", "T4", "L4")
LAYOUTS = {
    "A100-40GB": ((("3g.20gb", 0), ("3g.20gb", 4)), (("2g.10gb", 0), ("1g.5gb", 2), ("3g.20gb", 4)), ()),
    "A30-24GB": ((("2g.12gb", 0), ("1g.6gb", 2)), tuple(("1g.6gb", start) for start in range(4)), ()),
}
PROFILES = {"A100-40GB": ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"), "A30-24GB": ("1g.6gb", "2g.12gb", "4g.24gb")}
MODES = (Mode.WHOLE, Mode.MIG, Mode.MPS, Mode.MEMORY_SHARE)
PRODUCTS = {
    "A100-40GB": "NVIDIA-A100-SXM4-40GB",
    "A30-24GB": "NVIDIA-A30",
    "T4": "Tesla-T4",
    "L4": "NVIDIA-L4",
}
UNITS = {"nvidia.com/gpu": 4, "tessera.dev/gpu-memory": 80, "aliyun.com/gpu-mem": 80, "nvidia.com/mig-1g.5gb": 7}


def sharing_of(rng: random.Random, model: str) -> Sharing:
    layout: Layout | None = None
    if model in LAYOUTS:
        layout = tuple(place(model, profile, start) for profile, start in rng.choice(LAYOUTS[model]))
    modes = MODES if model in LAYOUTS else (Mode.WHOLE, Mode.MPS, Mode.MEMORY_SHARE)
    kinds = [
        Sharing(modes=modes),
        Sharing(modes=modes),
        Sharing(modes=modes, layout=layout),
        Sharing(modes=tuple(rng.sample(modes, 2))),
        Sharing(modes=(Mode.WHOLE,)),
        Sharing(modes=()),
        Sharing(modes=(Mode.MEMORY_SHARE,)),
        Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),), renamed=rng.random() < 0.5),
        Sharing(modes=(Mode.MPS,), replicas=(("", 4),), allocator=rng.choice(("kubelet", "scheduler"))),
    ]
    if layout:
        clients = tuple((profile, 2) for profile in sorted({each.profile for each in layout}))
        both = (Mode.MIG, Mode.MIG_TIME_SLICING)
        kinds.append(Sharing(modes=(Mode.MIG,), layout=layout, allow_repartition=False))
        kinds.append(Sharing(modes=both, layout=layout, allow_repartition=False, replicas=clients))
    return rng.choice(kinds)


def random_cluster(rng: random.Random, *, desired: bool, running: int) -> list[Object]:
    """Return the objects of a cluster with a pending pod `WANT`; whether devices may be desired; the running pods.

    Of some running pods the request cannot be read.
    """
    objects: list[Object] = []
    models: list[str] = []
    for number in range(rng.choice((1, 1, 2, 3))):
        first = rng.choice(MODELS)
        own = [first] * rng.choice((1, 2)) if rng.random() < 0.7 else [first, rng.choice(MODELS)]
        models += own
        objects += _node(rng, f"n{number}", own, desired=desired)
    want = _pod(rng, "want", models)
    placed: list[Object] = []
    for number in range(running):
        placed += _placed([*objects, *placed], _pod(rng, f"r{number}", models), unreadable=rng.random() < 0.2)
    advertise(objects, placed)
    return [*objects, *placed, want]


def advertise(objects: Sequence[Object], placed: Sequence[Object]) -> None:
    """Put into nodes with an agent what it advertises by name: healthy devices, and on managed GPUs the kubelet's."""
    cluster = read_cluster(as_fields([*objects, *placed]))
    nodes = {each["metadata"]["name"]: each["status"]["allocatable"] for each in objects if each["kind"] == "Node"}
    for each in cluster.nodes:
        if each.state is not None:
            shares = [share for pod in cluster.pods if pod.node == each.node.name for share in pod.shares]
            found = Counter(share.resource for gpu in each.state.gpus for share in _by_name(gpu, each.state, shares))
            amounts = {name: count for name, count in nodes[each.node.name].items() if not names_device(name)}
            nodes[each.node.name].clear()
            nodes[each.node.name].update(amounts | {name: str(count) for name, count in found.items()})


def _by_name(gpu: Gpu, state: GpuNodeState, shares: Sequence[Share]) -> Iterator[Share]:
    """Yield the healthy devices by name of a GPU, those in use too."""
    unhealthy = {
        (each.device.placement and each.device.placement.start)
        for each in state.unhealthy
        if each.device.gpu == gpu.uuid
    }
    if None in unhealthy or gpu.sharing.allocator == "scheduler":
        return
    if not gpu.sharing.managed:
        for device in gpu.devices:
            if device.placement is None or device.placement.start not in unhealthy:
                yield from [Share.of_device(gpu.index, device, device.resource)] * device.clients
        return
    own = [share for share in shares if share.gpu == gpu.index]
    yield from (share for share in own if names_device(share.resource) and share.start not in unhealthy)
    for uuid, placement in devices_one_by_one(state.offered):
        share = named_share(gpu, placement)
        healthy = uuid == gpu.uuid and share.start not in unhealthy
        if healthy and not any(faults(GpuType.of(gpu), {"own": tuple(own), "idle": (share,)})):
            yield share


def _node(rng: random.Random, name: str, models: Sequence[str], *, desired: bool) -> list[Object]:
    agent = rng.random() < 0.85
    units = {name: count for name, count in UNITS.items() if rng.random() < 0.7}
    if not agent:
        units = {name: count for name, count in units.items() if not names_device(name)}
        units["nvidia.com/gpu"] = len(models)
    room = {"cpu": rng.choice(("64", "2")), "memory": rng.choice(("256Gi", "4Gi")), "pods": rng.choice(("110", "1"))}
    labels = {} if agent else {"nvidia.com/gpu.product": PRODUCTS[models[0]], "nvidia.com/gpu.count": str(len(models))}
    made = node(name, {**{key: str(count) for key, count in units.items()}, **room}, **labels)
    made["status"]["conditions"][0]["status"] = "True" if rng.random() < 0.9 else "False"
    made["spec"] = {"unschedulable": rng.random() < 0.08}
    if rng.random() < 0.08:
        made["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    if not agent:
        return [made]
    gpus: list[Gpu] = []
    unhealthy: list[UnhealthyDevice] = []
    wanted: list[DesiredDevices] = []
    for index, model in enumerate(models):
        each = msgspec.structs.replace(gpu(index, model, sharing=sharing_of(rng, model)), uuid=f"GPU-{name}-{index}")
        gpus.append(each)
        if rng.random() < 0.15:
            unhealthy.append(UnhealthyDevice(device=DeviceId(each.uuid), reason="Xid 79"))
        elif each.sharing.layout and rng.random() < 0.15:
            unhealthy.append(UnhealthyDevice(device=DeviceId(each.uuid, each.sharing.layout[0]), reason="Xid 94"))
        if desired and each.sharing.managed and rng.random() < 0.3:
            instances = each.sharing.layout or ()
            whole = not instances and Mode.WHOLE in each.sharing.modes
            wanted += [DesiredDevices(gpu=each.uuid, whole=whole, instances=instances)] if whole or instances else []
    impaired: tuple[Impairment, ...] = ()
    if rng.random() < 0.15:
        subject = rng.choice(("tessera.dev/gpu-memory", "nvidia.com/gpu"))
        impaired = (Impairment(kind="Withheld", subject=subject, message="the resource is not advertised: reasons"),)
    report = gpunode(
        name,
        *gpus,
        reported=True,
        unhealthy=tuple(unhealthy),
        desired=tuple(wanted),
        offered=tuple(each for each in wanted if rng.random() < 0.8),
        impaired=impaired,
        driver="580.1",
    )
    if rng.random() < 0.08:
        del report["status"]
    return [made, report]


def _pod(rng: random.Random, name: str, models: Sequence[str]) -> Object:
    profiles = PROFILES.get(rng.choice(models), ())
    named = ["nvidia.com/gpu", "nvidia.com/gpu.shared", *(f"nvidia.com/mig-{profile}" for profile in profiles)]
    resource = rng.choice(["tessera.dev/gpu-memory", "tessera.dev/gpu-memory", "aliyun.com/gpu-mem", *named])
    limits: dict[str, str | int] = {resource: rng.choice((1, 2) if resource in named else (1, 4, 10, 20, 39))}
    if resource == "tessera.dev/gpu-memory":
        limits |= {"tessera.dev/gpu-compute": rng.choice((10, 50, 100))} if rng.random() < 0.3 else {}
        limits |= {"tessera.dev/gpu-count": rng.choice((1, 2, 3))} if rng.random() < 0.3 else {}
    annotations = {"tessera.dev/isolation": rng.choice(("hardware", "driver", "none"))} if rng.random() < 0.3 else {}
    annotations |= {"tessera.dev/gpu-model": rng.choice(models)} if rng.random() < 0.25 else {}
    limits |= {"cpu": rng.choice(("1", "10")), "memory": rng.choice(("1Gi", "20Gi"))}
    return pod(name, limits, node=None, annotations=annotations)


def _placed(objects: Sequence[Object], waiting: Object, *, unreadable: bool) -> list[Object]:
    """Return the pod where the scheduler would place it; none where it fits nowhere."""
    cluster, live = read_cluster(as_fields(objects)), read_live_pod(waiting)
    ledger = Ledger.of(cluster, by_name=live.need.by_name)
    names = [each.node.name for each in cluster.nodes if not each.problem]
    names = [name for name in names if name not in ledger.unsuited(live.need, names)]
    best = ledger.best(live.need, names) if live.need.requests and not live.wrong else None
    shares = ledger.choose(live.need, best) if best else ""
    if best is None or isinstance(shares, str):
        return []
    limits = waiting["spec"]["containers"][0]["resources"]["limits"]
    metadata = waiting["metadata"]
    annotations = metadata["annotations"] | ({"tessera.dev/isolation": "since removed"} if unreadable else {})
    return [pod(metadata["name"], limits, *shares, node=best, annotations=annotations)]
