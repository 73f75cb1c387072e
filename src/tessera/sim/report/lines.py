"""The log of a run as JSON lines, so that anyone can check it without Tessera."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tessera.core.packing.pack import Choice
from tessera.sim.engine import Log

__all__ = ["log_lines"]


def log_lines(log: Log) -> Iterator[str]:
    """Yield one JSON object for each arrival, in order, each with its line end.

    `{"pod": NAME, "node": NAME or null, "gpus": [index, ...]}`, the GPUs in the order of the pod's devices, one that
    serves several of them more than once. Where pods depart or wait there are `at_s`, `placed_s` and `left_s`
    too, seconds of virtual time, null for never. Where pods had to move to make this one fit there is
    `moves`: `[{"arrival": number of the line, from 0, "node": NAME, "gpus": [...]}, ...]`.
    """
    nodes = [node.name for node in log.workload.snapshot.nodes]
    timed = log.workload.departs or log.rules.queue != "drop"
    moves = defaultdict(list)
    for move in log.moves:
        moves[move.made_for].append({"arrival": move.moved, **_place(move.spot, nodes)})
    for index, (arrival, spot) in enumerate(zip(log.workload.arrivals, log.spots, strict=True)):
        line: dict[str, Any] = {"pod": arrival.pod, **_place(spot, nodes)}
        if timed:
            times = {"at_s": arrival.at_s, "placed_s": log.placed_s[index], "left_s": log.left_s[index]}
            line |= {name: value if value < math.inf else None for name, value in times.items()}
        if index in moves:
            line["moves"] = moves[index]
        yield json.dumps(line) + "\n"


def _place(spot: Choice | None, nodes: Sequence[str]) -> dict[str, Any]:
    if spot is None:
        return {"node": None, "gpus": []}
    return {"node": nodes[spot.node], "gpus": [share.gpu for share in spot.shares]}
