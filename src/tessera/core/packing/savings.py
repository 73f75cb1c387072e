"""What sharing saves: GPUs in use, compared with exclusive GPUs for the same containers."""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.packing.plan import GpuLayout

__all__ = ["Cost", "ModelGpus", "cost", "gpu_use"]


class ModelGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one model after a plan."""

    model: str
    gpus: int
    used: int
    """GPUs with a share in use."""
    unshared: int
    """GPUs that the same containers would take if each had its shared GPUs exclusively."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Money per hour, in the currency of the prices."""

    fleet: float
    """All GPUs."""
    used: float
    """Those in use."""
    unshared: float
    """Those that would be in use without sharing."""
    unpriced: tuple[str, ...] = ()
    """GPU models of the fleet without a price, which the sums leave out."""


def gpu_use(layouts: Iterable[GpuLayout]) -> tuple[ModelGpus, ...]:
    """Return how many GPUs of each model are in use, in order of the models' first GPU."""
    found: dict[str, ModelGpus] = {}
    for each in layouts:
        holders = {
            (pod_share.pod, pod_share.share.container) for device in each.devices for pod_share in device.pod_shares
        }
        so_far = found.get(each.model, ModelGpus(model=each.model, gpus=0, used=0, unshared=0))
        found[each.model] = ModelGpus(
            model=each.model,
            gpus=so_far.gpus + 1,
            used=so_far.used + bool(holders),
            unshared=so_far.unshared + len(holders),
        )
    return tuple(found.values())


def cost(use: Iterable[ModelGpus], prices: Mapping[str, float]) -> Cost:
    """Return what these GPUs cost an hour, at prices of one GPU of each model."""
    use = tuple(use)
    priced = [(each, prices[each.model]) for each in use if each.model in prices]
    return Cost(
        fleet=_money(price * each.gpus for each, price in priced),
        used=_money(price * each.used for each, price in priced),
        unshared=_money(price * each.unshared for each, price in priced),
        unpriced=tuple(each.model for each in use if each.model not in prices),
    )


def _money(amounts: Iterable[float]) -> float:
    return round(sum(amounts), 4)
