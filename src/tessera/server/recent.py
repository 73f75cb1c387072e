"""A bounded set that drops its oldest keys."""

from typing import Generic, TypeVar

__all__ = ["Recent"]

Key = TypeVar("Key")

_MOST = 1 << 16


class Recent(Generic[Key]):
    """The keys added last; bounded, so that no client can fill the memory.

    Args:
        most: how many are kept.

    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._keys: dict[Key, None] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> None:
        """Add a key as the newest."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > self._most:
            del self._keys[next(iter(self._keys))]
