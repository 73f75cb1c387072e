"""Devices allocated twice, or not as requested, found from API objects alone, without code of Tessera's core.

It knows a few GPU models by heart. Faults are texts, so that a test shows all at once.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["claimed_for", "faults", "free_mib", "ledger_of", "shares_of", "unsettled", "untrue"]

Object = Mapping[str, Any]

GRADES = {"none": 0, "driver": 1, "hardware": 2}
MODES = {"whole": 2, "mig": 2, "mig-mps": 1, "mps": 1, "mig-time-slicing": 0, "time-slicing": 0, "memory-share": 0}
"""What each way of sharing enforces, as a grade."""
SLICED = {"mig", "mig-mps", "mig-time-slicing"}
UNIT_MIB = 1024

A100_40: dict[str, tuple[int, int, Iterable[int]]] = {
    "1g.5gb": (1, 4864, range(7)),
    "1g.5gb+me": (1, 4864, range(7)),
    "1g.10gb": (2, 9856, (0, 2, 4, 6)),
    "2g.10gb": (2, 9856, (0, 2, 4)),
    "3g.20gb": (4, 19968, (0, 4)),
    "4g.20gb": (4, 19968, (0,)),
    "7g.40gb": (8, 40192, (0,)),
}
_80: dict[str, tuple[int, int, Iterable[int]]] = {
    "1g.10gb": (1, 9728, range(7)),
    "1g.10gb+me": (1, 9728, range(7)),
    "1g.20gb": (2, 19712, (0, 2, 4, 6)),
    "2g.20gb": (2, 19712, (0, 2, 4)),
    "3g.40gb": (4, 40192, (0, 4)),
    "4g.40gb": (4, 40192, (0,)),
    "7g.80gb": (8, 80896, (0,)),
}
PROFILES: dict[str, dict[str, tuple[int, int, Iterable[int]]]] = {
    "A100-40GB": A100_40,
    "A100-80GB": _80,
    "H100-80GB": _80,
}
"""Slices of memory, about the MiB, and places of each profile. Source: NVIDIA MIG User Guide, supported profiles."""


class Held(NamedTuple):
    """A share and who has it."""

    pod: str
    share: dict[str, Any]


def shares_of(pod: Object) -> list[dict[str, Any]]:
    """Return the shares in a pod's assignment as they are written; none without one."""
    text = (pod["metadata"].get("annotations") or {}).get("tessera.dev/assignment")
    return list(json.loads(text)["shares"]) if text else []


def ledger_of(pods: Iterable[Object]) -> dict[tuple[str, int], list[Held]]:
    """Return what is held, by node and index of the GPU: pods that have a node and have not ended."""
    held: dict[tuple[str, int], list[Held]] = defaultdict(list)
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            for share in shares_of(pod):
                held[node, share["gpu"]].append(Held(pod["metadata"]["name"], share))
    return held


