"""Packing quality on the openb traces: FGD as published, and Tessera's policy against it; fails below the floors.

`python bench/openb.py [FOLDER] [--traces NAME...] [--seeds N] [--departures N] [--jobs N] [--quick]`

FOLDER holds the trace's CSV files; else `TESSERA_OPENB` names it, else `../shared/data/openb`. The protocol and the
metrics are those of the published artifact (see `tessera.sim`): same arrivals and same order of ties for all policies,
seeds 42 and up. FGD knows the mix in advance, as published; Tessera's policy learns it from the arrivals.

Arrivals only, mean over the seeds: unallocated percent of GPU capacity when pods for 100 % and 130 % of it arrived;
`multi` is the dropped percent of the demand of pods for several GPUs. Every pod that Tessera's policy drops is checked
by the simulator's replay against every node. Departures (`--departures` seeds): pods come and go around a load of 1.0,
two lifetimes; time-mean unallocated percent and dropped percent of GPU demand. They are reported, without a floor.

Floors: FGD at 130 %, own/published: mean of the traces within 2 %, worst within 4 %. Tessera's/own FGD's: at 130 %
mean at most 0.82 and each at most 0.90; at 100 % mean at most 0.82 and each at most 1.0; no pod dropped that fits
somewhere. With fewer than 17 traces or 10 seeds the figures are noisier, and the exit code says nothing.

Source of the published figures: hkust-adsl/kubernetes-scheduler-simulator at 8f3d6417,
experiments/analysis/expected_results/analysis_allo_discrete.csv (mean of 10 seeds).
"""

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tessera.sim.compare import simulate
from tessera.sim.engine import RunRules
from tessera.sim.metrics import measure
from tessera.sim.replay import replay
from tessera.sim.workloads import departing, filling, openb

PUBLISHED = {
    "cpu050": 4.79,
    "cpu100": 4.65,
    "cpu200": 4.96,
    "cpu250": 6.59,
    "default": 4.61,
    "gpushare100": 13.10,
    "gpushare40": 5.85,
    "gpushare60": 8.60,
    "gpushare80": 10.70,
    "gpuspec10": 5.05,
    "gpuspec20": 5.16,
    "gpuspec25": 5.26,
    "gpuspec33": 5.45,
    "multigpu20": 4.35,
    "multigpu30": 3.54,
    "multigpu40": 3.01,
    "multigpu50": 2.82,
}
"""FGD, unallocated percent of GPU capacity at 130 % arrivals."""
FIRST_SEED = 42
ALL_SEEDS = 10


class Job(NamedTuple):
    """One run of both policies."""

    folder: str
    trace: str
    seed: int
    departures: bool


class Pair(NamedTuple):
    """What one run measured: FGD's figure and Tessera's."""

    job: Job
    figures: dict[str, tuple[float, float]]
    refused_though_fitting: int


def run(job: Job) -> Pair:
    """Return what both policies make of one seed of one trace."""
    trace = openb.read(Path(job.folder), job.trace)
    workload = departing(trace, job.seed) if job.departures else filling(trace, job.seed)
    fgd = measure(simulate(workload, "fgd", RunRules()))
    log = simulate(workload, "tessera", RunRules())
    own = measure(log, None if job.departures else replay(log))
    figures = {"multi": (fgd.dropped_multi_gpu_percent, own.dropped_multi_gpu_percent)}
    if job.departures:
        figures["unallocated"] = (fgd.mean_unallocated_percent or 0.0, own.mean_unallocated_percent or 0.0)
        figures["dropped"] = (fgd.dropped_demand_percent, own.dropped_demand_percent)
    else:
        figures |= {f"{at}": (fgd.unallocated_percent[at], own.unallocated_percent[at]) for at in (100, 130)}
    return Pair(job, figures, own.refused_though_fitting or 0)


def mean(pairs: Iterable[Pair], name: str) -> tuple[float, float]:
    """Return the mean over the seeds of FGD's figure and of Tessera's."""
    found = [pair.figures[name] for pair in pairs]
    return statistics.fmean(fgd for fgd, _ in found), statistics.fmean(own for _, own in found)


def worked(jobs: Sequence[Job], processes: int) -> list[Pair]:
    """Return the results of all runs; progress goes to standard error."""
    done: list[Pair] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for pair in pool.imap_unordered(run, jobs):
            done.append(pair)
            sys.stderr.write(f"\r{len(done)} of {len(jobs)} runs")
            sys.stderr.flush()
    sys.stderr.write("\n")
    return done


