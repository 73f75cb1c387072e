"""Why a pod is on its node, or why it is pending: node by node, and what would make it fit.

The answers for nodes are the scheduler's: kube-scheduler's filters first, then room for cpu, memory and
pods, then the devices, by the server's ledger.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tessera.core.cluster.closing import closed_gpus
from tessera.core.cluster.cluster import Cluster, FinishedPod, ObservedNode, ObservedPod, Phase, Record
from tessera.core.cluster.enforcement import Level
from tessera.core.cluster.occupancy import Occupancy, occupancy
from tessera.core.cluster.snapshot import Gpu, NodeName, Share
from tessera.core.explain.explain import RequestOption, ways
from tessera.core.explain.inspection import inspect
from tessera.core.gpu.sharing import Mode, of_other_allocator
from tessera.core.packing.advertised import AdvertisedDevices
from tessera.core.packing.fit.admission import Refusal, refusal
from tessera.core.packing.ledger import Ledger, LedgerKey, ledger_key, schedulable_node
from tessera.core.packing.obstacles import Cause, Obstacle, allocated_by_name
from tessera.core.packing.preempt import victims
from tessera.core.packing.reasons import NodeFit, describe_need, verdicts_by_ledger
from tessera.core.storage.images.imagelocality import ImageLocality
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import DeviceRequest, Form, Need, PodKey
from tessera.core.workload.resources import GPU_MEMORY, SCHEDULER_NAME
from tessera.core.workload.texts import first_of
from tessera.core.workload.units import gib

__all__ = ["ExplainedDevice", "PodExplanation", "explain_finished", "explain_pod", "share_words"]

_MOST_TRIED = 12
"""Nodes for which evictions are tried, those with the fewest pods first."""
_MOST_REMEDIES = 3
"""Most remedies of one kind."""
_EVERYBODY = 1 << 31
"""A priority above every pod's: any pod may be the one to end."""


class ExplainedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a pod, and how it is isolated from which neighbors."""

    uuid: str = ""
    """UUID of the GPU; empty where no agent reports it, or the node does not have it."""
    model: str = ""
    share: Share
    level: Level | None = None
    """Isolation from its neighbors; None where the node does not have the GPU."""
    neighbors: tuple[PodKey, ...] = msgspec.field(default=(), name="neighbours")
    """Other pods on the same GPU."""


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why one pod is on its node, or why it is pending."""

    pod: PodKey
    need: str
    """In words; empty where it is invalid, or no longer matters."""
    phase: Phase
    node: NodeName | None = None
    scheduler: str = ""
    devices: tuple[ExplainedDevice, ...] = ()
    record: Record = Record.NONE
    sentences: tuple[str, ...] = ()
    """The reasons, without full stop each; the most important first."""
    remedies: tuple[str, ...] = ()
    """What would make it fit; empty for a pod with a node."""
    nodes: tuple[NodeFit, ...] = ()
    """Whether each node could take it, if it were not there yet."""
    ways: tuple[RequestOption, ...] = ()
    """How each kind of GPU could serve it."""


def explain_pod(cluster: Cluster, key: PodKey) -> PodExplanation | None:
    """Return why a pod is on its node, or why it is pending; None if the pod does not exist."""
    pod = next((each for each in cluster.pods if each.pod.key == key), None)
    if pod is None:
        return None
    rest = _WithoutPod(cluster, pod)
    verdicts = rest.verdicts()
    return PodExplanation(
        pod=key,
        need="" if pod.unread else describe_need(pod.pod.need),
        phase=pod.phase,
        node=pod.node,
        scheduler=pod.scheduler,
        devices=tuple(_devices(cluster, pod)),
        record=pod.record,
        sentences=tuple(_placed(rest, verdicts) if pod.node is not None else _pending(rest, verdicts)),
        remedies=tuple(_remedies(rest, verdicts)) if pod.node is None else (),
        nodes=verdicts,
        ways=ways(rest.nodes, pod.pod.need),
    )


