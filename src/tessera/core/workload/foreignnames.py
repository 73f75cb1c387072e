"""Names by which pods request parts of GPUs from other systems: their owners, and Tessera's equivalents."""

import difflib
import re
from collections.abc import Iterable

import msgspec

from tessera.core.workload.need import DeviceRequest, Form
from tessera.core.workload.resources import GPU_MEMORY, SHARE_MEMORY

__all__ = ["CLAIM", "FRACTION_ANNOTATIONS", "foreign_names", "names_foreign"]

CLAIM = "resource.k8s.io/"
"""Prefix under which a claim of dynamic resource allocation is kept as a request."""
FRACTION_ANNOTATIONS = ("gpu-memory", "gpu-fraction")
"""The pod annotations that request a part of a GPU from KAI. Source: kai-scheduler/KAI-Scheduler
`pkg/common/constants/constants.go`."""


class _Foreign(msgspec.Struct, frozen=True):
    """One system's names."""

    pattern: str
    owner: str
    instead: str
    """Tessera's equivalent, empty where it shares no such device; `{count}` is the requested number, if the
    unit is the same, and `{gib}` that number of MiB in GiB."""


_GIB = 1024
_MIB = "tessera.dev/gpu-memory: {gib}, in GiB"
_PERCENT = "tessera.dev/gpu-compute: {count} with tessera.dev/gpu-memory"
_PART = "tessera.dev/gpu-memory in GiB"
_WHOLE = "nvidia.com/gpu, or tessera.dev/gpu-count with tessera.dev/gpu-memory"

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
    _Foreign(r"amd\.com/.*", "AMD", ""),
    _Foreign(r"(gpu\.intel\.com|habana\.ai)/.*", "Intel", ""),
    _Foreign(r"google\.com/tpu", "Google's TPUs", ""),
    _Foreign(r"aws\.amazon\.com/neuron.*", "AWS Neuron", ""),
    _Foreign(r"huawei\.com/[Aa]scend.*", "Huawei", ""),
    _Foreign(re.escape(CLAIM) + ".*", "dynamic resource allocation", "one of the forms of docs/requests.md"),
)


_KNOWN = ("nvidia.com/gpu", "nvidia.com/gpu.shared", SHARE_MEMORY, GPU_MEMORY)
_ALIKE = 0.83
"""How similar a name has to be to one that Tessera knows: `nvidia/gpu` is, `nvidia.com/gpumemory` is not."""


def names_foreign(resource: str) -> bool:
    """Return whether a resource name belongs to another system for GPUs or other accelerators."""
    return _owner(resource) is not None


def foreign_names(requests: Iterable[DeviceRequest]) -> tuple[str, ...]:
    """Return a sentence, without full stop, for each requested name that is another system's or looks misspelled."""
    sentences = (_replacement(request) for request in requests if request.form is Form.EXACT)
    return tuple(dict.fromkeys(text for text in sentences if text))


def _owner(resource: str) -> _Foreign | None:
    return next((each for each in _FOREIGN if re.fullmatch(each.pattern, resource)), None)


def _replacement(request: DeviceRequest) -> str:
    found = _owner(request.resource)
    if found is None:
        near = (
            () if request.resource in _KNOWN else difflib.get_close_matches(request.resource.lower(), _KNOWN, 1, _ALIKE)
        )
        return f"did you mean {near[0]} instead of {request.resource}?" if near else ""
    if not found.instead:
        return f"{request.resource} is a device of {found.owner}, and Tessera shares NVIDIA GPUs only"
    instead = found.instead.format(count=request.count, gib=-(-request.count // _GIB))
    return f"{request.resource} is a name of {found.owner}, which Tessera does not read: request {instead}"
