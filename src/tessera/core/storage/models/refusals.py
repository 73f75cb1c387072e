"""What the disk refused of a node's models: to read or change them, and to remove what makes room."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from tessera.core.storage.retries import has_passed

__all__ = ["DiskRefusals"]

_STUCK_S = 3600.0
"""A model makes no room for so long after the disk refused to remove something of it; others may."""


class DiskRefusals(msgspec.Struct, frozen=True):
    """What the disk refused, each with the reason, by model.

    Args:
        failed: models that could not be read or changed in this pass.
        failed_before: the same of the last pass.
        stuck: models of which something was not removed that would make room, a short while ago.
        stuck_s: when that was last, in seconds since 1970.
        remaining: models of which something that is removed did not go in this pass; they go on.
        remaining_before: the same of the last pass.

    """

    failed: Mapping[str, str] = {}
    failed_before: Mapping[str, str] = {}
    stuck: Mapping[str, str] = {}
    stuck_s: Mapping[str, float] = {}
    remaining: Mapping[str, str] = {}
    remaining_before: Mapping[str, str] = {}

    @property
    def failing(self) -> frozenset[str]:
        """The models that are not fetched: an error that is over kept them from being examined until now."""
        return frozenset(self.failed.keys() | self.failed_before.keys())

    def next_pass(self, now_s: float) -> "DiskRefusals":
        """A pass begins: models that failed in none of two are as any other, and the disk may remove what was stuck."""
        stuck_s = {name: at_s for name, at_s in self.stuck_s.items() if not has_passed(at_s, _STUCK_S, now_s)}
        stuck = {name: self.stuck[name] for name in stuck_s}
        return DiskRefusals(failed_before=self.failed, stuck=stuck, stuck_s=stuck_s, remaining_before=self.remaining)

    def is_known(self, name: str, reason: str) -> bool:
        """Return whether this was refused for this reason already, in this pass or the last one."""
        refused = self.failed, self.failed_before, self.remaining, self.remaining_before
        return any(each.get(name) == reason for each in refused)

    def of(self, stuck: Iterable[str]) -> tuple[str, ...]:
        """Return why there is no room: the reasons of these that are stuck, and of what remains of any model."""
        reasons = dict(self.remaining) | {name: self.stuck[name] for name in stuck}
        return tuple(reasons[name] for name in sorted(reasons))

    def failure(self, name: str, reason: str) -> "DiskRefusals":
        """A model could not be read or changed."""
        return msgspec.structs.replace(self, failed={**self.failed, name: reason})

    def stays(self, name: str, reason: str, now_s: float) -> "DiskRefusals":
        """Something of a model was not removed that would make room."""
        stuck, stuck_s = {**self.stuck, name: reason}, {**self.stuck_s, name: now_s}
        return msgspec.structs.replace(self, stuck=stuck, stuck_s=stuck_s)

    def remains(self, name: str, reason: str) -> "DiskRefusals":
        """Something of a model that is removed did not go, such as a superseded revision."""
        return msgspec.structs.replace(self, remaining={**self.remaining, name: reason})

    def removed(self, names: Collection[str]) -> "DiskRefusals":
        """What had remained of these models is gone: they are stuck no more."""
        stuck, stuck_s = (
            {name: each[name] for name in each if name not in names} for each in (self.stuck, self.stuck_s)
        )
        return msgspec.structs.replace(self, stuck=stuck, stuck_s=stuck_s)