def explain_finished(pod: FinishedPod) -> PodExplanation:
    """Return how a pod ended, and its devices."""
    had = f"its assignment was {_listed(pod.shares)}"
    sentences = (
        f"it has {'failed' if pod.failed else 'succeeded'}{f': {pod.reason}' if pod.reason else ''}",
        *pod.containers,
        f"{had}; it has no devices any more" if pod.shares else "it has no devices any more",
    )
    return PodExplanation(
        pod=pod.pod, need="", phase=Phase.FINISHED, node=pod.node, scheduler=pod.scheduler, sentences=sentences
    )


class _WithoutPod:
    """The cluster without the pod, to find where it could be."""

    def __init__(self, cluster: Cluster, pod: ObservedPod) -> None:
        self.cluster = cluster
        self.pod = pod
        # For a bound pod any node counts, to explain why it is there.
        self.need = msgspec.structs.replace(pod.pod.need, node_name="") if pod.node else pod.pod.need
        self.ledger = Ledger.of(cluster, without=(ledger_key(pod),), by_name=self.need.by_name)
        self.advertised = AdvertisedDevices(cluster.nodes, (each for each in cluster.pods if each is not pod))
        locality = ImageLocality({each.node.name: each.images for each in cluster.nodes})
        self.image_bytes = locality.bytes_present(pod.images)
        self.nodes = [schedulable_node(each.node, each.state)[0] for each in cluster.nodes]
        self.names: dict[LedgerKey, PodKey] = {
            holder.id: holder.key for node in cluster.nodes for holder in self.ledger.pods_on(node.node.name)
        }

    def verdicts(self) -> tuple[NodeFit, ...]:
        if self.pod.unread:
            unread = Obstacle(Cause.REQUEST, self.pod.unread)
            return tuple(NodeFit(node=each.node.name, obstacle=unread) for each in self.cluster.nodes)
        return verdicts_by_ledger(self.ledger, self.need, [each.node for each in self.cluster.nodes], self.advertised)

    def ready(self, names: Sequence[str]) -> list[str]:
        """Return which of these nodes, that have room, advertise what the pod requests."""
        return [name for name in names if self.advertised.suffice(self.need, name)]

    def has_devices(self, need: Need, name: str) -> bool:
        """Return whether a node has devices for a need, ignoring whether it admits the pod."""
        if not need.by_name:
            return self.ledger.fits(need, name)
        created = self.ledger.fits(need, name) and self.advertised.missing(need, name) is None
        return created or self.advertised.suffice(need, name)

    def choice(self, names: Sequence[str]) -> tuple[str, tuple[Share, ...]] | None:
        """Return the node that the scheduler would choose of these, and the shares; None where none fits."""
        best = self.ledger.best(self.need, names, self.image_bytes)
        if self.need.by_name and (ready := self.ready(names)):
            chosen = best if best in ready else ready[0]
            return chosen, self.advertised.devices(self.ledger, self.need, chosen)
        if best is None:
            return None
        shares = self.ledger.choose(self.need, best)
        return None if isinstance(shares, str) else (best, shares)


_CURES = {
    Refusal.NODE_NAME: "if it were not pinned to {}",
    Refusal.UNSCHEDULABLE: "if the node were not cordoned",
    Refusal.TAINT: "if it tolerated the taint {}",
    Refusal.SELECTOR: "if it did not select the label {}, or the node had it",
    Refusal.AFFINITY: "if its node affinity allowed the node",
    Refusal.MODEL: "if ModelCache {} had its model on the node",
    Refusal.UNITS: f"if it requested {GPU_MEMORY} in GiB, without the annotation {GPU_MEMORY}-unit",
}


_NEVER_CREATED = {Cause.DEVICES_FEW, Cause.NO_MODEL}
"""Why a device by name is never created, though GPUs could provide one of its name."""


# Why it is there


def _devices(cluster: Cluster, pod: ObservedPod) -> Iterator[ExplainedDevice]:
    if pod.node is None:
        return
    gpus = {gpu.index: gpu for node in inspect(cluster, (pod.node,)).nodes for gpu in node.gpus}
    for share in pod.shares:
        gpu = gpus.get(share.gpu)
        if gpu is None:
            yield ExplainedDevice(share=share)
            continue
        others = dict.fromkeys(holder.pod for holder in gpu.pods if holder.pod != pod.pod.key)
        own = (each.level for each in gpu.pods if (each.pod, each.share) == (pod.pod.key, share))
        level = next(own, None)
        yield ExplainedDevice(uuid=gpu.uuid, model=gpu.model, share=share, level=level, neighbors=tuple(others))


