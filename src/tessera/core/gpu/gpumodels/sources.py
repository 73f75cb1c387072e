"""The sources of the facts about GPU models."""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SOURCES"]

_GUIDE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide"

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "ug-profiles": "NVIDIA MIG User Guide (v580 edition), Supported MIG Profiles: names, memory and SM fractions, "
        f"media engines, instance counts; {_GUIDE}/supported-mig-profiles.html",
        "ug-profiles-2026": "NVIDIA MIG User Guide as of autumn 2026, Supported MIG Profiles; "
        f"{_GUIDE}/supported-mig-profiles.html",
        "ug-gpus": "NVIDIA MIG User Guide, Supported GPUs: products and their maximum number of instances; "
        f"{_GUIDE}/supported-gpus.html",
        "go-nvml": "NVIDIA/go-nvml at 2f9e261f, pkg/nvml/mock/gpus: counts, SM, MiB and placements of A30 and A100. "
        "Its placements of H100, H200 and B200 contradict nvidia-smi and are not used; https://github.com/NVIDIA/go-nvml",
        "mig-parted": "NVIDIA/mig-parted at bd7160f4, deployments/systemd/config-default.yaml: profile names and "
        "maximum counts by PCI device id; https://github.com/NVIDIA/mig-parted",
        "instaslice": "openshift/instaslice-operator at 9f4fc07f, test/utils/emulated.go: placements of A30, A100, "
        "H100 and H200; https://github.com/openshift/instaslice-operator",
        "lgipp-h100-80": "nvidia-smi mig -lgip and -lgipp printed on an H100 80GB HBM3, in public notes and a public "
        "Dataproc init script",
        "lgipp-h100-94": "nvidia-smi mig -lgipp printed on an H100 NVL 94GB, in two public articles",
        "lgipp-a30": "nvidia-smi mig -lgipp printed on an A30, in public notes",
        "lgipp-rtxpro6000": "nvidia-smi mig -lgip and -lgipp printed on RTX PRO 6000 Blackwell, in a public write-up",
        "lgip-b200": "nvidia-smi mig -lgip of a B200, pasted by an NVIDIA engineer; free memory differs by driver "
        "build; https://github.com/NVIDIA/gpu-operator/pull/1242 and /pull/1351",
        "lgip-gb200": "nvidia-smi mig -lgip of HGX GB200; https://github.com/NVIDIA/gpu-operator/pull/1303 and "
        "https://github.com/NVIDIA/mig-parted/issues/227",
        "lgip-gh200-144": "nvidia-smi mig -lgip of a GH200 144G HBM3e; https://github.com/NVIDIA/mig-parted/pull/139",
        "lgip-h200": "nvidia-smi mig -lgip of an H200 141GB, a fixture in a public test",
        "nvml-h200": "NVML of driver 580.159.04 on an H200 141GB, read by scripts/hardware on 26 November 2026; "
        "docs/hardware.md, tests/data/nvml/h200-141gb-580.json",
        "syseleven": "SysEleven documentation, profiles of H100 96GB; "
        "https://documentation.syseleven.de/en/howtos/GPU/enable-mig/",
        "die": "inferred: the same die family, memory fractions and instance counts as a product with observed "
        "placements; not observed on this product",
        "smi": "memory total as nvidia-smi prints it (driver R510 and later; earlier ones print less), the same in "
        "several public listings of this product",
        "name": "public product specification; the memory is the estimate of tessera.core.gpu.gpumodels.estimates",
        "gke": "Google Cloud documentation, GPU machine types: accelerator names as in the node label "
        "cloud.google.com/gke-accelerator",
        "gce": "Google Cloud documentation, GPU machine types: GPUs of each machine type; "
        "https://cloud.google.com/compute/docs/gpus",
        "ec2": "Amazon EC2 documentation, accelerated computing instances, and aws/karpenter-provider-aws at 1d927085, "
        "website/content/en/docs/reference/instance-types.md: GPUs of each instance type, and the values of "
        "karpenter.k8s.aws/instance-gpu-name and instance-gpu-memory; https://github.com/aws/karpenter-provider-aws",
        "azure": "Azure documentation, GPU-accelerated virtual machine sizes: GPUs of each size, parts of an A10 with "
        "their memory; https://learn.microsoft.com/azure/virtual-machines/sizes/overview",
        "oci": "Oracle Cloud Infrastructure documentation, compute shapes, and for the shapes of 2026 "
        "oracle-quickstart/oci-hpc-oke: GPUs of each shape; "
        "https://docs.oracle.com/iaas/Content/Compute/References/computeshapes.htm",
    }
)
"""Each source, by its key in facts."""
