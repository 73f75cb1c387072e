"""The dashboard `nodes`: the devices and containers, models and images of chosen nodes."""

from generate.dashboards.panels import RATE, Dashboard, Panel

__all__ = ["NODES"]

_NODE = 'hostname=~"$node", Hostname!=""'
_OF_NODE = 'node=~"$node"'
"""Of an agent's own metrics: the label that the PodMonitor gives them."""
_DEVICE = "GPU {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}"
_CONTAINER = "{{namespace}}/{{pod}}/{{container}}, GPU {{gpu}} {{GPU_I_ID}}"

NODES = Dashboard(
    "nodes",
    "Tessera: nodes and devices",
    (
        Panel("Memory in use by device", "bytes", ((f"tessera_device_memory_used_bytes{{{_NODE}}}", _DEVICE),)),
        Panel("Memory allocated by device", "bytes", ((f"tessera_device_memory_allocated_bytes{{{_NODE}}}", _DEVICE),)),
        Panel(
            "Memory in use by container",
            "bytes",
            ((f'DCGM_FI_DEV_FB_USED{{{_NODE}, pod_uid!=""}} * 2^20', _CONTAINER),),
        ),
        Panel(
            "GPU utilization by container",
            "percent",
            (
                (
                    (
                        f'DCGM_FI_DEV_GPU_UTIL{{{_NODE}, pod_uid!=""}} '
                        f'or DCGM_FI_PROF_SM_ACTIVE{{{_NODE}, pod_uid!=""}} * 100'
                    ),
                    _CONTAINER,
                ),
            ),
            text="By the driver's samples, none under MPS; of a MIG instance its SM activity, from Hopper on.",
        ),
        Panel(
            "SM activity",
            "percentunit",
            ((f"DCGM_FI_PROF_SM_ACTIVE{{{_NODE}}}", _DEVICE),),
            text="From Hopper on.",
        ),
        Panel("Containers by device", "none", ((f"tessera_device_containers{{{_NODE}}}", _DEVICE),)),
        Panel("Temperature", "celsius", ((f"DCGM_FI_DEV_GPU_TEMP{{{_NODE}}}", "GPU {{gpu}}"),)),
        Panel("Power", "watt", ((f"DCGM_FI_DEV_POWER_USAGE{{{_NODE}}}", "GPU {{gpu}}"),)),
        Panel("SM clock", "rotmhz", ((f"DCGM_FI_DEV_SM_CLOCK{{{_NODE}}}", "GPU {{gpu}}"),)),
        Panel("Throttled, by cause", "none", ((f"tessera_gpu_throttled{{{_NODE}}}", "GPU {{gpu}}: {{cause}}"),)),
        Panel(
            "XIDs in an hour",
            "none",
            ((f"increase(tessera_gpu_xid_errors_total{{{_NODE}}}[1h])", "GPU {{gpu}}: {{class}}"),),
        ),
        Panel(
            "Memory errors in an hour",
            "none",
            (
                (f"increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{_NODE}}}[1h])", "GPU {{gpu}}, corrected"),
                (f"increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{_NODE}}}[1h])", "GPU {{gpu}}, uncorrected"),
            ),
        ),
        Panel(
            "Memory rows remapped",
            "none",
            (
                (f"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{{{_NODE}}}", "GPU {{gpu}}, for corrected errors"),
                (f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{_NODE}}}", "GPU {{gpu}}, for uncorrected errors"),
                (f"DCGM_FI_DEV_ROW_REMAP_PENDING{{{_NODE}}}", "GPU {{gpu}}, at its next reset"),
                (f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{_NODE}}}", "GPU {{gpu}}, failed"),
            ),
            text="From Ampere on. A failed remapping means that NVIDIA replaces the board.",
        ),
        Panel(
            "Used by processes of deleted pods",
            "none",
            ((f"tessera_device_orphaned{{{_NODE}}}", _DEVICE),),
            text="1 while only such a process keeps the device from new pods; 0 if it is unhealthy besides.",
        ),
        Panel("MIG layout", "none", ((f"tessera_gpu_layout_info{{{_NODE}}}", "GPU {{gpu}}: {{layout}}"),)),
        Panel(
            "Changes of MIG layouts in an hour",
            "none",
            ((f"increase(tessera_gpu_layout_changes_total{{{_NODE}}}[1h])", "GPU {{gpu}}"),),
        ),
        Panel(
            "Models by state",
            "none",
            ((f"sum by (node, state) (tessera_node_models{{{_OF_NODE}}})", "{{node}}: {{state}}"),),
            text="That a ModelCache requests. Needs the label `node`, which the PodMonitor gives.",
        ),
        Panel(
            "Images by state",
            "none",
            ((f"sum by (node, state) (tessera_node_images{{{_OF_NODE}}})", "{{node}}: {{state}}"),),
            text="That an ImageWarmup requests.",
        ),
        Panel(
            "Models read, by source",
            "Bps",
            (
                (
                    f"sum by (node, source) (rate(tessera_node_models_read_bytes_total{{{_OF_NODE}}}{RATE}))",
                    "{{node}}: {{source}}",
                ),
            ),
        ),
    ),
    by_node=True,
)
