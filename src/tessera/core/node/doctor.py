"""Diagnoses a GPU node: checks of the observed facts, each with a fix."""

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.core.gpu.inventory import ComputeMode, GpuFacts, Inventory
from tessera.core.node.liststrategies import MAKE_DRIVER_SPEC, DeviceInjection, ListStrategies
from tessera.core.node.nodelabels import MIG_CONFIG, MIG_CONFIG_STATE

__all__ = [
    "APPLIED",
    "Check",
    "CheckResult",
    "Daemon",
    "HostFacts",
    "NodeFolder",
    "NodeMarks",
    "RuntimeFacts",
    "Socket",
    "Toolkit",
    "checks",
]

APPLIED = "tessera.dev/applied-config"
"""Annotation of a node: the configuration in force, by name and digest. Set by the agent; read by `tessera
doctor`."""
_COUNT = "nvidia.com/gpu.count"
_STRATEGY = "nvidia.com/mig.strategy"
_LEAST_SHM_MIB = 64
_LONGEST_SOCKET = 107
"""Characters of a socket's path. Source: unix(7), `sun_path`."""
_NO_CDI = "the device list strategy does not use CDI"
_BY_ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_BY_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
"""Source: nvidia-container-toolkit `internal/config/config.go`; the first is true by default, the second false."""
_CDI_BY_DEFAULT = 3
"""Version of containerd's configuration from which CDI is enabled by default; that of containerd 2.0."""


