"""The driver's name and compute capability of each GPU model's best known product: for GPU Feature Discovery."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["DRIVER_NAMES", "DriverName"]


class DriverName(NamedTuple):
    """A product as its driver reports it."""

    product: str
    """As nvidia-smi prints it: `NVIDIA A100-SXM4-40GB`."""
    compute: tuple[int, int]
    """CUDA compute capability."""


DRIVER_NAMES: Mapping[str, DriverName] = MappingProxyType(
    {
        "A30-24GB": DriverName("NVIDIA A30", (8, 0)),
        "A100-40GB": DriverName("NVIDIA A100-SXM4-40GB", (8, 0)),
        "A100-80GB": DriverName("NVIDIA A100-SXM4-80GB", (8, 0)),
        "H100-80GB": DriverName("NVIDIA H100 80GB HBM3", (9, 0)),
        "H100-94GB": DriverName("NVIDIA H100 NVL", (9, 0)),
        "H100-96GB": DriverName("NVIDIA GH200 480GB", (9, 0)),
        "GH200-144GB": DriverName("NVIDIA GH200 144G HBM3e", (9, 0)),
        "H200-141GB": DriverName("NVIDIA H200", (9, 0)),
        "B200-180GB": DriverName("NVIDIA B200", (10, 0)),
        "GB200-186GB": DriverName("NVIDIA GB200", (10, 0)),
        "B300": DriverName("NVIDIA B300 SXM6 AC", (10, 3)),
        "GB300": DriverName("NVIDIA GB300", (10, 3)),
        "RTX-PRO-6000-Blackwell-96GB": DriverName("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        "RTX-PRO-5000-Blackwell-48GB": DriverName("NVIDIA RTX PRO 5000 Blackwell", (12, 0)),
        "RTX-PRO-4500-Blackwell-32GB": DriverName("NVIDIA RTX PRO 4500 Blackwell", (12, 0)),
        "P4": DriverName("Tesla P4", (6, 1)),
        "P40": DriverName("Tesla P40", (6, 1)),
        "P100": DriverName("Tesla P100-PCIE-16GB", (6, 0)),
        "V100-16GB": DriverName("Tesla V100-SXM2-16GB", (7, 0)),
        "V100-32GB": DriverName("Tesla V100-SXM2-32GB", (7, 0)),
        "T4": DriverName("Tesla T4", (7, 5)),
        "T4G": DriverName("NVIDIA T4G", (7, 5)),
        "A2": DriverName("NVIDIA A2", (8, 6)),
        "A10": DriverName("NVIDIA A10", (8, 6)),
        "A10G": DriverName("NVIDIA A10G", (8, 6)),
        "A16": DriverName("NVIDIA A16", (8, 6)),
        "A40": DriverName("NVIDIA A40", (8, 6)),
        "RTX-A5000": DriverName("NVIDIA RTX A5000", (8, 6)),
        "RTX-A6000": DriverName("NVIDIA RTX A6000", (8, 6)),
        "RTX-3090": DriverName("NVIDIA GeForce RTX 3090", (8, 6)),
        "L4": DriverName("NVIDIA L4", (8, 9)),
        "L40": DriverName("NVIDIA L40", (8, 9)),
        "L40S": DriverName("NVIDIA L40S", (8, 9)),
        "RTX-6000-Ada": DriverName("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        "RTX-4090": DriverName("NVIDIA GeForce RTX 4090", (8, 9)),
        "RTX-5090": DriverName("NVIDIA GeForce RTX 5090", (12, 0)),
    }
)
"""By the catalog's name. Source: NVIDIA's data sheets and the listings in `sources`."""
