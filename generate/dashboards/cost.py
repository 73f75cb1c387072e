"""The dashboard `cost`: GPU hours by namespace, and memory that is allocated and not used."""

from generate.dashboards.panels import ALLOCATED, GPU_MEMORY, OF_CONTAINERS, OWN, TESSERA, Dashboard, Panel
from tessera.core.usage.activity import UNUSED_MIB

__all__ = ["COST"]

COST = Dashboard(
    "cost",
    "Tessera: cost",
    (
        Panel(
            "GPU hours by namespace",
            "none",
            (
                (
                    (
                        f"sum by (namespace) (sum_over_time(({ALLOCATED} / on (UUID) group_left () {GPU_MEMORY})"
                        "[$__range:5m])) / 12"
                    ),
                    "{{namespace}}",
                ),
            ),
            "stat",
            "Over the time shown. A part of a GPU counts by its part of the GPU's memory.",
        ),
        Panel(
            "GPU memory allocated by namespace, in GiB hours",
            "none",
            (
                (
                    f"sum by (namespace) (sum_over_time({ALLOCATED}[$__range:5m])) / 12 / 2^30",
                    "{{namespace}}",
                ),
            ),
            "stat",
            "Over the time shown.",
        ),
        Panel(
            "Energy, in kWh",
            "kwatth",
            ((f"sum(increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{TESSERA}}}[$__range])) / 3.6e9", ""),),
            "stat",
            "Of all GPUs over the time shown.",
        ),
        Panel(
            "Memory allocated to containers that used none for an hour",
            "bytes",
            (
                (
                    (
                        f"sum by (namespace) ({ALLOCATED} and on {OWN} "
                        f"(max_over_time(DCGM_FI_DEV_FB_USED{{{OF_CONTAINERS}}}[1h]) <= {UNUSED_MIB}) "
                        f"and on {OWN} {ALLOCATED} offset 1h)"
                    ),
                    "{{namespace}}",
                ),
            ),
        ),
        Panel(
            "Peak memory used in a day, % of allocated",
            "percentunit",
            (
                (
                    (
                        f"max by {OWN} (max_over_time(DCGM_FI_DEV_FB_USED{{{OF_CONTAINERS}}}[1d])) * 2^20 / on {OWN} "
                        f"max by {OWN} (tessera_container_memory_allocated_bytes > 0)"
                    ),
                    "{{namespace}}/{{pod}}/{{container}}",
                ),
            ),
            text="`tessera recommend --prometheus` says what would fit.",
        ),
    ),
)