class CheckResult(enum.StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check."""

    name: str
    verdict: CheckResult
    found: str
    advice: str = ""
    """The fix; empty for none."""


class NodeFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder on the node."""

    path: str
    exists: bool = False
    writable: bool = False
    free_mib: int = 0


class Socket(msgspec.Struct, frozen=True, kw_only=True):
    """A unix socket on the node."""

    path: str
    problem: str = ""
    """Why there is no answer; empty where there is one."""


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """An MPS control daemon recorded by the agent."""

    key: str
    gpu: str
    exclusive: bool
    problem: str = ""
    """Why it does not serve; empty where it does."""
    processes: frozenset[int] = frozenset()
    """Process ids of its servers and clients."""


class RuntimeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The container runtime."""

    socket: Socket
    config: str = ""
    """Path of the configuration file; empty where there is none, and the defaults hold."""
    version: int = 0
    """Version of the configuration; 0 if it has none."""
    cdi: bool | None = None
    """Whether CDI is enabled; None if the file does not set it."""
    problem: str = ""
    """Why the configuration cannot be read."""


class Toolkit(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA's container runtime, by its configuration."""

    config: str = ""
    """Path of the file; empty where there is none."""
    accepts_environment: bool = True
    """Whether NVIDIA_VISIBLE_DEVICES of any container counts, even if set by its image or pod."""
    accepts_mounts: bool = False
    """Whether the list of devices may be mounts."""
    problem: str = ""
    """Why the configuration cannot be read."""


class NodeMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Labels and annotations of the Node object."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the checks need."""

    inventory: Inventory | None = None
    driver_problem: str = ""
    """Why there is no inventory."""
    driver_fix: str = ""
    """What to do about it; empty where the driver does not say."""
    processes: tuple[tuple[str, int], ...] = ()
    """GPU UUIDs and the processes on them, of GPUs with MPS daemons."""
    mps_desired: bool = False
    """Whether the configuration uses MPS, or may."""
    mps_program: str = ""
    """Path of `nvidia-cuda-mps-control`; empty where there is none."""
    user_id: int = 0
    shm: NodeFolder
    mps_root: NodeFolder
    daemons: tuple[Daemon, ...] = ()
    runtime: RuntimeFacts
    list_strategies: ListStrategies | None = None
    """The agent's device list strategies; None where they are not configured, and the Node object is unknown."""
    driver_spec: str = ""
    """The CDI specification with the driver's libraries; empty where there is none."""
    toolkit: Toolkit = Toolkit()
    cdi_folders: tuple[NodeFolder, ...] = ()
    """In order of priority, the last wins."""
    cdi_devices: tuple[tuple[str, str], ...] = ()
    """Files and the qualified names of the devices they define."""
    cdi_problems: tuple[str, ...] = ()
    """Files that cannot be read, and why."""
    plugin_folder: NodeFolder
    sees_pods: bool = True
    """Whether the processes of pods can be observed."""
    kubelet: tuple[Socket, ...] = ()
    generation: str = ""
    config_problem: str = ""
    config_notes: tuple[str, ...] = ()
    node: NodeMarks | None = None
    node_problem: str = ""
    """Why there is no Node object; empty where none was requested."""

    @property
    def cdi_desired(self) -> bool:
        """Whether the device list strategy hands devices over by CDI."""
        return self.list_strategies is not None and DeviceInjection(strategies=self.list_strategies.strategies).cdi


def checks(host: HostFacts) -> tuple[Check, ...]:
    """Return every check with its result; causes come before their effects."""
    devices = (_driver, _mig, _compute_modes, _mps)
    groups = (*devices, _configuration, _handover, _toolkit, _runtime, _cdi, _kubelet, _pods, _node)
    return tuple(check for group in groups for check in group(host))


def _ok(name: str, found: str) -> Check:
    return Check(name=name, verdict=CheckResult.OK, found=found)


def _failed(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=CheckResult.FAILED, found=found, advice=advice)


def _warning(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=CheckResult.WARNING, found=found, advice=advice)


def _skipped(name: str, found: str, advice: str = "") -> Check:
    return Check(name=name, verdict=CheckResult.SKIPPED, found=found, advice=advice)


def _gpus(host: HostFacts) -> tuple[GpuFacts, ...]:
    return host.inventory.gpus if host.inventory is not None else ()


# Driver

_LOST = "drain the node and reset the GPU or reboot; `dmesg | grep Xid` shows what happened"


def _driver(host: HostFacts) -> Iterator[Check]:
    if host.inventory is None:
        advice = "install NVIDIA's driver, or let the process see libnvidia-ml.so.1 and /dev/nvidia*"
        yield _failed("driver", host.driver_problem, host.driver_fix or advice)
        return
    gpus, version = _gpus(host), host.inventory.driver
    if not gpus:
        yield _failed("driver", f"driver {version} shows no GPU", "see `nvidia-smi -L` and `dmesg | grep NVRM`")
    else:
        major, minor = host.inventory.cuda
        yield _ok("driver", f"driver {version}, CUDA {major}.{minor}, {len(gpus)} GPUs")
    for facts in gpus:
        if facts.lost:
            yield _failed("driver", f"GPU {facts.index} ({facts.uuid}) is lost", _LOST)
    for index in host.inventory.unseen:
        found = f"GPU {index} was lost before the first observation"
        yield _failed("driver", found, _LOST)
    for note in host.inventory.notes:
        yield _warning("driver", note, "nothing: the driver's value is used; please report it to Tessera")


def _mig(host: HostFacts) -> Iterator[Check]:
    sound = True
    for facts in _gpus(host):
        if facts.mig is not None and facts.mig.needs_reset:
            sound = False
            now, then = ("on", "off") if facts.mig.current else ("off", "on")
            advice = f"reset it while it is idle, `nvidia-smi --gpu-reset -i {facts.index}`, or reboot the node"
            yield _failed("mig", f"GPU {facts.index}: MIG is {now}, and {then} after a reset", advice)
        for placement in facts.incomplete:
            sound = False
            found = f"GPU {facts.index}: {placement.profile} at {placement.start} has no compute instance of its size"
            advice = f"destroy it, `nvidia-smi mig -dgi -i {facts.index}`, or make its compute instance, `-cci`"
            yield _warning("mig", found, advice)
    if sound and _gpus(host):
        partitioned = sum(facts.layout is not None for facts in _gpus(host))
        yield _ok("mig", f"no change is pending; MIG is on on {partitioned} of {len(_gpus(host))} GPUs")


# MPS


def _compute_modes(host: HostFacts) -> Iterator[Check]:
    served = {daemon.gpu for daemon in host.daemons if daemon.exclusive and not daemon.problem}
    for facts in _gpus(host):
        mode, name = facts.compute_mode, f"GPU {facts.index}"
        reset = f"`nvidia-smi -i {facts.index} -c DEFAULT`"
        if mode is ComputeMode.PROHIBITED:
            yield _failed("compute-mode", f"{name} admits no process", reset)
        elif mode is ComputeMode.EXCLUSIVE_PROCESS and facts.uuid not in served:
            advice = f"start the agent if you need MPS, else {reset}"
            yield _warning("compute-mode", f"{name} admits one process, and no MPS daemon serves it", advice)
        elif mode is ComputeMode.DEFAULT and facts.uuid in served:
            advice = "is the agent running? It sets EXCLUSIVE_PROCESS; until then limits can be evaded"
            yield _failed("compute-mode", f"{name} has an MPS daemon but admits processes that are no clients", advice)


def _mps(host: HostFacts) -> Iterator[Check]:
    if not host.mps_desired and not host.daemons:
        yield _skipped("mps", "no GPU is shared by MPS")
        return
    if host.mps_program:
        yield _ok("mps-program", host.mps_program)
    else:
        advice = (
            "install the driver's compute utilities (nvidia-compute-utils) and mount the program; see docs/sharing.md"
        )
        yield _failed("mps-program", "nvidia-cuda-mps-control is not on PATH, so no MPS is offered", advice)
    yield _user(host)
    yield _shm(host.shm)
    yield _pipes(host.mps_root)
    for daemon in host.daemons:
        if daemon.problem:
            advice = f"see {host.mps_root.path}/{daemon.key}/log; the agent restarts it once no process uses it"
            yield _failed("mps-daemon", f"{daemon.key}: {daemon.problem}", advice)
        else:
            yield _ok("mps-daemon", f"{daemon.key} answers")
    yield from _strangers(host)


def _strangers(host: HostFacts) -> Iterator[Check]:
    """Yield the processes on GPUs whose daemon all processes must use, and that do not use it."""
    served = {daemon.gpu: daemon.processes for daemon in host.daemons if daemon.exclusive and not daemon.problem}
    for gpu, process in host.processes:
        if gpu in served and process not in served[gpu]:
            found = f"process {process} is on {gpu} and no client of its MPS daemon"
            advice = "end it, or drain its pod: it has no limits, and it blocks the daemon's clients"
            yield _failed("mps-strangers", found, advice)


def _user(host: HostFacts) -> Check:
    if host.user_id == 0:
        return _ok("mps-user", "user 0: clients of one user id at a time, which containers are as user 0")
    advice = "run the agent as user 0: only root sets compute modes, and a daemon serves its own user alone otherwise"
    return _failed("mps-user", f"user {host.user_id}", advice)


def _shm(shm: NodeFolder) -> Check:
    if not shm.exists or not shm.writable:
        state = "is not there" if not shm.exists else "is read-only"
        return _failed("mps-shm", f"{shm.path} {state}", "mount the node's /dev/shm into the agent, writable")
    if shm.free_mib < _LEAST_SHM_MIB:
        advice = "free it, or mount the node's /dev/shm and not a container's own of 64 MiB"
        return _failed("mps-shm", f"{shm.path} has {shm.free_mib} MiB free", advice)
    return _ok("mps-shm", f"{shm.path} has {shm.free_mib} MiB free")


def _pipes(root: NodeFolder) -> Check:
    longest = len(root.path) + len("/GPU-00000000-0000-0000-0000-000000000000-0-0/pipe/control_privileged")
    if longest > _LONGEST_SOCKET:
        return _failed(
            "mps-pipes", f"{root.path} is too long for sockets", "choose a shorter folder, as /run/tessera/mps"
        )
    if root.exists and not root.writable:
        return _failed(
            "mps-pipes", f"{root.path} is read-only", "mount it writable, and into containers by the same path"
        )
    return _ok("mps-pipes", root.path if root.exists else f"{root.path}, made with the first daemon")


# Files, runtime, kubelet


def _configuration(host: HostFacts) -> Iterator[Check]:
    if host.config_problem:
        advice = "correct it; until then the previous configuration is used, or nothing is advertised"
        yield _failed("configuration", host.config_problem, advice)
    else:
        yield _ok("configuration", host.generation or "no files: each GPU is one device")
    for note in host.config_notes:
        yield _warning("configuration", note, "see docs/sharing.md")


def _handover(host: HostFacts) -> Iterator[Check]:
    name, chosen = "device-list", host.list_strategies
    if chosen is None:
        yield _skipped(
            name, "no strategy is configured, and no node was named", "pass --node to check what it supports"
        )
    elif chosen.fallback:
        yield _warning(name, f"envvar and not cdi-cri: {chosen.fallback}", f"{chosen.advice}; see docs/security.md")
    else:
        yield _ok(name, ", ".join(chosen.strategies))


def _toolkit(host: HostFacts) -> Iterator[Check]:
    """Yield whether NVIDIA's runtime follows the agent's device list, and ignores what a pod sets by itself."""
    name, toolkit = "nvidia-runtime", host.toolkit
    strategies = host.list_strategies.strategies if host.list_strategies is not None else ()
    if not toolkit.config:
        advice = f"where NVIDIA's container runtime is installed, set {_BY_ENVIRONMENT} = false in its configuration"
        yield _skipped(name, "no configuration of NVIDIA's container runtime was found", advice)
    elif toolkit.problem:
        advice = "correct the file, or mount it into the agent"
        yield _warning(name, f"{toolkit.config}: {toolkit.problem}", advice)
    elif not toolkit.accepts_environment and "envvar" in strategies:
        advice = "configure deviceListStrategy cdi-cri or volume-mounts"
        yield _failed(name, f"{_BY_ENVIRONMENT} is false, so envvar has no effect", advice)
    elif toolkit.accepts_environment:
        found = f"{_BY_ENVIRONMENT} is true: a pod that sets NVIDIA_VISIBLE_DEVICES itself sees any GPU"
        advice = f"set it to false in {toolkit.config}, or do not make that runtime the default"
        if "envvar" in strategies:
            advice = f"configure deviceListStrategy cdi-cri, then set it to false in {toolkit.config}"
        yield _warning(name, found, f"{advice}; see docs/security.md")
    elif "volume-mounts" in strategies and not toolkit.accepts_mounts:
        advice = f"set {_BY_MOUNTS} = true in {toolkit.config}"
        yield _failed(name, f"{_BY_MOUNTS} is not true, so volume-mounts has no effect", advice)
    else:
        yield _ok(name, f"{toolkit.config} ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers")


def _runtime(host: HostFacts) -> Iterator[Check]:
    runtime = host.runtime
    if runtime.socket.problem:
        advice = "start containerd; for another runtime this check does not apply"
        yield _warning("runtime", f"{runtime.socket.path}: {runtime.socket.problem}", advice)
    else:
        yield _ok("runtime", f"{runtime.socket.path} answers")
    if runtime.problem:
        yield _failed(
            "runtime-cdi", f"{runtime.config}: {runtime.problem}", "correct the file; containerd cannot start"
        )
    elif not host.cdi_desired and runtime.cdi is not True:
        yield _skipped("runtime-cdi", _NO_CDI)
    elif runtime.cdi is False:
        advice = "set enable_cdi = true and restart containerd, or use the strategies envvar or volume-mounts"
        yield _failed("runtime-cdi", f"{runtime.config} switches CDI off", advice)
    elif runtime.cdi is None and runtime.config and runtime.version < _CDI_BY_DEFAULT:
        advice = "with containerd 1.7 set enable_cdi = true; 2.0 and later have it on"
        yield _warning("runtime-cdi", f"{runtime.config} does not say whether CDI is on", advice)
    else:
        yield _ok("runtime-cdi", f"on, by {runtime.config}" if runtime.cdi else "on by default")


def _cdi(host: HostFacts) -> Iterator[Check]:
    missing = bool(host.cdi_folders) and not host.cdi_folders[-1].writable
    if missing:
        folder = host.cdi_folders[-1]
        state = "is read-only" if folder.exists else "is not there"
        advice = "mount it into the agent, writable, with type DirectoryOrCreate"
        found = f"{folder.path} {state}"
        yield _failed("cdi", found, advice) if host.cdi_desired else _skipped("cdi", f"{found}; {_NO_CDI}")
    if host.cdi_desired and not host.driver_spec:
        found = "there is no CDI specification of the driver, so that containers get devices without its libraries"
        yield _warning("cdi-driver", found, MAKE_DRIVER_SPEC)
    for problem in host.cdi_problems:
        yield _failed("cdi", problem, "remove or correct the file: runtimes refuse devices that two files define")
    files: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, name in host.cdi_devices:
        files[path.rpartition("/")[0], name].append(path)
    for (_, name), paths in files.items():
        if len(paths) > 1:
            yield _failed("cdi", f"{name} is defined by {' and '.join(paths)}", "remove one: neither can be used")
    conflicts = any(len(paths) > 1 for paths in files.values())
    if not conflicts and not host.cdi_problems and not missing:
        yield _ok("cdi", f"{len(files)} devices in {', '.join(folder.path for folder in host.cdi_folders)}")


def _kubelet(host: HostFacts) -> Iterator[Check]:
    folder = host.plugin_folder
    if not folder.writable:
        state = "is read-only" if folder.exists else "is not there"
        advice = "mount the kubelet's device plugin folder read-write; if it is elsewhere, pass --plugins-dir"
        yield _failed("kubelet", f"{folder.path} {state}", advice)
    for socket in host.kubelet:
        if socket.problem:
            advice = "start the kubelet; mount the folder of the socket, not the socket itself"
            yield _failed("kubelet", f"{socket.path}: {socket.problem}", advice)
        else:
            yield _ok("kubelet", f"{socket.path} answers")


def _pods(host: HostFacts) -> Iterator[Check]:
    if host.sees_pods:
        yield _ok("processes", "those of other pods are visible")
    else:
        advice = "hostPID: true in the agent's pod; without it the agent relies on the API server for the end of a pod"
        yield _warning("processes", "those of other pods are not visible", advice)


# The Node object


def _node(host: HostFacts) -> Iterator[Check]:
    if host.node is None:
        advice = "give --node and credentials, or NODE_NAME" if not host.node_problem else "see the reason"
        yield _skipped("node", host.node_problem or "no node was named", advice)
        return
    drift = list(_drift(host, host.node))
    yield from drift
    if not drift:
        yield _ok("node", "labels and annotations agree with the node")


def _drift(host: HostFacts, node: NodeMarks) -> Iterable[Check]:
    state = node.labels.get(MIG_CONFIG_STATE, "")
    if state == "failed":
        advice = "the node's events and its condition TesseraLayoutApplied have the reason"
        yield _failed("node", f"{MIG_CONFIG}={node.labels.get(MIG_CONFIG, '')} is not applied: state failed", advice)
    applied = node.annotations.get(APPLIED, "")
    if host.generation and applied != host.generation:
        found = f"{APPLIED} is {applied or 'missing'}, the files are {host.generation}"
        yield _warning("node", found, "start the agent: it writes the annotation within seconds of a change")
    count = node.labels.get(_COUNT)
    whole = node.labels.get(_STRATEGY) != "single"
    if count is not None and whole and host.inventory is not None and count != str(len(host.inventory.gpus)):
        found = f"{_COUNT}={count}, the driver reports {len(host.inventory.gpus)}"
        yield _warning("node", found, "stop the other program that sets this label, or check for a lost GPU")
