"""The checkpoint file of a node's MIG layout: JSON, with a version, UUIDs and placements.

```json
{"version": 1, "gpus": [{"uuid": "GPU-...", "model": "A100-40GB", "mig": true,
                         "placements": [{"start": 0, "size": 1, "profile": "1g.5gb"}]}]}
```

MIG UUIDs are not in it, because they change each time an instance is created.
"""

from typing import Literal

import msgspec

from tessera.api.fields import error_phrase
from tessera.api.tessera.node.instancefields import InstanceFields
from tessera.core.node.layouts import Recorded
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read", "write"]


class _GpuFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uuid: str
    model: str
    mig: bool
    placements: tuple[InstanceFields, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    gpus: tuple[_GpuFields, ...]


_DECODER = msgspec.json.Decoder(_File)


def read(source: str, text: bytes) -> tuple[Recorded, ...]:
    """Return the content of a checkpoint.

    Args:
        source: name of the file, for errors.
        text: its content.

    Raises:
        InvalidInput: it is not a checkpoint, is of another version, cut off, or names a GPU twice.

    """
    try:
        gpus = _DECODER.decode(text).gpus
    except UNDECODABLE as error:
        raise InvalidInput(
            source, found=f"it is not a checkpoint of MIG layouts, version 1 ({error_phrase(error, text)})"
        ) from error
    if len({each.uuid for each in gpus}) < len(gpus):
        raise InvalidInput(source, found="it has a GPU twice", hint="write the checkpoint again")
    return tuple(msgspec.convert(each, Recorded, from_attributes=True) for each in gpus)


def write(recorded: tuple[Recorded, ...]) -> bytes:
    """Return the text of a checkpoint, a line for each GPU."""
    gpus = tuple(msgspec.convert(each, _GpuFields, from_attributes=True) for each in recorded)
    return msgspec.json.format(msgspec.json.encode(_File(1, gpus)), indent=1) + b"\n"