def _placed(rest: _WithoutPod, verdicts: Sequence[NodeFit]) -> Iterator[str]:
    """Yield why a pod is on its node, and whether it would go there again."""
    pod = rest.pod
    assert pod.node is not None
    yield from _how(pod)
    here = next((each for each in verdicts if each.node == pod.node), None)
    if here is None:
        yield f"node {pod.node} no longer exists"
    elif not pod.pod.need.requests and not pod.unread:
        yield "it requests no GPU"
    elif not pod.unread:
        yield from _again(rest, verdicts, here)
    allocated = {share.gpu for share in pod.shares}
    gpus = (gpu for node in inspect(rest.cluster, (pod.node,)).nodes for gpu in node.gpus if gpu.index in allocated)
    yield from (f"the allocations on GPU {gpu.index} conflict: {each}" for gpu in gpus for each in gpu.conflicts)


def _how(pod: ObservedPod) -> Iterator[str]:
    if pod.problem:
        yield pod.problem
    if pod.phase is Phase.CLAIMED:
        yield f"a server has chosen its devices on {pod.node} and is about to bind it"
    elif pod.phase is Phase.STARTING:
        yield f"{pod.scheduler} bound it to {pod.node}, where its containers are not running yet"
    else:
        yield f"{pod.scheduler} bound it to {pod.node}"
    if pod.ending:
        yield "it is being deleted and keeps its devices until its containers have ended"
    if pod.record is Record.UNRECORDED:
        yield "no record says which devices it is allocated; these fit"


def _again(rest: _WithoutPod, verdicts: Sequence[NodeFit], here: NodeFit) -> Iterator[str]:
    able: list[str] = [each.node for each in verdicts if each.obstacle is None]
    able = (rest.ready(able) or able) if rest.need.by_name else able
    found = rest.choice(able)
    if here.obstacle is not None:
        yield f"it would not fit there today: {here.obstacle.text}"
    elif found is not None and found[0] == here.node:
        if len(able) == 1:
            yield "it fits no other node now"
        else:
            yield f"of {len(able)} nodes that it fits now, the scheduler would choose this one again"
    if found is not None and found[0] != here.node:
        yield f"scheduled again, it would be placed on {found[0]}: {_listed(found[1])}"


# Why it is pending


def _pending(rest: _WithoutPod, verdicts: Sequence[NodeFit]) -> Iterator[str]:
    pod, need = rest.pod, rest.need
    if pod.problem:
        yield pod.problem
    if any(request.form is not Form.EXACT for request in need.requests) and pod.scheduler != SCHEDULER_NAME:
        yield (
            f"it is scheduled by {pod.scheduler}, which allocates no GPU unless it calls Tessera's server: "
            f"set spec.schedulerName: {SCHEDULER_NAME}"
        )
    if pod.unseen:
        where = ": kubectl get pods -n tessera-system" if pod.scheduler == SCHEDULER_NAME else ""
        yield f"no scheduler has considered it yet: if that lasts, no {pod.scheduler} runs{where}"
    yield from _unadvertised(rest, verdicts)
    able = [each.node for each in verdicts if each.obstacle is None]
    fitting = rest.ready(able)
    found = rest.choice(fitting or able)
    if found is not None:
        best = f", best on {found[0]}" if len(fitting or able) > 1 else ""
        where = f"it fits on {first_of(fitting)} now" if fitting else f"there is room on {first_of(able)}"
        what = f": {_listed(found[1])}" if found[1] or not need.requests else ""
        yield f"{where}{best}{what}"
    if not verdicts:
        yield "there are no nodes"
    if pod.message:
        yield f"scheduler: {pod.message}"
    yield from foreign_names(need.requests)


def _unadvertised(rest: _WithoutPod, verdicts: Sequence[NodeFit]) -> Iterator[str]:
    """Yield the resources of which no node advertises enough: kube-scheduler rejects the pod on all nodes."""
    offered = {name for each in rest.cluster.nodes for name, _ in each.advertised}
    names = [each.node.name for each in rest.cluster.nodes]
    never = _never(verdicts)
    for request in {request.resource: request for request in rest.need.requests}.values():
        if never and request.form is Form.EXACT:
            yield f"no node can have the {request.resource} that it requests: {never}"
        elif request.resource not in offered:
            yield f"no node advertises {request.resource}{_who_would(rest, request)}"
        elif request.form is Form.EXACT and not rest.ready(names) and (creators := _creators(rest, request)):
            yield f"no node has enough free {request.resource}{creators}"


