"""GPUPolicy objects: what is read, what is refused, and what they say to a node."""

from typing import Any, get_args

import pytest

from builders.nodefacts import gpu
from builders.policyobjects import BAD, GOOD, gpu_policy
from tessera.api import documents
from tessera.api.kubernetes.conditions import Condition
from tessera.api.tessera.node import nodepolicy
from tessera.api.tessera.v1alpha1 import gpupolicies
from tessera.api.tessera.v1alpha1.gpupolicies import (
    GpuPolicy,
    GpuPolicySpec,
    GpuPolicyStatus,
    LabelSelector,
    node_policy,
    read_gpu_policy,
    selector_term,
    status_fields,
)
from tessera.core.gpu.sharing import AUTO, Mode
from tessera.core.node.nodesharing import NodeSharing
from tessera.core.packing.pack.policies import POLICIES
from tessera.core.workload.need import Requirement, SelectorTerm
from tessera.errors import InvalidInput

GPUS = (gpu(0, "A100-40GB"), gpu(1, "A100-40GB"), gpu(2, "A100-40GB"))


def read(spec: dict[str, Any]) -> GpuPolicy:
    return read_gpu_policy(gpu_policy(spec))


def on_node(spec: dict[str, Any]) -> NodeSharing:
    """Return what the node policy reader makes of a spec."""
    text = documents.write(node_policy(read(spec).spec))
    return nodepolicy.read(documents.read("policy.yaml", text)[0], GPUS)


@pytest.mark.parametrize("case", GOOD)
def test_what_is_good_is_read_and_understood_by_nodes(case: str) -> None:
    assert read(GOOD[case]).name == "test"
    on_node(GOOD[case])


@pytest.mark.parametrize("case", BAD)
def test_what_is_bad_is_refused_with_what_to_do(case: str) -> None:
    spec, _, want = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        read(spec)
    assert caught.value.subject.startswith("GPUPolicy test")
    assert want in str(caught.value)


