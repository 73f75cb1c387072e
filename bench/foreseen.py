"""What knowing the rates would save: replica-hours at which 99 % of the requests stay within the objective.

`scripts/bench foreseen [-- --traces FOLDER]`

ServeGen's deepseek-r1 by client, the series on which Tessera's policy misses 99 % (`scripts/bench serving`), under
two policies that no cluster can have. Both are given the rate of all clients and its dispersion, exactly, and add as
many standard deviations as just reach 99 %, which is found afterwards. One is given them for the present, the other for
the time of a cold start ahead, too. Fails where the first needs less than 1.2 times the clairvoyant plan or the second
more: then docs/benchmarks-serving.md is wrong about them. They are no strict bounds: neither looks at what requests
really come.
"""

import argparse
import csv
import math
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tessera.core.serving.autoscaling.autoscaler import ReplicaProposal
from tessera.core.serving.metrics.load import PASS_S, Load
from tessera.sim.serving.clairvoyant import ClairvoyantPlan, clairvoyant
from tessera.sim.serving.replicamodel import ReplicaModel, Replicas
from tessera.sim.serving.run import ServingRun, run
from tessera.sim.serving.traces import Floats, read_requests

FILE, RATE, SEED, MOST, DAY_S = "servegen_deepseek_r1_clients_600s.csv", 3.5, 42, 16, 86_400.0
WITHIN, RATIO = 0.99, 1.2
TRIES = 9


class Rates(NamedTuple):
    """The requests a second of each bin, and their variance in a second."""

    width_s: float
    mean: Floats
    variance: Floats


class Given:
    """A policy that is given the rates, now and so many seconds ahead, and adds standard deviations of the slots."""

    def __init__(
        self, rates: Rates, service_s: float, model: ReplicaModel, *, ahead_s: float, deviations: float
    ) -> None:
        load = rates.mean * service_s
        slots = load + deviations * np.sqrt(rates.variance * service_s)
        self._replicas = np.clip(np.ceil(slots / model.slots), 1, MOST).astype(int)
        self._width_s, self._ahead_s = rates.width_s, ahead_s

    def propose(self, load: Load, _replicas: Replicas) -> ReplicaProposal:
        """Return the replicas for the present, or for some seconds ahead where these are more."""
        times = load.at_s, load.at_s + self._ahead_s
        now, then = (min(int(at_s / self._width_s), len(self._replicas) - 1) for at_s in times)
        return ReplicaProposal(int(self._replicas[now : then + 1].max()), "given the rates")


def read_rates(path: Path) -> Rates:
    """Return the rates of all clients, scaled to the mean rate."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [(float(row["t_s"]), float(row["rate_rps"]), float(row["cv"] or 1)) for row in csv.DictReader(lines)]
    starts = sorted({start_s for start_s, _, _ in rows})
    at = {start_s: place for place, start_s in enumerate(starts)}
    mean, variance = np.zeros(len(starts)), np.zeros(len(starts))
    for start_s, rate, cv in rows:
        mean[at[start_s]] += rate
        variance[at[start_s]] += rate * cv**2
    scale = RATE / mean.mean()
    return Rates(starts[1] - starts[0], mean * scale, variance * scale)


def cheapest(
    arrival_s: Floats, service_s: Floats, rates: Rates, plan: ClairvoyantPlan, ahead_s: float
) -> tuple[float, ServingRun]:
    """Return the fewest standard deviations that reach 99 %, by halving, and what becomes of the requests."""
    model, mean_s = ReplicaModel(), float(service_s.mean())
    low, high, found = 0.0, 3.0, None
    for _ in range(TRIES):
        middle = (low + high) / 2
        policy = Given(rates, mean_s, model, ahead_s=ahead_s, deviations=middle)
        tried = run(arrival_s, service_s, model, policy, plan.warm)
        if tried.within_slo >= WITHIN:
            high, found = middle, tried
        else:
            low = middle
    if found is None:
        raise SystemExit("foreseen: 3 standard deviations are too few")
    return high, found


def main() -> int:
    """Print both; return 1 where one is on the other side of the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=os.environ.get("TESSERA_INFERENCE_TRACES"))
    folder = parser.parse_args().traces
    if folder is None:
        print("foreseen: no traces; set TESSERA_INFERENCE_TRACES to a folder with them, or give --traces")
        return 2
    model, rng = ReplicaModel(), np.random.default_rng(SEED)
    with (folder / FILE).open(encoding="utf-8", newline="") as lines:
        requests = read_requests(lines, FILE, column=None, mean_rate=RATE, rng=rng).first(DAY_S)
    service_s = model.service_s(requests.context, requests.generated)
    rates, plan = read_rates(folder / FILE), clairvoyant(requests.arrival_s, service_s, model, MOST)
    failed = 0
    for name, ahead_s in (("now", 0.0), ("now and ahead", model.cold_start_s + PASS_S)):
        deviations, found = cheapest(requests.arrival_s, service_s, rates, plan, ahead_s)
        ratio = found.replica_hours / plan.replica_hours
        wrong = math.isclose(ratio, RATIO) or (ratio < RATIO) == (ahead_s == 0)
        failed += wrong
        cells = f"{ratio:6.2f} x{found.within_slo:9.2%}{found.changes:6} changes, {deviations:.2f} deviations"
        print(f"{name:16}{cells}{'  FAIL: on the wrong side of 1.2 x' if wrong else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
