"""Pods that come and go, drawn from a seed alone: what asks, how long it lives, how it ends."""

import json
import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kube.pods import pod

__all__ = ["CPU", "Act", "Kind", "acts", "objects_of"]

CPU = "cpu"
SLICE, NEED, SHARE = "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory", "aliyun.com/gpu-mem"
COMPUTE = "tessera.dev/gpu-compute"
DEFAULT, OURS = "default-scheduler", "tessera-scheduler"
UNIT_MIB = 1024


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
    """Whether it asks a share by the default scheduler: it gets nothing unless somebody routes it."""
    bound: bool = False
    """Whether it names its node, past every scheduler."""

    @property
    def asked_mib(self) -> int | None:
        """Return the amount of memory that it asks; None where it asks for devices by name."""
        amounts = [count for name, count in self.limits.items() if name in {NEED, SHARE}]
        by_name = any(name.startswith("nvidia.com/") for name in self.limits)
        return None if by_name else sum(amounts) * UNIT_MIB


def _share(gpu: int, mode: str, memory_mib: int, resource: str) -> str:
    grade = {"whole": "hardware", "mps": "driver"}[mode]
    percent = 100 if mode == "whole" else 0
    share = {
        "gpu": gpu,
        "mode": mode,
        "profile": None,
        "start": None,
        "memory_mib": memory_mib,
        "compute_percent": percent,
        "isolation": grade,
        "resource": resource,
        "container": "main",
    }
    return json.dumps([share])


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
    Kind("misrouted-need", {NEED: 4}, 0.6, misrouted=True, isolation="none"),
    Kind("misrouted-share", {SHARE: 3}, 0.6, misrouted=True),
    Kind("forged-mps", {NEED: 1}, 0.5, annotations=FORGED_MPS, forged=True, bound=True),
    Kind("forged-whole", {NEED: 1}, 0.3, annotations=FORGED_WHOLE, forged=True, bound=True),
    Kind("forged-nothing", {}, 0.4, annotations=FORGED_WHOLE, forged=True),
    Kind("forged-index", {SHARE: 1}, 0.5, annotations=FORGED_INDEX, forged=True, bound=True),
    Kind("forged-lent", {NEED: 2}, 0.7, OURS, "none", annotations=FORGED_MPS),
)
"""`forged-lent` goes the right way with an assignment of its own: it gets what it asks, and no more."""

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
    node: int

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.number}"

    def __str__(self) -> str:
        """Return it in words, for the log."""
        job = f"Job of {self.copies} " if self.copies else ""
        return (
            f"+{self.after_s:.2f} s {job}{self.name}, {self.end} after {self.life_s:.1f} s{' slowly' * self.stubborn}"
        )


def acts(seed: str, rate: float) -> Iterator[Act]:
    """Give acts without end, so many a second on average; the same for the same seed."""
    rng = random.Random(seed)
    for number in range(1, 1_000_000):
        kind = rng.choices(KINDS, [each.weight for each in KINDS])[0]
        yield Act(
            number=number,
            after_s=rng.expovariate(rate),
            kind=kind,
            copies=rng.choice((2, 3, 4)) if rng.random() < 0.12 and not kind.bound else 0,
            life_s=0.3 if rng.random() < 0.07 else rng.uniform(2, 22),
            end=rng.choice(ENDS),
            stubborn=rng.random() < 0.2,
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
    made = pod(act.name, command=command, limits=kind.limits, **spec | {"terminationGracePeriodSeconds": 10})
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
