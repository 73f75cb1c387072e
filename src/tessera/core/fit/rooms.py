"""How many instances of a MIG profile still fit on one GPU, as a table over every set of used units.

A GPU's MIG state is an int: bit `u` is set when placement unit `u` is used, and above the units one bit for each media
kind of which the GPU holds at most one instance (`GpuModel.at_most_one`), set when that instance is in use.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from tessera.core.gpumodels import GpuModel, Profile
from tessera.core.mig import Placement

__all__ = ["occupied", "profile_of", "rooms", "starts"]


def profile_of(model: GpuModel, name: str) -> Profile:
    """Return the model's profile of that name. Raises: StopIteration where the model has none."""
    return next(p for p in model.profiles if p.name == name)


def occupied(model: GpuModel, placement: Placement) -> int:
    """Return the bits of the MIG state that an instance takes: its units and its media kind."""
    return placement.mask | _media_bit(model, profile_of(model, placement.profile))


def starts(model: GpuModel, profile: Profile, used: int) -> tuple[int, ...]:
    """Return the starts at which an instance of `profile` fits beside what is `used`, lowest first."""
    if used & _media_bit(model, profile):
        return ()
    return tuple(s for s in profile.starts if not used & _units(profile, s))


@functools.cache
def rooms(model: GpuModel, profile: Profile) -> NDArray[np.int8]:
    """Return how many more instances of `profile` fit, by MIG state; shape `(2 ** bits,)`.

    Instances of one profile are intervals of one length, so taking the lowest free start each time is optimal.
    """
    states = np.arange(1 << (model.units + len(model.at_most_one)), dtype=np.int32)
    free = ~states
    room = np.zeros(len(states), dtype=np.int8)
    for start in profile.starts:
        units = np.int32(_units(profile, start))
        fits = (free & units) == units
        room += fits
        free = np.where(fits, free & ~units, free)
    media = _media_bit(model, profile)
    if media:
        room = np.where(states & media, 0, np.minimum(room, 1)).astype(np.int8)
    return room


def _units(profile: Profile, start: int) -> int:
    return Placement(start, profile.size, profile.name).mask


def _media_bit(model: GpuModel, profile: Profile) -> int:
    if profile.media not in model.at_most_one:
        return 0
    return 1 << (model.units + model.at_most_one.index(profile.media))
