"""`tessera sim-gpus`: simulated GPUs for NVML clients, with processes, XIDs and faults on demand."""

import os
import shlex
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
import msgspec

from tessera.cli.completion import complete_gpus
from tessera.cli.options import CommandGroup, Number, WholeNumber, output_option
from tessera.cli.printing import print_document, trimmed, wide_console
from tessera.cli.sim_gpus.tables import machine_tables
from tessera.errors import InvalidInput, shown
from tessera.sim.nvmlsim import ANY, FOREVER, NO_INSTANCE, Machine, Process, create_state, environment
from tessera.sim.nvmlsim.faults import code_of, function_of
from tessera.sim.nvmlsim.tree import write_tree

__all__ = ["sim_gpus"]

_WIDE = 200
"""Width of output without a terminal."""
_FIRST_PID = 10001


def _default_state() -> Path:
    top = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(top) / "tessera" / "sim-gpus"


_state_option = click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TESSERA_NVMLSIM_STATE",
    default=_default_state,
    help="State file of the simulated machine.  [default: ~/.local/state/tessera/sim-gpus]",
)


@click.group(
    cls=CommandGroup,
    epilog="""
\b
Examples:
  tessera sim-gpus create --gpus 2xA100-40GB --gpus T4
  eval "$(tessera sim-gpus env)"
  tessera mig list
  tessera sim-gpus list
""",
)
def sim_gpus() -> None:
    """Simulate GPUs with MIG for any program that uses NVML (libnvidia-ml.so.1).

    The library is built with your C compiler on first use. All programs share one simulated machine, kept in a file.
    """


@sim_gpus.command(
    epilog="""
\b
Examples:
  tessera sim-gpus create --gpus 8xH100-80GB
  tessera sim-gpus create --gpus 2xA100-PCIE-40GB --gpus T4 --replace
"""
)
@click.option(
    "--gpus",
    "gpus",
    multiple=True,
    required=True,
    metavar="[N x]MODEL",
    help="GPUs, such as 2xA100-40GB; repeatable.",
    shell_complete=complete_gpus,
)
@_state_option
@click.option("--seed", default="", metavar="WORDS", help="Seed of the UUIDs.  [default: the state file's path]")
@click.option(
    "--driver",
    default="615.71.09",
    show_default=True,
    metavar="VERSION",
    help="Driver version; memory limits by cgroup need 615.",
)
@click.option("--replace", is_flag=True, help="Replace an existing machine.")
def create(gpus: tuple[str, ...], state: Path, seed: str, driver: str, *, replace: bool) -> None:
    """Create a machine with GPUs. Models are those that `tessera profiles` lists."""
    create_state(state, gpus, seed=seed or str(state.resolve()), driver=driver, replace=replace)
    with Machine(state) as machine:
        count = len(machine.describe()["gpus"])
    click.echo(f"{count} GPU{'s' if count != 1 else ''} in {state}")
    click.echo('To show them to programs of this shell: eval "$(tessera sim-gpus env)"', err=True)


@sim_gpus.command(
    epilog="""
\b
Examples:
  eval "$(tessera sim-gpus env)"
  tessera sim-gpus env -o json
"""
)
@_state_option
@output_option(formats=("shell", "json"))
def env(state: Path, output: str) -> None:
    """Print environment variables for NVML clients. With these they use the machine."""
    Machine(state).close()
    settings = environment(state)
    if output == "json":
        click.echo(msgspec.json.encode(settings).decode())
        return
    for name, value in settings.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@sim_gpus.command(
    "list",
    epilog="""
\b
Examples:
  tessera sim-gpus list
  tessera sim-gpus list -o json | jq '.gpus[].instances'
""",
)
@_state_option
@output_option()
def list_machine(state: Path, output: str) -> None:
    """Show GPUs, MIG instances and processes. Also shows memory limits and injected faults."""
    with Machine(state) as machine:
        described = machine.describe()
    if print_document(described, output):
        return
    console = wide_console(_WIDE, output=output)
    console.print(f"driver {described['driver_version']}, state file {state}", soft_wrap=True, markup=False)
    for table in machine_tables(described):
        console.print(trimmed(table))


def _find(described: dict[str, Any], device: str) -> tuple[int, int, int]:
    """Return index, GPU instance id and compute instance id of an index or UUID."""
    for gpu in described["gpus"]:
        if device in {str(gpu["index"]), gpu["uuid"]}:
            return gpu["index"], NO_INSTANCE, NO_INSTANCE
        for instance in gpu["instances"]:
            for compute in instance["compute_instances"]:
                if device == compute["uuid"]:
                    return gpu["index"], instance["id"], compute["id"]
    raise InvalidInput(
        "device",
        found=shown(device),
        expected="a GPU's index or UUID, or a MIG device's UUID",
        hint="one that `tessera sim-gpus list` prints",
    )


def _find_gpu(described: dict[str, Any], device: str) -> int:
    gpu, instance, _ = _find(described, device)
    if instance != NO_INSTANCE:
        raise InvalidInput("GPU", found=shown(device), expected="a whole GPU's index or UUID, not that of a MIG device")
    return gpu


