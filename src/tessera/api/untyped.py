"""Parts of objects of unknown content: empty where they have another type than they should."""

from typing import Any

__all__ = ["as_dict", "as_dicts", "as_list"]


def as_dict(value: object) -> dict[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_dicts(value: object) -> list[dict[str, Any]]:
    """Return the mappings in a list; none for anything else."""
    return [each for each in as_list(value) if isinstance(each, dict)]
