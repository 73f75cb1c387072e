"""Options of the port at which an agent serves chunks of models to other nodes."""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from tessera.agent.storage.modelcache.peers import PeerService, PeerSettings
from tessera.certificates import Tls
from tessera.cli.options import PortNumber, with_options
from tessera.errors import InvalidInput, shown
from tessera.log import logger

__all__ = ["peer_options", "peer_service"]

_PORT = 9443
_FILES = ("tls.crt", "tls.key", "ca.crt")

peer_options = with_options(
    click.option(
        "--peer-address",
        default="",
        metavar="ADDRESS",
        help="Address of this pod, at which it serves chunks of models to agents of other nodes.  [default: none]",
    ),
    click.option("--peer-port", type=PortNumber(1), default=_PORT, show_default=True, help="Its port."),
    click.option(
        "--peer-tls",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Folder with tls.crt, tls.key and ca.crt of all agents, read again when they are replaced.",
    ),
)
"""Adds the options of that port to the agent's command."""


def peer_service(given: Mapping[str, Any]) -> PeerService | None:
    """Return the settings of the options of `peer_options`; None without peers.

    Raises:
        InvalidInput: incomplete options, an invalid address, or unusable files.

    """
    host, folder = given["peer_address"], given["peer_tls"]
    if bool(host) != bool(folder):
        fix = "give --peer-address and --peer-tls, or neither"
        raise InvalidInput("peers", found="one of their options is missing", hint=fix)
    if not host:
        return None
    try:
        address = str(ip_address(host))
    except ValueError as error:
        raise InvalidInput("--peer-address", found=shown(host), expected="an IP address of this pod") from error
    certificate, key, authority = (folder / each for each in _FILES)
    tls = Tls(certificate=certificate, key=key, client_authority=authority)
    return PeerService(PeerSettings(address, given["peer_port"], tls), logger(node=given["node"]))