def test_a_refusal_names_the_record() -> None:
    with pytest.raises(InvalidInput) as caught:
        read({"gpus": [{}, {"sharing": {"mode": "mig"}}]})
    assert caught.value.subject == "GPUPolicy test: spec.gpus[1].sharing"


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"gpu": []}, "spec.gpu: it is an unknown field"),
        ({"gpus": [{"model": ["A100"]}]}, "spec.gpus[0].model: it is an unknown field"),
        ({"gpus": [{"models": ["B999"]}]}, "spec.gpus[0].models"),
    ],
)
def test_what_the_api_server_does_not_see_is_refused_too(spec: dict[str, Any], want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(spec)
    assert want in str(caught.value)


def test_an_object_without_metadata_is_refused() -> None:
    with pytest.raises(InvalidInput, match="metadata"):
        read_gpu_policy({})


SHARED = {
    "without entries all are Tessera's": ({}, [AUTO] * 3),
    "auto, narrowed": (GOOD["auto, narrowed"], [AUTO.__class__(modes=(Mode.WHOLE, Mode.MIG))] * 3),
    "isolation of the policy": ({"isolation": "hardware"}, [AUTO.__class__(modes=(Mode.WHOLE, Mode.MIG))] * 3),
    "isolation of the entry": (
        {"isolation": "hardware", "gpus": [{"sharing": {}, "isolation": "none"}]},
        [AUTO] * 3,
    ),
    "an entry without sharing leaves it to other files": ({"gpus": [{"powerLimitWatts": 250}]}, [None] * 3),
    "where Tessera may not repartition GPUs are offered as they are": (GOOD["no repartition"], [None] * 3),
    "what is fixed holds all the same": (
        {"repartition": {"allowed": False}, "gpus": [{"sharing": {"mode": "whole"}}]},
        [AUTO.__class__(modes=(Mode.WHOLE,))] * 3,
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_how_gpus_are_shared(case: str) -> None:
    spec, want = SHARED[case]
    assert [each.sharing for each in on_node(spec).policies] == want


MODES: dict[str, tuple[dict[str, Any], tuple[Mode, ...]]] = {
    "whole": ({"mode": "whole"}, (Mode.WHOLE,)),
    "memory-share": ({"mode": "memory-share"}, (Mode.MEMORY_SHARE,)),
    "time-slicing": ({"mode": "time-slicing", "replicas": 4}, (Mode.TIME_SLICING,)),
    "mps": ({"mode": "mps", "replicas": 4}, (Mode.MPS,)),
    "mig by name": ({"mode": "mig", "layout": {"configuration": "all-1g.5gb"}}, (Mode.MIG,)),
    "mig by counts": ({"mode": "mig", "layout": {"counts": {"1g.5gb": 7}}}, (Mode.MIG,)),
    "mig by placements": ({"mode": "mig", "layout": {"placements": ["3g.20gb@4"]}}, (Mode.MIG,)),
    "mig, allowRepartition": (
        {"mode": "mig", "layout": {"counts": {"1g.5gb": 7}}, "allowRepartition": True},
        AUTO.modes,
    ),
    "mig-time-slicing": (
        {"mode": "mig-time-slicing", "layout": {"counts": {"1g.5gb": 7}}, "replicas": 2},
        (Mode.MIG, Mode.MIG_TIME_SLICING),
    ),
    "mig-mps by profile": (
        {"mode": "mig-mps", "layout": {"counts": {"1g.5gb": 7}}, "replicasByProfile": {"1g.5gb": 3}},
        (Mode.MIG, Mode.MIG_MPS),
    ),
}


@pytest.mark.parametrize("case", MODES)
def test_every_mode_says_what_the_node_policy_means(case: str) -> None:
    sharing, want = MODES[case]
    found = on_node({"gpus": [{"devices": ["0"], "sharing": sharing}]}).policies[0].sharing
    assert found is not None
    assert found.modes == want


@pytest.mark.parametrize("case", MODES)
def test_every_fixed_mode_says_who_allocates(case: str) -> None:
    sharing, _ = MODES[case]
    if sharing.get("allowRepartition") or sharing["mode"] == "memory-share":
        return
    for allocator in ("kubelet", "scheduler"):
        found = on_node({"gpus": [{"devices": ["0"], "sharing": sharing | {"allocator": allocator}}]}).policies[0]
        assert found.sharing is not None
        assert found.sharing.allocator == allocator


def test_an_agent_of_before_reads_a_policy_that_says_nothing_new() -> None:
    document = node_policy(read_gpu_policy(gpu_policy(GOOD["whole by the kubelet"])).spec)
    assert document["gpus"] == [{"sharing": "whole", "isolation": "none"}]
    assert "evict-conflicts" not in document


def test_whether_conflicts_end_reaches_the_node() -> None:
    assert on_node({}).evict_conflicts
    assert not on_node({"disruption": {"evictConflicts": False}}).evict_conflicts


def test_power_clocks_unit_and_strategy_reach_the_node() -> None:
    entry = {"models": ["A100-40GB"], "powerLimitWatts": 250, "clocksMHz": {"lowest": 300, "highest": 900}}
    found = on_node({"unit": "MiB", "migStrategy": "single", "gpus": [entry]})
    assert (found.unit_mib, found.strategy) == (1, "single")
    assert {(each.power_limit_watts, each.clocks_mhz) for each in found.policies} == {(250, (300, 900))}


def test_a_policy_that_says_no_mig_strategy_leaves_it_to_the_node() -> None:
    assert on_node({}).strategy is None
    assert "strategy" not in gpupolicies.node_policy(read({}).spec)


def test_a_selector_without_conditions_means_every_node() -> None:
    assert selector_term(LabelSelector()) is None


def test_a_selector_becomes_a_term_over_labels() -> None:
    spec = read(
        {
            "nodeSelector": {
                "matchLabels": {"b": "2", "a": "1"},
                "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["x"]}],
            }
        }
    ).spec
    want = SelectorTerm(
        expressions=(
            Requirement(key="a", operator="In", values=("1",)),
            Requirement(key="b", operator="In", values=("2",)),
            Requirement(key="c", operator="NotIn", values=("x",)),
        )
    )
    assert selector_term(spec.node_selector) == want


def test_a_gpupolicy_names_the_packing_policies_that_draw_nothing() -> None:
    assert set(get_args(gpupolicies.PackingPolicy)) == POLICIES.keys() - {"random"}


def test_a_status_is_written_whole_and_read_again() -> None:
    condition = Condition(
        type="Ready", status="True", last_transition_time="2026-11-21T12:00:00Z", reason="A", message="b"
    )
    status = GpuPolicyStatus(nodes=2, decision="nothing to do", conditions=(condition,))
    written = status_fields(status)
    assert set(written) == {
        *("observedGeneration", "nodes", "gpus", "desiredSlices", "pendingPods", "decision", "conditions"),
    }
    assert read_gpu_policy({**gpu_policy({}), "status": written}).status == status
    assert status_fields(GpuPolicyStatus())["conditions"] == []


def test_defaults_are_those_of_the_record() -> None:
    assert read({}).spec == GpuPolicySpec()
