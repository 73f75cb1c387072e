"""Options for the agents to query."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import refuse_beside
from tessera.clients.nodeusage import HttpUsage, ProxiedUsage, UsageSource
from tessera.errors import Unavailable

__all__ = ["agent_option", "agents", "agents_options", "note_silent", "refuse_two_sources"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def agent_option(command: _Command) -> _Command:
    """Add `--agent` to a command."""
    return click.option(
        "--agent",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Agent to query, at its metrics port (9400); once for each node.",
    )(command)


def agents_options(command: _Command) -> _Command:
    """Add the options for the agents: those of a cluster, or named ones."""
    return agent_option(kubeconfig_options(command))


def refuse_two_sources() -> None:
    """Reject a cluster together with named agents."""
    for option in ("--kubeconfig", "--context"):
        refuse_beside(option, "--agent")


@asynccontextmanager
async def agents(addresses: tuple[str, ...], place: ClusterSource, *, node: str = "") -> AsyncIterator[UsageSource]:
    """Yield the agents of these addresses; without any, all of a cluster, or that of one node.

    Args:
        addresses: of agents.
        place: the cluster.
        node: the one node of the cluster; empty for all.

    Raises:
        InvalidInput: an invalid address, or no such kubeconfig.

    """
    source: UsageSource = HttpUsage(addresses) if addresses else ProxiedUsage(connected(place), node=node or None)
    try:
        yield source
    finally:
        await source.close()


def note_silent(silent: Iterable[Unavailable]) -> None:
    """Say on stderr which agents are left out."""
    for each in silent:
        click.echo(f"note: left out: {clean(str(each))}", err=True)
