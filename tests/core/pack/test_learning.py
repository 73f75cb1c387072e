"""When the packer learns the mix anew: when arrivals have doubled, or the mix has moved."""

from fleets import T4, gpu, node
from tessera.core.fit import Fleet
from tessera.core.need import Need
from tessera.core.pack import Mix, Packer, Policy
from tessera.core.snapshot import Snapshot


class Recorder(Policy):
    """First fit that remembers the mixes it was told."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.learned: list[int] = []

    def learn(self, mix: Mix) -> bool:
        self.learned.append(sum(count for _, count in mix))
        return False


def arrivals(needs: list[Need]) -> list[int]:
    fleet = Fleet.of(Snapshot(nodes=(node("n", gpu(0, T4)),)))
    policy = Recorder(fleet)
    packer = Packer(fleet, policy)
    for need in needs:
        kind = packer.intern(need)
        choice = packer.place(kind)
        if choice is not None:
            packer.release(kind, choice)
    return policy.learned


def test_a_steady_mix_is_learned_when_arrivals_double() -> None:
    assert arrivals([Need(cpu_milli=i % 2) for i in range(3000)]) == [0, 20, 40, 80, 160, 320, 640, 1640]


def test_a_mix_that_moves_is_learned_again() -> None:
    steady, other = [Need(cpu_milli=1)] * 1900, [Need(cpu_milli=2)] * 500
    assert arrivals(steady + other)[-2:] == [1640, 2140]
