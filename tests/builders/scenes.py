"""Plans built by hand, one for each way a fleet can look: for tests of what shows plans to people."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from tessera.core.cluster.occupancy import PodShare
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Running, Share, Snapshot, Taint
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.exact import Bound
from tessera.core.packing.plan import GpuLayout, PendingPod, Plan, PlannedDevice
from tessera.core.workload.need import DeviceRequest, Form, Need, Pod, PodKey

UNITS = {"H100-80GB": 8, "A100-40GB": 8, "RTX-PRO-6000-BSE": 12}
MIB = {"H100-80GB": 81559, "A100-40GB": 40960, "RTX-PRO-6000-BSE": 97887, "T4": 15360, "L4": 23034, "L40S": 46068}
SIZES = {
    "1g.10gb": 1,
    "1g.5gb": 1,
    "2g.10gb": 2,
    "3g.20gb": 4,
    "3g.40gb": 4,
    "1g.24gb": 3,
    "2g.48gb": 6,
    "1g.24gb+gfx": 3,
}


class Scene:
    """A plan and its snapshot, put together piece by piece."""

    def __init__(self, policy: str = "tessera") -> None:
        self.policy = policy
        self.nodes: list[Node] = []
        self.devices: dict[tuple[NodeName, int], list[PlannedDevice]] = {}
        self.shares: dict[PodKey, tuple[NodeName, list[Share]]] = {}
        self.pods: dict[PodKey, Pod] = {}
        self.running: set[PodKey] = set()
        self.waiting: list[PendingPod] = []
        self.warnings: tuple[str, ...] = ()
        self.bound: Bound | None = None

    def node(self, name: str, *models: str, **more: object) -> NodeName:
        """Add a node with its GPUs."""
        gpus = tuple(
            Gpu(
                index=index,
                model=GpuModel(name=model, arch="", memory_mib=MIB[model], memory_slices=UNITS.get(model, 0)),
                memory_mib=MIB[model],
            )
            for index, model in enumerate(models)
        )
        fields = {"cpu_milli": 64_000, "memory_mib": 262_144, **more}
        node = Node(name=NodeName(name), gpus=gpus, **fields)  # type: ignore[arg-type]  # fields by name
        self.nodes.append(node)
        return node.name

    def pod(self, name: str, owner: str = "", *, running: bool = False, need: Need | None = None) -> PodKey:
        """Add a pod, pending or running."""
        key = PodKey(f"default/{name}")
        requests = (DeviceRequest(resource="nvidia.com/gpu"),)
        self.pods[key] = Pod(
            key=key, need=need or Need(cpu_milli=2000, memory_mib=8192, requests=requests), owner=owner
        )
        if running:
            self.running.add(key)
        return key

    def give(self, pod: PodKey, node: NodeName, share: Share | None) -> None:
        """Let a pod hold a share, or only run on a node."""
        self.shares.setdefault(pod, (node, []))
        if share:
            self.shares[pod][1].append(share)

    def instance(
        self, place: tuple[NodeName, int], profile: str, start: int, pods: Iterable[PodKey] = (), **more: object
    ) -> None:
        """Cut a MIG instance and let pods hold it."""
        node, gpu = place
        size = SIZES[profile]
        fields: dict[str, object] = {"mode": Mode.MIG, "clients": 1, "memory_mib": 9856 * size, **more}
        part = PlannedDevice(placement=Placement(start, size, profile), **fields)  # type: ignore[arg-type]  # fields by name
        share = _share(gpu, part, part.memory_mib // max(1, part.clients))
        self.devices.setdefault((node, gpu), []).append(self._held(part, node, dict.fromkeys(pods, share)))

    def whole(self, place: tuple[NodeName, int], mode: Mode, clients: int, pods: Mapping[PodKey, int]) -> None:
        """Use a GPU without MIG; pods by the MiB they are allocated."""
        node, gpu = place
        memory = next(n for n in self.nodes if n.name == node).gpus[gpu].memory_mib
        part = PlannedDevice(placement=None, mode=mode, memory_mib=memory, clients=clients)
        self.devices[node, gpu] = [self._held(part, node, {pod: _share(gpu, part, mib) for pod, mib in pods.items()})]

    def _held(self, part: PlannedDevice, node: NodeName, shares: Mapping[PodKey, Share]) -> PlannedDevice:
        for pod, share in shares.items():
            self.give(pod, node, share)
        return msgspec.structs.replace(part, pod_shares=tuple(PodShare(*each) for each in shares.items()))

    def wait(self, pod: PodKey, reason: str) -> None:
        """Let a pod wait."""
        self.waiting.append(PendingPod(pod=pod, reason=reason))

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot so far."""
        held = {key: Assignment(pod=key, node=node, shares=tuple(s)) for key, (node, s) in self.shares.items()}
        return Snapshot(
            nodes=tuple(self.nodes),
            running=tuple(Running(pod=self.pods[key], assignment=held[key]) for key in held if key in self.running),
            pending=tuple(pod for key, pod in self.pods.items() if key not in self.running),
        )

    @property
    def plan(self) -> Plan:
        """The plan so far."""
        layouts = []
        for node in self.nodes:
            for gpu in node.gpus:
                devices = tuple(self.devices.get((node.name, gpu.index), ()))
                layouts.append(
                    GpuLayout(
                        node=node.name,
                        gpu=gpu.index,
                        model=gpu.model.name,
                        memory_mib=gpu.memory_mib,
                        memory_slices=gpu.model.memory_slices,
                        allocated_mib=sum(
                            share.memory_mib
                            for where, shares in self.shares.values()
                            for share in shares
                            if (where, share.gpu) == (node.name, gpu.index)
                        ),
                        mig=any(part.placement for part in devices),
                        devices=devices,
                    )
                )
        return Plan(
            policy=self.policy,
            assignments=tuple(
                Assignment(pod=key, node=node, shares=tuple(shares))
                for key, (node, shares) in self.shares.items()
                if key not in self.running
            ),
            pending=tuple(self.waiting),
            layouts=tuple(layouts),
            warnings=self.warnings,
            bound=self.bound,
        )


