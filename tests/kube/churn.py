"""Pods that come and go, drawn from a seed alone: what asks, how long it lives, how it ends."""

import json
import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kube.pods import busybox

__all__ = ["CONTAINER", "CPU", "INIT", "MAIN", "Act", "Kind", "acts", "objects_of"]

CPU = "cpu"
SLICE, NEED, SHARE = "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory", "aliyun.com/gpu-mem"
COMPUTE = "tessera.dev/gpu-compute"
DEFAULT, OURS = "default-scheduler", "tessera-scheduler"
UNIT_MIB = 1024
MAIN, INIT, BESIDE = "main", "init", "beside"
CONTAINER = "CONTAINER"
"""Environment variable that names the container, for whoever looks at its processes."""


class Kind(NamedTuple):
    """A way to ask."""

    name: str
    limits: dict[str, int]
    weight: float
    scheduler: str = DEFAULT
    isolation: str = ""
    annotations: Mapping[str, str] = MappingProxyType({})
    forged: bool = False
    """Whether the pod says itself what it gets; it must get nothing."""
    misrouted: bool = False
    """Whether it requests a share by the default scheduler: it gets nothing unless somebody routes it."""
    bound: bool = False
    """Whether it names its node, past every scheduler."""
    init: Mapping[str, int] | None = None
    """Limits of an init container that ends before the others start; None: the pod has none."""
    beside: Mapping[str, int] | None = None
    """Limits of a second container that runs beside the main one; None: the pod has none."""

    def asked_mib(self, container: str) -> int | None:
        """Return the memory that a container may have; None where it requests devices by name.

        Where a pod asks for an amount, its init container uses the share that the main container has after it.
        """
        limits = self._limits(container)
        if _by_name(limits):
            return None
        return max(_amount(limits), _amount(self.limits) if container == INIT else 0) * UNIT_MIB

    def asked_devices(self, container: str) -> int:
        """Return how many devices a container may have."""
        limits = self._limits(container)
        return _by_name(limits) or int(_amount(limits) > 0)

    def _limits(self, container: str) -> Mapping[str, int]:
        return {INIT: self.init, BESIDE: self.beside}.get(container, self.limits) or {}


def _amount(limits: Mapping[str, int]) -> int:
    return sum(count for name, count in limits.items() if name in {NEED, SHARE})


def _by_name(limits: Mapping[str, int]) -> int:
    return sum(count for name, count in limits.items() if name.startswith("nvidia.com/"))


def _share(gpu: int, mode: str, memory_mib: int, resource: str) -> str:
    grade = {"whole": "hardware", "mps": "driver"}[mode]
    percent = 100 if mode == "whole" else 0
    share = {
        "gpu": gpu,
        "mode": mode,
        "memoryMiB": memory_mib,
        "computePercent": percent,
        "isolation": grade,
        "resource": resource,
        "container": MAIN,
    }
    return json.dumps({"version": 1, "shares": [share]})


ASSIGNMENT = "tessera.dev/assignment"
FORGED_MPS = {ASSIGNMENT: _share(2, "mps", 38000, NEED)}
FORGED_WHOLE = {ASSIGNMENT: _share(0, "whole", 40192, "nvidia.com/gpu")}
FORGED_INDEX = {
    "ALIYUN_COM_GPU_MEM_IDX": "2",
    "ALIYUN_COM_GPU_MEM_POD": "30",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
}

KINDS = (
    Kind(CPU, {}, 2),
    Kind("gpu", {"nvidia.com/gpu": 1}, 1),
    Kind("gpu-ours", {"nvidia.com/gpu": 1}, 1, OURS),
    Kind("slice", {SLICE: 1}, 4),
    Kind("slice-ours", {SLICE: 1}, 3, OURS),
    Kind("slice-two", {SLICE: 2}, 1),
    Kind("middle", {"nvidia.com/mig-2g.10gb": 1}, 1),
    Kind("large-ours", {"nvidia.com/mig-3g.20gb": 1}, 1, OURS),
    Kind("need-hw", {NEED: 4}, 4, OURS, "hardware"),
    Kind("need-hw-large", {NEED: 9}, 1.5, OURS, "hardware"),
    Kind("need-drv", {NEED: 6}, 2, OURS, "driver"),
    Kind("need-drv-part", {NEED: 4, COMPUTE: 20}, 2, OURS, "driver"),
    Kind("need-none", {NEED: 5}, 2, OURS, "none"),
    Kind("need-none-large", {NEED: 18}, 1, OURS, "none"),
    Kind("share", {SHARE: 3}, 3, OURS),
    Kind("share-large", {SHARE: 8}, 1, OURS),
    Kind("need-drv-init", {NEED: 6}, 2, OURS, "driver", init={NEED: 2}),
    Kind("slice-init", {SLICE: 2}, 2, init={SLICE: 1}),
    Kind("slice-beside", {SLICE: 1}, 2, beside={}),
    Kind("share-beside", {SHARE: 3}, 2, OURS, beside={SHARE: 2}),
    Kind("misrouted-need", {NEED: 5}, 1.5, misrouted=True, isolation="none"),
    Kind("misrouted-share", {SHARE: 3}, 1.5, misrouted=True),
    Kind("forged-mps", {NEED: 4}, 1, annotations=FORGED_MPS, forged=True, bound=True),
    Kind("forged-whole", {NEED: 1}, 0.3, annotations=FORGED_WHOLE, forged=True, bound=True),
    Kind("forged-nothing", {}, 0.4, annotations=FORGED_WHOLE, forged=True),
    Kind("forged-index", {SHARE: 3}, 1, annotations=FORGED_INDEX, forged=True, bound=True),
    Kind("forged-lent", {NEED: 2}, 0.7, OURS, "none", annotations=FORGED_MPS),
)
"""`forged-lent` goes the right way with an assignment of its own: it gets what it asks, and no more.

Misrouted and forged pods ask what honest ones ask too: the kubelet's `Allocate` names no pod, so they get further.
"""
CROWDS = {"misrouted-need": "need-none", "misrouted-share": "share"}
"""Kinds of which a Job often comes with one of an honest kind that asks the same, so that they may be mistaken."""
CROWD = 4

