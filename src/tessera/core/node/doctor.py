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


def checks(seen: HostFacts) -> tuple[Check, ...]:
    """Return every check with its result; causes come before their effects."""
    devices = (_driver, _mig, _compute_modes, _mps)
    groups = (*devices, _configuration, _handover, _toolkit, _runtime, _cdi, _kubelet, _pods, _node)
    return tuple(check for group in groups for check in group(seen))


def _ok(name: str, found: str) -> Check:
    return Check(name=name, verdict=CheckResult.OK, found=found)


def _failed(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=CheckResult.FAILED, found=found, advice=advice)


def _warning(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=CheckResult.WARNING, found=found, advice=advice)


def _skipped(name: str, found: str, advice: str = "") -> Check:
    return Check(name=name, verdict=CheckResult.SKIPPED, found=found, advice=advice)


def _gpus(seen: HostFacts) -> tuple[GpuFacts, ...]:
    return seen.inventory.gpus if seen.inventory is not None else ()


# Driver

_LOST = "drain the node and reset the GPU or reboot; `dmesg | grep Xid` shows what happened"


def _driver(seen: HostFacts) -> Iterator[Check]:
    if seen.inventory is None:
        advice = "install NVIDIA's driver, or let the process see libnvidia-ml.so.1 and /dev/nvidia*"
        yield _failed("driver", seen.driver_problem, advice)
        return
    gpus, version = _gpus(seen), seen.inventory.driver
    if not gpus:
        yield _failed("driver", f"driver {version} shows no GPU", "see `nvidia-smi -L` and `dmesg | grep NVRM`")
    else:
        major, minor = seen.inventory.cuda
        yield _ok("driver", f"driver {version}, CUDA {major}.{minor}, {len(gpus)} GPUs")
    for facts in gpus:
        if facts.lost:
            yield _failed("driver", f"GPU {facts.index} ({facts.uuid}) is lost", _LOST)
    for index in seen.inventory.unseen:
        found = f"GPU {index} was lost before the first observation"
        yield _failed("driver", found, _LOST)
    for note in seen.inventory.notes:
        yield _warning("driver", note, "nothing: the driver's value is used; please report it to Tessera")


def _mig(seen: HostFacts) -> Iterator[Check]:
    sound = True
    for facts in _gpus(seen):
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
    if sound and _gpus(seen):
        partitioned = sum(facts.layout is not None for facts in _gpus(seen))
        yield _ok("mig", f"no change is pending; MIG is on on {partitioned} of {len(_gpus(seen))} GPUs")


# MPS


def _compute_modes(seen: HostFacts) -> Iterator[Check]:
    served = {daemon.gpu for daemon in seen.daemons if daemon.exclusive and not daemon.problem}
    for facts in _gpus(seen):
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


def _mps(seen: HostFacts) -> Iterator[Check]:
    if not seen.mps_desired and not seen.daemons:
        yield _skipped("mps", "no GPU is shared by MPS")
        return
    if seen.mps_program:
        yield _ok("mps-program", seen.mps_program)
    else:
        advice = (
            "install the driver's compute utilities (nvidia-compute-utils) and mount the program; see docs/sharing.md"
        )
        yield _failed("mps-program", "nvidia-cuda-mps-control is not on PATH, so no MPS is offered", advice)
    yield _user(seen)
    yield _shm(seen.shm)
    yield _pipes(seen.mps_root)
    for daemon in seen.daemons:
        if daemon.problem:
            advice = f"see {seen.mps_root.path}/{daemon.key}/log; the agent restarts it once no process uses it"
            yield _failed("mps-daemon", f"{daemon.key}: {daemon.problem}", advice)
        else:
            yield _ok("mps-daemon", f"{daemon.key} answers")
    yield from _strangers(seen)


def _strangers(seen: HostFacts) -> Iterator[Check]:
    """Yield the processes on GPUs whose daemon all processes must use, and that do not use it."""
    served = {daemon.gpu: daemon.processes for daemon in seen.daemons if daemon.exclusive and not daemon.problem}
    for gpu, process in seen.processes:
        if gpu in served and process not in served[gpu]:
            found = f"process {process} is on {gpu} and no client of its MPS daemon"
            advice = "end it, or drain its pod: it has no limits, and it blocks the daemon's clients"
            yield _failed("mps-strangers", found, advice)


def _user(seen: HostFacts) -> Check:
    if seen.user_id == 0:
        return _ok("mps-user", "user 0: clients of one user id at a time, which containers are as user 0")
    advice = "run the agent as user 0: only root sets compute modes, and a daemon serves its own user alone otherwise"
    return _failed("mps-user", f"user {seen.user_id}", advice)


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


def _configuration(seen: HostFacts) -> Iterator[Check]:
    if seen.config_problem:
        advice = "correct it; until then the previous configuration is used, or nothing is advertised"
        yield _failed("configuration", seen.config_problem, advice)
    else:
        yield _ok("configuration", seen.generation or "no files: each GPU is one device")
    for note in seen.config_notes:
        yield _warning("configuration", note, "see docs/sharing.md")


def _handover(seen: HostFacts) -> Iterator[Check]:
    name, chosen = "device-list", seen.list_strategies
    if chosen is None:
        yield _skipped(
            name, "no strategy is configured, and no node was named", "pass --node to check what it supports"
        )
    elif chosen.fallback:
        yield _warning(name, f"envvar and not cdi-cri: {chosen.fallback}", f"{chosen.advice}; see docs/security.md")
    else:
        yield _ok(name, ", ".join(chosen.strategies))


