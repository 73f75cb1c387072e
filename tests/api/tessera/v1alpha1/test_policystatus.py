"""The status of policies: what was found, and since when."""

import datetime as dt

import msgspec
import pytest

from builders.policyobjects import gpu_policy
from tessera.api.tessera.v1alpha1.gpupolicies import GpuPolicyStatus, read_gpu_policy
from tessera.api.tessera.v1alpha1.objects import refused_status
from tessera.api.tessera.v1alpha1.policystatus import PolicyFacts, new_status
from tessera.core.cluster.gpunodestate import Impairment

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
ONE = dt.datetime(2026, 11, 21, 13, tzinfo=dt.UTC)
POLICY = read_gpu_policy(gpu_policy({}))

READY = {
    "no node": (PolicyFacts(), ("True", "NoNodes", "it applies to no node with GPUs and an agent")),
    "all nodes": (PolicyFacts(nodes=1), ("True", "InForce", "in force on 1 node")),
    "one refuses it": (
        PolicyFacts(nodes=2, impaired=(("a", Impairment(kind="Refused", message="no such profile")),)),
        ("False", "Refused", "on a: no such profile"),
    ),
    "some withhold a resource": (
        PolicyFacts(nodes=2, impaired=tuple((name, Impairment(kind="Withheld", message="too many")) for name in "ab")),
        ("False", "Withheld", "on a, b: too many"),
    ),
    "it is overridden": (
        PolicyFacts(
            nodes=1, impaired=(("a", Impairment(kind="Overridden", subject="GPUPolicy test", message="by x")),)
        ),
        ("False", "Overridden", "on a: by x"),
    ),
    "something else is overridden": (
        PolicyFacts(nodes=1, impaired=(("a", Impairment(kind="Overridden", subject="GPUPolicy tes", message="by x")),)),
        ("True", "InForce", "in force on 1 node"),
    ),
    "one is behind": (PolicyFacts(nodes=2, behind=("b",)), ("False", "Applying", "not yet in force on b")),
    "many are behind": (
        PolicyFacts(nodes=9, behind=("e", "d", "c", "b")),
        ("False", "Applying", "not yet in force on b, c, d and 1 more"),
    ),
}


@pytest.mark.parametrize("case", READY)
def test_when_a_policy_is_in_force(case: str) -> None:
    """As soon as every agent has acted on it."""
    facts, want = READY[case]
    (found,) = (each for each in new_status(POLICY, facts, NOON).conditions if each.type == "Ready")
    assert (found.status, found.reason, found.message) == want


def test_what_a_policy_overrides() -> None:
    """A label that yields to it is named in a condition of the policy."""
    label = Impairment(kind="Overridden", subject="label x=y", by="GPUPolicy test", message="label x=y has no effect")
    other = Impairment(kind="Overridden", subject="label x=y", by="node policy", message="nor here")
    for impaired, want in (
        ((), ("False", "Nothing", "nothing that labels, files and options of its nodes say")),
        ((("a", label), ("b", other), ("c", label)), ("True", "Overridden", "on a, c: label x=y has no effect")),
    ):
        conditions = new_status(POLICY, PolicyFacts(nodes=3, impaired=impaired), NOON).conditions
        (found,) = (each for each in conditions if each.type == "Overrides")
        assert (found.status, found.reason, found.message) == want


def test_what_was_not_looked_at_stays() -> None:
    """A look without a plan keeps the number of pods that wait, and the last decision stands until another."""
    facts = PolicyFacts(nodes=1, gpus=8, desired=3, pending=2, decision="x" * 2000)
    status = new_status(POLICY, facts, NOON)
    assert (status.pending_pods, len(status.decision), status.desired_slices) == (2, 1024, 3)
    again = msgspec.structs.replace(POLICY, status=status)
    assert new_status(again, PolicyFacts(nodes=1, gpus=8, desired=3), ONE) == status


def test_a_policy_that_cannot_be_read_keeps_the_rest_of_its_status() -> None:
    """Accepted is False with the reason; what was in force is."""
    former = new_status(POLICY, PolicyFacts(nodes=1), NOON)
    status = refused_status(former, 7, "spec.unit: no", ONE)
    accepted, _, ready = sorted(status.conditions, key=lambda each: each.type)
    assert (accepted.status, accepted.message, accepted.observed_generation) == ("False", "spec.unit: no", 7)
    assert ready == next(each for each in former.conditions if each.type == "Ready")
    assert (status.observed_generation, status.nodes) == (7, 1)
    assert refused_status(GpuPolicyStatus(), 1, "x", NOON).conditions[0].reason == "Invalid"