def _share(gpu: int, part: PlannedDevice, memory_mib: int) -> Share:
    return Share(
        gpu=gpu,
        mode=part.mode,
        profile=part.placement.profile if part.placement else None,
        start=part.placement.start if part.placement else None,
        memory_mib=memory_mib,
        compute_percent=0 if part.mode is Mode.MEMORY_SHARE else 14,
        isolation=part.mode.isolation,
        resource="nvidia.com/gpu",
    )


def job_of_60() -> Scene:
    """Eight H100-80GB in sevenths: 56 pods of a Job run, four wait."""
    scene = Scene()
    node = scene.node(
        "gpu-node-1",
        *["H100-80GB"] * 8,
        cpu_milli=256_000,
        memory_mib=2_097_152,
        labels=(
            ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),
            ("cloud.google.com/gke-gpu-partition-size", "1g.10gb"),
            ("kubernetes.io/arch", "amd64"),
        ),
        taints=(Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),),
    )
    owner = "Job/default/mig-batch"
    for n in range(56):
        scene.instance((node, n // 7), "1g.10gb", n % 7, [scene.pod(f"mig-batch-{n}", owner)])
    reason = (
        "needs one 1g.10gb; gpu-node-1 holds 56 of them on 8 GPUs and all are taken; the unit left on each GPU "
        "(unit 7) can start no 1g.10gb"
    )
    for n in range(56, 60):
        scene.wait(scene.pod(f"mig-batch-{n}", owner), reason)
    return scene


def replicas_on_halves() -> Scene:
    """Eight H100-80GB in halves: 16 replicas of a 24.5 GB model."""
    scene = Scene()
    node = scene.node("gpu-node-1", *["H100-80GB"] * 8)
    owner = "Deployment/default/vllm-llama"
    for n in range(16):
        scene.instance((node, n // 2), "3g.40gb", 4 * (n % 2), [scene.pod(f"vllm-llama-{n}", owner)])
    scene.bound = Bound(placed=16, at_most=16)
    return scene


def time_sliced_instances() -> Scene:
    """One A100-40GB, all-balanced, whose instances are time-sliced 4, 3 and 4 times; all were there already."""
    scene = Scene()
    node = scene.node("a100", "A100-40GB", labels=(("nvidia.com/mig.config", "all-balanced"),))
    for profile, start, clients in (("1g.5gb", 0, 4), ("1g.5gb", 1, 4), ("2g.10gb", 2, 3), ("3g.20gb", 4, 4)):
        owner = f"Deployment/default/triton-{profile.partition('.')[0]}"
        pods = [scene.pod(f"triton-{profile[:2]}-{start}{n}", owner) for n in range(clients - (start == 4))]
        more = {"mode": Mode.MIG_TIME_SLICING, "clients": clients, "exists": True, "memory_mib": 4864 * SIZES[profile]}
        scene.instance((node, 0), profile, start, pods, **more)
    return scene


def t4_of_14() -> Scene:
    """One T4 with 14 time-sliced clients; the fifteenth waits."""
    scene = Scene()
    node = scene.node("t4-node", "T4", cpu_milli=16_000, memory_mib=61_440)
    pods = [scene.pod(f"notebook-{n}", "StatefulSet/default/notebook") for n in range(15)]
    scene.whole((node, 0), Mode.TIME_SLICING, 14, dict.fromkeys(pods[:14], MIB["T4"] // 14))
    scene.wait(pods[14], "needs one nvidia.com/gpu.shared; t4-node offers 14 on GPU 0 and all are taken")
    warning = (
        "t4-node, GPU 0: 14 pods are time-sliced without memory isolation: any of them can take the whole 15 GiB and "
        "make the others fail; default/notebook-0 to default/notebook-13 state no limit."
    )
    scene.warnings = (warning,)
    return scene


def memory_shares() -> Scene:
    """Shares of different sizes on GPUs of different sizes, running and new, with GPUs kept free for whole-GPU pods."""
    scene = Scene()
    l4 = scene.node("l4-node", "L4", "L4", labels=(("topology.kubernetes.io/zone", "europe-west4-b"),))
    big = scene.node("l40s-node", "L40S", "L40S", unschedulable=True)
    a100 = scene.node("a100-node", *["A100-40GB"] * 4)

    def take(name: str, owner: str, *, running: bool = False) -> PodKey:
        return scene.pod(name, owner, running=running)

    small = [take(f"embed-{n}", "Deployment/default/embed", running=n < 3) for n in range(8)]
    ranks = [take(f"rerank-{n}", "Deployment/search/rerank") for n in range(3)]
    llm = take("chat-llm-0", "StatefulSet/default/chat-llm", running=True)
    scene.whole((l4, 0), Mode.MEMORY_SHARE, 0, {small[0]: 5120, small[1]: 5120, small[2]: 5120, small[3]: 5120})
    scene.whole((l4, 1), Mode.MEMORY_SHARE, 0, {ranks[0]: 8192, ranks[1]: 8192, small[4]: 5120, small[5]: 1024})
    scene.whole((big, 0), Mode.MEMORY_SHARE, 0, {llm: 30_720, ranks[2]: 8192, small[6]: 512, small[7]: 300})
    train = take("finetune-0", "Job/default/finetune")
    scene.whole((a100, 0), Mode.WHOLE, 1, {train: MIB["A100-40GB"]})
    scene.whole((a100, 1), Mode.WHOLE, 1, {train: MIB["A100-40GB"]})
    mps = [take(f"detect-{n}", "Deployment/default/detect") for n in range(3)]
    scene.whole((a100, 2), Mode.MPS, 4, dict.fromkeys(mps, MIB["A100-40GB"] // 4))
    request = DeviceRequest(resource="aliyun.com/gpu-mem", form=Form.SHARE, memory_mib=45 * 1024)
    scene.wait(
        scene.pod("too-big", need=Need(requests=(request,))),
        "needs 45 GiB of one GPU; the largest GPU of the fleet (L40S) has 45 GiB, of which 38.8 GiB are allocated on "
        "GPU 0 of l40s-node, and l40s-node is cordoned",
    )
    scene.give(scene.pod("web-0", "Deployment/default/web", need=Need(cpu_milli=500, memory_mib=512)), l4, None)
    return scene


def twelve_units() -> Scene:
    """RTX PRO 6000 with 12 memory slices: instances there already, new ones, unused ones, free units."""
    scene = Scene()
    node = scene.node("rtx-node", *["RTX-PRO-6000-BSE"] * 3)
    run = [scene.pod(f"render-{n}", "Deployment/studio/render", running=True) for n in range(2)]
    new = [scene.pod(f"asr-{n}", "Deployment/voice/asr-streaming-service-with-a-long-name") for n in range(3)]
    scene.instance((node, 0), "1g.24gb", 0, [run[0]], exists=True, memory_mib=24_000)
    scene.instance((node, 0), "1g.24gb", 3, [], exists=True, memory_mib=24_000)
    scene.instance((node, 0), "2g.48gb", 6, [run[1]], exists=True, memory_mib=48_500)
    scene.instance((node, 1), "1g.24gb", 0, [new[0]], memory_mib=24_000)
    scene.instance((node, 1), "1g.24gb", 6, [new[1]], memory_mib=24_000)
    shared = {"mode": Mode.MIG_MPS, "clients": 0, "memory_mib": 24_000}
    scene.instance((node, 1), "1g.24gb", 9, [new[2]], **{**shared, "clients": 2})
    return scene


def hostile() -> Scene:
    """Names that try to break out of the picture."""
    scene = Scene()
    node = scene.node('<node & "one">', "L4")
    names = (
        "<script>alert(1)</script>",
        "a&b;]]>",
        "quote\"'",
        "nul\x00\x1b[31m\ud800",
        "\u202egnp.exe",
        "漢字の名前のポッド",
    )
    pods = {scene.pod(name, f"Job/default/{name}"): 2048 for name in names}
    scene.whole((node, 0), Mode.MEMORY_SHARE, 0, pods)
    scene.wait(scene.pod("</svg><script>", "Job/x/</text>"), "because </text><script>alert(2)</script> " + "x" * 400)
    scene.warnings = ("<b>beware</b>",)
    return scene


def large_fleet(count: int = 40, *, distinct: bool = False) -> Scene:
    """Many nodes with eight GPUs: most alike, or each different."""
    scene = Scene()
    for number in range(count):
        node = scene.node(f"pool-a-{number:03d}", *["H100-80GB"] * 8, cpu_milli=192_000, memory_mib=2_097_152)
        for gpu in range(8):
            if distinct and (number + gpu) % 5 == 0:
                continue
            if number % 3 == 0 or distinct:
                for n in range(1 + (number * (gpu + 1)) % 7 if distinct else 7):
                    pod = scene.pod(
                        f"batch-{number}-{gpu}-{n}",
                        f"Job/default/batch-{(number + gpu) % 5}" if distinct else "Job/default/batch",
                    )
                    scene.instance((node, gpu), "1g.10gb", n, [pod])
            elif number % 3 == 1:
                pod = scene.pod(f"train-{number}-{gpu}", "Job/default/train")
                scene.whole((node, gpu), Mode.WHOLE, 1, {pod: MIB["H100-80GB"]})
    return scene


def bare_pods() -> Scene:
    """Pods without an owner, alike in what they ask, and one of a kind, on more workloads than there are colors."""
    scene = Scene("best-fit")
    node = scene.node("l40s", "L40S", "L40S", "L4")
    alike = Need(
        requests=(
            DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=6144, compute_percent=20),
        )
    )
    pods = [scene.pod(name, need=alike) for name in ("jupyter-anna", "jupyter-bob")]
    pods.append(scene.pod("one-of-a-kind", need=Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),))))
    scene.whole((node, 0), Mode.MPS, 0, dict.fromkeys(pods, 6144))
    many = [scene.pod(f"tool-{n}-0", f"Deployment/default/tool-{n}") for n in range(26)]
    scene.whole((node, 1), Mode.MEMORY_SHARE, 0, dict.fromkeys(many[:22], 2048))
    scene.whole((node, 2), Mode.TIME_SLICING, 4, dict.fromkeys(many[22:], 5758))
    return scene


SCENES: dict[str, Callable[..., Scene]] = {
    "a Job of 60 on eight GPUs in sevenths": job_of_60,
    "replicas on halves, proved optimal": replicas_on_halves,
    "time-sliced MIG instances": time_sliced_instances,
    "a T4 with 14 clients": t4_of_14,
    "memory shares of many sizes": memory_shares,
    "twelve memory slices": twelve_units,
    "hostile names": hostile,
    "forty nodes, most alike": large_fleet,
    "forty nodes, each different": lambda: large_fleet(distinct=True),
    "bare pods and many workloads": bare_pods,
    "an empty fleet": Scene,
}
