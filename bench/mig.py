"""MIG placement policies while a fleet fills and while instances come and go; fails when Tessera's is below its floor.

`python bench/mig.py [--seeds N] [--random N] [--quick]` prints one table a mix, on H100-80GB with its six compute
profiles (no +me). Every policy sees the same arrivals. All but `tessera` know the mix; `tessera` starts with none and
learns mix and churn from arrivals. A profile that fits on no GPU is dropped for good; nothing is refused that fits.

Fill: 500 GPUs, instances arrive until 130 % of the compute slices are asked for, none leaves. `unused` is the percent
of compute slices left over. `floor` is the least percent that any packing can leave which keeps what the policy
accepted and adds any of what it dropped: a linear program over the maximal layouts, so a bound.

Churn: 100 GPUs, Poisson arrivals that request 100 % of the compute slices on average, exponential stays of mean 1, from
empty; 10 stays pass before counting, then 100 are counted. `accepted` is the percent of instances that found a place,
`slices` the percent of the compute slices asked for that did: dropping large instances raises the first and lowers the
second. `against` is accepted less fragmentation-min's, with the standard error over the seeds.

Floors: on every mix of the first four, fill within 0.5 points of `floor` and accepted at least fragmentation-min's.
"""

import argparse
import functools
import heapq
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.core.gpu import mig
from tessera.core.gpu.gpumodels import model
from tessera.core.packing.linear import LinearProgram
from tessera.core.packing.pack.migscore import NEVER, MigPolicy, MigTables, occupy, release, tables

MODEL = model("H100-80GB")
PROFILES = tuple(number for number, profile in enumerate(MODEL.profiles) if profile.media not in MODEL.at_most_one)
SLICES = np.array([profile.compute_slices for profile in MODEL.profiles])
MIXES = {
    "uniform": (2, 2, 2, 2, 2, 2),
    "small": (12, 6, 8, 4, 2, 1),
    "large": (1, 1, 2, 4, 3, 2),
    "no double memory": (4, 0, 3, 2, 0, 0),
}
"""Weights of 1g, 1g with double memory, 2g, 3g, 4g and 7g."""
FIRST_SEED = 42
RELEARN = 256
"""Arrivals between two looks at what was learned; at first after each doubling."""


class Arrivals(NamedTuple):
    """Profile indices in order of arrival, and for churn when each comes and how long it stays."""

    profiles: list[int]
    times: list[float]
    stays: list[float]


