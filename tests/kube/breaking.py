"""Processes of a testbed that are killed, or stand still, and go on: one after the other, drawn from a seed."""

import math
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tessera.errors import TesseraError
from testbed import controlplane, parts
from testbed.cluster import Cluster
from testbed.namespaces import Namespaces, environment
from testbed.node import Node

__all__ = ["Breaker", "Trouble", "troubles"]

TWICE = ("agent", "server", "kubelet")
"""Parts that are broken twice in each round: most is decided there."""
API = ("apiserver", "etcd")


class Trouble(NamedTuple):
    """A process that is killed or halted, and for how long it is away."""

    number: int
    after_s: float
    process: str
    halted: bool
    away_s: float

    def __str__(self) -> str:
        """Return it in words, for the log."""
        return f"{self.process} {'halted' if self.halted else 'killed'} for {self.away_s:.1f} s"


def troubles(seed: str, processes: tuple[str, ...], gap_s: float) -> Iterator[Trouble]:
    """Give troubles without end, each process once or twice in a round; the same for the same seed."""
    rng = random.Random(f"troubles {seed}")
    number = 0
    while True:
        often = [each for each in processes if each.endswith(TWICE)]
        for each in rng.sample([*processes, *often], k=len(processes) + len(often)):
            number += 1
            halted = each == "etcd" or rng.random() < 0.15
            after_s, away_s = rng.uniform(0.3, 2 * gap_s), rng.uniform(0, 3)
            yield Trouble(number, after_s, each, halted, away_s)


class Breaker:
    """Breaks the processes of a cluster, in a thread of its own.

    Args:
        cluster: one that runs.
        agent: what starts the agent of a node.
        log: receives each trouble.

    """

    def __init__(self, cluster: Cluster, agent: Callable[[Node], object], log: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._processes = cluster.processes
        self._log = log
        self._starts = _starts(cluster, agent)
        self.made: Counter[str] = Counter()
        self.failed: list[str] = []
        self._away: dict[int, tuple[str, float, float]] = {}
        """By number of the trouble: the process, since when it was away, and until when."""

    @property
    def names(self) -> tuple[str, ...]:
        """What can be broken."""
        return tuple(self._starts)

    def run(self, plan: Iterator[Trouble], ends: threading.Event) -> None:
        """Make one trouble after the other until it is to end; what was broken runs again then."""
        for each in plan:
            if ends.wait(each.after_s):
                return
            self._log(f"trouble {each.number}: {each}")
            try:
                self._make(each)
            except TesseraError as error:
                self.failed.append(f"{each}: {error}")
                self._log(f"trouble {each.number} failed: {error}")
            self.made[f"{each.process} {'halted' if each.halted else 'killed'}"] += 1

    def away_s(self, node: str, since_s: float) -> float:
        """Return for how long since a time of the monotonic clock the API or a process of a node has been away."""
        now = time.monotonic()
        return sum(
            max(0.0, min(until_s, now) - max(from_s, since_s))
            for process, from_s, until_s in list(self._away.values())
            if process in API or process.startswith(f"{node}-")
        )

    def mend(self) -> None:
        """Start what does not run."""
        for name, start in self._starts.items():
            if self._processes.get(name) is None:
                start()

    def _make(self, each: Trouble) -> None:
        began_s = time.monotonic()
        self._away[each.number] = each.process, began_s, math.inf
        try:
            self._break(each)
        finally:
            self._away[each.number] = each.process, began_s, time.monotonic()

    def _break(self, each: Trouble) -> None:
        if each.halted:
            self._processes.pause(each.process)
            time.sleep(each.away_s)
            self._processes.resume(each.process)
        else:
            self._processes.stop(each.process, number=signal.SIGKILL)
            time.sleep(each.away_s)
            self._starts[each.process]()


def _starts(cluster: Cluster, agent: Callable[[Node], object]) -> Mapping[str, Callable[[], object]]:
    """Return what starts each process again, by its name."""
    holder = cluster.processes.get("namespaces")
    assert holder is not None
    outer, settings = Namespaces(holder), cluster.settings
    commands = {
        "etcd": controlplane.etcd(settings),
        "apiserver": controlplane.api_server(settings),
        "controller-manager": controlplane.controller_manager(settings),
        "scheduler": controlplane.scheduler(settings),
    }
    for name in parts.names():
        account = cluster.account_kubeconfig(parts.account(name))
        commands[name] = parts.command(name, settings, account)
    found: dict[str, Callable[[], object]] = {}
    for name, command in commands.items():
        more = {"KUBECONFIG": str(cluster.account_kubeconfig(name))} if name in {"server", "controller"} else {}
        variables = {**environment(), **more}
        found[name] = partial(cluster.processes.start, name, command, inside=outer.enter(), environment=variables)
    for node in cluster.nodes:
        found[f"{node.name}-agent"] = partial(agent, node)
        found[f"{node.name}-kubelet"] = node.start_kubelet
        found[f"{node.name}-containerd"] = partial(node.start, outer, Path(cluster.folder / "bin" / "pause"))
    return found
