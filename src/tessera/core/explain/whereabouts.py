"""Where a pod is and why there, or what it waits for, node by node, and what would make it fit.

The nodes' answers are those of the scheduler: kube-scheduler's rules of admission first, then room for cpu, memory and
pods, then the devices, as the server's ledger sees them.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tessera.core.cluster.cluster import Cluster, Phase, Record, SeenNode, SeenPod
from tessera.core.cluster.mps import Level
from tessera.core.cluster.occupancy import Occupancy, occupancy
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.explain.explain import Way, ways
from tessera.core.explain.inspection import Tenant, inspect
from tessera.core.gpu.sharing import Mode, of_other_allocator
from tessera.core.packing.fit.admission import Refusal, refusal
from tessera.core.packing.ledger import HolderId, Ledger, schedulable_node, uid_of
from tessera.core.packing.ledger.obstacles import allocated_by_name
from tessera.core.packing.preempt import victims
from tessera.core.packing.reasons import describe_need
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import Ask, Form, Need, PodKey

__all__ = ["Answer", "HeldDevice", "Whereabouts", "share_words", "whereabouts"]

_SCHEDULER = "tessera-scheduler"
_MOST_TRIED = 12
"""Nodes on which it is tried which pods would have to end, those with the fewest pods first."""
_MOST_REMEDIES = 3
"""Ways out of one kind that are told."""
_MOST_NAMED = 3
_EVERYBODY = 1 << 31
"""A priority above every pod's: whoever holds something may be the one to end."""


class HeldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a pod holds."""

    uuid: str = ""
    """Of the GPU; empty where no agent tells, or the node does not have it."""
    model: str = ""
    share: Share
    level: Level | None = None
    """What is in force between it and its neighbours; None where the node does not have the GPU."""
    neighbours: tuple[PodKey, ...] = ()
    """Other pods on the same GPU."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node could take the pod now."""

    node: NodeName
    reason: str = ""
    """What stands in the way; empty where nothing does."""
    lasting: bool = False
    """Whether it would stand in the way even if nothing ran on the node."""


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to say about where one pod is or is not."""

    pod: PodKey
    need: str
    phase: Phase
    node: NodeName | None = None
    scheduler: str = ""
    devices: tuple[HeldDevice, ...] = ()
    record: Record = Record.NONE
    sentences: tuple[str, ...] = ()
    """Why it is there, or why it waits, without full stop each; the most telling first."""
    remedies: tuple[str, ...] = ()
    """What would make it fit; empty for a pod that has its place."""
    nodes: tuple[Answer, ...] = ()
    """Each node's answer, were the pod not there yet."""
    ways: tuple[Way, ...] = ()
    """How each kind of GPU could serve it."""


def whereabouts(cluster: Cluster, key: PodKey) -> Whereabouts | None:
    """Return where a pod is and why, or what it waits for; None where there is no such pod."""
    pod = next((each for each in cluster.pods if each.pod.key == key), None)
    if pod is None:
        return None
    desk = _Desk(cluster, pod)
    answers = desk.answers()
    return Whereabouts(
        pod=key,
        need=describe_need(pod.pod.need),
        phase=pod.phase,
        node=pod.node,
        scheduler=pod.scheduler,
        devices=tuple(_devices(cluster, pod)),
        record=pod.record,
        sentences=tuple(_placed(desk, answers) if pod.node is not None else _waiting(desk, answers)),
        remedies=tuple(_remedies(desk, answers)) if pod.node is None else (),
        nodes=answers,
        ways=ways(desk.seen, pod.pod.need),
    )


def _withheld(each: SeenNode, asks: Iterable[Ask]) -> Iterator[str]:
    """Yield why a node's agent does not offer resources that are asked for, though its GPUs could give them."""
    resources = {ask.resource for ask in asks}
    impaired = each.state.impaired if each.state is not None else ()
    yield from (one.message for one in impaired if one.kind == "Withheld" and one.subject in resources)


