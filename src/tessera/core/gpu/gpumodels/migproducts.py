"""The GPU products with MIG, as data: one row per profile.

The placement rules that break naive code: 3g takes half of the memory slices; on seven-slice GPUs 4g starts only at 0,
2g never at 6, and the last memory slice is reached only by 3g at 4, 7g, or 1g with double memory at 6.
"""

from typing import Literal, NamedTuple

from tessera.core.gpu.gpumodels.estimates import gpu_memory_mib, profile_memory_mib
from tessera.core.gpu.gpumodels.records import GpuModel, Media, Profile

__all__ = ["MIG_PRODUCTS"]

_Known = Literal["observed", "published-table", "inferred", "unknown"]


class _Row(NamedTuple):
    """A profile as a family of GPUs lays it out; `name` is filled with the family's memory names."""

    name: str
    profile_id: int | None
    compute_slices: int
    slices: int
    """Memory slices taken."""
    starts: tuple[int, ...]
    max_instances: int
    media: Media
    graphics: bool = False


class _Evidence(NamedTuple):
    """The observations of one product."""

    placement: _Known
    sources: tuple[str, ...]
    sm: tuple[int | None, ...]
    """SMs by row."""
    gib: dict[int, float]
    """Free GiB as nvidia-smi or NVML prints it, by memory slices taken."""


_ANY_OF_SEVEN = (0, 1, 2, 3, 4, 5, 6)

# Source: ug-profiles, and nvidia-smi mig -lgipp of A100, H100 80GB and H100 94GB; the ids agree in all listings.
_SEVEN = (
    _Row("1g.{0}gb", 19, 1, 1, _ANY_OF_SEVEN, 7, "default"),
    _Row("1g.{0}gb+me", 20, 1, 1, _ANY_OF_SEVEN, 1, "me"),
    _Row("1g.{1}gb", 15, 1, 2, (0, 2, 4, 6), 4, "default"),
    _Row("2g.{1}gb", 14, 2, 2, (0, 2, 4), 3, "default"),
    _Row("3g.{2}gb", 9, 3, 4, (0, 4), 2, "default"),
    _Row("4g.{2}gb", 5, 4, 4, (0,), 1, "default"),
    _Row("7g.{3}gb", 0, 7, 8, (0,), 1, "full"),
)

# Source: ug-profiles, lgipp-a30; +me of 1g needs driver R470, +me of 2g needs R525.
_A30 = (
    _Row("1g.6gb", 14, 1, 1, (0, 1, 2, 3), 4, "none"),
    _Row("1g.6gb+me", 21, 1, 1, (0, 1, 2, 3), 1, "me"),
    _Row("2g.12gb", 5, 2, 2, (0, 2), 2, "default"),
    _Row("2g.12gb+me", 6, 2, 2, (0, 2), 1, "me"),
    _Row("4g.24gb", 0, 4, 4, (0,), 1, "full"),
)

# Source: ug-profiles, lgipp-rtxpro6000. The driver counts placements on a grid of 12 memory slices, 3 to a slice.
_QUARTERS, _HALVES = (0, 3, 6, 9), (0, 6)
_RTX_PRO_6000 = (
    _Row("1g.24gb", 14, 1, 3, _QUARTERS, 4, "default"),
    _Row("1g.24gb+me", 21, 1, 3, _QUARTERS, 1, "me"),
    _Row("1g.24gb+gfx", 47, 1, 3, _QUARTERS, 4, "default", graphics=True),
    _Row("1g.24gb+me.all", 65, 1, 3, _QUARTERS, 1, "me.all"),
    _Row("1g.24gb-me", 67, 1, 3, _QUARTERS, 4, "none"),
    _Row("2g.48gb", 5, 2, 6, _HALVES, 2, "default"),
    _Row("2g.48gb+gfx", 35, 2, 6, _HALVES, 2, "default", graphics=True),
    _Row("2g.48gb+me.all", 64, 2, 6, _HALVES, 1, "me.all"),
    _Row("2g.48gb-me", 66, 2, 6, _HALVES, 2, "none"),
    _Row("4g.96gb", 0, 4, 12, (0,), 1, "full"),
    _Row("4g.96gb+gfx", 32, 4, 12, (0,), 1, "full", graphics=True),
)

