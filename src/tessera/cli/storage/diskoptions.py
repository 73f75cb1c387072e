"""Options for a node's local disks and their desired state."""

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, TypeVar

import click
import msgspec

from tessera.cli.options import with_options
from tessera.clients.disks import DiskPaths, Disks, HostDisks
from tessera.core.storage.disks.plan import DiskSpec, check_spec

__all__ = ["GivenDisks", "client_of", "disk_options", "spec_of"]

_PLAIN = DiskSpec()
_Command = TypeVar("_Command", bound=Callable[..., object])


class GivenDisks(TypedDict):
    """The options as click passes them."""

    select: tuple[str, ...]
    filesystem: str
    mount: str
    name: str
    state_dir: Path


def disk_options(function: _Command) -> _Command:
    """Add the options."""
    return with_options(
        click.option(
            "--select",
            multiple=True,
            metavar="PATTERN",
            help="Disks: names in /dev/disk/by-id or paths, with wildcards; repeatable.  "
            "[default: local disks of GKE, EKS and AKS]",
        ),
        click.option(
            "--filesystem",
            type=click.Choice(["ext4", "xfs"]),
            default=_PLAIN.filesystem,
            show_default=True,
            help="For a new filesystem; one that exists is kept.",
        ),
        click.option("--mount", default=_PLAIN.mount, show_default=True, metavar="DIR", help="Where to mount it."),
        click.option(
            "--name",
            default=_PLAIN.name,
            show_default=True,
            metavar="NAME",
            help="Name of the array and label of the filesystem; by it they are recognized.",
        ),
        click.option(
            "--state-dir",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("/var/lib/tessera"),
            show_default=True,
            envvar=["TESSERA_DISKS_STATE_DIR", "TESSERA_AGENT_STATE_DIR"],
            metavar="DIR",
            help="Where a creation that was begun is recorded; not on these disks.",
        ),
    )(function)


def client_of(client: Disks | None, given: GivenDisks) -> Disks:
    """Return the injected disks, or this machine's."""
    return client or HostDisks(DiskPaths(state=given["state_dir"] / "disks"))


def spec_of(given: GivenDisks) -> DiskSpec:
    """Return the desired disks.

    Raises:
        InvalidInput: they are invalid.

    """
    values = {"name": given["name"], "filesystem": given["filesystem"], "mount": given["mount"]}
    return check_spec(msgspec.convert(values | {"select": given["select"] or _PLAIN.select}, DiskSpec))
