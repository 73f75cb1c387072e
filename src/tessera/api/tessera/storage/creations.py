"""The record of a filesystem that is being created, `creation.json` in the state folder of the disk agent.

```json
{"version": 1, "array": "...", "filesystem": "...", "disks": ["/dev/nvme0n1"]}
```

One without a version is read as version 1.
"""

from typing import Literal

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.storage.disks.blockdevices import Creation
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read_creation", "write_creation"]


class _CreationFields(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    array: str
    filesystem: str
    disks: tuple[str, ...] = ()


_DECODER = msgspec.json.Decoder(_CreationFields)


def write_creation(creation: Creation) -> bytes:
    """Return the content of `creation.json`."""
    return msgspec.json.encode(msgspec.convert(creation, _CreationFields, from_attributes=True))


def read_creation(content: bytes, source: str) -> Creation:
    """Return the content of `creation.json`.

    Raises:
        InvalidInput: it is none, or of a version to come.

    """
    try:
        return msgspec.convert(_DECODER.decode(content), Creation, from_attributes=True)
    except UNDECODABLE as error:
        hint = "remove the file; what an interrupted creation left on disks then looks like data"
        raise InvalidInput(source, found=error_phrase(error, content), hint=hint) from error
