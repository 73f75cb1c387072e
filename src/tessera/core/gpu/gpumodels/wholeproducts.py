"""The shareable GPU products without MIG, as data."""

from tessera.core.gpu.gpumodels.estimates import gpu_memory_mib
from tessera.core.gpu.gpumodels.records import GpuModel

__all__ = ["WHOLE_PRODUCTS"]

# name, architecture, MiB as nvidia-smi prints it with ECC as delivered, other names. Source: smi, see SOURCES.
_ROWS: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    ("P4", "Pascal", 7680, ("Tesla P4", "nvidia-tesla-p4")),
    ("P40", "Pascal", 23040, ("Tesla P40",)),
    ("P100", "Pascal", 16384, ("P100-16GB", "Tesla P100-PCIE-16GB", "Tesla P100-SXM2-16GB", "nvidia-tesla-p100")),
    (
        "V100-16GB",
        "Volta",
        16384,
        ("V100M16", "Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB", "Tesla V100-FHHL-16GB", "nvidia-tesla-v100"),
    ),
    (
        "V100-32GB",
        "Volta",
        32768,
        ("V100M32", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB", "Tesla V100-SXM3-32GB", "Tesla V100S-PCIE-32GB"),
    ),
    ("T4", "Turing", 15360, ("Tesla T4", "nvidia-tesla-t4")),
    ("A2", "Ampere", 15356, ()),
    ("A10", "Ampere", 23028, ()),
    ("A10G", "Ampere", 23028, ()),
    ("A16", "Ampere", 15356, ()),
    ("A40", "Ampere", 46068, ()),
    ("RTX-A5000", "Ampere", 24564, ("A5000",)),
    ("RTX-A6000", "Ampere", 49140, ("A6000",)),
    ("RTX-3090", "Ampere", 24576, ("GeForce RTX 3090",)),
    ("L4", "Ada Lovelace", 23034, ("nvidia-l4",)),
    ("L40", "Ada Lovelace", 46068, ()),
    ("L40S", "Ada Lovelace", 46068, ()),
    ("RTX-6000-Ada", "Ada Lovelace", 49140, ("RTX 6000 Ada Generation",)),
    ("RTX-4090", "Ada Lovelace", 24564, ("GeForce RTX 4090",)),
    ("RTX-5090", "Blackwell", 32607, ("GeForce RTX 5090",)),
)
_NOTES = {"A16": "one of the four GPUs of the board"}

_T4G = GpuModel(name="T4G", arch="Turing", memory_mib=gpu_memory_mib(16), memory_known=False, sources=("name", "ec2"))

WHOLE_PRODUCTS: tuple[GpuModel, ...] = (
    *(
        GpuModel(
            name=name, arch=arch, memory_mib=memory_mib, aliases=aliases, note=_NOTES.get(name, ""), sources=("smi",)
        )
        for name, arch, memory_mib, aliases in _ROWS
    ),
    _T4G,
)
"""Oldest architecture first, except for the last, without a known listing."""