def faults(gpu_nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
    """Return what is wrong with what pods hold; empty where all is right."""
    pods = list(pods)
    gpus = {
        (each["metadata"]["name"], gpu["index"]): gpu
        for each in gpu_nodes
        for gpu in (each.get("status") or {}).get("gpus", ())
    }
    found = [f"{pod['metadata']['name']}: {text}" for pod in pods for text in _unlike_asked(pod)]
    for place, held in ledger_of(pods).items():
        texts = _of_gpu(gpus[place], held) if place in gpus else ["no such GPU"]
        found += [f"{place}: {text}, used by {[(each.pod, each.share) for each in held]}" for text in texts]
    return found


def _of_gpu(gpu: dict[str, Any], held: list[Held]) -> list[str]:
    modes = {each.share["mode"] for each in held}
    found = []
    if len(modes) > 1 and not modes <= SLICED:
        found.append(f"shared in ways that exclude each other, {sorted(modes)}")
    if "whole" in modes and len(held) > 1:
        found.append("a whole GPU is held twice")
    for amount, most in (("memoryMiB", gpu["memoryMiB"]), ("computePercent", 100)):
        allocated = sum(each.share[amount] for each in held)
        if allocated > most or any(each.share[amount] < 0 for each in held):
            found.append(f"{amount} allocated {allocated} of {most}")
    return [*found, *(_of_instances(gpu["model"], held) if modes & SLICED else ())]


def _of_instances(model: str, held: list[Held]) -> list[str]:
    found, spans = [], dict[tuple[int, str], range]()
    for each in held:
        share = each.share
        slices, memory_mib, places = PROFILES[model].get(share["profile"], (0, 0, ()))
        if share["start"] not in places:
            found.append(f"no instance {share['profile']} can begin at {share['start']}")
        if abs(share["memoryMiB"] - memory_mib) > UNIT_MIB // 2:
            found.append(f"an instance {share['profile']} of {share['memoryMiB']} MiB")
        key = share["start"], share["profile"]
        if key in spans and share["mode"] == "mig":
            found.append(f"the instance {key} is held twice")
        spans[key] = range(share["start"], share["start"] + slices)
    covered = [unit for span in spans.values() for unit in span]
    if len(covered) != len(set(covered)) or max(covered, default=0) > 7:
        found.append(f"instances {sorted(spans)} overlap")
    if sum(int(profile.partition("g")[0]) for _, profile in spans) > 7:
        found.append(f"instances {sorted(spans)} have more than seven slices of compute")
    return found


def _unlike_asked(pod: Object) -> list[str]:
    """Return how what a bound pod holds is less than it asked for."""
    if not pod["spec"].get("nodeName"):
        return ["an assignment without a node"] if shares_of(pod) else []
    annotations = pod["metadata"].get("annotations") or {}
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    memory = int(limits.get("tessera.dev/gpu-memory") or limits.get("aliyun.com/gpu-mem") or 0)
    if not memory:
        return []
    held = shares_of(pod)
    count = int(limits.get("tessera.dev/gpu-count", 1))
    found = [] if len(held) == count else [f"{len(held)} shares where {count} were asked for"]
    if len({each["gpu"] for each in held}) != len(held):
        found.append("two shares on one GPU")
    desired = GRADES[annotations.get("tessera.dev/isolation", "none")]
    for share in held:
        if share["memoryMiB"] < memory * UNIT_MIB:
            found.append(f"{share['memoryMiB']} MiB where {memory} GiB were asked for")
        if share["computePercent"] < int(limits.get("tessera.dev/gpu-compute", 0)):
            found.append(f"{share['computePercent']} % of compute")
        if MODES[share["mode"]] < desired:
            found.append(f"{share['mode']} where {annotations['tessera.dev/isolation']} was asked for")
        if "aliyun.com/gpu-mem" in limits and annotations.get("ALIYUN_COM_GPU_MEM_IDX") != str(share["gpu"]):
            found.append("gpushare's annotation names another GPU")
    return found


def unsettled(gpu_nodes: Iterable[Object]) -> list[str]:
    """Return the claims that still stand on nodes."""
    return [
        f"{each['metadata']['name']}: {claim['pod']}"
        for each in gpu_nodes
        for claim in (each.get("spec") or {}).get("claims") or ()
    ]


def claimed_for(gpu_nodes: Iterable[Object], pods: Iterable[Object]) -> list[Object]:
    """Return the pods that wait and for which something is claimed, as if they were bound to it."""
    waiting = {pod["metadata"]["uid"]: pod for pod in pods if not pod["spec"].get("nodeName")}
    return [
        _bound(waiting[claim["uid"]], each["metadata"]["name"], claim["shares"])
        for each in gpu_nodes
        for claim in (each.get("spec") or {}).get("claims") or ()
        if claim["uid"] in waiting
    ]


def _bound(pod: Object, node: str, shares: Iterable[Mapping[str, Any]]) -> Object:
    text = json.dumps({"version": 1, "shares": list(shares)})
    metadata = {**pod["metadata"], "annotations": {"tessera.dev/assignment": text}}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node}}


def untrue(gpu_nodes: Iterable[Object], pods: Iterable[Object]) -> list[str]:
    """Return the pods that wait for an amount of memory that some GPU could give them: their reason is not true.

    Judged are pods that request memory of one GPU without isolation: there a look at free memory is enough.
    """
    pods = list(pods)
    most = max(free_mib(gpu_nodes, pods).values(), default=0)
    found = []
    for pod in pods:
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        plain = (pod["metadata"].get("annotations") or {}).get("tessera.dev/isolation", "none") == "none"
        memory = int(limits.get("tessera.dev/gpu-memory") or limits.get("aliyun.com/gpu-mem") or 0)
        simple = memory and plain and not {"tessera.dev/gpu-compute", "tessera.dev/gpu-count"} & limits.keys()
        if simple and not pod["spec"].get("nodeName") and memory * UNIT_MIB <= most:
            found.append(f"{pod['metadata']['name']} waits for {memory} GiB, and {most} MiB of a GPU are free")
    return found


def free_mib(gpu_nodes: Iterable[Object], pods: Iterable[Object]) -> dict[str, int]:
    """Return by node the largest amount of one GPU's memory that a share can have there.

    GPUs that shall get MIG instances or stay whole for pods that request by name (`spec.desired`) give none.
    """
    held = ledger_of(pods)
    return {
        each["metadata"]["name"]: max(
            (
                _left_mib(gpu, held.get((each["metadata"]["name"], gpu["index"]), []))
                for gpu in (each.get("status") or {}).get("gpus", ())
                if gpu["uuid"] not in {one["gpu"] for one in (each.get("spec") or {}).get("desired") or ()}
                and "memory-share" in (gpu.get("sharing") or {}).get("modes", ("memory-share",))
            ),
            default=0,
        )
        for each in gpu_nodes
    }


def _left_mib(gpu: Object, held: list[Held]) -> int:
    """Return the memory of which any amount may be had: of a GPU that is empty, or shared by amounts already."""
    if any(each.share["mode"] not in {"memory-share", "mps"} for each in held):
        return 0
    return int(gpu["memoryMiB"]) - sum(int(each.share["memoryMiB"]) for each in held)
