"""What pods hold in a ledger."""

from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.ledger import Holder
from tessera.core.workload.need import Need, PodKey


def held(
    index: int = 0, mode: Mode = Mode.MEMORY_SHARE, memory_mib: int = 1_000, compute: int = 0, at: str = ""
) -> Share:
    """A share; `at` is `PROFILE@START`."""
    profile, _, start = at.partition("@")
    return Share(
        gpu=index,
        mode=mode,
        profile=profile or None,
        start=int(start) if start else None,
        memory_mib=memory_mib,
        compute_percent=compute,
        isolation=mode.isolation,
        resource="r",
    )


def holder(uid: str, *shares: Share, on: str = "n", need: Need | None = None, priority: int = 0) -> Holder:
    return Holder(uid, PodKey(f"default/{uid}"), NodeName(on), need or Need(), shares, priority)
