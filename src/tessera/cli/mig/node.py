"""The node on which `tessera mig` runs: its driver, kubelet and cluster, and the requested changes."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from tessera._planning import read_bytes
from tessera.agent.partition import Checkpoint, NodeGpus, NodeLocks, Partitioner
from tessera.agent.pods.evictions import Evict, Evictions
from tessera.agent.settings import Paths
from tessera.api import documents
from tessera.api.nvidia import migparted
from tessera.cli.mig.deviceusers import NodeCluster, PodDevicesReader, Record
from tessera.clients.gpu import GpuDriver, NvmlDriver
from tessera.clients.kube import PODS, HttpKube, Kube
from tessera.clients.kubelet import PodResources
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Layout
from tessera.core.node.layouts import (
    Action,
    AwaitReset,
    Blocked,
    DeviceUser,
    Group,
    Impossible,
    LayoutTarget,
    change,
    lost,
    preview,
    record,
)
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable

__all__ = [
    "ChangeOutcome",
    "DesiredLayouts",
    "GpuOutcome",
    "LayoutTargets",
    "NodeClients",
    "NodeCluster",
    "NodeInUse",
    "bring",
    "configuration_of",
    "configurations_in",
    "evicting",
    "locks_in",
    "observe",
    "planned",
    "run",
]

_Result = TypeVar("_Result")
_NO_CLUSTER = NodeCluster(kubeconfig=None, node="")


class NodeClients(msgspec.Struct, frozen=True, kw_only=True):
    """Clients instead of the real ones, for tests; all None on a real node."""

    driver: GpuDriver | None = None
    record: Record | None = None
    kube: Kube | None = None


class NodeInUse(msgspec.Struct, frozen=True, kw_only=True):
    """The node at one moment."""

    inventory: Inventory
    users: tuple[DeviceUser, ...]


class LayoutTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The desired layout of GPUs."""

    targets: tuple[LayoutTarget, ...]
    unseen: tuple[int, ...] = ()
    """Indices of further GPUs that the driver never showed."""


class GpuOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one GPU, made or planned."""

    index: int
    uuid: str = ""
    """Empty if the driver never showed the GPU, and so for the model."""
    model: str = ""
    actions: tuple[Action, ...] = ()
    result: str
    """`unchanged`, `done`, `planned`, `blocked`, `needs reset`, `impossible`, `failed`."""
    reason: str = ""
    evicts: tuple[str, ...] = ()
    """The pods that are evicted first, `namespace/name`."""


def run(
    work: Callable[[NodeGpus], Awaitable[_Result]],
    clients: NodeClients | None,
    socket: Path,
    cluster: NodeCluster = _NO_CLUSTER,
) -> tuple[_Result, str]:
    """Do something on this node; return its result, and a note if the users of GPUs are uncertain.

    Args:
        work: the action.
        clients: instead of NVML, the kubelet and the cluster.
        socket: the kubelet's PodResources; if it does not exist, only processes show what is in use.
        cluster: of this node's pods.

    Raises:
        InvalidInput: the kubeconfig cannot be read.

    """

    async def all_of_it() -> tuple[_Result, str]:
        given = clients or NodeClients()
        record = given.record or _record(socket)
        note = ""
        if cluster.kubeconfig is not None and given.kube is None:
            async with HttpKube.connect(cluster.kubeconfig):  # an invalid one is reported, needed or not
                note = "" if record else f"--kubeconfig is not used: no kubelet at {socket}, so pods are not observed"
        async with _opened(given.driver) as gpus:
            holders = PodDevicesReader(record, cluster, given.kube)
            result = await work(NodeGpus(driver=gpus, users=holders, advertised=_NotAdvertised()))
            return result, holders.note or note

    return asyncio.run(all_of_it())


@contextlib.asynccontextmanager
async def _opened(driver: GpuDriver | None) -> AsyncIterator[GpuDriver]:
    if driver is not None:
        yield driver
        return
    async with await NvmlDriver.open() as nvml:
        yield nvml


def _record(socket: Path) -> Record | None:
    return PodResources(socket).list if socket.exists() else None


@contextlib.asynccontextmanager
async def evicting(cluster: NodeCluster, clients: NodeClients | None, socket: Path) -> AsyncIterator[Evict]:
    """Yield the function that evicts pods of this node.

    Raises:
        InvalidInput: no node name, no kubelet with a record of pods, or no cluster.

    """
    given = clients or NodeClients()
    _check(cluster, "" if given.record or _record(socket) else f"no kubelet at {socket}")
    if given.kube is not None:
        yield _on_node(given.kube, cluster.node)
        return
    async with HttpKube.connect(cluster.kubeconfig) as kube:
        yield _on_node(kube, cluster.node)


def _check(cluster: NodeCluster, lack: str) -> None:
    option = "--evict"
    if not cluster.node:
        raise InvalidInput(
            option, found="it names no node", hint="give --node or NODE_NAME, the name of this node's Node object"
        )
    if lack:
        desired = "the kubelet's PodResources, to know which pod uses what"
        raise InvalidInput(option, found=lack, hint=f"give --kubelet-socket: {desired}")


def _on_node(kube: Kube, node: str) -> Evict:
    """Return the function that evicts a pod of this node, and no pod of its name elsewhere, as in another cluster."""

    async def evict(name: str, namespace: str) -> None:
        pod = await kube.get(PODS, name, namespace)
        where = ((pod or {}).get("spec") or {}).get("nodeName")
        if pod is None or where != node:
            raise Conflict(
                f"pod {namespace}/{name}",
                found=f"it is on node {where}, not {node}" if pod else "this cluster has no such pod",
                hint="check that --node and --kubeconfig are of this node and its cluster",
            )
        await kube.evict(name, namespace, uid=pod["metadata"].get("uid") or "")

    return evict


class _NotAdvertised:
    """What this command advertises to pods: nothing, and an agent may."""

    async def advertise(self, gpu: str, layout: Layout | None) -> None:
        """Do nothing."""

    def promised(self, gpu: str) -> bool:  # noqa: ARG002 - of no GPU is anything known
        """Return whether the kubelet may still allocate something of a GPU: another agent may have advertised it."""
        return True


def locks_in(state: Path | None) -> NodeLocks:
    """Return the locks below the agent's folder, by default the agent's own.

    Users other than root have a folder of their own: they can only change simulated GPUs.
    """
    own = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tessera"
    paths = Paths(state=state or (Paths().state if os.geteuid() == 0 else own))
    return NodeLocks(paths.locks)


async def observe(node_gpus: NodeGpus) -> NodeInUse:
    """Return the node as it is.

    Raises:
        Unavailable: driver or kubelet do not answer.

    """
    try:
        inventory, users = await node_gpus.observe()
    except TimeoutError as error:
        raise Unavailable(
            "GPU driver and kubelet",
            found="no answer before the deadline",
            hint="give a longer --timeout; see `tessera doctor`",
        ) from error
    return NodeInUse(inventory=inventory, users=users)


def configurations_in(file: str | None) -> Mapping[str, tuple[Group, ...]]:
    """Return the configurations of a mig-parted file; none without a file.

    Raises:
        InvalidInput: the file is invalid.

    """
    if file is None:
        return {}
    return migparted.read(documents.one(*read_bytes(file)))


def configuration_of(config: str | None, configurations: Mapping[str, tuple[Group, ...]]) -> str:
    """Return the name of the configuration: the requested one, or the file's only one.

    Raises:
        InvalidInput: none was requested, and there is not exactly one.

    """
    if config is not None:
        return config
    if len(configurations) != 1:
        raise InvalidInput(
            "-c/--config",
            found="it is not given",
            hint=f"choose one: {', '.join(configurations)}" if configurations else "choose one from `tessera mig list`",
        )
    return next(iter(configurations))


def planned(observed: NodeInUse, requested: LayoutTargets, *, evict: bool = False) -> tuple[GpuOutcome, ...]:
    """Return the planned change of each GPU, and what blocks it; pods to be evicted do not."""
    gpus = {gpu.uuid: gpu for gpu in observed.inventory.gpus}
    return (
        *(GpuOutcome(index=index, result="impossible", reason=lost(index)) for index in requested.unseen),
        *(_planned(gpus[target.gpu], target, observed.users, evict=evict) for target in requested.targets),
    )


def _planned(gpu: GpuFacts, target: LayoutTarget, users: tuple[DeviceUser, ...], *, evict: bool) -> GpuOutcome:
    actions = preview(gpu, target, users)
    outcome = GpuOutcome(index=gpu.index, uuid=gpu.uuid, model=gpu.model.name, actions=actions, result="unchanged")
    match change(gpu, target, users):
        case Blocked(reason=reason, users=holding):
            pods = tuple(dict.fromkeys(user.pod for user in holding if user.pod)) if evict else ()
            if pods and all(user.pod for user in holding):
                return replace(outcome, result="planned", evicts=pods)
            return replace(outcome, result="blocked", reason=reason, evicts=pods)
        case Impossible(reason=reason):
            return replace(outcome, actions=(), result="impossible", reason=reason)
        case AwaitReset(on=on):
            what = f"MIG mode changes to {'on' if on else 'off'} at the next reset"
            reason = f"GPU {gpu.index}: {what}; drain and reboot the node, or reset the GPU when it is idle"
            return replace(outcome, actions=(), result="needs reset", reason=reason)
        case _:
            return replace(outcome, result="planned" if actions else "unchanged")


class DesiredLayouts(msgspec.Struct, frozen=True, kw_only=True):
    """The requested change, and how to make it."""

    requested: LayoutTargets
    timeout_s: float
    """When the change is given up."""
    locks: NodeLocks
    """Locks against other processes of the node."""
    checkpoint: Checkpoint | None = None
    """The checkpoint to write if nothing failed."""
    evict: Evict | None = None
    """Evicts pods in the way; None leaves them, and their devices, alone."""


class ChangeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change."""

    outcomes: tuple[GpuOutcome, ...]
    unwritten: TesseraError | None = None
    """Why the checkpoint could not be written."""