class _Desk:
    """The cluster without the pod, while it is asked where the pod could be."""

    def __init__(self, cluster: Cluster, pod: SeenPod) -> None:
        self.cluster = cluster
        self.pod = pod
        # Where a pod is bound it may be anywhere for the question why it is there.
        self.need = msgspec.structs.replace(pod.pod.need, node_name="") if pod.node else pod.pod.need
        self.ledger = Ledger.of(cluster, without=(uid_of(pod),))
        self.seen = [schedulable_node(each.node, each.state)[0] for each in cluster.nodes]
        self.refused = {each.node.name: refusal(self.need, each.node) for each in cluster.nodes}
        self.names: dict[HolderId, PodKey] = {
            holder.id: holder.key for node in cluster.nodes for holder in self.ledger.pods_on(node.node.name)
        }

    def answers(self) -> tuple[Answer, ...]:
        found = self.ledger.filter(self.need, [each.node.name for each in self.cluster.nodes])
        fitting = set(found.fitting)
        return tuple(self._answer(each, found.failed, found.hopeless, fitting) for each in self.cluster.nodes)

    def _answer(self, each: SeenNode, failed: dict[str, str], hopeless: dict[str, str], fitting: set[str]) -> Answer:
        name = each.node.name
        if each.problem and self.need.asks:
            return Answer(node=name, reason="its GPUs cannot be told; tessera inspect says why", lasting=True)
        withheld = next(_withheld(each, self.need.asks), "")
        if withheld:
            return Answer(node=name, reason=withheld, lasting=True)
        if name in hopeless:
            reason = hopeless[name]
            told = next((told for ask in self.need.asks for known, told in _by_name(each, ask) if known == reason), "")
            return Answer(node=name, reason=told or reason, lasting=True)
        refused = self.refused[name]
        if refused is not None:
            return Answer(node=name, reason=_ADMISSION[refused[0]].format(refused[1]), lasting=True)
        if not each.ready:
            return Answer(node=name, reason="the node is not ready")
        short = next(self.short(name), "")
        return Answer(node=name, reason=short or ("" if name in fitting else failed[name]))

    def short(self, name: str) -> Iterator[str]:
        """Yield what a node is short of beside devices."""
        cpu, memory, pods = self.ledger.left(name)
        if self.need.cpu_milli > cpu:
            yield f"needs {self.need.cpu_milli} milli cpu, {max(cpu, 0)} left"
        if self.need.memory_mib > memory:
            yield f"needs {self.need.memory_mib} MiB memory, {max(memory, 0)} left"
        if pods < 1:
            yield "the node is full of pods"

    def choice(self, names: Sequence[str]) -> tuple[str, tuple[Share, ...]] | None:
        """Return the node that the scheduler would choose of these, and the shares; None where none fits."""
        scores = self.ledger.scores(self.need, names)
        if not any(scores):
            return None
        best = names[scores.index(max(scores))]
        shares = self.ledger.choose(self.need, best)
        return None if isinstance(shares, str) else (best, shares)


_ADMISSION = {
    Refusal.NODE_NAME: "the pod is pinned to {}",
    Refusal.UNSCHEDULABLE: "the node is cordoned",
    Refusal.TAINT: "the pod does not tolerate the taint {}",
    Refusal.SELECTOR: "the node lacks the label {} that the pod selects",
    Refusal.AFFINITY: "the pod's node affinity leaves the node out",
}
_CURES = {
    Refusal.NODE_NAME: "if it were not pinned to {}",
    Refusal.UNSCHEDULABLE: "if the node were not cordoned",
    Refusal.TAINT: "if it tolerated the taint {}",
    Refusal.SELECTOR: "if it did not select the label {}, or the node had it",
    Refusal.AFFINITY: "if its node affinity allowed the node",
}


# Why it is there


def _devices(cluster: Cluster, pod: SeenPod) -> Iterator[HeldDevice]:
    if pod.node is None:
        return
    gpus = {gpu.index: gpu for node in inspect(cluster, (pod.node,)).nodes for gpu in node.gpus}
    for share in pod.shares:
        gpu = gpus.get(share.gpu)
        if gpu is None:
            yield HeldDevice(share=share)
            continue
        others = dict.fromkeys(tenant.pod for tenant in gpu.tenants if tenant.pod != pod.pod.key)
        level = next((each.level for each in gpu.tenants if _is(each, pod, share)), None)
        yield HeldDevice(uuid=gpu.uuid, model=gpu.model, share=share, level=level, neighbours=tuple(others))


def _is(tenant: Tenant, pod: SeenPod, share: Share) -> bool:
    return tenant.pod == pod.pod.key and tenant.share == share


