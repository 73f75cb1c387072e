"""The devices of a running pod as annotations record them: Tessera's, and the two of gpushare."""

import msgspec

from tessera.api.asks import SHARE_MEMORY
from tessera.api.fields import Field
from tessera.api.podspecs import ASSIGNMENT
from tessera.core.need import Form, Isolation, Need
from tessera.core.sharing import Mode
from tessera.core.snapshot import Share
from tessera.errors import shown

__all__ = ["read_shares", "write_shares"]

_GPUSHARE_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
_GPUSHARE_ALLOCATION = "scheduler.framework.gpushare.allocation"
"""Source: AliyunContainerService/gpushare-scheduler-extender `pkg/utils/const.go`, gpushare-device-plugin
`cmd/inspect/nodeinfo.go`: JSON of container index, GPU index, units of memory."""

_INDEX_DIGITS = 3
"""No node has a thousand GPUs."""
_WHOLE_PERCENT = 100

_DECODER = msgspec.json.Decoder(tuple[Share, ...])
_ALLOCATION = msgspec.json.Decoder(dict[str, dict[str, int]])


def write_shares(shares: tuple[Share, ...]) -> str:
    """Return the text of the annotation `tessera.dev/assignment`: the shares as JSON, in the order of the asks."""
    return msgspec.json.encode(shares).decode()


def read_shares(pod: Field, need: Need, *, share_unit_mib: int = 1024) -> tuple[Share, ...] | None:
    """Return the shares that a pod's annotations record; None where they record none.

    Raises:
        InvalidInput: an annotation that cannot be read.

    """
    annotations = pod.get("metadata", "annotations")
    own, allocation, index = (annotations.get(key) for key in (ASSIGNMENT, _GPUSHARE_ALLOCATION, _GPUSHARE_INDEX))
    if own.given:
        return _own(own)
    if allocation.given:
        return _allocation(allocation, share_unit_mib)
    memory_mib = sum(ask.memory_mib for ask in need.asks if ask.form is Form.SHARE)
    if not index.given or not memory_mib:
        return None
    text = index.text()
    if not (text.isascii() and text.isdecimal() and len(text) <= _INDEX_DIGITS):
        raise index.refuse("the index of a GPU")
    return (_share(int(text), memory_mib),)


def _own(field: Field) -> tuple[Share, ...]:
    try:
        shares = _DECODER.decode(field.text())
    except (msgspec.DecodeError, RecursionError) as error:  # nesting without end that a tenant may write
        raise field.refuse("a list of shares in JSON", found=shown(error)) from error
    for share in shares:
        if share.gpu < 0 or share.memory_mib < 0 or not 0 <= share.compute_percent <= _WHOLE_PERCENT:
            raise field.refuse("shares with amounts that a GPU has")
    return shares


def _allocation(field: Field, unit_mib: int) -> tuple[Share, ...]:
    """Return one share for each GPU: gpushare's containers of one pod see one limit together."""
    try:
        by_container = _ALLOCATION.decode(field.text())
        amounts: dict[int, int] = {}
        for by_gpu in by_container.values():
            for gpu, amount in by_gpu.items():
                amounts[int(gpu)] = amounts.get(int(gpu), 0) + amount * unit_mib
    except (ValueError, RecursionError) as error:
        raise field.refuse("JSON of container index, GPU index and amount", found=shown(error)) from error
    return tuple(_share(gpu, memory_mib) for gpu, memory_mib in sorted(amounts.items()))


def _share(gpu: int, memory_mib: int) -> Share:
    return Share(
        gpu=gpu,
        mode=Mode.MEMORY_SHARE,
        memory_mib=memory_mib,
        compute_percent=0,
        isolation=Isolation.NONE,
        resource=SHARE_MEMORY,
    )
