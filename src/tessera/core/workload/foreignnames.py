"""Names by which pods ask other systems for parts of GPUs: whose they are, and how Tessera is asked for the same."""

import re
from collections.abc import Iterable

import msgspec

from tessera.core.workload.need import Ask, Form

__all__ = ["CLAIM", "FRACTION_ANNOTATIONS", "foreign_names"]

CLAIM = "resource.k8s.io/"
"""Prefix under which a claim for dynamically allocated devices is kept as an ask."""
FRACTION_ANNOTATIONS = ("gpu-memory", "gpu-fraction")
"""The pod annotations by which KAI is asked for a part of a GPU. Source: kai-scheduler/KAI-Scheduler
`pkg/common/constants/constants.go`."""


class _Foreign(msgspec.Struct, frozen=True):
    """One system's names."""

    pattern: str
    owner: str
    instead: str
    """Tessera's form for the same; `{count}` is the number asked for, where the unit is the same."""


_MIB = "tessera.dev/gpu-memory: {count} with the annotation tessera.dev/gpu-memory-unit: MiB"
_PERCENT = "tessera.dev/gpu-compute: {count} beside tessera.dev/gpu-memory"
_PART = "tessera.dev/gpu-memory in GiB"
_WHOLE = "nvidia.com/gpu, or tessera.dev/gpu-count beside tessera.dev/gpu-memory"

# Source: HAMi docs/userguide/configure.md; volcano-sh/volcano plugin deviceshare; koordinator-sh/koordinator
# docs/proposals/scheduling/20230803-enhance-gpu-share-api.md; tkestack/gpu-manager README; nebuly-ai/nos
# getting-started-mps.md; openshift/instaslice-operator webhook; KAI as above.
_FOREIGN = (
    _Foreign(r"nvidia\.com/gpumem", "HAMi", _MIB),
    _Foreign(r"nvidia\.com/gpumem-percentage", "HAMi", _PART),
    _Foreign(r"nvidia\.com/gpucores", "HAMi", _PERCENT),
    _Foreign(r"nvidia\.com/priority", "HAMi", "the pod's priorityClassName"),
    _Foreign(r"nvidia\.com/gpu-[0-9]+gb", "nos", _PART),
    _Foreign(r"volcano\.sh/vgpu-memory", "Volcano", _MIB),
    _Foreign(r"volcano\.sh/vgpu-cores", "Volcano", _PERCENT),
    _Foreign(r"volcano\.sh/vgpu-number", "Volcano", _WHOLE),
    _Foreign(r"volcano\.sh/vgpu-.*", "Volcano", _PART),
    _Foreign(r"koordinator\.sh/gpu-core", "Koordinator", _PERCENT),
    _Foreign(r"koordinator\.sh/gpu(\.shared)?", "Koordinator", _WHOLE),
    _Foreign(r"koordinator\.sh/gpu-.*", "Koordinator", _PART),
    _Foreign(r"tencent\.com/vcuda-core", "gpu-manager", _PERCENT),
    _Foreign(r"tencent\.com/vcuda-.*", "gpu-manager", _PART),
    _Foreign(r"mig\.das\.com/.*", "InstaSlice", "nvidia.com/mig-PROFILE"),
    *(_Foreign(re.escape(name), "KAI", _PART) for name in FRACTION_ANNOTATIONS),
    _Foreign(re.escape(CLAIM) + ".*", "dynamic resource allocation", "one of the forms of docs/requests.md"),
)


def foreign_names(asks: Iterable[Ask]) -> tuple[str, ...]:
    """Return a sentence, without full stop, for each name among the asks that belongs to another system."""
    sentences = (_replacement(ask) for ask in asks if ask.form is Form.EXACT)
    return tuple(dict.fromkeys(text for text in sentences if text))


def _replacement(ask: Ask) -> str:
    found = next((each for each in _FOREIGN if re.fullmatch(each.pattern, ask.resource)), None)
    if found is None:
        return ""
    instead = found.instead.format(count=ask.count)
    return f"{ask.resource} is a name of {found.owner}, which Tessera does not read: ask for {instead}"