class Fleet:
    """GPUs, the tables that place on them, and how many of each profile have arrived."""

    def __init__(self, gpus: int, policy: MigPolicy, mix: tuple[int, ...]) -> None:
        self.states = np.zeros(gpus, np.int64)
        self.policy = policy
        self.arrived = [0] * len(MODEL.profiles)
        self.came = self.left = 0
        self.tables = self._learned(0) if policy is MigPolicy.TESSERA else tables(MODEL, policy, mix)
        self.next = 1

    def _learned(self, churn_permille: int) -> MigTables:
        return tables(MODEL, self.policy, tuple(self.arrived), churn_permille=churn_permille)

    def place(self, profile: int) -> tuple[int, int] | None:
        """Place an instance on the GPU with the highest score, the first of equals; return GPU and start."""
        if self.policy is MigPolicy.TESSERA:
            self._learn(profile)
        scores = self.tables.score[profile][self.states]
        gpu = int(scores.argmax())
        if scores[gpu] == NEVER:
            return None
        state = int(self.states[gpu])
        start = int(self.tables.start[profile, state])
        self.states[gpu] = occupy(MODEL, state, profile, start)
        return gpu, start

    def _learn(self, profile: int) -> None:
        self.arrived[profile] += 1
        self.came += 1
        if sum(self.arrived) == self.next:
            self.tables = self._learned(1000 * self.left // self.came)
            self.came = self.left = 0
            self.next += min(self.next, RELEARN)

    def remove(self, profile: int, gpu: int, start: int) -> None:
        """Remove an instance."""
        self.states[gpu] = release(MODEL, int(self.states[gpu]), profile, start)
        self.left += 1


@functools.cache
def fill_arrivals(weights: tuple[int, ...], seed: int, gpus: int) -> Arrivals:
    """Return arrivals up to the first that would pass 130 % of the compute slices."""
    rng = np.random.default_rng(seed)
    share = np.array(weights) / sum(weights)
    drawn = rng.choice(PROFILES, size=3 * 7 * gpus, p=share)
    within = np.cumsum(SLICES[drawn]) <= 1.3 * MODEL.compute_slices * gpus
    return Arrivals(drawn[within].tolist(), [], [])


@functools.cache
def churn_arrivals(weights: tuple[int, ...], seed: int, gpus: int, stays: float) -> Arrivals:
    """Return Poisson arrivals over `stays` mean stays, at a load of all compute slices."""
    rng = np.random.default_rng(seed)
    share = np.array(weights) / sum(weights)
    rate = MODEL.compute_slices * gpus / float(share @ SLICES[list(PROFILES)])
    count = int(rate * stays)
    times = np.cumsum(rng.exponential(1 / rate, count))
    return Arrivals(
        rng.choice(PROFILES, size=count, p=share).tolist(), times.tolist(), rng.exponential(1, count).tolist()
    )


def fill(policy: MigPolicy, weights: tuple[int, ...], seed: int, gpus: int) -> tuple[float, float]:
    """Return the unused percent and its floor."""
    arrivals = fill_arrivals(weights, seed, gpus).profiles
    fleet = Fleet(gpus, policy, known(weights))
    kept = [profile for profile in arrivals if fleet.place(profile)]
    capacity = MODEL.compute_slices * gpus
    return 100 - 100 * float(SLICES[kept].sum()) / capacity, 100 - 100 * most_slices(kept, arrivals, gpus) / capacity


def known(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return a mix by profile of the model, large enough that no prior is added."""
    mix = [0] * len(MODEL.profiles)
    for profile, weight in zip(PROFILES, weights, strict=True):
        mix[profile] = 1000 * weight
    return tuple(mix)


def most_slices(kept: Sequence[int], arrivals: Sequence[int], gpus: int) -> float:
    """Return a bound on the compute slices in use when all of `kept` runs and any of the other arrivals."""
    low, high = (np.bincount(each, minlength=len(MODEL.profiles)) for each in (kept, arrivals))
    patterns = [dict(counts) for counts in mig.maximal_counts(MODEL)]
    program = LinearProgram()
    cut = [program.variable() for _ in patterns]
    run = {profile: program.variable(float(low[profile]), float(high[profile])) for profile in PROFILES}
    program.row(dict.fromkeys(cut, 1.0), high=gpus)
    for profile, number in run.items():
        name = MODEL.profiles[profile].name
        program.row(
            {number: 1.0} | {gpu: -float(of.get(name, 0)) for gpu, of in zip(cut, patterns, strict=True)}, high=0
        )
    return program.maximize({number: float(SLICES[profile]) for profile, number in run.items()}).objective


def churn(policy: MigPolicy, weights: tuple[int, ...], seed: int, stays: float, gpus: int = 100) -> tuple[float, float]:
    """Return the percent of instances accepted and of compute slices accepted, after 10 mean stays."""
    fleet = Fleet(gpus, policy, known(weights))
    leaving: list[tuple[float, int, int, int]] = []
    counts = np.zeros((2, len(MODEL.profiles)))
    for profile, time, stay in zip(*churn_arrivals(weights, seed, gpus, stays + 10), strict=True):
        while leaving and leaving[0][0] <= time:
            fleet.remove(*heapq.heappop(leaving)[1:])
        if placed := fleet.place(profile):
            heapq.heappush(leaving, (time + stay, profile, *placed))
        if time > 10:
            counts[0, profile] += 1
            counts[1, profile] += placed is not None
    arrived, accepted = counts
    return 100 * accepted.sum() / arrived.sum(), 100 * float(accepted @ SLICES) / float(arrived @ SLICES)


def measure(weights: tuple[int, ...], seeds: Sequence[int], *, quick: bool) -> dict[MigPolicy, NDArray[np.float64]]:
    """Return by policy (seeds, 4): unused, floor, accepted, slices."""
    gpus, stays = (100, 20) if quick else (500, 100)
    return {
        policy: np.array([(*fill(policy, weights, seed, gpus), *churn(policy, weights, seed, stays)) for seed in seeds])
        for policy in MigPolicy
    }


def table(name: str, results: dict[MigPolicy, NDArray[np.float64]]) -> Iterator[str]:
    """Yield the lines of one mix."""
    yield f"\n{name}\n  {'policy':18}{'unused':>8}{'floor':>8}{'gap':>7}{'accepted':>10}{'slices':>8}{'against':>9}"
    base = results[MigPolicy.FRAGMENTATION_MIN][:, 2]
    for policy, rows in results.items():
        unused, floor, accepted, slices = rows.mean(axis=0)
        more = rows[:, 2] - base
        error = more.std(ddof=1) / len(more) ** 0.5 if len(more) > 1 else float("nan")
        yield (
            f"  {policy:18}{unused:8.2f}{floor:8.2f}{unused - floor:7.2f}{accepted:10.2f}{slices:8.2f}"
            f"{more.mean():+9.2f} ±{error:.2f}"
        )


def misses(name: str, results: dict[MigPolicy, NDArray[np.float64]]) -> Iterator[str]:
    """Yield what is below its floor."""
    unused, floor, accepted, _ = results[MigPolicy.TESSERA].mean(axis=0)
    if unused - floor > 0.5:
        yield f"{name}: fill leaves {unused - floor:.2f} points more than its floor, desired at most 0.5"
    least = results[MigPolicy.FRAGMENTATION_MIN][:, 2].mean()
    if accepted < least:
        yield f"{name}: churn accepts {accepted:.2f} %, desired at least fragmentation-min's {least:.2f}"


def random_mixes(count: int) -> Iterator[tuple[int, ...]]:
    """Yield mixes of all sorts, the same every time: even and uneven, with and without every profile."""
    rng = np.random.default_rng(FIRST_SEED)
    while count:
        share = rng.dirichlet(np.full(len(PROFILES), rng.choice((0.4, 1.0, 3.0))))
        share /= SLICES[list(PROFILES)] ** rng.choice((0.0, 0.5, 1.0))
        mix = tuple(int(weight) for weight in np.round(40 * share / share.sum()))
        if sum(weight > 0 for weight in mix) > 1:
            count -= 1
            yield mix


def summary(results: Sequence[dict[MigPolicy, NDArray[np.float64]]]) -> Iterator[str]:
    """Yield, by policy, means over the random mixes and the worst mix."""
    yield f"\n{len(results)} random mixes (mean, worst)"
    for policy in MigPolicy:
        own, base = (
            np.array([each[which].mean(axis=0) for each in results]) for which in (policy, MigPolicy.FRAGMENTATION_MIN)
        )
        gap, more, slices = own[:, 0] - own[:, 1], own[:, 2] - base[:, 2], own[:, 3] - base[:, 3]
        yield (
            f"  {policy:18}gap {gap.mean():5.2f}, {gap.max():5.2f}   accepted against {more.mean():+6.2f},"
            f" {more.min():+6.2f}   slices against {slices.mean():+6.2f}, {slices.min():+6.2f}"
        )


def main() -> int:
    """Print the tables; return 1 when something is below its floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help=f"seeds {FIRST_SEED}, ... (default 5)")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="also N random mixes, reported only")
    parser.add_argument(
        "--quick", action="store_true", help="100 GPUs to fill and 20 stays: a smoke run, reported only"
    )
    requested = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + requested.seeds)
    below: list[str] = []
    for name, weights in MIXES.items():
        found = measure(weights, seeds, quick=requested.quick)
        print("\n".join(table(f"{name} {weights}", found)), flush=True)
        below += misses(name, found)
    if requested.random:
        print(
            "\n".join(summary([measure(mix, seeds, quick=requested.quick) for mix in random_mixes(requested.random)]))
        )
    print("", *below, sep="\n")
    return int(bool(below) and not requested.quick)


if __name__ == "__main__":
    sys.exit(main())
