"""The GPUs of cloud instance types, as data: for nodes whose labels have the instance type and not the GPU."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tessera.core.gpu.gpumodels.estimates import gpu_memory_mib
from tessera.core.gpu.gpumodels.names import model
from tessera.core.gpu.gpumodels.records import GpuModel

__all__ = ["INSTANCE_TYPES", "InstanceGpus"]


class InstanceGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one instance type."""

    model: GpuModel
    count: int
    memory_mib: int
    """Of each: the model's, or less where the instance has a part of a GPU."""
    source: str
    """Key of `SOURCES`."""


# source, GPU model, name of the instance types with {} for the size, sizes by number of GPUs, GB of a part of a GPU.
_ROWS: tuple[tuple[str, str, str, dict[int, str], int], ...] = (
    ("ec2", "T4", "g4dn.{}", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge", 8: "metal"}, 0),
    ("ec2", "A10G", "g5.{}", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"}, 0),
    ("ec2", "T4G", "g5g.{}", {1: "xlarge 2xlarge 4xlarge 8xlarge", 2: "16xlarge metal"}, 0),
    ("ec2", "L4", "g6.{}", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"}, 0),
    ("ec2", "L4", "gr6.{}", {1: "4xlarge 8xlarge"}, 0),
    ("ec2", "L4", "g6f.{}", {1: "large xlarge"}, 3),
    ("ec2", "L4", "g6f.{}", {1: "2xlarge"}, 6),
    ("ec2", "L4", "g6f.{}", {1: "4xlarge"}, 12),
    ("ec2", "L4", "gr6f.{}", {1: "4xlarge"}, 12),
    ("ec2", "L40S", "g6e.{}", {1: "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", 4: "12xlarge 24xlarge", 8: "48xlarge"}, 0),
    ("ec2", "RTX-PRO-4500", "g7.{}", {1: "2xlarge 4xlarge 8xlarge", 2: "12xlarge", 4: "24xlarge", 8: "48xlarge"}, 0),
    ("ec2", "RTX-PRO-6000", "g7e.{}", {1: "2xlarge 4xlarge 8xlarge", 2: "12xlarge", 4: "24xlarge", 8: "48xlarge"}, 0),
    ("ec2", "V100-16GB", "p3.{}", {1: "2xlarge", 4: "8xlarge", 8: "16xlarge"}, 0),
    ("ec2", "V100-32GB", "p3dn.{}", {8: "24xlarge"}, 0),
    ("ec2", "A100-40GB", "p4d.{}", {8: "24xlarge"}, 0),
    ("ec2", "A100-80GB", "p4de.{}", {8: "24xlarge"}, 0),
    ("ec2", "H100-80GB", "p5.{}", {1: "4xlarge", 8: "48xlarge"}, 0),
    ("ec2", "H200-141GB", "p5e.{}", {8: "48xlarge"}, 0),
    ("ec2", "H200-141GB", "p5en.{}", {8: "48xlarge"}, 0),
    ("ec2", "B200-180GB", "p6-b200.{}", {8: "48xlarge"}, 0),
    ("ec2", "B300", "p6-b300.{}", {8: "48xlarge"}, 0),
    ("ec2", "GB200-186GB", "p6e-gb200.{}", {4: "36xlarge"}, 0),
    ("azure", "P100", "Standard_NC{}_v2", {1: "6s", 2: "12s", 4: "24s 24rs"}, 0),
    ("azure", "P40", "Standard_ND{}", {1: "6s", 2: "12s", 4: "24s 24rs"}, 0),
    ("azure", "V100-16GB", "Standard_NC{}_v3", {1: "6s", 2: "12s", 4: "24s 24rs"}, 0),
    ("azure", "V100-32GB", "Standard_ND{}_v2", {8: "40rs"}, 0),
    ("azure", "T4", "Standard_NC{}as_T4_v3", {1: "4 8 16", 4: "64"}, 0),
    ("azure", "A10", "Standard_NV{}ads_A10_v5", {1: "6"}, 4),
    ("azure", "A10", "Standard_NV{}ads_A10_v5", {1: "12"}, 8),
    ("azure", "A10", "Standard_NV{}ads_A10_v5", {1: "18"}, 12),
    ("azure", "A10", "Standard_NV{}_A10_v5", {1: "36ads 36adms", 2: "72ads"}, 0),
    ("azure", "A100-40GB", "Standard_ND{}_v4", {8: "96asr"}, 0),
    ("azure", "A100-80GB", "Standard_ND{}_A100_v4", {8: "96amsr"}, 0),
    ("azure", "A100-80GB", "Standard_NC{}ads_A100_v4", {1: "24", 2: "48", 4: "96"}, 0),
    ("azure", "H100-94GB", "Standard_NC{}_H100_v5", {1: "40ads", 2: "80adis"}, 0),
    ("azure", "H100-94GB", "Standard_NCC{}_H100_v5", {1: "40ads"}, 0),
    ("azure", "RTX-PRO-6000", "Standard_NC{}_xl_RTXPRO6000BSE_v6", {1: "24lds 36lds 36ds"}, 24),
    ("azure", "RTX-PRO-6000", "Standard_NC{}_xl_RTXPRO6000BSE_v6", {1: "72lds 72ds"}, 48),
    ("azure", "RTX-PRO-6000", "Standard_NC{}_xl_RTXPRO6000BSE_v6", {1: "144lds 144ds", 2: "288lds 288ds"}, 0),
    ("azure", "H100-80GB", "Standard_ND{}_H100_v5", {8: "96is 96isr 96isrf"}, 0),
    ("azure", "H200-141GB", "Standard_ND{}_H200_v5", {8: "96is 96isr 96isrf"}, 0),
    ("azure", "GB200-186GB", "Standard_ND{}_GB200_v6", {4: "128isr_NDR"}, 0),
    ("azure", "GB300", "Standard_ND{}_GB300_v6", {4: "128isr"}, 0),
    ("gce", "L4", "g2-standard-{}", {1: "4 8 12 16 32", 2: "24", 4: "48", 8: "96"}, 0),
    ("gce", "RTX-PRO-6000", "g4-standard-{}", {1: "6"}, 12),
    ("gce", "RTX-PRO-6000", "g4-standard-{}", {1: "12"}, 24),
    ("gce", "RTX-PRO-6000", "g4-standard-{}", {1: "24"}, 48),
    ("gce", "RTX-PRO-6000", "g4-standard-{}", {1: "48", 2: "96", 4: "192", 8: "384"}, 0),
    ("gce", "A100-40GB", "a2-{}", {1: "highgpu-1g", 2: "highgpu-2g", 4: "highgpu-4g", 8: "highgpu-8g"}, 0),
    ("gce", "A100-40GB", "a2-{}", {16: "megagpu-16g"}, 0),
    ("gce", "A100-80GB", "a2-{}", {1: "ultragpu-1g", 2: "ultragpu-2g", 4: "ultragpu-4g", 8: "ultragpu-8g"}, 0),
    ("gce", "H100-80GB", "a3-{}", {1: "highgpu-1g", 2: "highgpu-2g", 4: "highgpu-4g", 8: "highgpu-8g"}, 0),
    ("gce", "H100-80GB", "a3-{}", {8: "megagpu-8g edgegpu-8g edgegpu-8g-nolssd"}, 0),
    ("gce", "H200-141GB", "a3-{}", {8: "ultragpu-8g ultragpu-8g-nolssd"}, 0),
    ("gce", "B200-180GB", "a4-{}", {8: "highgpu-8g highgpu-8g-nolssd"}, 0),
    ("gce", "GB200-186GB", "a4x-{}", {4: "highgpu-4g highgpu-4g-nolssd"}, 0),
    ("gce", "GB300", "a4x-{}", {4: "maxgpu-4g-metal"}, 0),
    ("oci", "P100", "{}", {1: "VM.GPU2.1", 2: "BM.GPU2.2"}, 0),
    ("oci", "V100-16GB", "{}", {1: "VM.GPU3.1", 2: "VM.GPU3.2", 4: "VM.GPU3.4", 8: "BM.GPU3.8"}, 0),
    ("oci", "A10", "{}", {1: "VM.GPU.A10.1", 2: "VM.GPU.A10.2", 4: "BM.GPU.A10.4"}, 0),
    ("oci", "A100-40GB", "{}", {8: "BM.GPU4.8 BM.GPU.B4.8"}, 0),
    ("oci", "A100-80GB", "{}", {8: "BM.GPU.A100-v2.8"}, 0),
    ("oci", "L40S", "{}", {4: "BM.GPU.L40S.4"}, 0),
    ("oci", "H100-80GB", "{}", {8: "BM.GPU.H100.8"}, 0),
    ("oci", "H200-141GB", "{}", {8: "BM.GPU.H200.8"}, 0),
    ("oci", "B200-180GB", "{}", {8: "BM.GPU.B200.8"}, 0),
    ("oci", "B300", "{}", {8: "BM.GPU.B300.8"}, 0),
    ("oci", "RTX-PRO-6000", "{}", {8: "BM.GPU.RTXPRO.8"}, 0),
    ("oci", "GB200-186GB", "{}", {4: "BM.GPU.GB200.4 BM.GPU.GB200-v2.4 BM.GPU.GB200-v3.4"}, 0),
    ("oci", "GB300", "{}", {4: "BM.GPU.GB300.4"}, 0),
)


def _gpus(source: str, name: str, count: int, part_gb: int) -> InstanceGpus:
    known = model(name)
    memory_mib = gpu_memory_mib(part_gb) if part_gb else known.memory_mib
    return InstanceGpus(model=known, count=count, memory_mib=memory_mib, source=source)


INSTANCE_TYPES: Mapping[str, InstanceGpus] = MappingProxyType(
    {
        pattern.format(size).casefold(): _gpus(source, name, count, part_gb)
        for source, name, pattern, sizes, part_gb in _ROWS
        for count, listed in sizes.items()
        for size in listed.split()
    }
)
"""By name in lower case; Azure writes names in any case into the node label `node.kubernetes.io/instance-type`."""