# Source: ug-profiles; slices are read from the names, starts are not known.
_RTX_PRO_5000 = (
    _Row("1g.12gb", None, 1, 1, (), 1, "default"),
    _Row("1g.12gb+me", None, 1, 1, (), 1, "me"),
    _Row("1g.12gb+gfx", None, 1, 1, (), 1, "default", graphics=True),
    _Row("1g.12gb-me", None, 1, 1, (), 3, "none"),
    _Row("2g.24gb-me", None, 2, 2, (), 1, "none"),
    _Row("4g.48gb", None, 4, 4, (), 1, "full"),
    _Row("4g.48gb+gfx", None, 4, 4, (), 1, "full", graphics=True),
)

# Source: ug-profiles-2026; starts are not known.
_RTX_PRO_4500 = (
    _Row("1g.16gb", None, 1, 1, (), 2, "default"),
    _Row("1g.16gb+gfx", None, 1, 1, (), 2, "default", graphics=True),
    _Row("1g.16gb+me.all", None, 1, 1, (), 1, "me.all"),
    _Row("1g.16gb-me", None, 1, 1, (), 2, "none"),
    _Row("2g.32gb", None, 2, 2, (), 1, "full"),
    _Row("2g.32gb+gfx", None, 2, 2, (), 1, "full", graphics=True),
)

_UNKNOWN_SM: tuple[int | None, ...] = (None,) * 7
_A100_SM = (14, 14, 14, 28, 42, 56, 98)
_A100_SOURCES = ("ug-profiles", "go-nvml", "instaslice", "mig-parted")


def _profiles(
    rows: tuple[_Row, ...], gpu_mib: int, of: int, evidence: _Evidence, names: tuple[int, ...] = ()
) -> tuple[Profile, ...]:
    """Return a product's profiles; `of` is the number of memory slices in all."""
    listed = {slices: int(gib * 1024) for slices, gib in evidence.gib.items()}
    return tuple(
        Profile(
            name=row.name.format(*names),
            compute_slices=row.compute_slices,
            size=row.slices if row.starts else 0,
            starts=row.starts,
            max_instances=row.max_instances,
            memory_mib=listed.get(row.slices) or profile_memory_mib(gpu_mib, (row.slices, of), listed),
            memory_known=row.slices in listed,
            media=row.media,
            graphics=row.graphics,
            profile_id=row.profile_id,
            sm=sm,
            placement=evidence.placement,
            sources=evidence.sources,
        )
        for row, sm in zip(rows, evidence.sm, strict=True)
    )


class _Product(NamedTuple):
    """A seven-slice product."""

    name: str
    arch: str
    memory_mib: int
    names: tuple[int, int, int, int]
    """GB in the profiles' names for 1, 2, 4 and 8 memory slices."""
    aliases: tuple[str, ...]
    pci: tuple[str, ...]
    evidence: _Evidence
    note: str = ""


