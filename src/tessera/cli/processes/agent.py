"""`tessera agent`: the process that runs on every GPU node."""

import asyncio
import contextlib
import shlex
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import click

from tessera.agent.declarations.configuration import Sources
from tessera.agent.run import Agent, ExtraLoop
from tessera.agent.settings import AgentSettings, Paths
from tessera.agent.sharing import MpsSettings
from tessera.agent.storage.images import ImageWarmer
from tessera.agent.storage.modelcache import ModelDisk, ModelKeeper, ModelSources, Places
from tessera.agent.storage.modelcache.peers import PeerService
from tessera.agent.storage.modelcache.rechecks import DEFAULT_BYTES_PER_S
from tessera.agent.storage.models.reading import TransferLimits
from tessera.cli.nodeoptions import node_options
from tessera.cli.options import Number, Seconds, WholeNumber, health_option, kubeconfig_option
from tessera.cli.processes.logoptions import log_options
from tessera.cli.processes.metricsoptions import metrics_options, metrics_port
from tessera.cli.processes.peeroptions import peer_options, peer_service
from tessera.cli.signals import cancel_on_signal, ending_in_time
from tessera.clients.gpu import NvmlDriver
from tessera.clients.kube import HttpKube, Kube
from tessera.clients.runtime import CONTAINERD, CriRuntime, Runtime
from tessera.core.node.health import HealthPolicy, Xids
from tessera.core.node.layouts import LayoutLimits
from tessera.core.storage.disks.plan import DiskSpec
from tessera.errors import InvalidInput, Unavailable, shown
from tessera.log import configure
from tessera.processports import MetricsPort, serving_metrics, serving_probes

__all__ = ["agent", "opening_in_time", "storage_loops"]

_EPILOG = """
\b
Examples:
  tessera agent --node node1
  tessera agent --node node1 --sharing-config /etc/tessera/sharing
  kubectl label node node1 nvidia.com/mig.config=all-1g.5gb

RBAC: the service account tessera-agent of the chart; docs/security.md lists it.
"""

_OPEN_S = 300.0
"""How long the agent tries to open the driver; it has registered its resources by then."""
_PATHS, _LIMITS = Paths(), LayoutLimits()
_MODELS = Path(DiskSpec().mount) / "models"
_FILE = click.Path(path_type=Path)


@click.command(epilog=_EPILOG)
@click.option("--node", metavar="NAME", envvar=["TESSERA_AGENT_NODE", "NODE_NAME"], help="Name of this Node object.")
@kubeconfig_option
@node_options()
@click.option("--mig-config", type=_FILE, help="mig-parted file with named layouts.")
@click.option(
    "--disable-healthchecks",
    default="",
    metavar="XIDS",
    envvar=["TESSERA_AGENT_DISABLE_HEALTHCHECKS", "DP_DISABLE_HEALTHCHECKS"],
    help="XIDs to ignore, besides those that applications cause; or all.",
)
@click.option(
    "--enable-healthchecks",
    default="",
    metavar="XIDS",
    envvar=["TESSERA_AGENT_ENABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"],
    help="XIDs that mark a GPU unhealthy even if ignored otherwise; or all.",
)
@click.option(
    "--gpu-labels/--no-gpu-labels", default=True, show_default=True, help="Set GFD's labels; off where GFD runs."
)
@click.option("--evict", is_flag=True, help="Evict pods that block a layout, within their PodDisruptionBudgets.")
@click.option(
    "--reboot-command",
    default="",
    metavar="COMMAND",
    help="Program and arguments, run without a shell, that reboot the node when MIG mode needs a reset and no GPU is "
    "in use.",
)
@click.option("--pending-s", type=Seconds(), default=_LIMITS.pending_s, show_default=True, help="Time for a layout.")
@click.option("--state-dir", type=_FILE, default=_PATHS.state, show_default=True, help="State that outlives the agent.")
@click.option("--mig-minors", type=_FILE, default=_PATHS.mig_minors, show_default=True, help="The driver's file.")
@click.option("--dev-root", type=_FILE, default=_PATHS.dev_root, show_default=True, help="Folder with the host's /dev.")
@click.option(
    "--runtime-socket",
    type=_FILE,
    default=CONTAINERD,
    show_default=True,
    help="Socket of the container runtime, for ImageWarmups.",
)
@click.option("--model-dir", type=_FILE, default=_MODELS, show_default=True, help="The host's folder for ModelCaches.")
@click.option(
    "--model-disk-percent",
    type=WholeNumber(1, 99),
    default=85,
    show_default=True,
    help="How full models may make their disk. The kubelet evicts pods from 85 % on, where it is its own.",
)
@click.option(
    "--model-source",
    type=_FILE,
    multiple=True,
    help="Host folder below which ModelCaches may name a file:// source; may be repeated.  [default: none]",
)
@click.option(
    "--model-bandwidth",
    type=Number(min=0.1, max=1e6),
    help="Fetch models with at most so many MiB per second, from stores and peers together.  [default: no limit]",
)
@click.option(
    "--model-verify-bandwidth",
    type=Number(min=0.1, max=1e6),
    default=DEFAULT_BYTES_PER_S / 2**20,
    show_default=True,
    help="Read models on the disk at so many MiB per second where they are compared with their digests.",
)
@click.option("--host-root", type=_FILE, default=Path("/"), show_default=True, help="The host's root folder.")
@peer_options
@health_option
@metrics_options
@log_options
def agent(**given: Any) -> None:
    """Run the node agent: partition and share this node's GPUs and advertise them to the kubelet.

    It reconciles the label nvidia.com/mig.config, its files and the GPUPolicy of the node, and reports in labels,
    conditions and events. Stopping it leaves GPUs, MPS daemons and pods as they are; it resumes on restart.
    """
    if not given["node"]:
        raise InvalidInput(
            "--node",
            found="the agent's node has no name",
            hint="give --node or NODE_NAME, the name of this Node object",
        )
    configure(given["log_level"], given["log_format"])
    runtime = CriRuntime(given["runtime_socket"], root=given["host_root"])
    settings = _settings(given)
    (folder,) = _absolute("--model-dir", (given["model_dir"],))
    peers = peer_service(given)
    sharing = peers.sharing if peers is not None else None
    disk = ModelDisk(folder, root=given["host_root"], most_percent=given["model_disk_percent"], sharing=sharing)
    sources = ModelSources(_absolute("--model-source", given["model_source"]), given["host_root"])
    limits = TransferLimits(bytes_per_second=(given["model_bandwidth"] or 0) * 2**20)
    models = Places(disk, sources, settings.paths.plugins, limits, given["model_verify_bandwidth"] * 2**20)
    ports = (given["health_port"], metrics_port(given))
    asyncio.run(_run(settings, (runtime, models, peers), given["kubeconfig"], ports))


