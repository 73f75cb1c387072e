"""The agent's file of the servers' public keys that it has observed, `server-keys.json`.

```json
{"version": 1, "ring": {"public": {"0a1b...": "BASE64"}, "revoked": [], "uid": "...", "version": 7,
                        "shown": ["0a1b..."]}}
```

`ring.version` is that of the observed object. A file of the first version has the fields of `ring` alone.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read_server_keys", "write_server_keys"]


class _RingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    public: Mapping[str, bytes] = {}
    revoked: frozenset[str] = frozenset()
    uid: str = ""
    version: int = 0
    shown: frozenset[str] = frozenset()


class _ServerKeysFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    ring: _RingFields


def write_server_keys(ring: KeyRing) -> bytes:
    """Return the content of the file."""
    fields = msgspec.convert(ring, _RingFields, from_attributes=True)
    return msgspec.json.encode(_ServerKeysFields(ring=fields))


def read_server_keys(content: bytes, source: str) -> KeyRing:
    """Return the content of the file.

    Raises:
        InvalidInput: it is none, or of a version to come.

    """
    try:
        found = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if "ring" in found:
            ring = msgspec.json.decode(content, type=_ServerKeysFields).ring
        else:
            ring = msgspec.json.decode(content, type=_RingFields)
    except UNDECODABLE as error:
        hint = "remove the file: the agent reads the keys from the cluster"
        raise InvalidInput(source, found=error_phrase(error, content), hint=hint) from error
    return msgspec.convert(ring, KeyRing, from_attributes=True)
