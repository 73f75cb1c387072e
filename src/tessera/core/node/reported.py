"""An agent's report of its node: the GPUs and their sharing, unhealthy devices, and memory in use.

Also as a summary, for a list of nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from tessera.core.cluster.gpunodestate import GpuNodeState, Impairment, UnhealthyDevice, Used
from tessera.core.cluster.snapshot import Gpu, NodeName
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import ComputeMode, Inventory
from tessera.core.gpu.sharing import devices
from tessera.core.node.health import Health, HealthPhase

__all__ = ["NodeSummary", "reported", "summary", "unenforced", "use_to_report", "withheld_resources"]

_PART = 20
"""Changes below a twentieth of the GPU are not worth a write that wakes every server."""
_LONGEST = 128
"""Characters of each part of a summary."""


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A node's GPUs in a few words."""

    ready: str
    """Healthy GPUs of all GPUs: `3/4`."""
    models: str
    """`A100-40GB`, or `2 A100-40GB, 1 T4`."""
    sharing: str
    """`auto` where they are managed, else their sharing; with numbers where they differ."""
    instances: str
    """Existing MIG instances: `4 1g.5gb, 2 3g.20gb`; empty for none."""


def reported(
    node: str, gpus: Iterable[Gpu], inventory: Inventory, health: Health, *, used: Iterable[Used], unit_mib: int
) -> GpuNodeState:
    """Return the state of a node.

    Args:
        node: its name.
        gpus: with their sharing and existing layout, before desired or withheld devices are applied.
        inventory: of the driver.
        health: known problems of devices.
        used: memory in use.
        unit_mib: memory of one unit.

    """
    return GpuNodeState(
        name=NodeName(node),
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        unhealthy=tuple(_unhealthy(inventory, health)),
        used=tuple(used),
        unit_mib=unit_mib,
        driver=inventory.driver,
        reported=True,
    )


def withheld_resources(resources: Iterable[tuple[str, str]]) -> tuple[Impairment, ...]:
    """Return the configured resources that are not advertised, each with the reason."""
    return tuple(
        Impairment(kind="Withheld", subject=name, message=f"{name} is not offered: {problem}")
        for name, problem in resources
    )


def unenforced(problems: Iterable[str]) -> tuple[Impairment, ...]:
    """Return the declarations for GPUs that are not in force yet; `GPU 0: ...` is about the part before the colon."""
    return tuple(Impairment(kind="Withheld", subject=each.partition(":")[0], message=each) for each in problems)


def _unhealthy(inventory: Inventory, health: Health) -> Iterator[UnhealthyDevice]:
    """Yield what is not allocated for now, by GPU and instance."""
    states = {device: state for device, state in health.states if state.phase is not HealthPhase.HEALTHY}
    for facts in inventory.gpus:
        whole = DeviceId(facts.uuid)
        prohibited = "its compute mode is prohibited" if facts.compute_mode is ComputeMode.PROHIBITED else ""
        reason = states[whole].reason if whole in states else prohibited
        if reason:
            yield UnhealthyDevice(device=DeviceId(facts.uuid), reason=reason)
        for placement in facts.layout or ():
            state = states.get(DeviceId(facts.uuid, placement))
            if state is not None:
                yield UnhealthyDevice(device=DeviceId(facts.uuid, placement), reason=state.reason)


def use_to_report(former: Iterable[Used], measured: Iterable[Used], gpus: Iterable[Gpu]) -> tuple[Used, ...]:
    """Return the memory in use to report: as measured where it moved by 5 % of its GPU or fell to less than half.

    Elsewhere as before. Without the second, what a small pod leaves would be reported until a large one comes.
    """
    before = {(each.gpu, each.placement): each for each in former}
    sizes_mib = {gpu.uuid: gpu.memory_mib for gpu in gpus}
    found = []
    for now in measured:
        last, part_mib = before.get((now.gpu, now.placement), now), sizes_mib.get(now.gpu, 0) / _PART
        moved = abs(now.memory_mib - last.memory_mib) >= part_mib or now.memory_mib < last.memory_mib / 2
        found.append(now if moved else last)
    return tuple(found)


def summary(state: GpuNodeState) -> NodeSummary:
    """Return a summary of a node's GPUs, truncated if they are very many."""
    unhealthy = {each.device.gpu for each in state.unhealthy}
    profiles = Counter(place.profile for gpu in state.gpus for place in gpu.sharing.layout or ())
    well = sum(gpu.uuid not in unhealthy for gpu in state.gpus)
    return NodeSummary(
        ready=f"{well}/{len(state.gpus)}",
        models=_counted(Counter(gpu.model.name for gpu in state.gpus)),
        sharing=_counted(Counter(map(_shared, state.gpus))),
        instances=_short(", ".join(f"{number} {profile}" for profile, number in sorted(profiles.items()))),
    )


def _shared(gpu: Gpu) -> str:
    """Return how a GPU is shared: by its devices, or its allowed modes where it has none yet."""
    if gpu.sharing.managed:
        return "auto"
    offered = devices(gpu.model, gpu.memory_mib, gpu.sharing)
    words = [f"{each.mode.value} x{each.clients}" if each.clients > 1 else each.mode.value for each in offered]
    return " + ".join(dict.fromkeys(words or [mode.value for mode in gpu.sharing.modes])) or "nothing"


def _counted(numbers: Counter[str]) -> str:
    """Return words with their counts, the most frequent first; without a count where all are equal."""
    if len(numbers) == 1:
        return _short(next(iter(numbers)))
    order = sorted(numbers.items(), key=lambda each: (-each[1], each[0]))
    return _short(", ".join(f"{number} {word}" for word, number in order))


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."