def fill_table(pairs: list[Pair], traces: Sequence[str]) -> list[str]:
    """Print the table of arrivals only; return what is below its floor."""
    print("\narrivals only: unallocated % of GPU capacity, and ratios")
    print(f"{'trace':12} {'FGD130':>7} {'publ.':>6} {'own/publ.':>9}", end="")
    print(f"   {'tess.100':>8} {'/FGD':>6} {'tess.130':>8} {'/FGD':>6}", end="")
    print(f"   {'multi-GPU dropped %, FGD and tessera':>36}")
    published, at_100, at_130 = [], [], []
    for trace in traces:
        mine = [pair for pair in pairs if pair.job.trace == trace]
        fgd_100, own_100 = mean(mine, "100")
        fgd_130, own_130 = mean(mine, "130")
        multi = mean(mine, "multi")
        published.append(fgd_130 / PUBLISHED[trace])
        at_100.append(own_100 / fgd_100)
        at_130.append(own_130 / fgd_130)
        print(f"{trace:12} {fgd_130:7.2f} {PUBLISHED[trace]:6.2f} {published[-1]:9.3f}   ", end="")
        print(f"{own_100:8.2f} {at_100[-1]:6.3f} {own_130:8.2f} {at_130[-1]:6.3f}   {multi[0]:26.1f} {multi[1]:9.1f}")
    print(f"{'mean':12} {'':14} {statistics.fmean(published):9.3f}   {'':8} {statistics.fmean(at_100):6.3f}", end="")
    print(f" {'':8} {statistics.fmean(at_130):6.3f}")
    refused = sum(pair.refused_though_fitting for pair in pairs)
    print(f"pods that Tessera's policy dropped though a node fitted: {refused}")
    floors = {
        "FGD own/published, mean within 2 %": abs(statistics.fmean(published) - 1) <= 0.02,
        "FGD own/published, worst within 4 %": max(abs(ratio - 1) for ratio in published) <= 0.04,
        "tessera/FGD at 130 %, mean <= 0.82": statistics.fmean(at_130) <= 0.82,
        "tessera/FGD at 130 %, each <= 0.90": max(at_130) <= 0.90,
        "tessera/FGD at 100 %, mean <= 0.82": statistics.fmean(at_100) <= 0.82,
        "tessera/FGD at 100 %, each <= 1.0": max(at_100) <= 1.0,
        "no pod dropped that fits": refused == 0,
    }
    for floor, holds in floors.items():
        print(f"{'ok  ' if holds else 'FAIL'} {floor}")
    return [floor for floor, holds in floors.items() if not holds]


def departures_table(pairs: list[Pair], traces: Sequence[str]) -> None:
    """Print the table of runs with departures."""
    print("\ndepartures at load 1.0: time-mean unallocated %, dropped GPU demand %, dropped multi-GPU demand %")
    print(f"{'trace':12} {'FGD':>21}   {'tessera':>21}   dropped/FGD's")
    for trace in traces:
        mine = [pair for pair in pairs if pair.job.trace == trace]
        found = [mean(mine, name) for name in ("unallocated", "dropped", "multi")]
        fgd = " ".join(f"{figure[0]:6.2f}" for figure in found)
        own = " ".join(f"{figure[1]:6.2f}" for figure in found)
        print(f"{trace:12} {fgd:>21}   {own:>21}   {found[1][1] / found[1][0]:6.3f}")


def folder_of(given: str | None) -> Path:
    """Return the folder of the traces."""
    beside = Path(__file__).resolve().parents[1].parent / "shared/data/openb"
    return Path(given or os.environ.get("TESSERA_OPENB") or beside)


def main() -> int:
    """Run the benchmark; 0 when no floor is broken, 1 otherwise, 2 without the traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder of the openb CSV files")
    parser.add_argument("--traces", nargs="+", default=sorted(PUBLISHED), choices=sorted(PUBLISHED))
    parser.add_argument("--seeds", type=int, default=ALL_SEEDS)
    parser.add_argument("--departures", type=int, default=2, metavar="SEEDS", help="seeds with departures, 0 for none")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="three traces, two seeds, one with departures")
    options = parser.parse_args()
    if options.quick:
        options.traces, options.seeds, options.departures = ["default", "gpuspec33", "multigpu50"], 2, 1
    folder = folder_of(options.folder)
    if not folder.is_dir():
        sys.stderr.write(
            f"error: {folder} is not there; name the folder of the openb CSV files, or set TESSERA_OPENB\n"
        )
        return 2
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    jobs = [Job(str(folder), trace, seed, departures=False) for trace in options.traces for seed in seeds]
    jobs += [
        Job(str(folder), trace, seed, departures=True)
        for trace in options.traces
        for seed in range(FIRST_SEED, FIRST_SEED + options.departures)
    ]
    pairs = worked(jobs, options.jobs)
    below = fill_table([pair for pair in pairs if not pair.job.departures], options.traces)
    if options.departures:
        departures_table([pair for pair in pairs if pair.job.departures], options.traces)
    whole = len(options.traces) == len(PUBLISHED) and options.seeds >= ALL_SEEDS
    return int(bool(below) and whole)


if __name__ == "__main__":
    sys.exit(main())
