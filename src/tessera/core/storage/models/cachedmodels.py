"""The models on a node's disk, the pods that use them, and their fetches: what plans are made of."""

from collections.abc import Mapping

import msgspec

from tessera.core.storage.models.fetchhistory import FetchHistory, fetch_history
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.retention import RevisionOnDisk
from tessera.core.storage.models.verifications import Verification

__all__ = ["Fetching", "ModelOnDisk", "ModelOnNode", "offered_revision", "unreadable_reason", "withheld_reason"]


class ModelOnDisk(msgspec.Struct, frozen=True):
    """A model on the disk.

    Args:
        current: the revision that was fetched last; empty where that is not whole.
        revisions: all that are whole.
        verifications: when each of them was compared with its digests, and what is damaged.
        unverified: those with files that no checksum of their source verified.
        unreadable: those that cannot be read, each with the reason; they stay as they are.
        unreadable_current: that of them which was fetched last; empty for none.
        broken: those with a folder and no manifest that makes sense; they stay while pods have them.

    """

    current: str
    revisions: tuple[str, ...]
    verifications: Mapping[str, Verification] = {}
    unverified: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = {}
    unreadable_current: str = ""
    broken: frozenset[str] = frozenset()

    @property
    def examined(self) -> frozenset[str]:
        """Those whose pins are known to be right or wrong: all but the unreadable ones."""
        return self.broken.union(self.revisions)

    def verification(self, revision: str) -> Verification:
        """Return the last comparison of a revision."""
        return self.verifications.get(revision, Verification())


class ModelOnNode(msgspec.Struct, frozen=True):
    """A model on the disk, the pods that use it, and what the kubelet may still allocate.

    Args:
        on_disk: its revisions.
        used: those that pods have.
        listed: those that the kubelet may allocate to a pod, or may have allocated; None where it knows no resource of
            the model.
        revisions: all with what they free, where room is to be made; protected are those that a process reads.
        staged_bytes: of a fetch that was interrupted or failed, which the next one would use, where room is to be made.
        is_stuck: whether the disk refused to remove some of it; it makes no room for a while.

    """

    on_disk: ModelOnDisk
    used: frozenset[str] = frozenset()
    listed: frozenset[str] | None = None
    revisions: tuple[RevisionOnDisk, ...] = ()
    staged_bytes: int = 0
    is_stuck: bool = False


class Fetching(msgspec.Struct, frozen=True):
    """The fetches of a node.

    Args:
        now_s: seconds since 1970.
        running: the model that is fetched just now; empty for none.
        histories: what came of the fetches of the desired models, each of its present identity.
        failing: the models that an error of the disk keeps from being fetched.
        free_bytes: of the disk, above its reserve.

    """

    now_s: float = 0.0
    running: str = ""
    histories: Mapping[str, FetchHistory] = {}
    failing: frozenset[str] = frozenset()
    free_bytes: int = 0

    @property
    def needs(self) -> dict[str, int]:
        """The models that did not fit when they were fetched last, with the bytes that they lacked, undecided yet."""
        return {
            name: each.missing_bytes
            for name, each in self.histories.items()
            if each.room == "Needed" and name not in self.failing
        }

    def history(self, name: str) -> FetchHistory:
        """Return what came of the fetches of a model."""
        return self.histories.get(name) or fetch_history(name)


def withheld_reason(model: DesiredModel, on_disk: ModelOnDisk) -> str:
    """Return why the revision of a model that new pods would get is withheld from them; empty if it is not."""
    revision = model.revision or on_disk.current
    problem = on_disk.verification(revision).damage
    if not problem and model.verification == "Required" and revision in on_disk.unverified:
        problem = "checksums of its source do not verify all of it, and spec.verification is Required"
    return f"revision {revision[:12]}: {problem}: fetched again" if problem else ""


def unreadable_reason(model: DesiredModel, on_disk: ModelOnDisk) -> str:
    """Return why the revision that new pods would get cannot be read; empty if it can, or there is none."""
    return on_disk.unreadable.get(model.revision or on_disk.unreadable_current, "")


def offered_revision(model: DesiredModel, on_disk: ModelOnDisk) -> str:
    """Return the revision of a model that new pods get; empty where it is not there, or withheld."""
    revision = model.revision if model.revision in on_disk.revisions else "" if model.revision else on_disk.current
    return "" if withheld_reason(model, on_disk) else revision
