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
from tessera.core.node.layouts import Recorded
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read", "write"]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    gpus: tuple[Recorded, ...]


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
    return gpus


def write(recorded: tuple[Recorded, ...]) -> bytes:
    """Return the text of a checkpoint, a line for each GPU."""
    return msgspec.json.format(msgspec.json.encode(_File(1, recorded)), indent=1) + b"\n"
