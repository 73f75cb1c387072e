"""`tessera agent`: the process that runs on every GPU node."""

import asyncio
import contextlib
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import click

from tessera.agent.configuration import Sources
from tessera.agent.run import Agent
from tessera.agent.settings import Paths, Settings
from tessera.agent.sharing import MpsSettings
from tessera.cli.nodeoptions import node_options
from tessera.cli.options import Seconds, kubeconfig_option, log_options
from tessera.clients.gpu import NvmlDriver
from tessera.clients.kube import HttpKube
from tessera.core.node.health import HealthPolicy, Xids
from tessera.core.node.layouts import Limits
from tessera.errors import InvalidInput, shown
from tessera.log import configure

__all__ = ["agent"]

_EPILOG = """
\b
Examples:
  tessera agent --node node1
  tessera agent --node node1 --kubeconfig ~/.kube/config --sharing-config /etc/tessera/sharing --strategy single
  kubectl label node node1 nvidia.com/mig.config=all-1g.5gb

\b
Rights it needs: get, list, watch and patch nodes; patch nodes/status; get, list, watch and patch pods; create
pods/eviction (with --evict); get, create and patch events; get, list, watch and create gpunodes; patch
gpunodes/status; get, list and watch the ConfigMap tessera-assignment-keys in tessera-system (deploy/rbac/agent.yaml).
"""

_PATHS, _LIMITS = Paths(), Limits()
_FILE = click.Path(path_type=Path)


@click.command(epilog=_EPILOG)
@click.option("--node", metavar="NAME", envvar=["TESSERA_AGENT_NODE", "NODE_NAME"], help="Name of this node's object.")
@kubeconfig_option
@node_options()
@click.option("--mig-config", type=_FILE, help="mig-parted file of named layouts.")
@click.option(
    "--disable-healthchecks",
    default="",
    metavar="XIDS",
    envvar=["TESSERA_AGENT_DISABLE_HEALTHCHECKS", "DP_DISABLE_HEALTHCHECKS"],
    help="Errors to ignore besides applications' own, or all.",
)
@click.option(
    "--enable-healthchecks",
    default="",
    metavar="XIDS",
    envvar=["TESSERA_AGENT_ENABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"],
    help="Errors that count all the same, or all.",
)
@click.option("--gpu-labels/--no-gpu-labels", default=True, show_default=True, help="Not where GFD sets them.")
@click.option("--evict", is_flag=True, help="Evict pods in the way of a layout, as disruption budgets allow.")
@click.option(
    "--reboot-command",
    default="",
    metavar="COMMAND",
    help="Program and arguments, run without a shell, that reboot the node when only a reset can switch MIG and nobody "
    "uses a GPU.",
)
@click.option("--pending-s", type=Seconds(), default=_LIMITS.pending_s, show_default=True, help="Wait for a layout.")
@click.option("--state-dir", type=_FILE, default=_PATHS.state, show_default=True, help="What outlives the agent.")
@click.option("--mig-minors", type=_FILE, default=_PATHS.mig_minors, show_default=True, help="The driver's list.")
@click.option("--dev-root", type=_FILE, default=_PATHS.dev_root, show_default=True, help="Folder that has /dev.")
@log_options
def agent(**given: Any) -> None:
    """Cut and share this node's GPUs, offer them to the kubelet, and keep both as declared.

    It follows the label nvidia.com/mig.config and the files it is given, and answers with labels, a condition and
    events of the node. Ending it leaves GPUs, daemons and pods as they are; started again it finds its way back.
    """
    if not given["node"]:
        raise InvalidInput(
            "--node", found="none", wanted="the name of this node's object", accepted="--node, NODE_NAME"
        )
    configure(given["log_level"], given["log_format"])
    asyncio.run(_run(_settings(given), given["kubeconfig"]))


def _settings(given: dict[str, Any]) -> Settings:
    paths = Paths(
        plugins=given["plugins_dir"],
        pod_resources=given["pod_resources"],
        cdi=given["cdi_dir"],
        driver_specs=(_PATHS.driver_specs[0], given["cdi_dir"] / _PATHS.driver_specs[1].name),
        state=given["state_dir"],
        mig_minors=given["mig_minors"],
        dev_root=given["dev_root"],
    )
    sources = Sources(
        sharing=given["sharing_config"],
        default=given["sharing_default"],
        policy=given["node_policy"],
        applied=paths.state / "applied.json",
        strategy=given["strategy"],
    )
    return Settings(
        node=given["node"],
        paths=paths,
        sources=sources,
        mig_config=given["mig_config"],
        list_strategies=given["device_list_strategy"],
        mps=MpsSettings(program=given["mps_control"], root=given["mps_dir"]),
        limits=Limits(pending_s=given["pending_s"]),
        evict=given["evict"],
        reboot=_program(given["reboot_command"]),
        labels=given["gpu_labels"],
        health=HealthPolicy(xids=Xids.of(given["disable_healthchecks"], given["enable_healthchecks"])),
    )


def _program(text: str) -> tuple[str, ...]:
    """Return a command line as program and arguments.

    Raises:
        InvalidInput: a quote without its second, or no such program.

    """
    option, wanted = "--reboot-command", "a program of this machine and its arguments"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidInput(option, found=f"{shown(text)}, {error}", wanted=wanted) from error
    if words and shutil.which(words[0]) is None:
        raise InvalidInput(option, found=f"no program {shown(words[0])}", wanted=wanted)
    return words


async def _run(settings: Settings, kubeconfig: Path | None) -> None:
    """Run until SIGTERM or SIGINT."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with HttpKube.connect(kubeconfig) as kube:
        driver = await NvmlDriver.open()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await Agent(settings, driver, kube).run()
        finally:
            await driver.close()
