"""What gpushare's own programs read of a node, as numbers that they understand."""

from collections.abc import Iterable

__all__ = ["gpus_to_count"]


def gpus_to_count(shared: Iterable[str], used: Iterable[int]) -> int:
    """Return the number of GPUs for `aliyun.com/gpu-count`, beside the memory that a node offers as gpushare does.

    gpushare's inspect program divides a node's memory evenly by this number, numbers the GPUs from 0, and leaves out
    what pods hold of a GPU beyond it. So GPUs that do not share their memory do not count, as long as nothing is
    allocated of a GPU that would then be left out.

    Args:
        shared: UUIDs of the GPUs whose memory is offered, as often as there are units of it.
        used: indices of the GPUs of which pods were allocated such memory.

    Source: AliyunContainerService/gpushare-device-plugin `cmd/inspect/{nodeinfo,display}.go`.

    """
    sharing = len(set(shared))
    return max(sharing, *(index + 1 for index in used), 0) if sharing else 0
