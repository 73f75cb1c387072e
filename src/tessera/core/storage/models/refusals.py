"""What the disk refused of a node's models: to read or change them, and to remove what makes room."""

from collections.abc import Mapping

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
        remaining: models of which a superseded revision was not removed in this pass; they go on.

    """

    failed: Mapping[str, str] = {}
    failed_before: Mapping[str, str] = {}
    stuck: Mapping[str, str] = {}
    stuck_s: Mapping[str, float] = {}
    remaining: Mapping[str, str] = {}

    @property
    def failing(self) -> frozenset[str]:
        """The models that are not fetched: an error that is over kept them from being examined until now."""
        return frozenset(self.failed.keys() | self.failed_before.keys())

    def next_pass(self, now_s: float) -> "DiskRefusals":
        """A pass begins: models that failed in none of two are as any other, and the disk may remove what was stuck."""
        stuck_s = {name: at_s for name, at_s in self.stuck_s.items() if not has_passed(at_s, _STUCK_S, now_s)}
        return DiskRefusals(
            failed_before=self.failed, stuck={name: self.stuck[name] for name in stuck_s}, stuck_s=stuck_s
        )

    def is_known(self, name: str, reason: str) -> bool:
        """Return whether a model failed for this reason already, in this pass or the last one."""
        return reason in {self.failed.get(name), self.failed_before.get(name)}

    def failure(self, name: str, reason: str) -> "DiskRefusals":
        """A model could not be read or changed."""
        return msgspec.structs.replace(self, failed={**self.failed, name: reason})

    def stays(self, name: str, reason: str, now_s: float) -> "DiskRefusals":
        """Something of a model was not removed that would make room."""
        stuck, stuck_s = {**self.stuck, name: reason}, {**self.stuck_s, name: now_s}
        return msgspec.structs.replace(self, stuck=stuck, stuck_s=stuck_s)

    def superseded(self, name: str, reason: str) -> "DiskRefusals":
        """Superseded revisions of a model were removed; one was not if there is a reason."""
        return msgspec.structs.replace(self, remaining={**self.remaining, name: reason}) if reason else self
