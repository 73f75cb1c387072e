"""Shares in Tessera's wire formats: a pod's annotation `tessera.dev/assignment`, claims of a GPUNode, `shares.json`.

```json
{"version": 1, "shares": [{"gpu": 0, "mode": "mig", "profile": "1g.5gb", "start": 0, "memoryMiB": 4864,
                           "computePercent": 14, "isolation": "hardware", "resource": "tessera.dev/gpu-memory"}],
 "asks": [{"resource": "tessera.dev/gpu-memory", "form": "need", "memoryMiB": 4096, "isolation": "hardware"}]}
```

`asks`, and `models` beside it, are the pod's request when this was signed: it is judged by them, whatever the pod's
other annotations say later. Older annotations lack them, or are the list of shares alone, with fields in
`snake_case`; they are still read, and keep their signatures.
"""

from typing import Annotated, Literal

import msgspec

from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Form, Isolation

__all__ = [
    "MOST_GPUS",
    "MOST_MEMORY_SLICES",
    "MOST_MIB",
    "AssignmentFields",
    "RequestFields",
    "ShareFields",
    "UnversionedShareFields",
]

MOST_GPUS, MOST_MIB, MOST_MEMORY_SLICES = 256, 1 << 24, 64
"""Of a node; 16 TiB, more memory than any GPU has; memory slices, where the longest axis known has 12."""

_Memory = Annotated[int, msgspec.Meta(ge=0, le=MOST_MIB)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class ShareFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod's share of one device."""

    gpu: Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS - 1)]
    """Index of the GPU in its node."""
    mode: Mode
    profile: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    start: Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMORY_SLICES)] | None = None
    memory_mib: _Memory = msgspec.field(name="memoryMiB")
    compute_percent: _Percent
    isolation: Isolation
    resource: Annotated[str, msgspec.Meta(max_length=317)]
    container: Annotated[str, msgspec.Meta(max_length=63)] = ""


class UnversionedShareFields(ShareFields, frozen=True, kw_only=True, omit_defaults=False):
    """A share in an older annotation, and in the agent's `shares.json`."""

    memory_mib: _Memory = msgspec.field(name="memory_mib")
    compute_percent: _Percent = msgspec.field(name="compute_percent")


class RequestFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One container's request for one kind of device, a `core.workload.need.DeviceRequest`."""

    resource: str
    form: Form
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="memoryMiB", default=0)
    compute_percent: _Percent = 0
    isolation: Isolation
    container: str = ""


class AssignmentFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod's shares, in its annotation."""

    version: Literal[1]
    shares: tuple[ShareFields, ...]
    requests: tuple[RequestFields, ...] | None = msgspec.field(default=None, name="asks")
    """Its request; None in older annotations."""
    models: tuple[str, ...] = ()
    """GPU models that may serve; empty for any."""
