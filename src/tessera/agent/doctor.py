"""Collects the facts about a GPU node for `core.node.doctor`; read-only."""

import asyncio
import contextlib
import os
import shutil
import socket
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tessera.agent.cdisupport import DRIVER_SPECS, RUNTIME_CONFIG, first_file, observe_cdi, read_runtime_config
from tessera.agent.declarations.configuration import Configuration, ConfigurationFiles, GivenPolicy, Sources
from tessera.agent.nodefiles import LARGEST_SPEC, printable, read_file
from tessera.agent.pods.podprocesses import sees_other_containers
from tessera.agent.sharing import MpsDaemons
from tessera.api import documents
from tessera.api.fields import Field
from tessera.clients.gpu import GpuDriver
from tessera.clients.kube import GPU_NODES, NODES, Kube, Object, annotations_of, labels_of
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import MPS_MODES
from tessera.core.node.doctor import HostFacts, NodeFolder, NodeMarks, RuntimeFacts, Socket, Toolkit
from tessera.core.node.liststrategies import ListStrategies, list_strategies
from tessera.core.node.nodesharing import ListStrategy, NodeSharing, effective, notes
from tessera.errors import InvalidInput, TesseraError

__all__ = ["DoctorPaths", "observe"]

_CONNECT_S = 3.0
_MIB = 1 << 20
TOOLKIT_CONFIGS: Final = (
    Path("/etc/nvidia-container-runtime/config.toml"),
    Path("/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"),
)
"""Configuration of NVIDIA's container runtime: the package's, and the GPU operator's.

Source: NVIDIA Container Toolkit documentation; nvidia-container-toolkit `cmd/nvidia-ctk-installer`.
"""
_ACCEPT = "accept-nvidia-visible-devices-"


_MOVED = (
    "mps_root",
    "shm",
    "cdi",
    "plugins",
    "pod_resources",
    "runtime",
    "runtime_config",
    "driver_specs",
    "toolkit_configs",
)


class DoctorPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Paths on the node."""

    sources: Sources = Sources()
    mps_root: Path = Path("/run/tessera/mps")
    shm: Path = Path("/dev/shm")  # noqa: S108  # the node's shared memory, which MPS uses
    cdi: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    proc: Path = Path("/proc")
    runtime: Path = Path("/run/containerd/containerd.sock")
    runtime_config: Path = RUNTIME_CONFIG
    driver_specs: tuple[Path, ...] = DRIVER_SPECS
    driver_folder: str = ""
    """A path of the host, which the agent need not have mounted."""
    toolkit_configs: tuple[Path, ...] = TOOLKIT_CONFIGS
    list_strategies: tuple[ListStrategy, ...] = ()
    """The agent's options: not paths, but checked together with them."""

    def under(self, root: Path) -> "DoctorPaths":
        """Return the same paths on a node whose file system is mounted at `root`; the given files stay."""
        moved = {name: _moved(getattr(self, name), root) for name in _MOVED}
        return msgspec.structs.replace(self, **moved)


def _moved(path: Path | tuple[Path, ...], root: Path) -> Path | tuple[Path, ...]:
    if isinstance(path, tuple):
        return tuple(root / each.absolute().relative_to("/") for each in path)
    return root / path.absolute().relative_to("/")


async def observe(
    places: DoctorPaths, driver: GpuDriver | TesseraError, mps: MpsDaemons, kube: Kube | None = None, node: str = ""
) -> HostFacts:
    """Return the facts that the checks need.

    Args:
        places: the paths.
        driver: the GPU driver, or why there is none.
        mps: the daemons; only queried, never changed.
        kube: to read the Node object; None to skip it.
        node: its name.

    """
    # 1. What the driver and the API server report about the node.
    inventory, no_driver = await _inventory(driver)
    found, node_problem = await _node(kube, node)
    marks = NodeMarks(labels=labels_of(found), annotations=annotations_of(found)) if found is not None else None
    policy = await _policy(kube, node)
    # 2. Configuration and MPS daemons.
    config = await asyncio.to_thread(_configuration, places.sources, marks, inventory, policy)
    node_sharing = config.node_sharing or NodeSharing()
    daemons = await mps.inspect()
    # 3. Folders, files, sockets and processes.
    kubelet = (places.plugins / "kubelet.sock", places.pod_resources)
    return HostFacts(
        inventory=inventory,
        driver_problem=no_driver.cause if no_driver else "",
        driver_fix=no_driver.hint if no_driver else "",
        mps_desired=inventory is not None and _is_mps_desired(inventory, node_sharing),
        mps_program=mps.program,
        user_id=os.geteuid(),
        shm=_folder(places.shm),
        mps_root=_folder(places.mps_root),
        daemons=daemons,
        processes=await _processes(driver, sorted({daemon.gpu for daemon in daemons} - {""})),
        runtime=await asyncio.to_thread(_runtime, places),
        list_strategies=await asyncio.to_thread(_strategies, places, node_sharing, found),
        driver_spec=str(first_file(places.driver_specs) or places.driver_folder),
        toolkit=await asyncio.to_thread(_toolkit, places.toolkit_configs),
        cdi_folders=tuple(_folder(path) for path in places.cdi),
        **(await asyncio.to_thread(_cdi, places.cdi)),
        plugin_folder=_folder(places.plugins),
        sees_pods=await asyncio.to_thread(sees_other_containers, places.proc),
        kubelet=tuple([await asyncio.to_thread(_socket, path) for path in kubelet]),
        generation=config.generation,
        config_problem=config.problem,
        config_notes=(*map(str, config.overridden), *(notes(inventory, node_sharing) if inventory is not None else ())),
        node=marks,
        node_problem=node_problem,
    )


