"""What records of the core and of a wire format have in common."""

from typing import Any

import msgspec

__all__ = ["fields_of"]


def fields_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the names of a record's fields with their defaults: a field that only one of two has would be lost."""
    return {each.name: each.default for each in msgspec.structs.fields(record)}
