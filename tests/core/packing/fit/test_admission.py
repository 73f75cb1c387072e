"""Node name, labels, affinity and taints, as kube-scheduler reads them."""

import msgspec
import pytest

from tessera.core.cluster.snapshot import MemoryUnits, Node, NodeName, Taint
from tessera.core.packing.fit.admission import Refusal, refusal
from tessera.core.workload.need import DeviceRequest, Form, Need, Requirement, SelectorTerm, Toleration

NODE = Node(name=NodeName("a"), cpu_milli=1, memory_mib=1, labels=(("gpus", "8"), ("zone", "east")), taints=())
GPU = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
SLA = Taint(key="sla", value="950", effect="NoExecute")


def tainted(*taints: Taint, unschedulable: bool = False) -> Node:
    return Node(name=NodeName("a"), cpu_milli=1, memory_mib=1, taints=taints, unschedulable=unschedulable)


def tolerant(**fields: str) -> Need:
    return Need(tolerations=(Toleration(**fields),))  # type: ignore[arg-type] # the table passes operators as text


def labeled(operator: str, *values: str, key: str = "zone") -> Need:
    rule = Requirement(key=key, operator=operator, values=values)  # type: ignore[arg-type] # as above
    return Need(affinity=(SelectorTerm(expressions=(rule,)),))


def named(operator: str, *values: str) -> Need:
    rule = Requirement(key="metadata.name", operator=operator, values=values)  # type: ignore[arg-type] # as above
    return Need(affinity=(SelectorTerm(fields=(rule,)),))


def mib(amount: int, unit_mib: int = 1) -> Need:
    return Need(
        requests=(DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=amount),),
        unit_mib=unit_mib,
    )


def offering(count: int, unit_mib: int = 1024) -> Node:
    return msgspec.structs.replace(NODE, units=MemoryUnits(count, unit_mib))


def models(*names: str) -> Node:
    return msgspec.structs.replace(NODE, cached_models=names)


