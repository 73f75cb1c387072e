"""The position of a MIG instance in Tessera's files and annotations of a node."""

import msgspec

__all__ = ["InstanceFields"]


class InstanceFields(msgspec.Struct, frozen=True):
    """A MIG instance's position on its GPU."""

    start: int
    size: int
    profile: str
