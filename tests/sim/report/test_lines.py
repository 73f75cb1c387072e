"""A line of a placement log: a pod, its node and GPUs, and what moved for it."""

import json
import math

import msgspec

from builders.placementlogs import log_of
from tessera.sim.engine import SimulatedMove
from tessera.sim.report import log_lines
from tessera.sim.workloads import departing


def test_a_line_tells_pod_node_and_gpus() -> None:
    lines = [json.loads(line) for line in log_lines(log_of())]
    assert lines[0] == {"pod": "b", "node": "n", "gpus": [0, 1]}
    assert lines[-1] == {"pod": "b", "node": None, "gpus": []}
    assert all(line.endswith("}\n") for line in log_lines(log_of()))


def test_where_pods_depart_a_line_tells_when() -> None:
    log = log_of(departing)
    lines = [json.loads(line) for line in log_lines(log)]
    assert [line["at_s"] for line in lines] == [arrival.at_s for arrival in log.workload.arrivals]
    lost = next(line for line in lines if line["node"] is None)
    assert (lost["placed_s"], lost["left_s"]) == (None, None)
    assert lines[0]["left_s"] == log.left_s[0] < math.inf


def test_a_line_tells_what_moved_for_it() -> None:
    log = log_of()
    spot = log.spots[0]
    assert spot is not None
    moved = msgspec.structs.replace(log, moves=(SimulatedMove(1.0, made_for=1, moved=0, spot=spot),))
    assert json.loads(list(log_lines(moved))[1])["moves"] == [{"arrival": 0, "node": "n", "gpus": [0, 1]}]
