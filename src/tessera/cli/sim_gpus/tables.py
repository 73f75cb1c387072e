"""A simulated machine as tables for a terminal."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from tessera.cli.printing import headed_table
from tessera.sim.nvmlsim.faults import code_text

__all__ = ["machine_tables"]

_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_PROCESS_MODES = ("compute", "graphics", "mps")
_NO_LIMIT = 2**64 - 1


def machine_tables(described: dict[str, Any]) -> Iterator[Table]:
    """Yield a table of GPUs, and of instances, processes, memory limits and faults if there are any."""
    for make in (_gpus, _instances, _processes, _limits, _faults):
        table = make(described)
        if table.row_count:
            yield table


def _gpus(described: dict[str, Any]) -> Table:
    table = headed_table("gpu", "name, bus, uuid", "MiB used", "MIG", "compute", "state", title="GPUs")
    for gpu in described["gpus"]:
        mig = gpu["mig"]
        words = "on" if mig["current"] else "off"
        words += f", {'on' if mig['pending'] else 'off'} pending" if mig["pending"] != mig["current"] else ""
        marks = ["lost"] * gpu["lost"] + ["MIG mode needs a reset"] * mig["needs_reset"]
        table.add_row(
            str(gpu["index"]),
            f"{gpu['name']}  {gpu['bus']}\n{gpu['uuid']}",
            f"{gpu['used_mib']}/{gpu['memory_mib'] - gpu['reserved_mib']}",
            words if mig["capable"] else "none",
            _COMPUTE_MODES[gpu["compute_mode"]],
            ", ".join(marks) or "ok",
        )
    return table


def _instances(described: dict[str, Any]) -> Table:
    table = headed_table("gpu", "id", "instance", "MIG device", "processes", title="MIG instances")
    for gpu in described["gpus"]:
        for instance in sorted(gpu["instances"], key=lambda each: each["start"]):
            head = (str(gpu["index"]), str(instance["id"]), f"{instance['profile']} at {instance['start']}")
            for compute in instance["compute_instances"] or [None]:
                users = [
                    str(each["pid"])
                    for each in described["processes"]
                    if compute
                    and (each["gpu"], each["gpu_instance"], each["compute_instance"])
                    == (gpu["index"], instance["id"], compute["id"])
                ]
                table.add_row(*head, compute["uuid"] if compute else "no compute instance", " ".join(users))
    return table


def _processes(described: dict[str, Any]) -> Table:
    table = headed_table("pid", "gpu", "instance", "MiB", "SM %", "mode", "name", "cgroup", title="Processes")
    for each in described["processes"]:
        ids = "" if each["gpu_instance"] is None else f"{each['gpu_instance']}/{each['compute_instance']}"
        mode = _PROCESS_MODES[each["mode"]]
        numbers = (str(each["memory_mib"]), str(each["sm_percent"]))
        table.add_row(str(each["pid"]), str(each["gpu"]), ids, *numbers, mode, each["name"], each["cgroup"])
    return table


def _limits(described: dict[str, Any]) -> Table:
    table = headed_table("gpu", "cgroup", "soft MiB", "hard MiB", title="Memory limits")
    for each in described["limits"]:
        soft, hard = ("none" if each[kind] == _NO_LIMIT else str(each[kind] >> 20) for kind in ("soft", "hard"))
        table.add_row(str(each["gpu"]), each["cgroup"], soft, hard)
    return table


def _faults(described: dict[str, Any]) -> Table:
    table = headed_table("function", "gpu", "returns", "after", "times", "latency ms", title="Faults")
    for each in described["faults"]:
        table.add_row(
            each["function"],
            "any" if each["gpu"] is None else str(each["gpu"]),
            code_text(each["code"]) if each["code"] else "real result",
            str(each["skip"]),
            "for ever" if each["times"] is None else str(each["times"]),
            f"{each['latency_us'] / 1000:g}",
        )
    return table