@sim_gpus.command(
    epilog="""
\b
Examples:
  tessera sim-gpus xid 0 48
  tessera sim-gpus xid MIG-1e2effbb-5d03-52c7-9195-b54942aba848 94
"""
)
@click.argument("device")
@click.argument("number", type=WholeNumber(1, 2**31), metavar="XID")
@_state_option
def xid(device: str, number: int, state: Path) -> None:
    """Report an XID to NVML event sets. It is of DEVICE; for a MIG device, with its instance."""
    with Machine(state) as machine:
        gpu, instance, compute = _find(machine.describe(), device)
        machine.inject_xid(gpu, number, gpu_instance=instance, compute_instance=compute)


_REASONS = {"power-cap": 0x4, "thermal": 0x20, "hardware-slowdown": 0x8, "hardware-thermal": 0x40, "power-brake": 0x80}
"""Source: NVML, nvmlClocksEventReason*."""


@sim_gpus.command(
    epilog="""
\b
Examples:
  tessera sim-gpus measure 0 --temperature 91 --throttle thermal
  tessera sim-gpus measure 0 --ecc-uncorrected 2
"""
)
@click.argument("gpu")
@click.option("--temperature", type=WholeNumber(0, 2**32 - 1), help="Degrees Celsius.")
@click.option(
    "--throttle",
    multiple=True,
    metavar="REASON",
    type=click.Choice((*_REASONS, "none")),
    help=f"Why clocks are lowered: {', '.join(_REASONS)} or none; repeatable.",
)
@click.option("--ecc-corrected", type=WholeNumber(0, 2**32 - 1), help="Errors of memory that were corrected.")
@click.option("--ecc-uncorrected", type=WholeNumber(0, 2**32 - 1), help="Errors of memory that were not.")
@_state_option
def measure(gpu: str, state: Path, throttle: tuple[str, ...], **given: int | None) -> None:
    """Set the temperature, throttling and memory errors of GPU. NVML reports them as they are set, absurd ones too."""
    reasons = sum({_REASONS.get(each, 0) for each in throttle})
    fields = {
        "temperature_c": given["temperature"],
        "throttle_reasons": reasons if throttle else None,
        "ecc_corrected": given["ecc_corrected"],
        "ecc_uncorrected": given["ecc_uncorrected"],
    }
    with Machine(state) as machine:
        index = _find_gpu(machine.describe(), gpu)
        for field, value in fields.items():
            if value is not None:
                machine.set(index, field, value)


@sim_gpus.group(cls=CommandGroup, epilog="\b\nExample:\n  tessera sim-gpus process add 0 --memory 2048\n")
def process() -> None:
    """Add and remove processes on GPUs and MIG devices."""


class _Given(TypedDict):
    """The options of `process add` as click passes them."""

    device: str
    state: Path
    pid: int | None
    memory_mib: int
    sm_percent: int
    mode: Any
    name: str
    cgroup: str


@process.command(
    epilog="""
\b
Examples:
  tessera sim-gpus process add 1 --memory 2048 --sm 60
  tessera sim-gpus process add 0 --pid 4711 --mode mps
"""
)
@click.argument("device")
@_state_option
@click.option("--pid", type=WholeNumber(1, 2**31), help="Process id.  [default: the next free one]")
@click.option(
    "--memory", "memory_mib", type=WholeNumber(0, 2**31), default=512, show_default=True, help="Memory in MiB."
)
@click.option(
    "--sm", "sm_percent", type=WholeNumber(0, 100), default=0, show_default=True, help="Utilization in percent."
)
@click.option(
    "--mode",
    type=click.Choice(("compute", "graphics", "mps")),
    default="compute",
    show_default=True,
    help="Kind of process.",
)
@click.option("--name", default="python", show_default=True, metavar="NAME", help="Program name.")
@click.option("--cgroup", default="", metavar="CGROUP", help="Cgroup, for memory limits.")
def add(**given: Unpack[_Given]) -> None:
    """Add a process to DEVICE. DEVICE is a GPU's index or UUID, or a MIG device's UUID."""
    with Machine(given["state"]) as machine:
        described = machine.describe()
        gpu, instance, compute = _find(described, given["device"])
        taken = {each["pid"] for each in described["processes"]}
        pid = given["pid"] or next(each for each in range(_FIRST_PID, 2**31) if each not in taken)
        machine.add_process(
            gpu,
            Process(
                pid=pid,
                memory_mib=given["memory_mib"],
                sm_percent=given["sm_percent"],
                mode=given["mode"],
                name=given["name"],
                cgroup=given["cgroup"],
                gpu_instance=instance,
                compute_instance=compute,
            ),
        )
    click.echo(pid)


@process.command(
    epilog="""
\b
Example:
  tessera sim-gpus process remove 4711
"""
)
@click.argument("pid", type=WholeNumber(1, 2**31))
@_state_option
def remove(pid: int, state: Path) -> None:
    """Remove process PID from all GPUs."""
    with Machine(state) as machine:
        machine.remove_process(pid)