def _never(verdicts: Sequence[NodeFit]) -> str:
    """Return why no node can ever provide the devices, by the node that comes nearest; empty where one can."""
    refused = [(each.obstacle, each.node) for each in verdicts if each.obstacle is not None]
    if len(refused) < len(verdicts) or not refused:
        return ""
    nearest, node = min(refused, key=lambda each: each[0].cause.rank)
    return f"{node}: {nearest.text}" if nearest.cause in _NEVER_CREATED else ""


def _who_would(rest: _WithoutPod, request: DeviceRequest) -> str:
    withheld = {
        each.node.name: reason
        for each in rest.cluster.nodes
        for resource, reason in each.node.withheld
        if resource == request.resource
    }
    for reason in dict.fromkeys(withheld.values()):
        return f"; on {first_of([name for name in withheld if withheld[name] == reason])}: {reason}"
    if request.form is not Form.EXACT:
        return _who_would_serve(rest, request)
    return _who_could_create(rest, request)


def _who_could_create(rest: _WithoutPod, request: DeviceRequest) -> str:
    if creators := _creators(rest, request):
        return creators
    able = [each for each in rest.cluster.nodes if any(gpu.options(request) for gpu in each.node.gpus)]
    silent = [each.node.name for each in able if _healthy(each, request)]
    if silent:
        return f": GPUs of {first_of(silent)} could provide it, and no agent reports it; check the agents there"
    if able:
        others = first_of([each.node.name for each in able])
        return f"; GPUs that could provide it are unhealthy or have no agent: {others}"
    return _unless_unknown(rest, "provide")


def _creators(rest: _WithoutPod, request: DeviceRequest) -> str:
    """Return on how many GPUs the controller could create a device; empty for none."""
    gpus = [gpu for each in rest.cluster.nodes for gpu in _healthy(each, request) if gpu.sharing.managed]
    silent = f", but {rest.cluster.controller_silent}" if rest.cluster.controller_silent else ""
    if len(gpus) == 1:
        return f" yet; 1 GPU could provide it: the controller creates it there when there is room{silent}"
    if gpus:
        where = f"{len(gpus)} GPUs could provide it: the controller creates it on one of them when there is room"
        return f" yet; {where}{silent}"
    return ""


def _healthy(node: ObservedNode, request: DeviceRequest) -> list[Gpu]:
    """Return the healthy GPUs of a node with an agent that could serve a request."""
    closed = closed_gpus(node.state.unhealthy) if node.state is not None else frozenset()
    gpus = node.node.gpus if node.state is not None else ()
    return [gpu for gpu in gpus if gpu.uuid not in closed and gpu.options(request)]


def _who_would_serve(rest: _WithoutPod, request: DeviceRequest) -> str:
    able = [node.name for node in rest.nodes if any(gpu.options(request) for gpu in node.gpus)]
    if able:
        return f": GPUs of {first_of(able)} could serve it, and no agent reports it; check the agents there"
    for node, each in zip(rest.nodes, rest.cluster.nodes, strict=True):
        for gpu in node.gpus:
            devices = of_other_allocator(request, gpu.model, gpu.memory_mib, gpu.sharing)
            if devices:
                policy = f" (GPUPolicy {each.state.policy})" if each.state and each.state.policy else ""
                return f": {node.name}{policy}: {allocated_by_name(devices)}"
    return _unless_unknown(rest, "serve")


def _unless_unknown(rest: _WithoutPod, verb: str) -> str:
    """Return that no GPU of the cluster could provide or serve it, or whose GPUs are unknown."""
    unknown = [each.node.name for each in rest.cluster.nodes if each.problem]
    return (
        f"; the GPUs of {first_of(unknown)} are unknown" if unknown else f", and no GPU of the cluster could {verb} it"
    )


# What would make it fit