async def bring(node_gpus: NodeGpus, desired: DesiredLayouts) -> ChangeOutcome:
    """Give GPUs their targets, and return the outcome for each; unblocked GPUs come first.

    Raises:
        Conflict: another process changes the layout of one of them; nothing was done.

    """
    async with contextlib.AsyncExitStack() as stack:
        for gpu in sorted(target.gpu for target in desired.requested.targets):
            await stack.enter_async_context(desired.locks.hold(gpu, by_s=0.0))
        return await _bring(node_gpus, desired)


async def _bring(node_gpus: NodeGpus, desired: DesiredLayouts) -> ChangeOutcome:
    targets = desired.requested.targets
    before = {
        each.index: each
        for each in planned(await observe(node_gpus), desired.requested, evict=desired.evict is not None)
    }
    partitioner = Partitioner(node_gpus)
    by_s = asyncio.get_running_loop().time() + desired.timeout_s
    failures = await partitioner.apply(targets, by_s)
    evictions = Evictions(desired.evict, node_gpus.timing.observe_s)
    if desired.evict and await _make_way(node_gpus, targets, evictions, by_s):
        failures = await partitioner.apply(targets, by_s)
    observed = await observe(node_gpus)
    after = planned(observed, desired.requested)
    unwritten = None
    if desired.checkpoint is not None and not failures and not desired.requested.unseen:
        try:
            await desired.checkpoint.write(record(observed.inventory))
        except TesseraError as error:
            unwritten = error
    refusals = tuple(evictions.refusals(user.pod for user in observed.users).values())
    outcomes = tuple(_became(before[each.index], each, failures, refusals) for each in after)
    return ChangeOutcome(outcomes=outcomes, unwritten=unwritten)


async def _make_way(node_gpus: NodeGpus, targets: Sequence[LayoutTarget], evictions: Evictions, by_s: float) -> bool:
    """Evict the pods in the way of targets until none is left; return whether there were any and all have gone."""
    requested = False
    while asyncio.get_running_loop().time() < by_s:
        observed = await observe(node_gpus)
        gpus = {gpu.uuid: gpu for gpu in observed.inventory.gpus}
        changes = (change(gpus[target.gpu], target, observed.users) for target in targets)
        pods = [user.pod for each in changes if isinstance(each, Blocked) for user in each.users if user.pod]
        if not pods:
            return requested
        requested = True
        await evictions.request(pods)
        await asyncio.sleep(node_gpus.timing.poll_s)
    return False


def _became(before: GpuOutcome, after: GpuOutcome, failures: Sequence[str], refusals: Sequence[str]) -> GpuOutcome:
    failed = next((each for each in failures if each.startswith(f"GPU {after.index}:")), "")
    if failed:
        return replace(before, result="failed", reason=failed)
    if after.result == "unchanged" and before.result != "unchanged":
        return replace(before, result="done", reason="")
    if after.result == "blocked":
        return replace(after, reason="; ".join((after.reason, *refusals)))
    return after
