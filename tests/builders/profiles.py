"""MIG profiles of GPU models that exist in tests alone."""

from collections.abc import Sequence

from tessera.core.gpu.gpumodels.records import Media, Profile


def profile(
    name: str, size: int, starts: Sequence[int], memory_mib: int = 1, *, slices: int = 1, media: Media = "default"
) -> Profile:
    """Return a profile of so many memory slices, and `slices` of compute."""
    return Profile(
        name=name,
        compute_slices=slices,
        size=size,
        starts=tuple(starts),
        max_instances=len(starts),
        memory_mib=memory_mib,
        media=media,
        placement="observed",
    )