@sim_gpus.group(cls=CommandGroup, epilog="\b\nExample:\n  tessera sim-gpus fault lose 0\n")
def fault() -> None:
    """Inject faults into NVML calls and GPUs."""


class _Call(TypedDict):
    """The options of `fault call` as click passes them."""

    function: str
    code: str
    gpu: str | None
    skip: int
    times: int
    for_ever: bool
    latency_ms: float
    state: Path


@fault.command(
    epilog="""
\b
Examples:
  tessera sim-gpus fault call 'nvmlDeviceCreateGpuInstance*' --code UNKNOWN
  tessera sim-gpus fault call nvmlDeviceGetMemoryInfo --latency-ms 3000
  tessera sim-gpus fault call nvmlGpuInstanceDestroy --code IN_USE --for-ever
"""
)
@click.argument("function")
@click.option(
    "--code", default="SUCCESS", metavar="CODE", help="NVML return code, by name or number.  [default: the real result]"
)
@click.option("--gpu", metavar="GPU", help="Only calls on this GPU, by index or UUID.")
@click.option("--skip", type=WholeNumber(0, 2**31), default=0, show_default=True, help="Calls that succeed first.")
@click.option("--times", type=WholeNumber(1, 2**31), default=1, show_default=True, help="Calls that fail.")
@click.option("--for-ever", is_flag=True, help="All calls fail.")
@click.option(
    "--latency-ms", type=Number(0, 4_000_000), default=0, show_default=True, help="Added latency of each call."
)
@_state_option
def call(**given: Unpack[_Call]) -> None:
    """Make the next calls of FUNCTION fail or take long. A trailing `*` matches any ending."""
    name, code = function_of(given["function"]), code_of(given["code"])
    if code == 0 and given["latency_ms"] == 0:
        raise InvalidInput(
            "fault", found="it has neither a code nor latency", hint="give --code, --latency-ms, or both"
        )
    with Machine(given["state"]) as machine:
        gpu = ANY if given["gpu"] is None else _find_gpu(machine.describe(), given["gpu"])
        times = FOREVER if given["for_ever"] else given["times"]
        machine.fault(name, code=code, gpu=gpu, skip=given["skip"], times=times, latency_ms=given["latency_ms"])


@fault.command(epilog="\b\nExample:\n  tessera sim-gpus fault lose 1 --xid 79\n")
@click.argument("gpu")
@click.option(
    "--xid",
    "number",
    type=WholeNumber(0, 2**31),
    default=79,
    show_default=True,
    help="XID reported first; 0 for none.",
)
@_state_option
def lose(gpu: str, number: int, state: Path) -> None:
    """Make GPU fall off the bus. Every call on it fails until `reset` or `fault clear`."""
    with Machine(state) as machine:
        machine.lose(_find_gpu(machine.describe(), gpu), xid=number)


@fault.command("needs-reset", epilog="\b\nExample:\n  tessera sim-gpus fault needs-reset 0\n")
@click.argument("gpu")
@_state_option
def needs_reset(gpu: str, state: Path) -> None:
    """Keep changes of GPU's MIG mode pending. `tessera sim-gpus reset --gpu` applies them."""
    with Machine(state) as machine:
        machine.set(_find_gpu(machine.describe(), gpu), "mig_needs_reset", 1)


@fault.command(epilog="\b\nExample:\n  tessera sim-gpus fault clear\n")
@_state_option
def clear(state: Path) -> None:
    """Remove all faults; lost GPUs come back."""
    with Machine(state) as machine:
        machine.clear_faults()


@sim_gpus.command(
    epilog="""
\b
Examples:
  tessera sim-gpus reset
  tessera sim-gpus reset --gpu 0
  tessera sim-gpus reset --reboot
"""
)
@click.option("--gpu", metavar="GPU", help="Reset only this GPU, by index or UUID, like nvidia-smi --gpu-reset.")
@click.option(
    "--reboot", is_flag=True, help="Reboot: removes instances and processes; keeps faults, and MIG mode on Ampere."
)
@_state_option
def reset(gpu: str | None, state: Path, *, reboot: bool) -> None:
    """Reset a GPU or the machine, or reboot it. Without options the machine is as `create` made it."""
    if gpu is not None and reboot:
        raise InvalidInput("reset", found="--gpu and --reboot exclude each other", hint="give one of them")
    with Machine(state) as machine:
        if gpu is not None:
            machine.reset_gpu(_find_gpu(machine.describe(), gpu))
        elif reboot:
            machine.reboot()
        else:
            machine.renew()


@sim_gpus.command(
    epilog="""
\b
Example:
  tessera sim-gpus tree build/driver-root
"""
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@_state_option
def tree(folder: Path, state: Path) -> None:
    """Write a driver's files to FOLDER. They are proc/driver/nvidia-caps/mig-minors, dev and sys/bus/pci/devices."""
    with Machine(state) as machine:
        write_tree(folder, machine.describe()["gpus"])
