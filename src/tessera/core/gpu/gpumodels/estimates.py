"""Estimated memory where no listing is known: below the driver's figure, so that nothing is allocated twice."""

__all__ = ["gpu_memory_mib", "profile_memory_mib"]

_MARGIN = (9, 10)


def gpu_memory_mib(nominal_gb: int) -> int:
    """Return a GPU's memory from the size in its product name, read as decimal gigabytes.

    Every GPU of the catalog with a listing has at least that. If a MIG profile promises more, as many of them
    as fit side by side are the better estimate.
    """
    return nominal_gb * 10**9 >> 20


def profile_memory_mib(gpu_mib: int, fraction: tuple[int, int], listed_mib: dict[int, int]) -> int:
    """Return the memory of a MIG profile that takes `fraction` of a GPU's memory slices.

    The larger of two bounds, both below every known listing: nine tenths of the fraction of the whole GPU, and as many
    times a smaller or equal listed profile as it takes slices of that one. The first holds because the driver reserves
    less than a tenth (H200 and B200 reserve the most, 9 percent of a slice); the second because it reserves less
    in one large instance than in several small ones.

    Args:
        gpu_mib: the whole GPU's memory.
        fraction: memory slices taken, and memory slices in all.
        listed_mib: memory by slices taken, of the model's profiles with a listing.

    """
    slices, of = fraction
    share = gpu_mib * slices * _MARGIN[0] // (of * _MARGIN[1])
    return max([share, *(mib * (slices // taken) for taken, mib in listed_mib.items() if taken <= slices)])
