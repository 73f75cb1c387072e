"""Finding GPU models and MIG profiles by the many names they go by."""

import difflib
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from tessera.core.gpu.gpumodels.migproducts import MIG_PRODUCTS
from tessera.core.gpu.gpumodels.records import GpuModel, Profile
from tessera.core.gpu.gpumodels.wholeproducts import WHOLE_PRODUCTS
from tessera.errors import InvalidInput, shown

__all__ = ["CATALOG", "is_profile", "meant", "model", "profile", "same_profile", "sized_model"]

CATALOG: tuple[GpuModel, ...] = (*MIG_PRODUCTS, *WHOLE_PRODUCTS)
"""Every GPU model Tessera knows, those with MIG first."""

_LABEL_SUFFIXES = re.compile(r"(-mig-.*)?(-shared)?$")
_PROFILE = re.compile(r"(?P<slices>\d{1,2})g\.(?P<gb>\d{1,4})gb(?P<attributes>([.+-][a-z]+)*)")
_TOLERANCE_PERCENT = 5
"""How far the gigabytes in a profile's name may differ between drivers. Observed: 4.3 (GB200's 1g.23gb and 1g.24gb)."""
_NEAR_PERCENT = 10
"""How far a GPU's nominal memory may be from the driver's figure."""


def _plain(text: str) -> str:
    """Return a name normalized for comparison: lower case, one hyphen between words, without the vendor."""
    return re.sub(r"[\s_-]+", "-", text.strip().casefold()).removeprefix("nvidia-")


_BY_NAME: Mapping[str, GpuModel] = MappingProxyType(
    {_plain(name): each for each in CATALOG for name in (*each.aliases, *each.pci)}
    | {_plain(each.name): each for each in CATALOG}
)


@cache
def model(text: str) -> GpuModel:
    """Return the GPU model of this name.

    Accepted, in any case: catalog names (`A100-40GB`), product names as the driver prints them or as GPU feature
    discovery labels them (`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED`), GKE's accelerator names (`nvidia-tesla-a100`),
    and PCI device ids as mig-parted writes them (`0x20B010DE`). A name that fits several memory sizes is refused.

    Raises:
        InvalidInput: no model of that name; the message lists similar ones.

    """
    plain = _plain(text)
    found = _BY_NAME.get(plain) or _BY_NAME.get(_LABEL_SUFFIXES.sub("", plain))
    if found is None:
        *more, last = _close(plain) or ("",)
        close = f"{', '.join(more)} or {last}" if more else last
        advice = f"did you mean {close}?" if close else "use T4, L4, A100-40GB, H100-80GB or another;"
        raise InvalidInput(
            "GPU model",
            found=shown(text),
            expected="a GPU model that Tessera knows",
            hint=f"{advice} `tessera profiles` lists all",
        )
    return found


def sized_model(text: str, memory_mib: int) -> GpuModel:
    """Return the GPU model of this name; if several have it (`a100`), the one with about this memory.

    Raises:
        InvalidInput: no model of that name and memory.

    """
    try:
        return model(text)
    except InvalidInput:
        start = f"{_plain(text)}-"
        alike = (each for each in CATALOG if _plain(each.name).startswith(start))
        distance = {each.name: abs(each.memory_mib - memory_mib) * 100 for each in alike}
        nearest = min(distance, key=lambda name: distance[name], default="")
        if not nearest or distance[nearest] > _NEAR_PERCENT * memory_mib:
            raise
        return model(nearest)


def _close(plain: str) -> tuple[str, ...]:
    """Return up to five models whose names start alike, in catalog order, else those spelled alike, the best first."""
    alike = {each.name for name, each in _BY_NAME.items() if plain and name.startswith(f"{plain}-")}
    if alike:
        return tuple(each.name for each in CATALOG if each.name in alike)[:5]
    near = difflib.get_close_matches(plain, _BY_NAME, n=5, cutoff=0.75)
    return tuple(dict.fromkeys(_BY_NAME[name].name for name in near))


@cache
def profile(model: GpuModel, text: str) -> Profile:
    """Return the profile of this name on this model.

    Accepted, in any case: `1g.10gb`, `mig-1g.10gb`, the resource name `nvidia.com/mig-1g.10gb.me` of `1g.10gb+me`, and
    the names other drivers print, matched by slices and memory (`3g.39gb` for `3g.40gb`).

    Raises:
        InvalidInput: the model does not offer it; lists what it offers.

    """
    plain = _plain_profile(text)
    parts = _PROFILE.fullmatch(plain)
    found = [each for each in model.profiles if parts and _same(each.name, plain, parts)]
    if len(found) != 1:
        raise InvalidInput(
            f"MIG profile of {model.name}",
            found=shown(text),
            expected="a profile this model offers",
            hint=", ".join(each.name for each in model.profiles) or "choose another model: it has no MIG",
        )
    return found[0]


@cache
def meant(model: GpuModel, text: str) -> Profile | None:
    """Return the profile of this model that a pod means by a name; None where it means none of this model's.

    The model's own name, or one that no model in the catalog has as its own and that this model's other drivers
    could print: `3g.39gb` is `3g.40gb` of H100-80GB, but `3g.47gb`, which is H100-94GB's, is not `3g.48gb` of another
    product, because to Kubernetes these are two resources.
    """
    plain = _plain_profile(text)
    dotted = plain.replace("+", ".")
    own = next((each for each in model.profiles if each.name.replace("+", ".") == dotted), None)
    if own is not None or dotted in _OWN_PROFILES:
        return own
    parts = _PROFILE.fullmatch(plain)
    return next((each for each in model.profiles if parts and _same(each.name, plain, parts)), None)


_OWN_PROFILES = frozenset(each.name.replace("+", ".") for model in CATALOG for each in model.profiles)


def same_profile(text: str, other: str) -> bool:
    """Return whether two names may mean one profile of some model, in the catalog or not: see `meant`."""
    first, second = _plain_profile(text), _plain_profile(other)
    dotted = {first.replace("+", "."), second.replace("+", ".")}
    if len(dotted) == 1:
        return True
    parts, others = _PROFILE.fullmatch(first), _PROFILE.fullmatch(second)
    if parts is None or others is None or dotted <= _OWN_PROFILES:
        return False
    return _same(first, second, others) or _same(second, first, parts)


@cache
def is_profile(text: str) -> bool:
    """Return whether some model has a profile of this name, in the forms that `profile` accepts."""
    plain = _plain_profile(text)
    parts = _PROFILE.fullmatch(plain)
    return parts is not None and any(_same(each.name, plain, parts) for model in CATALOG for each in model.profiles)


def _plain_profile(text: str) -> str:
    return text.strip().casefold().removeprefix("nvidia.com/").removeprefix("mig-")


def _same(name: str, plain: str, parts: re.Match[str]) -> bool:
    """Return whether two profile names mean the same slices and attributes, and about the same memory."""
    own = _PROFILE.fullmatch(name)
    assert own is not None, f"{name} is a profile name"
    dotted = parts["attributes"].replace("+", ".")
    if name == plain:
        return True
    gb, other = int(own["gb"]), int(parts["gb"])
    near = abs(gb - other) * 100 <= _TOLERANCE_PERCENT * gb
    return own["slices"] == parts["slices"] and own["attributes"].replace("+", ".") == dotted and near
