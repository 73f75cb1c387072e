"""What a node knows about the content of its revisions: whether it still is what was fetched, and since when."""

from typing import Literal

import msgspec

__all__ = ["ChecksumRule", "Verification"]

ChecksumRule = Literal["IfGiven", "Required"]
"""Which files are accepted: also those that no checksum of the source verifies, or verified ones alone."""


class Verification(msgspec.Struct, frozen=True):
    """The last comparison of a revision on the disk with its digests.

    Args:
        at_s: when it ended, in seconds since 1970; a fetched revision counts as compared. 0 for never.
        damaged: paths of the files that differed, are missing or cannot be read.

    """

    at_s: float = 0.0
    damaged: tuple[str, ...] = ()

    @property
    def damage(self) -> str:
        """What is damaged, for a user; empty for nothing."""
        if not self.damaged:
            return ""
        count = len(self.damaged)
        files = f"{count} files differ" if count > 1 else "1 file differs"
        return f"{files} from what was fetched ({self.damaged[0]}{', ...' if count > 1 else ''})"