async def _inventory(driver: GpuDriver | TesseraError) -> tuple[Inventory | None, TesseraError | None]:
    if isinstance(driver, TesseraError):
        return None, driver
    try:
        return await driver.inventory(), None
    except TesseraError as error:
        return None, error


async def _processes(driver: GpuDriver | TesseraError, gpus: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the processes on these GPUs, as far as the driver reports them."""
    if isinstance(driver, TesseraError):
        return ()
    found: list[tuple[str, int]] = []
    for gpu in gpus:
        with contextlib.suppress(TesseraError):
            found += [(gpu, each.pid) for each in await driver.processes(gpu)]
    return tuple(found)


async def _node(kube: Kube | None, name: str) -> tuple[Object | None, str]:
    if kube is None or not name:
        return None, ""
    try:
        found = await kube.get(NODES, name)
    except TesseraError as error:
        return None, str(error)
    if found is None:
        return None, f"there is no node {name}"
    return found, ""


def _strategies(places: DoctorPaths, node_sharing: NodeSharing, node: Object | None) -> ListStrategies | None:
    """Return how the agent hands devices over; None where nothing is configured and the Node object is unknown."""
    configured = node_sharing.plugin.list_strategies or places.list_strategies
    if node is None and not configured:
        return None
    support = observe_cdi(
        node or {},
        runtime_config=places.runtime_config,
        driver_specs=places.driver_specs,
        driver_folder=places.driver_folder,
    )
    return list_strategies(configured, support)


async def _policy(kube: Kube | None, name: str) -> GivenPolicy | None:
    """Return the GPUPolicy's settings for the node; None where no policy applies, or the API server does not answer."""
    if kube is None or not name:
        return None
    try:
        found = await kube.get(GPU_NODES, name)
    except TesseraError:
        return None
    policy = ((found or {}).get("spec") or {}).get("policy") or {}
    document = policy.get("document")
    return GivenPolicy(name=policy["name"], text=msgspec.json.encode(document).decode()) if document else None


def _configuration(
    sources: Sources, node: NodeMarks | None, inventory: Inventory | None, policy: GivenPolicy | None
) -> Configuration:
    labels = node.labels if node is not None else {}
    files = ConfigurationFiles(msgspec.structs.replace(sources, applied=None))
    return files.read(labels, inventory.gpus if inventory is not None else (), policy)


def _is_mps_desired(inventory: Inventory, node_sharing: NodeSharing) -> bool:
    modes = {mode for gpu in effective(inventory, node_sharing) for mode in gpu.sharing.modes}
    return not modes.isdisjoint(MPS_MODES)


# Files


def _folder(path: Path) -> NodeFolder:
    if not path.is_dir():
        return NodeFolder(path=str(path))
    return NodeFolder(
        path=str(path),
        exists=True,
        writable=os.access(path, os.W_OK | os.X_OK),
        free_mib=shutil.disk_usage(path).free // _MIB,
    )


def _socket(path: Path) -> Socket:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(str(path))
        except OSError as error:
            return Socket(path=str(path), problem=error.strerror or str(error))
    return Socket(path=str(path))


def _runtime(places: DoctorPaths) -> RuntimeFacts:
    answers, path = _socket(places.runtime), places.runtime_config
    try:
        config = read_runtime_config(path)
    except FileNotFoundError:
        return RuntimeFacts(socket=answers)
    except (OSError, ValueError) as error:
        return RuntimeFacts(socket=answers, config=str(path), problem=str(error))
    return RuntimeFacts(socket=answers, config=str(path), version=config.version, cdi=config.cdi)


def _toolkit(paths: Iterable[Path]) -> Toolkit:
    """Return the settings of NVIDIA's container runtime; its defaults where the file has none."""
    path = first_file(paths)
    if path is None:
        return Toolkit()
    try:
        config = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        return Toolkit(config=str(path), problem=str(error))
    return Toolkit(
        config=str(path),
        accepts_environment=config.get(f"{_ACCEPT}envvar-when-unprivileged", True) is not False,
        accepts_mounts=config.get(f"{_ACCEPT}as-volume-mounts", False) is True,
    )


def _cdi(folders: Iterable[Path]) -> dict[str, Any]:
    """Return the devices defined in CDI files, and the unreadable files."""
    devices, problems = [], []
    for path in (path for folder in folders for path in _specs(folder)):
        try:
            devices += [(printable(path), name) for name in _device_names(path)]
        except OSError as error:
            problems.append(f"{printable(path)}: {error.strerror}")
        except InvalidInput as error:
            problems.append(str(error))
    return {"cdi_devices": tuple(devices), "cdi_problems": tuple(problems)}


def _specs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in {".json", ".yaml"})


def _device_names(path: Path) -> Iterator[str]:
    found = documents.read(printable(path), read_file(path, LARGEST_SPEC))
    if not found:
        raise InvalidInput(printable(path), found="it has no CDI specification", hint="remove the file")
    for document in found:
        spec = Field(document, document.data)
        kind = spec.get("kind").text()
        for device in spec.get("devices").elements():
            yield f"{kind}={device.get('name').text()}"
