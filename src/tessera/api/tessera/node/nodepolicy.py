"""The node policy file: how each GPU of one node is shared, and its power and clocks; see docs/sharing.md.

The sharing of a GPU is written as in a fleet file, so that a plan can be applied to a node unchanged.
"""

from collections.abc import Sequence

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field, in_place, read_model
from tessera.api.tessera.node.gpusharing import read_sharing
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import Sharing
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, Strategy
from tessera.core.workload.need import Isolation
from tessera.core.workload.tesseranames import API_VERSION

__all__ = ["read"]


_KIND = "NodePolicy"
_UNITS_MIB = {"GiB": 1024, "MiB": 1}
_MAX_WATTS = 10_000
_MAX_MHZ = 10_000
_CLOCKS = 2


def read(document: Document, gpus: Sequence[GpuFacts]) -> NodeSharing:
    """Return the node policy of these GPUs.

    Of several entries the first that names a GPU decides; an entry without `devices` and `models` names all.

    Raises:
        InvalidInput: another kind, an unknown field, a sharing its GPU does not support, a limit out of range.

    """
    root = Field(document, document.data).only("apiVersion", "kind", "strategy", "unit", "gpus", "evict-conflicts")
    root.get("apiVersion").choice(API_VERSION)
    root.get("kind").choice(_KIND)
    strategy: Strategy = root.get("strategy").choice("none", "single", "mixed", default="mixed")
    policies: dict[str, GpuSettings] = {}
    unknown: list[str] = []
    for entry in root.get("gpus").elements():
        named, missing = _named(entry, gpus)
        unknown += missing
        for facts in named:
            policy = _policy(entry, facts, strategy)
            policies.setdefault(facts.uuid, policy)
    return NodeSharing(
        strategy=strategy if root.get("strategy").present else None,
        policies=tuple(policies[facts.uuid] for facts in gpus if facts.uuid in policies),
        unit_mib=_UNITS_MIB[root.get("unit").choice(*_UNITS_MIB, default="GiB")],
        evict_conflicts=root.get("evict-conflicts").boolean(default=True),
        ignored=tuple(f"node policy: this node has no GPU {name}" for name in unknown),
    )


def _named(entry: Field, gpus: Sequence[GpuFacts]) -> tuple[list[GpuFacts], list[str]]:
    """Return the GPUs of an entry, and the unknown names."""
    entry.only("devices", "models", "sharing", "isolation", "power-limit-watts", "clocks-mhz")
    models = {read_model(each).name for each in entry.get("models").elements()}
    listed = entry.get("devices").elements()
    devices = [str(each.integer()) if isinstance(each.value, int) else each.text() for each in listed]
    for key, names in (("devices", devices), ("models", models)):
        if entry.get(key).present and not names:
            raise entry.get(key).refuse(f"at least one of {key}", "no such field, for all GPUs")
    missing = [name for name in devices if not any(name in _names(facts) for facts in gpus)]
    named = [
        facts
        for facts in gpus
        if (not devices or not _names(facts).isdisjoint(devices)) and (not models or facts.model.name in models)
    ]
    return named, missing


def _names(facts: GpuFacts) -> set[str]:
    return {facts.uuid, str(facts.index)}


def _policy(entry: Field, facts: GpuFacts, strategy: Strategy) -> GpuSettings:
    sharing = entry.get("sharing")
    isolation = entry.get("isolation")
    weakest = isolation.choice(*Isolation, default=Isolation.NONE)
    found = _graded(sharing if sharing.present else isolation, read_sharing(sharing, facts.model), weakest)
    own: Strategy | None = None
    if isinstance(sharing.value, dict) and sharing.get("strategy").present:
        own = found.strategy
    if (own or strategy) == "single" and len({placement.profile for placement in found.layout or ()}) > 1:
        raise sharing.refuse(
            found="strategy single has instances of one profile, and there are several profiles",
            hint="choose strategy mixed",
        )
    return GpuSettings(
        uuid=facts.uuid,
        sharing=found if sharing.present or isolation.present else None,
        strategy=own,
        power_limit_watts=_watts(entry.get("power-limit-watts"), facts),
        clocks_mhz=_clocks(entry.get("clocks-mhz")),
    )


def _graded(field: Field, sharing: Sharing, weakest: Isolation) -> Sharing:
    """Return the sharing without modes weaker than `weakest`."""
    modes = tuple(mode for mode in sharing.modes if mode.isolation.covers(weakest))
    shared = [number for _, number in sharing.replicas if number > 1]
    if not modes or (shared and len(modes) < len(sharing.modes)):
        found = ", ".join(mode for mode in sharing.modes if mode not in modes)
        raise field.refuse(
            found=f"{found} enforce less than isolation {weakest}", hint="choose other modes, or weaker isolation"
        )
    return msgspec.structs.replace(sharing, modes=modes)


def _watts(field: Field, facts: GpuFacts) -> int | None:
    if not field.present:
        return None
    least, most = facts.power_range_watts or (1, _MAX_WATTS)
    return in_place(f"GPU {facts.index}", lambda: field.integer(least=least, most=most))


def _clocks(field: Field) -> tuple[int, int] | None:
    """Return the lowest and the highest clock: a pair, or one number for both."""
    if not field.present:
        return None
    if not isinstance(field.value, list):
        clock = field.integer(least=1, most=_MAX_MHZ)
        return clock, clock
    clocks = [each.integer(least=1, most=_MAX_MHZ) for each in field.elements()]
    if len(clocks) != _CLOCKS or clocks[0] > clocks[1]:
        raise field.refuse("the lowest and the highest clock in MHz", "[300, 1200], or one number for both")
    return clocks[0], clocks[1]