def _settings(given: dict[str, Any]) -> AgentSettings:
    paths = Paths(
        plugins=given["plugins_dir"],
        pod_resources=given["pod_resources"],
        cdi=given["cdi_dir"],
        driver_specs=(_PATHS.driver_specs[0], given["cdi_dir"] / _PATHS.driver_specs[1].name),
        driver_folder=given["driver_folder"],
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
    return AgentSettings(
        node=given["node"],
        paths=paths,
        sources=sources,
        mig_config=given["mig_config"],
        list_strategies=given["device_list_strategy"],
        mps=MpsSettings(program=given["mps_control"], root=given["mps_dir"]),
        limits=LayoutLimits(pending_s=given["pending_s"]),
        evict=given["evict"],
        reboot=_program(given["reboot_command"]),
        labels=given["gpu_labels"],
        health=HealthPolicy(xids=Xids.of(given["disable_healthchecks"], given["enable_healthchecks"])),
    )


def _program(text: str) -> tuple[str, ...]:
    """Return a command line as program and arguments.

    Raises:
        InvalidInput: an open quote, or no such program.

    """
    option, expected = "--reboot-command", "a program of this machine and its arguments"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidInput(option, found=f"{shown(text)}, {error}", hint=f"give {expected}") from error
    if words and shutil.which(words[0]) is None:
        raise InvalidInput(option, found=f"there is no program {shown(words[0])}", hint=f"give {expected}")
    return words


def _absolute(option: str, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return absolute paths.

    Raises:
        InvalidInput: one is not, or leads upwards.

    """
    wrong = next((each for each in paths if not each.is_absolute() or ".." in each.parts), None)
    if wrong is not None:
        raise InvalidInput(option, found=shown(str(wrong)), expected="an absolute path without `..`")
    return paths


def storage_loops(
    node: str, kube: Kube, runtime: Runtime, models: Places, peers: PeerService | None
) -> list[ExtraLoop]:
    """Return the loops for models, images and peers, which the agent starts once it has the node's lock."""
    loops: list[ExtraLoop] = [
        ModelKeeper(node, kube, models).run,
        lambda _, measures: ImageWarmer(node, kube, runtime).run(measures),
    ]
    if peers is not None:
        loops.append(lambda _, measures: peers.run(measures))
    return loops


async def _run(
    settings: AgentSettings,
    storage: tuple[Runtime, Places, PeerService | None],
    kubeconfig: Path | None,
    ports: tuple[int | None, MetricsPort],
) -> None:
    """Run until SIGTERM or SIGINT; the ports are those for probes and for metrics."""
    cancel_on_signal()
    with ending_in_time():
        async with HttpKube.connect(kubeconfig) as kube:
            with contextlib.suppress(asyncio.CancelledError):
                async with opening_in_time() as opened:
                    driver = NvmlDriver.lazy(on_open=opened)
                    one = Agent(settings, driver, kube, storage_loops(settings.node, kube, *storage))
                    try:

                        def metrics() -> bytes:
                            return one.measures.render() + one.exporter.render()

                        async with (
                            serving_probes(ports[0], one.waiting_for),
                            serving_metrics(ports[1], metrics, one.exporter.report),
                        ):
                            await one.run()
                    finally:
                        await driver.close()


@contextlib.asynccontextmanager
async def opening_in_time(deadline_s: float = _OPEN_S) -> AsyncIterator[Callable[[], None]]:
    """Yield what to call when the driver is open; cancel the body if that is not called in time.

    A new process loads the library of the present driver, and a new container has folders that were mounted later.

    Raises:
        Unavailable: the driver was not opened.

    """
    limit = asyncio.timeout(deadline_s)

    def opened() -> None:
        if not limit.expired():
            limit.reschedule(None)

    try:
        async with limit:
            yield opened
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise Unavailable(
            "GPU driver",
            found=f"it could not be opened within {deadline_s:g} s",
            hint="see the log for the cause; start the agent again, which Kubernetes does by itself",
        ) from error