ENDS = ("alone", "deleted", "deleted", "forced", "evicted")


class Act(NamedTuple):
    """One pod or Job: after how long it is made, how long it lives from then, and how it ends."""

    number: int
    after_s: float
    kind: Kind
    copies: int
    """Pods of a Job; 0 for a bare pod."""
    life_s: float
    end: str
    stubborn: bool
    patient: bool
    """Whether it lives on while a pod of it is bound and has not started: deleted, such a pod would not be noticed."""
    node: int

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.number}"

    def __str__(self) -> str:
        """Return it in words, for the log."""
        job = f"Job of {self.copies} " if self.copies else ""
        return (
            f"+{self.after_s:.2f} s {job}{self.name}, {self.end} after {self.life_s:.1f} s"
            f"{' slowly' * self.stubborn}{' once started' * self.patient}"
        )


def acts(seed: str, rate: float) -> Iterator[Act]:
    """Give acts without end, so many a second on average; the same for the same seed."""
    rng = random.Random(seed)
    number = 0
    while True:
        kind = rng.choices(KINDS, [each.weight for each in KINDS])[0]
        act = _drawn(rng, number + 1, kind, rng.expovariate(rate))
        if kind.name in CROWDS and rng.random() < 0.6:
            honest = next(each for each in KINDS if each.name == CROWDS[kind.name])
            yield _drawn(rng, act.number, honest, act.after_s)._replace(copies=CROWD)
            act = act._replace(number=act.number + 1, after_s=rng.uniform(0, 0.5), copies=CROWD, patient=True)
        yield act
        number = act.number


def _drawn(rng: random.Random, number: int, kind: Kind, after_s: float) -> Act:
    return Act(
        number=number,
        after_s=after_s,
        kind=kind,
        copies=rng.choice((2, 3, 4)) if rng.random() < 0.12 and not kind.bound else 0,
        life_s=0.3 if rng.random() < 0.07 else rng.uniform(2, 22),
        end=rng.choice(ENDS),
        stubborn=rng.random() < 0.2,
        patient=rng.random() < (0.9 if kind.forged or kind.misrouted else 0.5),
        node=rng.choice((1, 2)),
    )


def objects_of(act: Act) -> dict[str, Any]:
    """Return the pod or the Job of an act; one that does not end by itself sleeps for an hour."""
    kind = act.kind
    seconds = act.life_s if act.end == "alone" else 3600
    command = f"trap '{'sleep 2; ' * act.stubborn}exit 0' TERM; sleep {seconds:.1f} & wait $!"
    spec: dict[str, Any] = {"restartPolicy": "Never", "schedulerName": kind.scheduler}
    if kind.bound:
        spec["nodeName"] = f"node{act.node}"
    made = busybox(act.name, command=command, limits=kind.limits, **spec | {"terminationGracePeriodSeconds": 10})
    _add_containers(act, command, made["spec"])
    grade = {"tessera.dev/isolation": kind.isolation} if kind.isolation else {}
    made["metadata"]["annotations"] = {**kind.annotations, **grade}
    made["metadata"]["labels"] = {"made-by": "test", "act": str(act.number)}
    if not act.copies:
        return made
    template = {"metadata": {key: made["metadata"][key] for key in ("annotations", "labels")}, "spec": made["spec"]}
    counts = {"parallelism": act.copies, "completions": act.copies, "backoffLimit": 100}
    metadata = {"name": act.name, "labels": made["metadata"]["labels"]}
    job = {**counts, "ttlSecondsAfterFinished": 5, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}


def _add_containers(act: Act, command: str, spec: dict[str, Any]) -> None:
    """Add the kind's other containers to a pod's spec, and to all of them their names as a variable."""
    desired = ((INIT, act.kind.init, "sleep 1" if act.stubborn else "true"), (BESIDE, act.kind.beside, command))
    for name, limits, runs in desired:
        if limits is not None:
            added = busybox(name, command=runs, limits=dict(limits))["spec"]["containers"][0] | {"name": name}
            spec.setdefault("initContainers" if name == INIT else "containers", []).append(added)
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        each["env"] = [{"name": CONTAINER, "value": each["name"]}]
