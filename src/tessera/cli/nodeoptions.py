"""Options for files, folders and sockets of a GPU node, for commands that run there; the agent has them all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import click

from tessera.agent.settings import Paths
from tessera.agent.sharing import MpsSettings
from tessera.core.node.nodesharing import ListStrategy, Strategy

__all__ = ["node_options"]

_Command = TypeVar("_Command", bound=Callable[..., object])
_PATHS, _MPS = Paths(), MpsSettings()
_FILE = click.Path(path_type=Path)
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sharing-config": {
        "type": _FILE,
        "help": "NVIDIA's device plugin file, or a folder of them that a node label chooses from.",
    },
    "sharing-default": {"default": "", "metavar": "NAME", "help": "File in that folder for nodes without the label."},
    "device-list-strategy": {
        "type": click.Choice(get_args(ListStrategy)),
        "multiple": True,
        "help": "How containers get devices, unless a file sets it.  [default: cdi-cri where supported, else envvar]",
    },
    "node-policy": {
        "type": _FILE,
        "help": "NodePolicy file for this node's GPUs; it overrides a GPUPolicy.",
    },
    "strategy": {
        "type": click.Choice(get_args(Strategy)),
        "help": "MIG strategy, unless a policy or file sets one.  [default: mixed]",
    },
    "plugins-dir": {"type": _FILE, "default": _PATHS.plugins, "help": "The kubelet's device plugin folder."},
    "pod-resources": {"type": _FILE, "default": _PATHS.pod_resources, "help": "The kubelet's PodResources socket."},
    "cdi-dir": {"type": _FILE, "default": _PATHS.cdi, "help": "Folder for CDI specifications."},
    "driver-folder": {
        "default": "",
        "metavar": "DIR",
        "help": "The host's folder with the driver's libraries, which containers get at /usr/local/nvidia where no CDI "
        "specification of the driver is: /home/kubernetes/bin/nvidia on GKE.",
    },
    "mps-dir": {"type": _FILE, "default": _MPS.root, "help": "Folder for pipes and logs of MPS daemons."},
    "mps-control": {"default": _MPS.program, "metavar": "PROGRAM", "help": "MPS control program."},
}


def node_options(*prefixes: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options, passed under their names.

    Args:
        prefixes: of the environment variables that set them, the first that exists; none for the command's own.

    """

    def add(command: _Command) -> _Command:
        for name, settings in reversed(tuple(_OPTIONS.items())):
            variables = [f"{prefix}_{name.replace('-', '_').upper()}" for prefix in prefixes]
            shown = bool(settings.get("default"))
            command = click.option(f"--{name}", envvar=variables or None, show_default=shown, **settings)(command)
        return command

    return add
