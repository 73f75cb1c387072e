"""`tessera disks`: this node's local disks as one filesystem: plan, apply, status."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, Unpack

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tessera.agent.storage.disks.preparing import observe_plan, prepare
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import CommandGroup, output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.cli.storage.diskoptions import GivenDisks, client_of, disk_options, spec_of
from tessera.clients.disks import Disks, command
from tessera.core.storage.disks.plan import DiskPlan, DiskState
from tessera.core.storage.disks.steps import Step
from tessera.core.workload.units import gib
from tessera.errors import Conflict, InvalidInput, Unsupported

__all__ = ["disks"]

_NOT_READY = 1
_STYLES = {DiskState.READY: "green", DiskState.PENDING: "cyan", DiskState.LOST: "bold red"}
_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Callable[..., object])


class _Given(GivenDisks):
    """The options as click passes them."""

    output: str


def _options(function: _Command) -> _Command:
    """Add the options of all three commands."""
    return output_option()(disk_options(function))


@click.group(
    cls=CommandGroup,
    epilog="""
\b
Examples:
  tessera disks plan
  tessera disks apply --yes
  tessera disks status -o json
  tessera disks plan --select '/dev/nvme[1-4]n1' --filesystem xfs
""",
)
def disks() -> None:
    """Make this node's local disks one filesystem: RAID 0, formatted once, mounted.

    Run it as root. One disk needs no RAID. What is on a disk is never written over: an array or filesystem of this name
    is used as it is, and anything else is refused.
    """


@disks.command(epilog="\b\nExample:\n  tessera disks plan -o json\n")
@_options
@click.pass_obj
def plan(client: Disks | None, /, **given: Unpack[_Given]) -> None:
    """Show the disks, what is on them, and the steps of `apply`. Changes nothing.

    Exits with the code that `apply` would have: 0, or 5 where it refuses the disks, or 3 where there are none.
    """
    found = _run(observe_plan(client_of(client, given), spec_of(given)))
    _print(found, given["output"])
    _raise_if_refused(found, given["mount"])


@disks.command(epilog="\b\nExample:\n  tessera disks apply --filesystem xfs --yes\n")
@_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def apply(client: Disks | None, /, *, yes: bool, **given: Unpack[_Given]) -> None:
    """Do the steps of `plan`. Does nothing where the disks are ready; after an interruption or a reboot, the rest.

    Exit code 5: the disks are refused, or another process is at work on them; 3: there are none, or a program is
    missing; 4: a step failed.
    """
    spec, own = spec_of(given), client_of(client, given)
    found = _run(observe_plan(own, spec))
    if found.steps and not yes:
        _print(found, "table", error=True)
        try:
            click.confirm("Do these steps?", abort=True, err=True)
        except click.Abort:
            expected = "--yes without a terminal"
            raise InvalidInput(
                "confirmation", found="it was not confirmed, and nothing was done", hint=f"give {expected}"
            ) from None
    if found.steps:
        found = _run(prepare(own, spec, lambda step: click.echo(f"done: {_words(step)}", err=True)))
    _print(found, given["output"])
    _raise_if_refused(found, given["mount"])


@disks.command(epilog="\b\nExample:\n  tessera disks status || tessera disks plan\n")
@_options
@click.pass_context
def status(context: click.Context, /, **given: Unpack[_Given]) -> None:
    """Show whether the disks are ready: whole, mounted and writable. Exits with 0 if they are, else with 1."""
    found = _run(observe_plan(client_of(context.obj, given), spec_of(given)))
    _print(msgspec.structs.replace(found, steps=()), given["output"])
    if given["output"] in {"table", "wide"}:
        for each in filter(None, (*found.reasons, found.advice)):
            click.echo(each)
    context.exit(0 if found.state is DiskState.READY else _NOT_READY)


def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
    return asyncio.run(work)


def _words(step: Step) -> str:
    """Return a step in words: its command, or Tessera's own action."""
    arguments = command(step)
    return " ".join(arguments) if arguments else (type(step).__doc__ or "").rstrip(".")


def _raise_if_refused(disk_plan: DiskPlan, mount: str) -> None:
    subject, reason = f"disks for {mount}", "; ".join(disk_plan.reasons)
    if disk_plan.state is DiskState.NONE:
        raise Unsupported(subject, found=reason, hint=disk_plan.advice)
    if disk_plan.reasons:
        raise Conflict(subject, found=reason, hint=disk_plan.advice)


def _print(disk_plan: DiskPlan, output: str, *, error: bool = False) -> None:
    plain = msgspec.to_builtins(disk_plan)
    for each, step in zip(plain["steps"], disk_plan.steps, strict=True):
        each["command"] = list(command(step))
    if print_document(plain, output):
        return
    console = wide_console(output=output)
    console.stderr = error
    _print_tables(disk_plan, console)


def _print_tables(disk_plan: DiskPlan, console: Console) -> None:
    table = headed_table("DISK", "SIZE", "MODEL", "FOUND")
    for disk in disk_plan.disks:
        table.add_row(*map(Text, (disk.device, gib(disk.size_bytes >> 20), clean(disk.model), disk.found)))
    if disk_plan.disks:
        console.print(trimmed(table))
    if disk_plan.steps:
        steps = headed_table("", "STEP")
        for number, step in enumerate(disk_plan.steps, 1):
            steps.add_row(f"{number}", Text(_words(step)))
        console.print(trimmed(Text(), steps, Text()))
    where = (
        f": {disk_plan.device} at {disk_plan.mount}"
        if disk_plan.mount
        else f": {disk_plan.device}"
        if disk_plan.device
        else ""
    )
    space = (
        f", {gib(disk_plan.free_bytes >> 20)} of {gib(disk_plan.size_bytes >> 20)} free" if disk_plan.size_bytes else ""
    )
    console.print(Text.assemble((disk_plan.state, _STYLES.get(disk_plan.state, "yellow")), where, space))
    for each in disk_plan.notes:
        console.print(Text(f"note: {each}"))