_SEVEN_SLICE_PRODUCTS = (
    _Product(
        "A100-40GB",
        "Ampere",
        40960,
        (5, 10, 20, 40),
        (
            "A100-SXM4-40GB",
            "A100-PCIE-40GB",
            "A100-SXM-40GB",
            "A800-40GB",
            "A800-SXM4-40GB",
            "A800 40GB Active",
            "nvidia-tesla-a100",
        ),
        ("0x20B010DE", "0x20B110DE", "0x20F110DE", "0x20F610DE"),
        _Evidence("observed", _A100_SOURCES, _A100_SM, {1: 4.75, 2: 9.62, 4: 19.5, 8: 39.25}),
    ),
    _Product(
        "A100-80GB",
        "Ampere",
        81920,
        (10, 20, 40, 80),
        (
            "A100-SXM4-80GB",
            "A100-PCIE-80GB",
            "A100 80GB PCIe",
            "A800-80GB",
            "A800-SXM4-80GB",
            "A800 80GB PCIe",
            "nvidia-a100-80gb",
        ),
        ("0x20B210DE", "0x20B510DE", "0x20F310DE", "0x20F510DE"),
        _Evidence("observed", _A100_SOURCES, _A100_SM, {1: 9.62, 2: 19.5, 4: 39.25, 8: 78.5}),
    ),
    _Product(
        "H100-80GB",
        "Hopper",
        81559,
        (10, 20, 40, 80),
        (
            "H100-SXM5-80GB",
            "H100-PCIE-80GB",
            "H100 80GB HBM3",
            "H100 PCIe",
            "H800-80GB",
            "H800",
            "H800 PCIe",
            "nvidia-h100-80gb",
            "nvidia-h100-mega-80gb",
        ),
        ("0x233010DE", "0x233110DE", "0x232210DE", "0x232410DE"),
        _Evidence(
            "observed",
            ("ug-profiles", "lgipp-h100-80", "instaslice", "mig-parted"),
            (16, 16, 26, 32, 60, 64, 132),
            {1: 9.75, 2: 19.62, 4: 39.5, 8: 79.25},
        ),
    ),
    _Product(
        "H100-94GB",
        "Hopper",
        95830,
        (12, 24, 47, 94),
        ("H100 NVL", "H100-SXM5-94GB", "H800 NVL"),
        ("0x232110DE", "0x233A10DE"),
        _Evidence(
            "observed",
            ("lgipp-h100-94", "mig-parted"),
            (None, None, None, None, None, 64, 132),
            {4: 46.38, 8: 93.12},
        ),
    ),
    _Product(
        "H100-96GB",
        "Hopper",
        97871,
        (12, 24, 48, 96),
        ("GH200 96GB", "GH200 480GB", "GH200 120GB", "H20-96GB", "H20"),
        ("0x234210DE", "0x233D10DE", "0x232910DE"),
        _Evidence("inferred", ("ug-profiles", "syseleven", "mig-parted", "die"), _UNKNOWN_SM, {}),
        "H20 has fewer SMs than the other Hopper products, so the SM counts are unknown",
    ),
    _Product(
        "GH200-144GB",
        "Hopper",
        146831,
        (18, 36, 72, 144),
        ("GH200 144G HBM3e",),
        ("0x234810DE",),
        _Evidence(
            "inferred",
            ("lgip-gh200-144", "mig-parted", "die"),
            (16, 16, 26, 32, None, None, None),
            {1: 17.5, 2: 35.25},
        ),
    ),
    _Product(
        "H200-141GB",
        "Hopper",
        143771,
        (18, 35, 71, 141),
        ("H200", "H200-SXM5", "H200 NVL", "H20-141GB", "nvidia-h200-141gb"),
        ("0x233510DE", "0x233B10DE"),
        _Evidence(
            "observed",
            ("ug-profiles", "nvml-h200", "lgip-h200", "instaslice", "mig-parted"),
            (16, 16, 26, 32, 60, 64, 132),
            {1: 16.0, 2: 32.5, 4: 69.75, 8: 140.0},
        ),
        "H20-141GB shares the names only; its SM counts are not these",
    ),
    _Product(
        "B200-180GB",
        "Blackwell",
        183359,
        (23, 45, 90, 180),
        ("B200", "nvidia-b200"),
        ("0x290110DE",),
        _Evidence(
            "inferred",
            ("ug-profiles", "lgip-b200", "mig-parted", "die"),
            (18, 18, 30, 36, None, None, None),
            {1: 20.5, 2: 44.25},
        ),
        "two driver builds show 22.00 and 20.50 GiB of free memory for 1g; the smaller one counts",
    ),
    _Product(
        "GB200-186GB",
        "Blackwell",
        189471,
        (23, 47, 93, 186),
        ("GB200", "nvidia-gb200"),
        ("0x294110DE",),
        _Evidence(
            "inferred",
            ("lgip-gb200", "mig-parted", "ug-gpus", "die"),
            (18, 18, 32, 38, None, None, None),
            {1: 22.0, 2: 45.5},
        ),
        "some drivers print 1g.24gb, 3g.95gb, 4g.95gb and 7g.189gb",
    ),
    _Product(
        "B300",
        "Blackwell Ultra",
        275040,
        (34, 67, 135, 269),
        ("B300 SXM6 AC", "nvidia-b300"),
        ("0x318210DE",),
        _Evidence("inferred", ("mig-parted", "die"), _UNKNOWN_SM, {}),
    ),
    _Product(
        "GB300",
        "Blackwell Ultra",
        284208,
        (35, 70, 139, 278),
        ("nvidia-gb300",),
        ("0x31C210DE",),
        _Evidence("inferred", ("mig-parted", "die"), _UNKNOWN_SM, {}),
    ),
)