# sentence: (need, node, want: the refusal)
CASES: dict[str, tuple[Need, Node, tuple[Refusal, str] | None]] = {
    "a plain pod goes anywhere": (Need(), NODE, None),
    "a pod pinned here": (Need(node_name="a"), NODE, None),
    "a pod pinned elsewhere": (Need(node_name="b"), NODE, (Refusal.NODE_NAME, "b")),
    "a pod pinned to a node whose taint is for the scheduler": (Need(node_name="a"), tainted(GPU), None),
    "a pod pinned to a cordoned node": (Need(node_name="a"), tainted(unschedulable=True), None),
    "a pod pinned to a node that the kubelet keeps it off": (
        Need(node_name="a"),
        tainted(GPU, SLA),
        (Refusal.TAINT, "sla=950:NoExecute"),
    ),
    "a pod pinned to a node that its selector does not match": (
        Need(node_name="a", node_selector=(("zone", "west"),)),
        NODE,
        (Refusal.SELECTOR, "zone=west"),
    ),
    "a cordoned node": (Need(), tainted(unschedulable=True), (Refusal.UNSCHEDULABLE, "")),
    "a cordoned node is tolerated by its taint": (
        tolerant(key="node.kubernetes.io/unschedulable", operator="Exists"),
        tainted(unschedulable=True),
        None,
    ),
    "an unknown taint": (Need(), tainted(GPU), (Refusal.TAINT, "nvidia.com/gpu=present:NoSchedule")),
    "the second taint counts too": (
        tolerant(key="nvidia.com/gpu", operator="Exists"),
        tainted(GPU, SLA),
        (Refusal.TAINT, "sla=950:NoExecute"),
    ),
    "a preference does not filter": (Need(), tainted(Taint(key="a", effect="PreferNoSchedule")), None),
    "equal key and value": (tolerant(key="nvidia.com/gpu", value="present"), tainted(GPU), None),
    "another value": (
        tolerant(key="nvidia.com/gpu", value="absent"),
        tainted(GPU),
        (Refusal.TAINT, "nvidia.com/gpu=present:NoSchedule"),
    ),
    "another effect": (
        tolerant(key="sla", operator="Exists", effect="NoSchedule"),
        tainted(SLA),
        (Refusal.TAINT, "sla=950:NoExecute"),
    ),
    "the same effect": (tolerant(key="sla", operator="Exists", effect="NoExecute"), tainted(SLA), None),
    "everything is tolerated": (tolerant(operator="Exists"), tainted(GPU, SLA), None),
    "a taint above the threshold": (tolerant(key="sla", operator="Gt", value="900"), tainted(SLA), None),
    "a taint at the threshold": (
        tolerant(key="sla", operator="Gt", value="950"),
        tainted(SLA),
        (Refusal.TAINT, "sla=950:NoExecute"),
    ),
    "a taint below the threshold": (tolerant(key="sla", operator="Lt", value="951"), tainted(SLA), None),
    "a threshold that is not a number": (
        tolerant(key="sla", operator="Lt", value="1e3"),
        tainted(SLA),
        (Refusal.TAINT, "sla=950:NoExecute"),
    ),
    "a selected label": (Need(node_selector=(("zone", "east"),)), NODE, None),
    "a label of another value": (
        Need(node_selector=(("zone", "west"),)),
        NODE,
        (Refusal.SELECTOR, "zone=west"),
    ),
    "affinity without terms matches nothing": (Need(affinity=()), NODE, (Refusal.AFFINITY, "")),
    "a term without rules matches nothing": (Need(affinity=(SelectorTerm(),)), NODE, (Refusal.AFFINITY, "")),
    "In": (labeled("In", "west", "east"), NODE, None),
    "not In": (labeled("In", "west"), NODE, (Refusal.AFFINITY, "")),
    "In of an absent label": (labeled("In", "x", key="absent"), NODE, (Refusal.AFFINITY, "")),
    "NotIn": (labeled("NotIn", "east"), NODE, (Refusal.AFFINITY, "")),
    "NotIn of an absent label": (labeled("NotIn", "x", key="absent"), NODE, None),
    "Exists": (labeled("Exists"), NODE, None),
    "Exists of an absent label": (labeled("Exists", key="absent"), NODE, (Refusal.AFFINITY, "")),
    "DoesNotExist": (labeled("DoesNotExist"), NODE, (Refusal.AFFINITY, "")),
    "DoesNotExist of an absent label": (labeled("DoesNotExist", key="absent"), NODE, None),
    "Gt": (labeled("Gt", "7", key="gpus"), NODE, None),
    "not Gt": (labeled("Gt", "8", key="gpus"), NODE, (Refusal.AFFINITY, "")),
    "Lt": (labeled("Lt", "9", key="gpus"), NODE, None),
    "Lt of two values": (labeled("Lt", "9", "10", key="gpus"), NODE, (Refusal.AFFINITY, "")),
    "Lt of an absent label": (labeled("Lt", "9", key="absent"), NODE, (Refusal.AFFINITY, "")),
    "Gt of a word": (labeled("Gt", "1"), NODE, (Refusal.AFFINITY, "")),
    "a field": (named("In", "a"), NODE, None),
    "another field": (named("NotIn", "a"), NODE, (Refusal.AFFINITY, "")),
    "more MiB than the node has GiB": (mib(6000), offering(79), (Refusal.UNITS, "6000 units with 79")),
    "so few MiB that the node has as many GiB": (mib(79), offering(79), None),
    "MiB on a node that counts them": (mib(6000), offering(30000, 1), None),
    "GiB on a node that counts MiB": (mib(6 << 10, 1024), offering(30000, 1), None),
    "more GiB than the node has is no matter of units": (mib(80 << 10, 1024), offering(79), None),
    "MiB on a node that nobody knows the units of": (mib(6000), NODE, None),
    "no need of an amount": (
        Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),), unit_mib=1),
        offering(79),
        None,
    ),
    "a model that the node offers": (Need(cached_models=("a",)), models("a", "b"), None),
    "a model that the node does not offer": (Need(cached_models=("a", "c")), models("a"), (Refusal.MODEL, "c")),
    "a model on a node of which nobody knows its models": (Need(cached_models=("a",)), NODE, None),
    "any term is enough": (
        Need(affinity=(*(labeled("DoesNotExist").affinity or ()), *(labeled("Exists").affinity or ()))),
        NODE,
        None,
    ),
    "all rules of a term count": (
        Need(
            affinity=(
                SelectorTerm(
                    expressions=(Requirement(key="zone", operator="Exists"),),
                    fields=(Requirement(key="metadata.name", operator="In", values=("b",)),),
                ),
            )
        ),
        NODE,
        (Refusal.AFFINITY, ""),
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_refusal(sentence: str) -> None:
    need, node, want = CASES[sentence]
    assert refusal(need, node) == want