def _placed(desk: _Desk, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield why a pod is where it is, and whether it would go there again."""
    pod = desk.pod
    assert pod.node is not None
    yield from _how(pod)
    here = next((each for each in answers if each.node == pod.node), None)
    if here is None:
        yield f"node {pod.node} is not there any more"
    elif not pod.pod.need.asks:
        yield "it asks for no GPU"
    else:
        yield from _again(desk, answers, here)
    held = {share.gpu for share in pod.shares}
    gpus = (gpu for node in inspect(desk.cluster, (pod.node,)).nodes for gpu in node.gpus if gpu.index in held)
    yield from (f"what is held of GPU {gpu.index} cannot be: {each}" for gpu in gpus for each in gpu.conflicts)


def _how(pod: SeenPod) -> Iterator[str]:
    if pod.problem:
        yield pod.problem
    if pod.phase is Phase.CLAIMED:
        yield f"a server has chosen its devices on {pod.node} and is about to bind it"
    elif pod.phase is Phase.STARTING:
        yield f"{pod.scheduler} bound it to {pod.node}, where its containers do not run yet"
    else:
        yield f"{pod.scheduler} bound it to {pod.node}"
    if pod.ending:
        yield "it is being deleted and holds its devices until its containers have ended"
    if pod.record is Record.GUESSED:
        yield "nobody recorded which devices it holds; these fit"


def _again(desk: _Desk, answers: Sequence[Answer], here: Answer) -> Iterator[str]:
    able = [each.node for each in answers if not each.reason]
    found = desk.choice(able)
    if here.reason:
        yield f"it would not fit there today: {here.reason}"
    elif found is not None and found[0] == here.node:
        if len(able) == 1:
            yield "no other node could take it now"
        else:
            yield f"of {len(able)} nodes that could take it now, the scheduler would choose this one again"
    if found is not None and found[0] != here.node:
        yield f"placed anew, it would go to {found[0]}: {_listed(found[1])}"


# Why it waits


def _waiting(desk: _Desk, answers: Sequence[Answer]) -> Iterator[str]:
    pod, need = desk.pod, desk.need
    if pod.problem:
        yield pod.problem
    if any(ask.form is not Form.EXACT for ask in need.asks) and pod.scheduler != _SCHEDULER:
        yield (
            f"it is left to {pod.scheduler}, which chooses no GPU unless it calls Tessera's server: "
            f"set spec.schedulerName: {_SCHEDULER}"
        )
    yield from _unadvertised(desk)
    able = [each.node for each in answers if not each.reason]
    found = desk.choice(able)
    if found is not None:
        yield f"{_named(able)} could take it now, {found[0]} best: {_listed(found[1])}"
    if not answers:
        yield "there are no nodes"
    if pod.message:
        yield f"its scheduler said: {pod.message}"
    yield from foreign_names(need.asks)


def _unadvertised(desk: _Desk) -> Iterator[str]:
    """Yield the resources that no node advertises: kube-scheduler refuses the pod everywhere before asking further."""
    offered = {name for each in desk.cluster.nodes for name, _ in each.advertised}
    for ask in {ask.resource: ask for ask in desk.need.asks}.values():
        if ask.resource in offered:
            continue
        yield f"no node advertises {ask.resource}{_who_would(desk, ask)}"


def _who_would(desk: _Desk, ask: Ask) -> str:
    withheld = {each.node.name: reason for each in desk.cluster.nodes for reason in _withheld(each, (ask,))}
    for reason in dict.fromkeys(withheld.values()):
        return f"; on {_named([name for name in withheld if withheld[name] == reason])}: {reason}"
    if ask.form is not Form.EXACT:
        return _who_would_serve(desk, ask)
    gpus = [gpu for each in desk.cluster.nodes for gpu in each.node.gpus]
    able = sum(bool(gpu.options(ask)) for gpu in gpus)
    if able:
        return f" yet; {able} {'GPU' if able == 1 else 'GPUs'} could give it, once the controller has it made there"
    return ", and no GPU of the cluster could give it"


def _who_would_serve(desk: _Desk, ask: Ask) -> str:
    able = [node.name for node in desk.seen if any(gpu.options(ask) for gpu in node.gpus)]
    if able:
        return f": GPUs of {_named(able)} could serve it, and no agent says so; see whether it runs there"
    told = [(each.node.name, told) for each in desk.cluster.nodes for _, told in _by_name(each, ask)]
    return f": {told[0][0]}: {told[0][1]}" if told else ", and no GPU of the cluster could serve it"


def _by_name(each: SeenNode, ask: Ask) -> Iterator[tuple[str, str]]:
    """Yield for GPUs with an agent that a need would be served there if the kubelet did not allocate by name.

    First as the ledger says it, then with the policy that would have to change.
    """
    if each.state is None or ask.form is Form.EXACT:
        return
    for gpu in each.state.gpus:
        devices = of_other_allocator(ask, gpu.model, gpu.memory_mib, gpu.sharing)
        if devices:
            yield allocated_by_name(devices), allocated_by_name(devices, each.state.policy)


# What would make it fit


def _remedies(desk: _Desk, answers: Sequence[Answer]) -> Iterator[str]:
    if not desk.need.asks or any(not each.reason for each in answers):
        return
    yield from _freed(desk, answers)
    yield from _ended(desk, answers)
    yield from _admitted(desk)


def _freed(desk: _Desk, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the GPU on which the least memory is missing, for a pod that takes an amount of one GPU."""
    if len(desk.need.asks) != 1 or desk.need.asks[0].count != 1:
        return
    ask = desk.need.asks[0]
    open_nodes = {each.node for each in answers if not each.lasting}
    held = occupancy(desk.cluster.snapshot)
    lacks = sorted(
        (ask.memory_mib - gpu.left_mib, name, gpu.gpu.index)
        for name in open_nodes
        for gpu in held[name]
        if _lacks(gpu, ask)
    )
    for missing, name, index in lacks[:1]:
        yield f"if {missing} MiB were freed on GPU {index} of {name}"


def _lacks(held: Occupancy, ask: Ask) -> bool:
    """Return whether a GPU would serve an ask by an amount if only it had more memory left."""
    modes = {option.mode for option in held.gpu.options(ask) if option.amount}
    return held.amounts in modes and held.left_mib < ask.memory_mib and held.left_percent >= ask.compute_percent


def _ended(desk: _Desk, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the pods that would have to end, fewest first, and what would then be given."""
    able = [each.node for each in answers if not each.lasting]
    tried = sorted(able, key=lambda name: sum(bool(each.shares) for each in desk.ledger.pods_on(name)))[:_MOST_TRIED]
    found: list[tuple[int, str, str]] = []
    for name in tried:
        removable = [str(each.id) for each in desk.ledger.pods_on(name)]
        gone = victims(desk.ledger, desk.need, _EVERYBODY, name, removable)
        if gone:
            found.append((len(gone), name, _then(desk, name, gone)))
    yield from (sentence for _, _, sentence in sorted(found)[:_MOST_REMEDIES])


def _then(desk: _Desk, name: str, gone: Sequence[str]) -> str:
    trial = desk.ledger.alone(name)
    for uid in gone:
        trial.drop_pod(uid)
    shares = trial.choose(desk.need, name)
    what = f": {_listed(shares)}" if not isinstance(shares, str) else ""
    ends = "ends" if len(gone) == 1 else "end"
    return f"once {_named([desk.names[uid] for uid in gone])} {ends} on {name}{what}"


def _admitted(desk: _Desk) -> Iterator[str]:
    """Yield the rules but for which nodes had room, each with its nodes."""
    bare = Need(
        cpu_milli=desk.need.cpu_milli, memory_mib=desk.need.memory_mib, asks=desk.need.asks, models=desk.need.models
    )
    cures: dict[str, list[str]] = {}
    for name, refused in desk.refused.items():
        if refused is not None and desk.ledger.fits(bare, name) and desk.ledger.roomy(desk.need, name):
            cures.setdefault(_CURES[refused[0]].format(refused[1]), []).append(name)
    for cure, names in sorted(cures.items(), key=lambda item: -len(item[1]))[:_MOST_REMEDIES]:
        yield f"{cure}: {_named(names)}"


# Words


def _listed(shares: Iterable[Share]) -> str:
    return ", ".join(dict.fromkeys(map(share_words, shares))) or "no GPU"


def share_words(share: Share) -> str:
    """Return what a share is, and of which GPU."""
    if share.mode is Mode.WHOLE:
        return f"the whole GPU {share.gpu}"
    if share.profile is not None:
        return f"{share.profile} at {share.start} of GPU {share.gpu}"
    return f"{share.memory_mib} MiB of GPU {share.gpu} ({share.mode.value})"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
