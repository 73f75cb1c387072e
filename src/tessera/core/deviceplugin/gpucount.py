"""Numbers on a node for gpushare's own programs."""

from collections.abc import Iterable

from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.deviceplugin.offers.advertise import Resource
from tessera.core.workload.resources import SHARE_MEMORY

__all__ = ["gpus_to_count"]


def gpus_to_count(offered: Iterable[Resource], requests: Iterable[AssignedRequest]) -> int:
    """Return the number of GPUs for `aliyun.com/gpu-count`, beside the memory that a node advertises like gpushare.

    gpushare's inspect program divides a node's memory evenly by this number, numbers the GPUs from 0, and ignores
    allocations on GPUs beyond it. So GPUs that do not share their memory do not count, as long as nothing is
    allocated of a GPU that would then be ignored.

    Args:
        offered: the advertised resources.
        requests: the pods' assignments.

    Source: AliyunContainerService/gpushare-device-plugin `cmd/inspect/{nodeinfo,display}.go`.

    """
    sharing = {unit.gpu_uuid for each in offered if each.name == SHARE_MEMORY for unit in each.devices}
    used = (share.gpu for each in requests if each.key.resource == SHARE_MEMORY for share in each.shares)
    return max(len(sharing), *(index + 1 for index in used), 0) if sharing else 0
