"""What a driver reports of a product beside the catalog's facts: its full name, compute capability, power, clocks.

The catalog (`core/gpu/gpumodels`) has what decides where pods go, and is the one source of it here too. These figures
only make a simulated GPU look like itself; nothing is decided by them.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import msgspec

from tessera.core.gpu.gpumodels import DRIVER_NAMES, GpuModel, Profile, model
from tessera.errors import InvalidInput, shown

__all__ = ["Engines", "Product", "SimulatedGpu", "api_index", "engines", "gpus_of", "product"]

_MOST_GPUS = 32
_COUNTED = re.compile(r"\s*(?:(?P<count>\d{1,3})\s*x\s*)?(?P<name>\S.*?)\s*", re.IGNORECASE)
_NICKNAMES = re.compile(
    r"nvidia-.*|[A-Z]+\d+-\d+GB|[A-Z]+\d+-(SXM5|PCIE)-80GB|H\d+-SXM5.*|V100M\d+|A[56]000|RTX-PRO-\d+|rtx-pro-server-.*"
)
"""Names in the catalog that no driver prints: those of clouds, traces and memory sizes."""


class SimulatedGpu(msgspec.Struct, frozen=True):
    """A GPU to simulate."""

    model: GpuModel
    name: str
    """As the driver prints it: `NVIDIA A100-SXM4-40GB`."""


class _Figures(NamedTuple):
    """What data sheets say of a product. Source: NVIDIA's; the figures are rounded."""

    multiprocessors: int
    power_w: tuple[int, int]
    """The least limit that can be set, and the limit as delivered, which is the most."""
    clocks_mhz: tuple[int, int]
    """The highest of SMs and of memory."""
    bus_bits: int
    pci: int
    """PCI device and vendor id where the catalog has none."""


_FIGURES = {
    "A30-24GB": _Figures(56, (100, 165), (1440, 1215), 3072, 0),
    "A100-40GB": _Figures(108, (100, 400), (1410, 1215), 5120, 0),
    "A100-80GB": _Figures(108, (100, 400), (1410, 1593), 5120, 0),
    "H100-80GB": _Figures(132, (200, 700), (1980, 2619), 5120, 0),
    "H100-94GB": _Figures(132, (200, 400), (1785, 2619), 6016, 0),
    "H100-96GB": _Figures(132, (100, 900), (1980, 2619), 6144, 0),
    "GH200-144GB": _Figures(132, (100, 900), (1980, 3201), 6144, 0),
    "H200-141GB": _Figures(132, (200, 700), (1980, 3201), 6016, 0),
    "B200-180GB": _Figures(148, (200, 1000), (1965, 3996), 8192, 0),
    "GB200-186GB": _Figures(152, (200, 1200), (2062, 3996), 8192, 0),
    "B300": _Figures(148, (200, 1100), (2032, 3996), 8192, 0),
    "GB300": _Figures(152, (200, 1400), (2032, 3996), 8192, 0),
    "RTX-PRO-6000-Blackwell-96GB": _Figures(188, (150, 600), (2430, 12481), 512, 0),
    "RTX-PRO-5000-Blackwell-48GB": _Figures(110, (150, 300), (2610, 14001), 384, 0x2BB310DE),
    "RTX-PRO-4500-Blackwell-32GB": _Figures(82, (100, 200), (2617, 14001), 256, 0x2C3110DE),
    "P4": _Figures(20, (60, 75), (1531, 3003), 256, 0x1BB310DE),
    "P40": _Figures(30, (125, 250), (1531, 3615), 384, 0x1B3810DE),
    "P100": _Figures(56, (125, 250), (1328, 715), 4096, 0x15F810DE),
    "V100-16GB": _Figures(80, (150, 300), (1530, 877), 4096, 0x1DB110DE),
    "V100-32GB": _Figures(80, (150, 300), (1530, 877), 4096, 0x1DB510DE),
    "T4": _Figures(40, (60, 70), (1590, 5001), 256, 0x1EB810DE),
    "T4G": _Figures(40, (60, 70), (1590, 5001), 256, 0x1EB410DE),
    "A2": _Figures(10, (35, 60), (1770, 6251), 128, 0x25B610DE),
    "A10": _Figures(72, (100, 150), (1695, 6251), 384, 0x223610DE),
    "A10G": _Figures(80, (100, 300), (1710, 6251), 384, 0x223710DE),
    "A16": _Figures(10, (50, 62), (1755, 6251), 128, 0x25B610DE),
    "A40": _Figures(84, (100, 300), (1740, 7251), 384, 0x223510DE),
    "RTX-A5000": _Figures(64, (100, 230), (2100, 8001), 384, 0x223110DE),
    "RTX-A6000": _Figures(84, (100, 300), (2100, 8001), 384, 0x223010DE),
    "RTX-3090": _Figures(82, (100, 350), (2100, 9751), 384, 0x220410DE),
    "L4": _Figures(58, (40, 72), (2040, 6251), 192, 0x27B810DE),
    "L40": _Figures(142, (100, 300), (2490, 9001), 384, 0x26B510DE),
    "L40S": _Figures(142, (100, 350), (2520, 9001), 384, 0x26B910DE),
    "RTX-6000-Ada": _Figures(142, (100, 300), (3105, 10001), 384, 0x26B110DE),
    "RTX-4090": _Figures(128, (150, 450), (3120, 10501), 384, 0x268410DE),
    "RTX-5090": _Figures(170, (400, 575), (3090, 14001), 512, 0x2B8510DE),
}


