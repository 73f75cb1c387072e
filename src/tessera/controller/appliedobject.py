"""What the ModelServer controller knows of an object that it applied, and of clients that keep changing it."""

import math
from typing import Final

import msgspec

from tessera.clients.kube import Object

__all__ = ["AppliedObject"]

_REPAIRS: Final = 5
_REPAIRS_S: Final = 600.0
"""After more repairs of a number of replicas in this time another program keeps changing it; one is of its creation.
After so many of other fields another client does."""


class AppliedObject(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a rendered object since it was applied last."""

    body: Object | None = None
    """The configuration that was applied; with the version that resulted an unchanged object is not applied again."""
    version: str = ""
    generation: int = 0
    """As it was written or observed last: its store may be behind."""
    checked_s: float = -math.inf
    """When an unwatched object last was as desired, on the loop's clock."""
    rescaled: tuple[tuple[str, float], ...] = ()
    """Versions with another number of replicas than the fixed one, and when they were repaired, on the loop's clock."""
    contested: tuple[float, ...] = ()
    """When fields of it were set back that another client had changed, on the loop's clock."""
    contest: str = ""
    """Which fields, and by whom, the last time."""
    absent: str = ""
    """UID of the server that neither needs nor has it: only this process would create one. Empty for none."""

    def with_rescaled(self, version: str, now_s: float) -> "AppliedObject":
        """Return it with one more repair of a fixed number of replicas, of an object of this version."""
        recent = {each: at_s for each, at_s in self.rescaled if at_s > now_s - _REPAIRS_S}
        return msgspec.structs.replace(self, rescaled=tuple((recent | {version: now_s}).items()))

    def with_contest(self, contest: str, now_s: float) -> "AppliedObject":
        """Return it with one more repair of fields, and which they are and whose."""
        recent = tuple(at_s for at_s in self.contested if at_s > now_s - _REPAIRS_S)
        return msgspec.structs.replace(self, contested=(*recent, now_s), contest=" ".join(contest.split()))

    def rival_notes(self, kind: str, now_s: float) -> tuple[str, ...]:
        """Return what to say of fields that another client keeps changing; nothing where none does."""
        notes = list[str]()
        if sum(at_s > now_s - _REPAIRS_S for _, at_s in self.rescaled) > _REPAIRS:
            text = "another controller, perhaps your own autoscaler, keeps changing the Deployment's replicas"
            notes.append(f"{text}, and Tessera sets them back: remove it, or set spec.replicas.max")
        if sum(at_s > now_s - _REPAIRS_S for at_s in self.contested) >= _REPAIRS:
            text = f"another client keeps changing the {kind}, and Tessera sets it back: {self.contest}"
            notes.append(f"{text}: let that client leave these fields alone")
        return tuple(notes)
