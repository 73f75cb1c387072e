"""The dashboard `fleet`: what GPUs there are, what of them is allocated and used, by namespace and quota."""

from generate.dashboards.panels import ALLOCATED, GPU_MEMORY, OF_CONTAINERS, OWN, Dashboard, Panel

__all__ = ["FLEET"]

_QUOTA = "(kind, quota, flavor, resource)"
_OF_QUOTA = "{{quota}} {{flavor}} {{resource}}"
_WHOLE_UTILIZATION = "max by (UUID, modelName) (DCGM_FI_DEV_GPU_UTIL)"
_INSTANCES = (
    'max by (UUID, modelName, GPU_I_ID) (DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID!=""}) '
    "* on (UUID, GPU_I_ID) group_left () max by (UUID, GPU_I_ID) (tessera_device_memory_bytes)"
)
_MIG_UTILIZATION = f"100 * sum by (UUID, modelName) ({_INSTANCES}) / on (UUID) group_left () {GPU_MEMORY}"
"""Instances by their part of the GPU's memory: an instance that is busy does not make the GPU busy."""
_UNHEALTHY = (
    'sum(1 - tessera_device_healthy{GPU_I_ID=""}) + (count(tessera_device_healthy{GPU_I_ID!=""} == 0 '
    'unless on (UUID) tessera_device_healthy{GPU_I_ID=""} == 0) or vector(0))'
)
"""A GPU counts once: its instances are unhealthy with it."""

_USED = f"DCGM_FI_DEV_FB_USED{{{OF_CONTAINERS}}}"

FLEET = Dashboard(
    "fleet",
    "Tessera: fleet",
    (
        Panel("GPUs", "none", (("count(tessera_gpu_lost)", ""),), "stat"),
        Panel(
            "Memory allocated",
            "percentunit",
            ((f"sum(tessera_device_memory_allocated_bytes) / sum({GPU_MEMORY})", ""),),
            "stat",
        ),
        Panel(
            "Allocated memory in use",
            "percentunit",
            (
                (
                    (f"sum({_USED} and on {OWN} {ALLOCATED}) * 2^20 / sum({ALLOCATED} and on {OWN} {_USED})"),
                    "",
                ),
            ),
            "stat",
            "Of containers whose use is known.",
        ),
        Panel("Unhealthy devices", "none", ((_UNHEALTHY, ""),), "stat", "GPUs, and MIG instances of healthy GPUs."),
        Panel(
            "Memory of all GPUs",
            "bytes",
            (
                (f"sum({GPU_MEMORY})", "usable"),
                ("sum(tessera_device_memory_allocated_bytes)", "allocated"),
                ("sum(tessera_device_memory_used_bytes)", "in use"),
            ),
        ),
        Panel(
            "Memory allocated by namespace",
            "bytes",
            (("sum by (namespace) (tessera_container_memory_allocated_bytes)", "{{namespace}}"),),
        ),
        Panel(
            "Memory in use by namespace",
            "bytes",
            ((f"sum by (namespace) ({_USED}) * 2^20", "{{namespace}}"),),
        ),
        Panel(
            "GPU utilization by model",
            "percent",
            ((f"avg by (modelName) ({_WHOLE_UTILIZATION} or {_MIG_UTILIZATION})", "{{modelName}}"),),
            text="Of partitioned GPUs by what their MIG instances do, from Hopper on.",
        ),
        Panel(
            "Devices by sharing mode",
            "none",
            (("count by (mode) (tessera_device_sharing_info)", "{{mode}}"),),
        ),
        Panel(
            "Free memory slices",
            "none",
            (
                ("sum(tessera_gpu_free_memory_slices)", "free"),
                ("max(tessera_gpu_largest_free_memory_slices)", "largest MIG instance that fits"),
            ),
        ),
        Panel(
            "Pending pods that no MIG layout can place",
            "none",
            (("sum by (policy, reason) (tessera_controller_pending_pods) > 0", "{{policy}}: {{reason}}"),),
        ),
        Panel("Throttled GPUs by cause", "none", (("sum by (cause) (tessera_gpu_throttled)", "{{cause}}"),)),
        Panel(
            "Quota in use",
            "percentunit",
            ((f"max by {_QUOTA} (tessera_quota_used) / max by {_QUOTA} (tessera_quota_guaranteed > 0)", _OF_QUOTA),),
            text="Above 100 %: borrowed from the cohort.",
        ),
        Panel("Quota borrowed", "none", ((f"max by {_QUOTA} (tessera_quota_borrowed)", _OF_QUOTA),)),
    ),
)
