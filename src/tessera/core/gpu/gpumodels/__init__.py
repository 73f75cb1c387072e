"""Facts about GPU models: memory, slices, MIG profiles and where their instances may start; each with its source."""

from tessera.core.gpu.gpumodels.drivernames import DRIVER_NAMES, DriverName
from tessera.core.gpu.gpumodels.instancetypes import INSTANCE_TYPES, InstanceGpus
from tessera.core.gpu.gpumodels.names import CATALOG, is_profile, meant, model, profile, same_profile, sized_model
from tessera.core.gpu.gpumodels.observed import ObservedGpu, ObservedProfile, architecture, observed_model
from tessera.core.gpu.gpumodels.records import GpuModel, Profile
from tessera.core.gpu.gpumodels.sources import SOURCES

__all__ = [
    "CATALOG",
    "DRIVER_NAMES",
    "INSTANCE_TYPES",
    "SOURCES",
    "DriverName",
    "GpuModel",
    "InstanceGpus",
    "ObservedGpu",
    "ObservedProfile",
    "Profile",
    "architecture",
    "is_profile",
    "meant",
    "model",
    "observed_model",
    "profile",
    "same_profile",
    "sized_model",
]
