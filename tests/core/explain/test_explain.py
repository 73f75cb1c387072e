"""Explanations say the need, the ways, where pods go and what stands in the way."""

from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import A100, T4, gpu, node, plain_share, pods, slices
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.explain.explain import MOST_ROOM, explain
from tessera.core.workload.need import Need


def test_one_workload_among_others() -> None:
    mine, other = pods(slices("3g.20gb"), 3, "mine"), pods(plain_share(9000), 1, "other")
    nodes = (node("a", gpu(0), gpu(1, T4)), node("b", gpu(0, T4)))
    (got,) = explain(Snapshot(nodes=nodes, pending=(*mine, *other)), mine, policy="first-fit")
    assert got.need == "nvidia.com/mig-3g.20gb"
    assert got.pods == tuple(pod.key for pod in mine)
    assert [(way.model, way.gpus, way.option.profile) for way in got.ways] == [(A100.name, 1, "3g.20gb")]
    assert [a.pod for a in got.placed] == ["default/mine-0", "default/mine-1"]
    assert got.pending == ("default/mine-2",)
    assert [bool(verdict.obstacle) for verdict in got.nodes] == [True, True]
    assert got.room == 0


def test_alike_gpus_are_counted_and_models_kept() -> None:
    need = Need(models=("T4",), requests=plain_share(1000).requests)
    nodes = (node("a", gpu(0), gpu(1, T4)), node("b", gpu(0, T4)))
    (got,) = explain(Snapshot(nodes=nodes, pending=pods(need, 1)), pods(need, 1), policy="first-fit")
    assert [(way.gpus, way.option.mode.value) for way in got.ways] == [(2, "memory-share"), (2, "mps")]
    assert not any(verdict.obstacle for verdict in got.nodes)


@given(st.integers(1, 3), st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]), st.integers(1, 6))
def test_the_room_is_what_is_placed_when_more_pods_come(gpus: int, profile: str, count: int) -> None:
    """Pods and room together are what the fleet holds, however many come first; none where no node takes one more."""
    nodes = (node("a", *(gpu(index) for index in range(gpus))),)
    holds = {"1g.5gb": 7, "2g.10gb": 3, "3g.20gb": 2, "7g.40gb": 1}[profile] * gpus
    mine = pods(slices(profile), count)
    (got,) = explain(Snapshot(nodes=nodes, pending=mine), mine)
    assert len(got.placed) + got.room == holds
    assert (got.room > 0) == any(verdict.obstacle is None for verdict in got.nodes)


def test_no_more_room_is_counted_than_anybody_scales_to() -> None:
    mine = pods(plain_share(1), 1)
    (got,) = explain(Snapshot(nodes=(node("a", gpu(0)), node("b", gpu(0))), pending=mine), mine, policy="first-fit")
    assert got.room == MOST_ROOM