def _toolkit(seen: HostFacts) -> Iterator[Check]:
    """Yield whether NVIDIA's runtime follows the agent's device list, and ignores what a pod sets by itself."""
    name, toolkit = "nvidia-runtime", seen.toolkit
    strategies = seen.list_strategies.strategies if seen.list_strategies is not None else ()
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


def _runtime(seen: HostFacts) -> Iterator[Check]:
    runtime = seen.runtime
    if runtime.socket.problem:
        advice = "start containerd; for another runtime this check does not apply"
        yield _warning("runtime", f"{runtime.socket.path}: {runtime.socket.problem}", advice)
    else:
        yield _ok("runtime", f"{runtime.socket.path} answers")
    if runtime.problem:
        yield _failed(
            "runtime-cdi", f"{runtime.config}: {runtime.problem}", "correct the file; containerd cannot start"
        )
    elif not seen.cdi_desired and runtime.cdi is not True:
        yield _skipped("runtime-cdi", _NO_CDI)
    elif runtime.cdi is False:
        advice = "set enable_cdi = true and restart containerd, or use the strategies envvar or volume-mounts"
        yield _failed("runtime-cdi", f"{runtime.config} switches CDI off", advice)
    elif runtime.cdi is None and runtime.config and runtime.version < _CDI_BY_DEFAULT:
        advice = "with containerd 1.7 set enable_cdi = true; 2.0 and later have it on"
        yield _warning("runtime-cdi", f"{runtime.config} does not say whether CDI is on", advice)
    else:
        yield _ok("runtime-cdi", f"on, by {runtime.config}" if runtime.cdi else "on by default")


def _cdi(seen: HostFacts) -> Iterator[Check]:
    missing = bool(seen.cdi_folders) and not seen.cdi_folders[-1].writable
    if missing:
        folder = seen.cdi_folders[-1]
        state = "is read-only" if folder.exists else "is not there"
        advice = "mount it into the agent, writable, with type DirectoryOrCreate"
        found = f"{folder.path} {state}"
        yield _failed("cdi", found, advice) if seen.cdi_desired else _skipped("cdi", f"{found}; {_NO_CDI}")
    if seen.cdi_desired and not seen.driver_spec:
        found = "there is no CDI specification of the driver, so that containers get devices without its libraries"
        yield _warning("cdi-driver", found, MAKE_DRIVER_SPEC)
    for problem in seen.cdi_problems:
        yield _failed("cdi", problem, "remove or correct the file: runtimes refuse devices that two files define")
    files: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, name in seen.cdi_devices:
        files[path.rpartition("/")[0], name].append(path)
    for (_, name), paths in files.items():
        if len(paths) > 1:
            yield _failed("cdi", f"{name} is defined by {' and '.join(paths)}", "remove one: neither can be used")
    conflicts = any(len(paths) > 1 for paths in files.values())
    if not conflicts and not seen.cdi_problems and not missing:
        yield _ok("cdi", f"{len(files)} devices in {', '.join(folder.path for folder in seen.cdi_folders)}")


def _kubelet(seen: HostFacts) -> Iterator[Check]:
    folder = seen.plugin_folder
    if not folder.writable:
        state = "is read-only" if folder.exists else "is not there"
        advice = "mount the kubelet's device plugin folder read-write; if it is elsewhere, pass --plugins-dir"
        yield _failed("kubelet", f"{folder.path} {state}", advice)
    for socket in seen.kubelet:
        if socket.problem:
            advice = "start the kubelet; mount the folder of the socket, not the socket itself"
            yield _failed("kubelet", f"{socket.path}: {socket.problem}", advice)
        else:
            yield _ok("kubelet", f"{socket.path} answers")


def _pods(seen: HostFacts) -> Iterator[Check]:
    if seen.sees_pods:
        yield _ok("processes", "those of other pods are visible")
    else:
        advice = "hostPID: true in the agent's pod; without it the agent relies on the API server for the end of a pod"
        yield _warning("processes", "those of other pods are not visible", advice)


# The Node object


def _node(seen: HostFacts) -> Iterator[Check]:
    if seen.node is None:
        advice = "give --node and credentials, or NODE_NAME" if not seen.node_problem else "see the reason"
        yield _skipped("node", seen.node_problem or "no node was named", advice)
        return
    drift = list(_drift(seen, seen.node))
    yield from drift
    if not drift:
        yield _ok("node", "labels and annotations agree with the node")


def _drift(seen: HostFacts, node: NodeMarks) -> Iterable[Check]:
    state = node.labels.get(MIG_CONFIG_STATE, "")
    if state == "failed":
        advice = "the node's events and its condition TesseraLayoutApplied have the reason"
        yield _failed("node", f"{MIG_CONFIG}={node.labels.get(MIG_CONFIG, '')} is not applied: state failed", advice)
    applied = node.annotations.get(APPLIED, "")
    if seen.generation and applied != seen.generation:
        found = f"{APPLIED} is {applied or 'missing'}, the files are {seen.generation}"
        yield _warning("node", found, "start the agent: it writes the annotation within seconds of a change")
    count = node.labels.get(_COUNT)
    whole = node.labels.get(_STRATEGY) != "single"
    if count is not None and whole and seen.inventory is not None and count != str(len(seen.inventory.gpus)):
        found = f"{_COUNT}={count}, the driver reports {len(seen.inventory.gpus)}"
        yield _warning("node", found, "stop the other program that sets this label, or check for a lost GPU")
