"""`tessera mig`: this node's MIG layouts: list, apply, assert, export, checkpoint, restore."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import RenderableType

from tessera.agent.partition import Checkpoint, NodeGpus
from tessera.api import documents
from tessera.api.nvidia import migparted
from tessera.cli.completion import complete_configurations
from tessera.cli.drawing.lettering import counted
from tessera.cli.mig import node, tables
from tessera.cli.mig.node import (
    ChangeOutcome,
    DesiredLayouts,
    GpuOutcome,
    LayoutTargets,
    NodeClients,
    NodeCluster,
    NodeInUse,
)
from tessera.cli.options import CommandGroup, Seconds, output_option, with_options
from tessera.cli.printing import print_document, trimmed, wide_console
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.layouts import (
    Group,
    Recorded,
    as_groups,
    configuration_names,
    differences,
    record,
    recorded_targets,
    resolve,
    unseen_gpus,
)
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.log import configure

__all__ = ["mig"]

_Result = TypeVar("_Result")
Configurations = Mapping[str, tuple[Group, ...]]
_CHECKPOINT = Path("/var/lib/tessera/layouts.json")
_KUBELET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
_DIFFERS = 1
"""Exit code of `assert` if the node differs. Source: NVIDIA/mig-parted."""

_config_option = click.option(
    "-c",
    "--config",
    metavar="NAME",
    help="Name of the configuration; optional if the file has only one.",
    shell_complete=complete_configurations,
)
_file_option = click.option(
    "-f",
    "--file",
    metavar="FILE",
    help="mig-parted configuration file, or the GPU operator's ConfigMap with it; - is stdin. Built-in names such as "
    "all-balanced need no file.",
)
_kubelet_option = click.option(
    "--kubelet-socket",
    type=click.Path(path_type=Path),
    default=_KUBELET,
    show_default=True,
    help="The kubelet's PodResources socket. Without it only processes show what is in use.",
)
_node_option = click.option(
    "--node",
    default="",
    metavar="NAME",
    envvar=["TESSERA_MIG_NODE", "NODE_NAME"],
    help="Name of this node's Node object, to find the GPU of pods with memory shares, and for --evict.",
)
_kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="With --node: kubeconfig file.  [default: KUBECONFIG, else the service account]",
)
_cluster_options = with_options(_node_option, _kubeconfig_option, _kubelet_option)
_dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    help="Show the steps and who each affects; change nothing, and exit with the code that the change would have now.",
)
_mode_only_option = click.option("--mode-only", is_flag=True, help="The MIG mode alone; instances stay as they are.")
_state_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=["TESSERA_MIG_STATE_DIR", "TESSERA_AGENT_STATE_DIR"],
    metavar="DIR",
    help="The agent's state folder, for locks on GPUs being changed.  [default: /var/lib/tessera]",
)
_timeout_option = click.option(
    "--timeout",
    type=Seconds(),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Deadline; a GPU that is not done by then is restored to its previous layout.",
)


@click.group(
    cls=CommandGroup,
    epilog="""
\b
Examples:
  tessera mig list
  tessera mig apply -c all-1g.5gb --dry-run
  tessera mig apply -f mig-config.yaml -c half-half
  tessera mig assert -c all-balanced && echo applied

\b
Without a GPU:
  tessera sim-gpus create --gpus 2xA100-40GB
  eval "$(tessera sim-gpus env)"
