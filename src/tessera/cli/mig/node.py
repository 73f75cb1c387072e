"""The node on which `tessera mig` runs: its driver, its kubelet where there is one, and what is asked of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tessera.agent.partition import Checkpoint, Outside, Partitioner
from tessera.api import documents, migparted
from tessera.cli.inputs import read_bytes
from tessera.clients.gpu import GpuDriver, NvmlDriver
from tessera.clients.kubelet import PodResources
from tessera.core.inventory import GpuFacts, Inventory
from tessera.core.layouts import (
    Action,
    AwaitReset,
    Blocked,
    Group,
    Impossible,
    Target,
    User,
    change,
    preview,
    record,
)
from tessera.core.mig import Layout
from tessera.errors import InvalidInput, Unavailable

__all__ = ["Outcome", "Seen", "bring", "configuration_of", "configurations_in", "look", "planned", "run"]

_Result = TypeVar("_Result")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The node at one moment."""

    inventory: Inventory
    users: tuple[User, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one GPU, or would."""

    gpu: GpuFacts
    actions: tuple[Action, ...]
    result: str
    """`unchanged`, `done`, `planned`, `blocked`, `needs reset`, `impossible`, `failed`."""
    reason: str = ""


def run(work: Callable[[Outside], Awaitable[_Result]], driver: GpuDriver | None, socket: Path) -> _Result:
    """Do something on this node.

    Args:
        work: what to do.
        driver: instead of NVML.
        socket: the kubelet's PodResources; where it does not exist, processes alone tell what is in use.

    """

    async def all_of_it() -> _Result:
        async with _opened(driver) as gpus:
            return await work(Outside(driver=gpus, held=_held(socket), offer=_offer))

    return asyncio.run(all_of_it())


@contextlib.asynccontextmanager
async def _opened(driver: GpuDriver | None) -> AsyncIterator[GpuDriver]:
    if driver is not None:
        yield driver
        return
    async with await NvmlDriver.open() as nvml:
        yield nvml


def _held(socket: Path) -> Callable[[], Awaitable[Sequence[tuple[str, Sequence[str]]]]]:
    kubelet = PodResources(socket) if socket.exists() else None

    async def held() -> Sequence[tuple[str, Sequence[str]]]:
        if kubelet is None:
            return ()
        return [(f"{each.namespace}/{each.pod}", each.device_ids) for each in await kubelet.list()]

    return held


async def _offer(_gpu: str, _layout: Layout | None) -> None:
    """Do nothing: this command offers nothing to pods."""


async def look(outside: Outside) -> Seen:
    """Return the node as it is.

    Raises:
        Unavailable: driver or kubelet do not answer.

    """
    try:
        inventory, users = await outside.look()
    except TimeoutError as error:
        raise Unavailable("GPU driver and kubelet", found="no answer in time", wanted="an answer") from error
    return Seen(inventory=inventory, users=users)


def configurations_in(file: str | None) -> Mapping[str, tuple[Group, ...]]:
    """Return the configurations of a mig-parted file; none without a file.

    Raises:
        InvalidInput: the file is no good.

    """
    if file is None:
        return {}
    return migparted.read(documents.one(*read_bytes(file)))


def configuration_of(config: str | None, configurations: Mapping[str, tuple[Group, ...]]) -> str:
    """Return the name of the configuration to take: the one asked for, or the file's only one.

    Raises:
        InvalidInput: none was asked for, and there is not exactly one.

    """
    if config is not None:
        return config
    if len(configurations) != 1:
        raise InvalidInput(
            "-c/--config",
            found="no name",
            wanted="the name of a configuration",
            accepted=", ".join(configurations) or "those that `tessera mig list` shows",
        )
    return next(iter(configurations))


def planned(seen: Seen, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """Return what would be done to each GPU, and what stands in the way."""
    gpus = {gpu.uuid: gpu for gpu in seen.inventory.gpus}
    return tuple(_planned(gpus[target.gpu], target, seen.users) for target in targets)


def _planned(gpu: GpuFacts, target: Target, users: tuple[User, ...]) -> Outcome:
    actions = preview(gpu, target, users)
    match change(gpu, target, users):
        case Blocked(reason=reason):
            return Outcome(gpu=gpu, actions=actions, result="blocked", reason=reason)
        case Impossible(reason=reason):
            return Outcome(gpu=gpu, actions=(), result="impossible", reason=reason)
        case AwaitReset(on=on):
            what = f"MIG is switched {'on' if on else 'off'} with the next reset"
            reason = f"GPU {gpu.index}: {what}; reboot the node, or reset the GPU once it is idle"
            return Outcome(gpu=gpu, actions=(), result="needs reset", reason=reason)
        case _:
            return Outcome(gpu=gpu, actions=actions, result="planned" if actions else "unchanged")


async def bring(
    outside: Outside, targets: Sequence[Target], timeout_s: float, checkpoint: Checkpoint | None = None
) -> tuple[Outcome, ...]:
    """Give GPUs their targets, and return what became of each.

    Args:
        outside: the node.
        targets: what each GPU shall be.
        timeout_s: when what is not done is given up.
        checkpoint: where the layouts are written down if nothing failed.

    """
    before = {each.gpu.uuid: each for each in planned(await look(outside), targets)}
    partitioner = Partitioner(outside)
    failures = await partitioner.apply(targets, asyncio.get_running_loop().time() + timeout_s)
    seen = await look(outside)
    after = planned(seen, targets)
    if checkpoint is not None and not failures:
        await checkpoint.write(record(seen.inventory))
    return tuple(_became(before[each.gpu.uuid], each, failures) for each in after)


def _became(before: Outcome, after: Outcome, failures: Sequence[str]) -> Outcome:
    failed = next((each for each in failures if each.startswith(f"GPU {after.gpu.index}:")), "")
    if failed:
        return Outcome(gpu=after.gpu, actions=before.actions, result="failed", reason=failed)
    if after.result == "unchanged" and before.result != "unchanged":
        return Outcome(gpu=after.gpu, actions=before.actions, result="done")
    return after
