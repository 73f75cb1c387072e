"""GPUPolicy specs, good and bad, with what is said of the bad ones: to readers and to a real API server alike."""

from typing import Any

__all__ = ["BAD", "GOOD", "gpu_policy"]


def gpu_policy(spec: dict[str, Any], name: str = "test") -> dict[str, Any]:
    return {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}


def shared(**sharing: Any) -> dict[str, Any]:
    return {"gpus": [{"sharing": sharing}]}


LAYOUT = {"configuration": "all-balanced"}

GOOD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "nodes by labels": {
        "nodeSelector": {"matchLabels": {"pool": "a"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}
    },
    "auto, narrowed": shared(mode="auto", modes=["whole", "mig"]),
    "auto by default": {"gpus": [{"sharing": {}}]},
    "a layout by name": shared(mode="mig", layout=LAYOUT),
    "a layout by counts, to begin with": shared(mode="mig", layout={"counts": {"1g.5gb": 7}}, allowRepartition=True),
    "a layout by placements, shared": shared(mode="mig-mps", layout={"placements": ["3g.20gb@4"]}, replicas=2),
    "replicas by profile": shared(
        mode="mig-time-slicing", layout=LAYOUT, replicasByProfile={"1g.5gb": 4}, renamed=True
    ),
    "time-slicing": shared(mode="time-slicing", replicas=10, renamed=True),
    "devices, then models, then all": {
        "gpus": [
            {"devices": ["0", "GPU-0a1b"], "sharing": {"mode": "whole"}, "powerLimitWatts": 250},
            {"models": ["A100-40GB"], "clocksMHz": {"lowest": 300, "highest": 300}, "isolation": "driver"},
            {"sharing": {"mode": "memory-share"}},
        ]
    },
    "a layout by the scheduler": shared(mode="mig", layout=LAYOUT, allocator="scheduler"),
    "replicas by the scheduler": shared(mode="mps", replicas=4, allocator="scheduler"),
    "whole by the kubelet": shared(mode="whole", allocator="kubelet"),
    "conflicts only reported": {"disruption": {"evictConflicts": False}},
    "a budget in GPUs": {"disruption": {"budget": 2}},
    "a budget of all": {"disruption": {"budget": "100%"}},
    "no repartition": {"repartition": {"allowed": False}},
    "everything else": {
        "priority": -3,
        "unit": "MiB",
        "migStrategy": "single",
        "isolation": "hardware",
        "packingPolicy": "fgd",
    },
}

BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    # spec, what the API server says, what the reader says
    "GPUs chosen in two ways": (
        {"gpus": [{"devices": ["0"], "models": ["A100-40GB"]}]},
        "choose GPUs in one way: by devices or by models",
        "choose GPUs in one way: by devices or by models",
    ),
    "auto with a layout": (
        shared(mode="auto", layout=LAYOUT),
        "a fixed layout and mode auto exclude each other",
        "a fixed layout and mode auto exclude each other",
    ),
    "MIG without a layout": (
        shared(mode="mig"),
        "a fixed layout and mode auto exclude each other: give a layout with mode mig",
        "a fixed layout and mode auto exclude each other: give a layout with mode mig",
    ),
    "a layout said twice": (
        shared(mode="mig", layout={"configuration": "all-1g.5gb", "counts": {"1g.5gb": 7}}),
        "say the layout in exactly one way",
        "say the layout in exactly one way",
    ),
    "an empty layout": (
        shared(mode="mig", layout={}),
        "say the layout in exactly one way",
        "say the layout in exactly one way",
    ),
    "time-slicing without replicas": (shared(mode="time-slicing"), "give replicas", "give replicas"),
    "whole with replicas": (shared(mode="whole", replicas=2), "give replicas", "give replicas"),
    "replicas said twice": (
        shared(mode="mig-mps", layout=LAYOUT, replicas=2, replicasByProfile={"1g.5gb": 2}),
        "not both",
        "not both",
    ),
    "replicas by profile of a whole GPU": (
        shared(mode="mps", replicasByProfile={"1g.5gb": 2}),
        "give replicas for whole GPUs",
        "give replicas for whole GPUs",
    ),
    "modes beside whole": (
        shared(mode="whole", modes=["mig"]),
        "remove it for the others",
        "remove it for the others",
    ),
    "allowRepartition beside replicas": (
        shared(mode="mig-mps", layout=LAYOUT, replicas=2, allowRepartition=True),
        "allowRepartition requires mode mig",
        "allowRepartition requires mode mig",
    ),
    "renamed without replicas": (
        shared(mode="whole", renamed=True),
        "renamed is about replicas",
        "renamed is about replicas",
    ),
    "an allocator of what is managed": (
        shared(mode="auto", allocator="kubelet"),
        "remove it for auto, memory-share and allowRepartition",
        "remove it for auto, memory-share and allowRepartition",
    ),
    "an allocator of amounts": (
        shared(mode="memory-share", allocator="scheduler"),
        "remove it for auto, memory-share and allowRepartition",
        "remove it for auto, memory-share and allowRepartition",
    ),
    "an allocator of a layout that may change": (
        shared(mode="mig", layout=LAYOUT, allowRepartition=True, allocator="scheduler"),
        "remove it for auto, memory-share and allowRepartition",
        "remove it for auto, memory-share and allowRepartition",
    ),
    "another allocator": (
        shared(mode="whole", allocator="nobody"),
        'supported values: "kubelet", "scheduler"',
        "'nobody' is not kubelet or scheduler",
    ),
    "one replica": (
        shared(mode="mps", replicas=1),
        "should be greater than or equal to 2",
        "replicas: 1 is not at least 2",
    ),
    "an unknown mode": (
        shared(mode="fast"),
        'Unsupported value: "fast"',
        "'fast' is not ",
    ),
    "clocks the wrong way round": (
        {"gpus": [{"clocksMHz": {"lowest": 900, "highest": 300}}]},
        "the lowest clock must not be above the highest",
        "the lowest clock must not be above the highest",
    ),
    "a device that is no index": (
        {"gpus": [{"devices": ["first"]}]},
        "should match",
        "'first' is not a text that matches",
    ),
    "an empty list of devices": (
        {"gpus": [{"devices": []}]},
        "at least 1 items",
        "devices: it has 0 elements, and at least 1 are accepted",
    ),
    "more than all": ({"disruption": {"budget": "101%"}}, "from 1% to 100%", "'101%' is not a text that matches"),
    "nothing in percent": ({"disruption": {"budget": "0%"}}, "from 1% to 100%", "'0%' is not a text that matches"),
    "a budget of none": ({"disruption": {"budget": 0}}, "a number of GPUs from 1 on", "budget: 0 is not at least 1"),
    "a batch that waits longer than it may": (
        {"repartition": {"idleSeconds": 11}},
        "idleSeconds must not be above longestSeconds",
        "idleSeconds must not be above longestSeconds",
    ),
    "another unit": ({"unit": "GB"}, 'supported values: "GiB", "MiB"', "'GB' is not GiB or MiB: did you mean GiB?"),
    "an unknown packing policy": (
        {"packingPolicy": "random"},
        'Unsupported value: "random"',
        "'random' is not ",
    ),
    "an unknown packing policy by its former name": (
        {"strategy": "random"},
        'Unsupported value: "random"',
        "'random' is not ",
    ),
    "In without values": (
        {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "In"}]}},
        "In and NotIn need at least one of values",
        "In and NotIn need at least one of values",
    ),
    "Exists with values": (
        {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Exists", "values": ["a"]}]}},
        "remove values for Exists",
        "remove values for Exists",
    ),
    "a text as priority": ({"priority": "high"}, "must be of type integer", "spec.priority: 'high' is not an integer"),
}
