"""Settings of an agent: names, folders and intervals."""

from pathlib import Path

import msgspec

from tessera.agent.cdisupport import DRIVER_SPECS, RUNTIME_CONFIG
from tessera.agent.declarations.configuration import Sources
from tessera.agent.sharing import MpsSettings
from tessera.core.node.health import HealthPolicy
from tessera.core.node.layouts import LayoutLimits
from tessera.core.node.nodesharing import ListStrategy

__all__ = ["AgentSettings", "Paths"]


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and sockets of the host."""

    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    """The kubelet's folder for device plugins, whatever its root folder."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    cdi: Path = Path("/var/run/cdi")
    state: Path = Path("/var/lib/tessera")
    """State that must outlive the agent, and layouts that must outlive a reboot."""
    mig_minors: Path = Path("/proc/driver/nvidia-caps/mig-minors")
    """The driver's list of capability device nodes."""
    driver_specs: tuple[Path, ...] = DRIVER_SPECS
    driver_folder: str = ""
    """The host's folder with the driver's libraries, mounted into containers where there is no such specification."""
    runtime_config: Path = RUNTIME_CONFIG
    machine: Path = Path("/sys/class/dmi/id/product_name")
    """The machine's product name, for a label. Source: GPU Feature Discovery `--machine-type-file`."""
    dev_root: Path = Path("/")
    """Folder that contains the driver's `/dev`."""

    proc: Path = Path("/proc")
    """The host's process table, which shows when the last process of a pod has ended."""

    @property
    def checkpoint(self) -> Path:
        """The MIG layouts to restore after a reboot."""
        return self.state / "layouts.json"

    @property
    def locks(self) -> Path:
        """The locks of GPUs whose layout is being changed, by any process of the node."""
        return self.state / "locks"

    @property
    def assignment_key(self) -> Path:
        """The agent's private key for signing assignments."""
        return self.state / "assignment-key"

    @property
    def rebooted(self) -> Path:
        """The configuration for which a reboot was requested."""
        return self.state / "rebooted"


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of an agent."""

    node: str
    """Name of the Node object."""
    paths: Paths = Paths()
    sources: Sources = Sources()
    mig_config: Path | None = None
    """mig-parted's file; built-in names work without one."""
    list_strategies: tuple[ListStrategy, ...] = ()
    """Device list strategies where no file sets them; empty for what suits the node."""
    mps: MpsSettings = MpsSettings()
    limits: LayoutLimits = LayoutLimits()
    health: HealthPolicy = HealthPolicy()
    """How driver errors are judged."""
    labels: bool = True
    """Whether the node gets labels that describe its GPUs; not where GPU Feature Discovery does so."""
    evict: bool = False
    """Whether pods in the way of a layout are evicted, through the Eviction API."""
    reboot: tuple[str, ...] = ()
    """Program and arguments that reboot the node where MIG was switched and only a reset is left; none to leave that to
    people."""
    interval_s: float = 5.0
    """Longest pause between two passes."""
    measure_s: float = 15.0
    """Pause between two measurements of the GPUs."""