class Product(NamedTuple):
    """A product as its driver shows it."""

    name: str
    compute: tuple[int, int]
    """CUDA compute capability."""
    multiprocessors: int
    power_w: tuple[int, int]
    clocks_mhz: tuple[int, int]
    bus_bits: int
    pci: int


def product(gpu: GpuModel) -> Product:
    """Return what the driver reports of this model's best known product."""
    figures = _FIGURES[gpu.name]
    return Product(
        *DRIVER_NAMES[gpu.name],
        figures.multiprocessors,
        figures.power_w,
        figures.clocks_mhz,
        figures.bus_bits,
        figures.pci,
    )


def gpus_of(texts: Iterable[str]) -> tuple[SimulatedGpu, ...]:
    """Return the GPUs that `2xA100-40GB` and the like name, in order.

    A model goes by any name that the catalog knows. A product name (`A100-PCIE-40GB`) is what the driver then prints;
    other names give the model's best known product.

    Raises:
        InvalidInput: not a count and a model, no such model, or more GPUs than one machine can have.

    """
    gpus: list[SimulatedGpu] = []
    for text in texts:
        parts = _COUNTED.fullmatch(text)
        count = int(parts["count"] or 1) if parts else 0
        if parts is None or not 1 <= count <= _MOST_GPUS:
            raise InvalidInput(
                "GPUs to simulate",
                found=shown(text),
                expected=f"a count from 1 to {_MOST_GPUS} and a model, such as 2xA100-40GB",
            )
        found = model(parts["name"])
        gpus += [SimulatedGpu(found, _driver_name(found, parts["name"]))] * count
    if not 1 <= len(gpus) <= _MOST_GPUS:
        raise InvalidInput("GPUs to simulate", found=str(len(gpus)), expected=f"1 to {_MOST_GPUS}")
    return tuple(gpus)


def _driver_name(gpu: GpuModel, text: str) -> str:
    """Return the product's name: that of an alias which drivers print, else the model's best known product."""
    maker = "NVIDIA " if gpu.arch not in {"Pascal", "Volta", "Turing"} else ""
    plain = text.strip().casefold().removeprefix("nvidia").strip(" -")
    for alias in gpu.aliases:
        if alias.casefold() == plain and not _NICKNAMES.fullmatch(alias):
            return f"{maker}{alias}"
    return product(gpu).name


class Engines(NamedTuple):
    """Engines of a MIG instance."""

    copy: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int


@cache
def engines(gpu: GpuModel, profile: Profile) -> Engines:
    """Return the engines of an instance of this profile, as far as listings of its family were seen.

    Source: NVIDIA MIG User Guide, Supported MIG Profiles (engines by profile), and listings of A100, A30, H100, B200
    and RTX PRO 6000 that the catalog names; other products are taken to be like their family.
    """
    slices, media = profile.compute_slices, profile.media
    special = 1 if media in {"me", "me.all", "full"} else 0
    if gpu.compute_slices == 7:  # noqa: PLR2004 - the seven-slice family
        if gpu.arch == "Ampere":
            few = {1: 0, 2: 1, 3: 2, 4: 2, 7: 5}[slices]
            doubled = slices == 1 and profile.size > 1
            return Engines(slices, 1 if media == "me" or doubled else few, 0, special, special)
        if gpu.arch == "Hopper":
            return Engines(8 if media == "full" else slices, slices, 0, slices, special)
        return Engines({1: 2, 2: 3, 3: 6, 4: 8, 7: 16}[slices], 1, 0, 1, special)
    if gpu.arch == "Ampere":
        decoders = 0 if media == "none" else slices
        return Engines(slices, decoders, 0, special, special)
    all_of_them = gpu.compute_slices if media in {"me.all", "full"} else slices
    each = 0 if media == "none" else all_of_them
    return Engines(slices, each, each, each, special)


def api_index(gpu: GpuModel, profile: Profile) -> int:
    """Return which of the constants NVML_GPU_INSTANCE_PROFILE_* names this profile.

    Source: nvidia-ml-py 13.615.71, the constants of that name: 1_SLICE to 6_SLICE, then 1_SLICE_REV1 and 2_SLICE_REV1
    (with media engines), 1_SLICE_REV2 (double memory), _GFX, _NO_ME and _ALL_ME.
    """
    slices = profile.compute_slices
    if profile.graphics:
        return {1: 0xA, 2: 0xB, 3: 0x11, 4: 0xC}[slices]
    if profile.name.endswith("-me"):
        return {1: 0xD, 2: 0xE}[slices]
    if profile.media == "me.all":
        return {1: 0xF, 2: 0x10}[slices]
    if profile.media == "me":
        return {1: 0x7, 2: 0x8}[slices]
    if slices == 1 and profile.size > min(each.size for each in gpu.profiles):
        return 0x9
    return {1: 0x0, 2: 0x1, 3: 0x2, 4: 0x3, 7: 0x4, 8: 0x5, 6: 0x6}[slices]
