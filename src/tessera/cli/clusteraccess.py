"""Access to a cluster: the options that name it, and a client of its API. Imports nothing that reads or plans."""

from pathlib import Path

import click
import msgspec

from tessera.cli.options import FilledOption, with_options
from tessera.clients.kube import HttpKube, find_access

__all__ = ["ClusterSource", "connected", "kubeconfig_options", "namespace_of", "namespace_option"]

_FILE = click.Path(dir_okay=False, path_type=Path)


class ClusterSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a cluster."""

    file: str | None = None
    """A saved cluster; None for the API."""
    kubeconfig: Path | None = None
    context: str | None = None


kubeconfig_options = with_options(
    click.option(
        "--kubeconfig",
        cls=FilledOption,
        type=_FILE,
        help="Kubeconfig file.  [default: KUBECONFIG, else ~/.kube/config]",
    ),
    click.option("--context", cls=FilledOption, metavar="NAME", help="Kubeconfig context.  [default: current]"),
)
"""Adds the options for the API server."""
namespace_option = click.option(
    "-n",
    "--namespace",
    cls=FilledOption,
    default="",
    metavar="NAME",
    help="Namespace.  [default: that of the kubeconfig context]",
)
"""Adds the option of `namespace_of`."""


def namespace_of(cluster: ClusterSource, named: str) -> str:
    """Return the namespace: the named one, else that of the kubeconfig's context.

    Raises:
        InvalidInput: none is named, and there is no valid kubeconfig.

    """
    return named or find_access(cluster.kubeconfig, cluster.context).namespace


def connected(cluster: ClusterSource) -> HttpKube:
    """Return a client of the cluster's API, as a context manager.

    Raises:
        InvalidInput: there is no valid kubeconfig.

    """
    return HttpKube.connect(cluster.kubeconfig, cluster.context)
