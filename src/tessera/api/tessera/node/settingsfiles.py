"""The agent's files about what it changed on GPUs: `daemon.json` of each MPS daemon, and `power.json`.

```json
{"version": 1, "target": {"key": "GPU-...", "gpu": "GPU-...", "visible": "GPU-...", "memory_limit_mib": 8192,
                          "thread_percent": 50, "exclusive": true},
 "pid": 12, "started": "...", "former_mode": "default"}

[{"version": 1, "gpu": "GPU-...", "power": true, "power_limit_watts": 300, "clocks": false}]
```

What has no version is read as version 1. An older agent reads what is written here.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.node.mpslifecycle import DaemonRecord
from tessera.core.node.power import Original
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["read_daemon", "read_originals", "write_daemon", "write_originals"]


class _TargetFields(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    gpu: str
    visible: str
    memory_limit_mib: int = 0
    thread_percent: int = 100
    exclusive: bool = True


class _DaemonFields(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    target: _TargetFields
    pid: int
    started: str
    former_mode: str = ""


class _OriginalFields(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    gpu: str
    power: bool = False
    power_limit_watts: int | None = None
    clocks: bool = False


_DAEMON = msgspec.json.Decoder(_DaemonFields)
_ORIGINALS = msgspec.json.Decoder(tuple[_OriginalFields, ...])


def write_daemon(record: DaemonRecord) -> bytes:
    """Return the content of `daemon.json`."""
    return msgspec.json.encode(msgspec.convert(record, _DaemonFields, from_attributes=True))


def read_daemon(content: bytes, source: str) -> DaemonRecord:
    """Return the content of `daemon.json`.

    Raises:
        InvalidInput: it is none, or of a version to come.

    """
    try:
        return msgspec.convert(_DAEMON.decode(content), DaemonRecord, from_attributes=True)
    except UNDECODABLE as error:
        raise InvalidInput(
            source,
            found=error_phrase(error, content),
            hint="remove the file once its MPS daemon has ended",
        ) from error


def write_originals(originals: Iterable[Original]) -> bytes:
    """Return the content of `power.json`."""
    return msgspec.json.encode(
        tuple(msgspec.convert(each, _OriginalFields, from_attributes=True) for each in originals)
    )


def read_originals(content: bytes, source: str) -> tuple[Original, ...]:
    """Return the content of `power.json`.

    Raises:
        InvalidInput: it is none, or of a version to come.

    """
    try:
        found = _ORIGINALS.decode(content)
    except UNDECODABLE as error:
        raise InvalidInput(
            source, found=error_phrase(error, content), hint="remove the file once power limits and clocks are correct"
        ) from error
    return tuple(msgspec.convert(each, Original, from_attributes=True) for each in found)