""",
)
def mig() -> None:
    """Show and change the MIG layout of this node's GPUs. Instances in use are never destroyed.

    On a node with `tessera agent`, set the node label nvidia.com/mig.config instead.
    """
    configure("error")


@mig.command("list", epilog="\b\nExample:\n  tessera mig list -f mig-config.yaml -o json\n")
@_file_option
@_cluster_options
@output_option()
@click.pass_obj
def list_(clients: NodeClients | None, /, **given: Any) -> None:
    """Show GPUs, MIG instances and what uses them. Also lists the configurations that this node supports."""
    configurations = node.configurations_in(given["file"])
    observed = _run(node.observe, clients, given)
    names = configuration_names(configurations, observed.inventory)
    _print(given["output"], tables.node_table(observed, names), tables.node_json(observed, names))


@mig.command(epilog="\b\nExample:\n  tessera mig apply -f mig-config.yaml -c half-half --dry-run\n")
@_file_option
@_config_option
@_mode_only_option
@_dry_run_option
@click.option(
    "--evict", is_flag=True, help="First evict pods that block the change, within their PodDisruptionBudgets."
)
@_cluster_options
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Then write a checkpoint of the layouts.",
)
@_timeout_option
@_state_option
@output_option()
@click.pass_obj
def apply(clients: NodeClients | None, /, **given: Any) -> None:
    """Apply a configuration. Only what differs changes; a GPU whose instances in use would have to go is left alone.

    If a step fails, the former layout is restored. Exit code 5: a GPU is in use and was not changed; 4: a step failed,
    or the GPU needs a reset.
    """
    configurations = node.configurations_in(given["file"])
    name = node.configuration_of(given["config"], configurations)
    _bring(clients, lambda inventory: _requested(name, configurations, inventory, mode_only=given["mode_only"]), given)


@mig.command("assert", epilog="\b\nExample:\n  tessera mig assert -c all-1g.5gb --mode-only\n")
@_file_option
@_config_option
@click.option("--valid-config", is_flag=True, help="Only check that this node supports the configuration.")
@_mode_only_option
@_kubelet_option
@output_option()
@click.pass_context
def assert_(ctx: click.Context, /, **given: Any) -> None:
    """Check whether a configuration is applied. Exits with 0 if it is, with 1 if not or if it is not supported here."""
    try:
        configurations = node.configurations_in(given["file"])
        name = node.configuration_of(given["config"], configurations)
        observed, _ = node.run(node.observe, ctx.obj, given["kubelet_socket"])
        requested = _requested(name, configurations, observed.inventory, mode_only=given["mode_only"])
    except InvalidInput as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(_DIFFERS)
    found = () if given["valid_config"] else differences(observed.inventory, requested.targets, requested.unseen)
    if given["output"] in {"json", "yaml"} or found:
        plain = {"configuration": name, "applied": not found, "differences": tables.differences_json(found)}
        _print(given["output"], tables.differences_table(found), plain)
    ctx.exit(_DIFFERS if found else 0)


@mig.command(epilog="\b\nExample:\n  tessera mig export -c mine > mig-config.yaml\n")
@click.option("-c", "--config", default="current", show_default=True, metavar="NAME", help="Name of the configuration.")
@_kubelet_option
@output_option(formats=("yaml", "json"))
@click.pass_obj
def export(clients: NodeClients | None, config: str, kubelet_socket: Path, output: str) -> None:
    """Print the layouts as a mig-parted file."""
    observed, _ = node.run(node.observe, clients, kubelet_socket)
    text = migparted.write({config: as_groups(observed.inventory)})
    if output == "json":
        text = msgspec.json.format(msgspec.json.encode(documents.read("export", text)[0].data)).decode() + "\n"
    click.echo(text, nl=False)


@mig.command(epilog="\b\nExample:\n  tessera mig checkpoint --checkpoint layouts.json\n")
@click.option("--checkpoint", type=click.Path(dir_okay=False, path_type=Path), default=_CHECKPOINT, show_default=True)
@_kubelet_option
@output_option()
@click.pass_obj
def checkpoint(clients: NodeClients | None, checkpoint: Path, kubelet_socket: Path, output: str) -> None:
    """Write the layouts to a file. It has the placement of every instance."""
    observed, _ = node.run(node.observe, clients, kubelet_socket)
    recorded = record(observed.inventory)
    Checkpoint(checkpoint).replace(recorded)
    instances = sum(len(each.placements) for each in recorded)
    text = f"{counted(instances, 'instance')} of {counted(len(recorded), 'GPU')} written to {checkpoint}"
    _print(output, text, {"checkpoint": str(checkpoint), "gpus": msgspec.to_builtins(recorded)})


@mig.command(epilog="\b\nExample:\n  tessera mig restore --checkpoint layouts.json --dry-run\n")
@click.option("--checkpoint", type=click.Path(path_type=Path), default=_CHECKPOINT, show_default=True)
@_dry_run_option
@_timeout_option
@_state_option
@_cluster_options
@output_option()
@click.pass_obj
def restore(clients: NodeClients | None, /, **given: Any) -> None:
    """Restore the layouts of a checkpoint. Each instance gets its placement, and a new UUID."""
    path: Path = given["checkpoint"]
    if not path.exists():
        raise InvalidInput(
            str(path), found="there is no such file", hint="write a checkpoint with `tessera mig checkpoint`"
        )
    recorded = Checkpoint(path).read()
    _bring(clients, lambda inventory: _recorded(recorded, inventory), given | {"checkpoint": None, "evict": False})


def _requested(name: str, configurations: Configurations, inventory: Inventory, *, mode_only: bool) -> LayoutTargets:
    targets = (
        msgspec.structs.replace(target, mode_only=mode_only) for target in resolve(name, configurations, inventory)
    )
    return LayoutTargets(targets=tuple(targets), unseen=unseen_gpus(name, configurations, inventory))


def _recorded(recorded: tuple[Recorded, ...], inventory: Inventory) -> LayoutTargets:
    absent = {each.uuid for each in recorded} - {gpu.uuid for gpu in inventory.gpus}
    return LayoutTargets(targets=recorded_targets(recorded, inventory), unseen=inventory.unseen if absent else ())


def _bring(clients: NodeClients | None, requested_of: Callable[[Inventory], LayoutTargets], given: Any) -> None:
    """Plan or make a change, print the outcome for each GPU, and raise if one is not as desired, or cannot be."""
    locks = node.locks_in(given["state_dir"])

    async def work(node_gpus: NodeGpus) -> ChangeOutcome:
        observed: NodeInUse = await node.observe(node_gpus)
        requested = requested_of(observed.inventory)
        if not requested.targets and not requested.unseen:
            click.echo("note: the configuration matches no GPU of this node, so nothing changes", err=True)
        if given["dry_run"]:
            return ChangeOutcome(outcomes=node.planned(observed, requested, evict=given["evict"]))
        file = given["checkpoint"] and Checkpoint(given["checkpoint"])
        desired = DesiredLayouts(requested=requested, timeout_s=given["timeout"], locks=locks, checkpoint=file)
        if not given["evict"]:
            return await node.bring(node_gpus, desired)
        async with node.evicting(_cluster(given), clients, given["kubelet_socket"]) as evict:
            return await node.bring(node_gpus, msgspec.structs.replace(desired, evict=evict))

    brought = _run(work, clients, given)
    if locks.problem:
        click.echo(f"note: {locks.problem}", err=True)
    outcomes = brought.outcomes
    _print(given["output"], tables.outcomes_table(outcomes), {"gpus": tables.outcomes_json(outcomes)})
    _raise_if_short(outcomes)
    if brought.unwritten is not None:
        lack = brought.unwritten
        subject = f"the layout is applied, but its checkpoint could not be written: {lack.subject}"
        raise Unavailable(subject, found=lack.found, expected=lack.expected, hint=lack.hint) from lack


def _run(work: Callable[[NodeGpus], Awaitable[_Result]], clients: NodeClients | None, given: Any) -> _Result:
    """Do something on this node, and print a note if the users of a GPU are uncertain."""
    result, note = node.run(work, clients, given["kubelet_socket"], _cluster(given))
    if note:
        click.echo(f"note: {note}", err=True)
    return result


def _cluster(given: Any) -> NodeCluster:
    return NodeCluster(kubeconfig=given["kubeconfig"], node=given["node"])


def _raise_if_short(outcomes: Sequence[GpuOutcome]) -> None:
    short = [each for each in outcomes if each.result not in {"unchanged", "done", "planned"}]
    if not short:
        return
    found = f"{short[0].result}: {short[0].reason}"
    subject = f"{len(short)} of {len(outcomes)} GPUs"
    if all(each.result == "blocked" for each in short):
        raise Conflict(subject, found=found, hint="repeat the command when the GPUs are idle, or with --evict")
    raise Unavailable(subject, found=found, hint="repeat the command when that is fixed")


def _print(output: str, table: RenderableType, plain: object) -> None:
    if print_document(plain, output):
        return
    if isinstance(table, str):
        click.echo(table)
        return
    wide_console(output=output).print(trimmed(table))
