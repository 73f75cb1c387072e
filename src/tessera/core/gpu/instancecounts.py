"""How many instances of a MIG profile still fit on one GPU, as a table over every set of used memory slices.

A GPU's MIG state is an int: bit `u` is set when memory slice `u` is used, and above these one bit for each media
kind of which the GPU holds at most one instance (`GpuModel.at_most_one`), set when that instance is in use. Where one
such kind takes all media engines, a last bit is set when an instance with any media engine is in use.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from tessera.core.gpu.gpumodels import GpuModel, Profile
from tessera.core.gpu.mig import ALL_MEDIA, Placement

__all__ = ["occupied", "profile_of", "rooms", "starts", "state_bits"]


def profile_of(model: GpuModel, name: str) -> Profile:
    """Return the model's profile of that name. Raises: StopIteration where the model has none."""
    return next(p for p in model.profiles if p.name == name)


def state_bits(model: GpuModel) -> int:
    """Return how many bits the MIG state of this model has."""
    return model.memory_slices + len(model.at_most_one) + (ALL_MEDIA in model.at_most_one)


def occupied(model: GpuModel, placement: Placement) -> int:
    """Return the bits of the MIG state of an instance: its memory slices and media engines."""
    profile = profile_of(model, placement.profile)
    return placement.mask | _kind_bit(model, profile.media) | (profile.media != "none" and _any_bit(model))


def starts(model: GpuModel, profile: Profile, used: int) -> tuple[int, ...]:
    """Return the starts at which an instance of `profile` fits beside what is `used`, lowest first."""
    if used & _bars(model, profile):
        return ()
    return tuple(s for s in profile.starts if not used & _slices(profile, s))


@functools.cache
def rooms(model: GpuModel, profile: Profile) -> NDArray[np.int8]:
    """Return how many more instances of `profile` fit, by MIG state; shape `(2 ** bits,)`.

    Instances of one profile are intervals of one length, so taking the lowest free start each time is optimal.
    """
    states = np.arange(1 << state_bits(model), dtype=np.int32)
    free = ~states
    room = np.zeros(len(states), dtype=np.int8)
    for start in profile.starts:
        slices = np.int32(_slices(profile, start))
        fits = (free & slices) == slices
        room += fits
        free = np.where(fits, free & ~slices, free)
    if profile.media in model.at_most_one:
        room = np.minimum(room, 1)
    return np.where(states & _bars(model, profile), 0, room).astype(np.int8)


def _slices(profile: Profile, start: int) -> int:
    return Placement(start, profile.size, profile.name).mask


def _bars(model: GpuModel, profile: Profile) -> int:
    """Return the media bits that must be clear for an instance of `profile` to fit."""
    if profile.media == "none":
        return 0
    all_media = _any_bit(model) if profile.media == ALL_MEDIA else _kind_bit(model, ALL_MEDIA)
    return all_media | _kind_bit(model, profile.media)


def _kind_bit(model: GpuModel, media: str) -> int:
    return 1 << (model.memory_slices + model.at_most_one.index(media)) if media in model.at_most_one else 0


def _any_bit(model: GpuModel) -> int:
    """Return the bit of media engines in use; 0 where no profile takes all of them."""
    return 1 << (state_bits(model) - 1) if ALL_MEDIA in model.at_most_one else 0
