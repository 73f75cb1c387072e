"""When the packer learns the mix anew: when arrivals have doubled, or the mix has moved."""

from builders.fleets import T4, gpu, node
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack import Choice, Mix, Packer, Policy
from tessera.core.workload.need import Need


class Recorder(Policy):
    """First fit that remembers the mixes it was given."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.learned: list[int] = []
        self.leaving: list[int] = []

    def learn(self, mix: Mix, leaving_permille: int = 0) -> bool:
        self.learned.append(sum(count for _, count in mix))
        self.leaving.append(leaving_permille)
        return False


def arrivals(needs: list[Need], stay: int = 0) -> Recorder:
    """Return what a policy saw when each pod leaves after `stay` further arrivals; 0 for pods that never do."""
    fleet = Fleet.of(Snapshot(nodes=(node("n", gpu(0, T4), cpu_milli=10**9),)))
    policy = Recorder(fleet)
    packer = Packer(fleet, policy)
    held: list[tuple[int, Choice]] = []
    for need in needs:
        kind = packer.intern(need)
        choice = packer.place(kind)
        if choice is not None:
            held.append((kind, choice))
        if stay and len(held) > stay:
            packer.release(*held.pop(0))
    return policy


def test_a_steady_mix_is_learned_when_arrivals_double() -> None:
    policy = arrivals([Need(cpu_milli=i % 2) for i in range(3000)])
    assert policy.learned == [0, 20, 40, 80, 160, 320, 640, 1640]
    assert set(policy.leaving) == {0}


def test_a_mix_that_moves_is_learned_again() -> None:
    steady, other = [Need(cpu_milli=1)] * 1900, [Need(cpu_milli=2)] * 500
    assert arrivals(steady + other).learned[-2:] == [1640, 2140]


def test_pods_that_begin_to_leave_are_noticed() -> None:
    policy = arrivals([Need(cpu_milli=1)] * 2500, stay=100)
    assert policy.leaving[:4] == [0, 0, 0, 0]
    assert policy.leaving[-1] == 1000