def _remedies(rest: _WithoutPod, verdicts: Sequence[NodeFit]) -> Iterator[str]:
    if not rest.need.requests or any(each.obstacle is None for each in verdicts):
        return
    yield from _freed(rest, verdicts)
    yield from _ended(rest, verdicts)
    yield from _admitted(rest)


def _freed(rest: _WithoutPod, verdicts: Sequence[NodeFit]) -> Iterator[str]:
    """Yield the GPU with the least missing memory, for a pod that requests an amount of one GPU."""
    if len(rest.need.requests) != 1 or rest.need.requests[0].count != 1:
        return
    request = rest.need.requests[0]
    open_nodes = {each.node for each in verdicts if not _lasts(each)}
    gpus = occupancy(rest.cluster.snapshot)
    lacks = sorted(
        (request.memory_mib - gpu.left_mib, name, gpu.gpu.index)
        for name in open_nodes
        for gpu in gpus[name]
        if _lacks(gpu, request)
    )
    for missing, name, index in lacks[:1]:
        yield f"free {gib(missing, up=True)} on GPU {index} of {name}"


def _lasts(verdict: NodeFit) -> bool:
    return verdict.obstacle is not None and verdict.obstacle.cause.lasting


def _lacks(usage: Occupancy, request: DeviceRequest) -> bool:
    """Return whether a GPU would serve a request by an amount if only it had more memory left."""
    modes = {option.mode for option in usage.gpu.options(request) if option.amount}
    return (
        usage.amounts in modes and usage.left_mib < request.memory_mib and usage.left_percent >= request.compute_percent
    )


def _ended(rest: _WithoutPod, verdicts: Sequence[NodeFit]) -> Iterator[str]:
    """Yield the pods that would have to end, fewest first, and what the pod would get then."""
    able = [each.node for each in verdicts if not _lasts(each)]
    tried = sorted(able, key=lambda name: sum(bool(each.shares) for each in rest.ledger.pods_on(name)))[:_MOST_TRIED]
    found: list[tuple[int, str, str]] = []
    for name in tried:
        removable = [str(each.id) for each in rest.ledger.pods_on(name)]
        gone = victims(rest.ledger, rest.need, _EVERYBODY, name, removable)
        if gone:
            found.append((len(gone), name, _then(rest, name, gone)))
    yield from (sentence for _, _, sentence in sorted(found)[:_MOST_REMEDIES])


def _then(rest: _WithoutPod, name: str, gone: Sequence[str]) -> str:
    trial = rest.ledger.of_one_node(name)
    for uid in gone:
        trial.drop_pod(uid)
    shares = trial.choose(rest.need, name)
    what = f", this pod gets {_listed(shares)}" if not isinstance(shares, str) else ""
    ends = "ends" if len(gone) == 1 else "end"
    return f"when {first_of([rest.names[uid] for uid in gone])} on {name} {ends}{what}"


def _admitted(rest: _WithoutPod) -> Iterator[str]:
    """Yield the rules without which nodes had room, each with its nodes."""
    bare = Need(
        cpu_milli=rest.need.cpu_milli,
        memory_mib=rest.need.memory_mib,
        requests=rest.need.requests,
        models=rest.need.models,
    )
    cures: dict[str, list[str]] = {}
    for each in rest.cluster.nodes:
        name, rule = each.node.name, refusal(rest.need, each.node)
        fits = rest.has_devices(bare, name) and rest.ledger.has_cpu_and_memory(rest.need, name)
        if each.ready and rule is not None and fits:
            cures.setdefault(_CURES[rule[0]].format(rule[1]), []).append(name)
    for cure, names in sorted(cures.items(), key=lambda item: -len(item[1]))[:_MOST_REMEDIES]:
        yield f"{cure}: {first_of(names)}"


# Words


def _listed(shares: Iterable[Share]) -> str:
    return ", ".join(dict.fromkeys(map(share_words, shares))) or "no GPU"


def share_words(share: Share) -> str:
    """Return a share in words, with its GPU."""
    if share.mode is Mode.WHOLE:
        return f"the whole GPU {share.gpu}"
    if share.profile is not None:
        return f"{share.profile} at {share.start} of GPU {share.gpu}"
    mode = "MPS" if share.mode is Mode.MPS else share.mode.value
    return f"{gib(share.memory_mib)} of GPU {share.gpu} ({mode})"