def _seven_slices(product: _Product) -> GpuModel:
    return GpuModel(
        name=product.name,
        arch=product.arch,
        memory_mib=product.memory_mib,
        memory_slices=8,
        compute_slices=7,
        profiles=_profiles(_SEVEN, product.memory_mib, 8, product.evidence, product.names),
        at_most_one=("me",),
        aliases=product.aliases,
        pci=product.pci,
        note=product.note,
        sources=("smi", *product.evidence.sources),
    )


_A30_EVIDENCE = _Evidence(
    "observed",
    ("ug-profiles", "go-nvml", "lgipp-a30"),
    (14, 14, 28, 28, 56),
    {1: 5.7, 2: 11.4, 4: 23.5},
)
_RTX_PRO_6000_EVIDENCE = _Evidence(
    "observed",
    ("ug-profiles", "lgipp-rtxpro6000", "mig-parted"),
    (46, 46, 46, 46, 46, 94, 94, 94, 94, 188, 188),
    {3: 23.12, 6: 47.38, 12: 95.0},
)
_RTX_PRO_5000_EVIDENCE = _Evidence("unknown", ("ug-profiles", "ug-gpus"), _UNKNOWN_SM, {})
_RTX_PRO_4500_EVIDENCE = _Evidence("unknown", ("ug-profiles-2026",), (None,) * 6, {})

MIG_PRODUCTS: tuple[GpuModel, ...] = (
    GpuModel(
        name="A30-24GB",
        arch="Ampere",
        memory_mib=24576,
        memory_slices=4,
        compute_slices=4,
        profiles=_profiles(_A30, 24576, 4, _A30_EVIDENCE),
        at_most_one=("me",),
        aliases=("A30",),
        pci=("0x20B710DE",),
        sources=("smi", *_A30_EVIDENCE.sources),
    ),
    *(_seven_slices(product) for product in _SEVEN_SLICE_PRODUCTS),
    GpuModel(
        name="RTX-PRO-6000-Blackwell-96GB",
        arch="Blackwell",
        memory_mib=97887,
        memory_slices=12,
        compute_slices=4,
        profiles=_profiles(_RTX_PRO_6000, 97887, 12, _RTX_PRO_6000_EVIDENCE),
        at_most_one=("me", "me.all"),
        aliases=(
            "RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "RTX PRO 6000 Blackwell",
            "RTX-PRO-6000",
            "nvidia-rtx-pro-6000",
            "rtx-pro-server-6000",
        ),
        pci=("0x2BB510DE",),
        note="placements are on a grid of 12 memory slices; listings show 23.62 and 23.12 GiB of free memory for 1g, "
        "the smaller one counts; +me.all takes all media engines, so only -me instances may fit next to it; for vGPU "
        "only the +gfx profiles are usable",
        sources=("smi", *_RTX_PRO_6000_EVIDENCE.sources),
    ),
    GpuModel(
        name="RTX-PRO-5000-Blackwell-48GB",
        arch="Blackwell",
        memory_mib=gpu_memory_mib(48),
        memory_known=False,
        compute_slices=4,
        profiles=_profiles(_RTX_PRO_5000, gpu_memory_mib(48), 4, _RTX_PRO_5000_EVIDENCE),
        at_most_one=("me",),
        aliases=("RTX PRO 5000 Blackwell", "RTX-PRO-5000"),
        note="placements were not found, so its instances cannot be planned; the user guide's counts do not fit its "
        "own maximum of 2 instances",
        sources=("name", *_RTX_PRO_5000_EVIDENCE.sources),
    ),
    GpuModel(
        name="RTX-PRO-4500-Blackwell-32GB",
        arch="Blackwell",
        memory_mib=gpu_memory_mib(32),
        memory_known=False,
        compute_slices=2,
        profiles=_profiles(_RTX_PRO_4500, gpu_memory_mib(32), 2, _RTX_PRO_4500_EVIDENCE),
        at_most_one=("me.all",),
        aliases=("RTX PRO 4500 Blackwell Server Edition", "RTX PRO 4500 Blackwell", "RTX-PRO-4500"),
        note="placements were not found, so its instances cannot be planned",
        sources=("name", "ec2", *_RTX_PRO_4500_EVIDENCE.sources),
    ),
)
"""The products of NVIDIA's MIG User Guide and mig-parted, smallest family first."""
