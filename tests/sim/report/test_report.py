"""The reports of a comparison: text in cells, JSON lines, figures."""

import json
import math
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable

import msgspec
import pytest

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.workload.need import Ask, Form, Need
from tessera.errors import Unsupported
from tessera.sim.compare import simulate
from tessera.sim.engine import Log, RunRules, SimulatedMove
from tessera.sim.metrics import RunMetrics, measure
from tessera.sim.report import check_figures, figures, log_lines, table_lines
from tessera.sim.report.style import _apart
from tessera.sim.workloads import Trace, Workload, departing, filling

T4 = GpuModel(name="T4", arch="Turing", memory_mib=0)
HALF = Need(asks=(Ask(resource="milli", form=Form.SHARE, compute_percent=60),))
PAIR = Need(asks=(Ask(resource="nvidia.com/gpu", count=2),))


def log_of(make: Callable[[Trace, int], Workload] = filling, rules: RunRules | None = None) -> Log:
    node = Node(
        name=NodeName("n"),
        cpu_milli=1,
        memory_mib=1,
        gpus=tuple(Gpu(index=index, model=T4, memory_mib=0) for index in range(4)),
    )
    trace = Trace.of("tiny", [node], [("a", HALF), ("b", PAIR)])
    return simulate(make(trace, 1), "first-fit", rules or RunRules())


def named(run: RunMetrics, policy: str) -> RunMetrics:
    curve = run.curve
    values = tuple(40 - at / 4 for at in range(len(curve.x)))
    full = msgspec.structs.replace(curve, fragmented_percent=values, fragmented_of_idle_percent=values)
    return msgspec.structs.replace(run, policy=policy, curve=full)


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


def test_a_table_has_a_line_for_each_measure_and_a_cell_for_each_policy() -> None:
    run = measure(log_of())
    lines = table_lines([named(run, "fgd"), named(run, "tessera")])
    assert lines[0] == ("policy", "fgd", "tessera")
    assert {line[0] for line in lines} >= {"unallocated % at 130 % arrived", "fragmented % at the end", "pods dropped"}
    assert {len(line) for line in lines} == {3}


def test_measures_that_say_nothing_are_left_out_of_the_table() -> None:
    run = measure(log_of())
    headings = {line[0] for line in table_lines([run])}
    assert not headings & {"mean unallocated %", "mean wait s", "moves", "instances created", "refused though fitting"}
    full = msgspec.structs.replace(run, moves=1, instances_created=2, longest_wait_s=3.0, refused_though_fitting=4)
    assert {line[0] for line in table_lines([full])} - headings == {
        "mean wait s",
        "longest wait s",
        "moves",
        "instances created",
        "refused though fitting",
    }
    over_time = {line[0] for line in table_lines([named(measure(log_of(departing)), "fgd")])}
    assert {"mean unallocated %", "mean fragmented %"} <= over_time
    assert "first drop at % arrived" not in over_time


@pytest.mark.parametrize("make", [filling, departing])
def test_figures_are_whole_files_and_the_same_each_time(make: Callable[[Trace, int], Workload]) -> None:
    run = measure(log_of(make))
    runs = [named(run, "fgd"), named(run, "tessera")]
    drawn = dict(figures(runs))
    assert set(drawn) == {
        f"{name}.{form}" for name in ("allocation", "fragmentation", "dropped") for form in ("png", "svg")
    }
    for name, content in drawn.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG\r\n")
        else:
            text = " ".join(ET.fromstring(content).itertext())
            assert "tessera" in text
            assert "fgd" in text
    assert dict(figures(runs)) == drawn


def test_the_mean_of_a_figure_is_that_of_the_table() -> None:
    run = msgspec.structs.replace(named(measure(log_of(departing)), "fgd"), mean_unallocated_percent=12.34)
    drawn = dict(figures([run]))
    assert "fgd  12.34" in " ".join(ET.fromstring(drawn["allocation.svg"]).itertext())
    assert ("mean unallocated %", "12.34") in table_lines([run])


def test_without_fragmentation_there_is_no_figure_of_it() -> None:
    assert {name for name, _ in figures([measure(log_of())])} == {
        "allocation.png",
        "allocation.svg",
        "dropped.png",
        "dropped.svg",
    }


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unsupported, match=r"pip install 'tessera-gpu\[report\]'"):
        check_figures()


SPREAD = {
    "labels far apart stay": ([1.0, 5.0], [1.0, 5.0]),
    "two at one height part around it": ([3.0, 3.0], [2.5, 3.5]),
    "groups that grow into each other become one": ([3.0, 3.0, 3.9, 3.9], [1.95, 2.95, 3.95, 4.95]),
}


@pytest.mark.parametrize(("heights", "want"), SPREAD.values(), ids=SPREAD.keys())
def test_labels_move_apart_as_little_as_needed(heights: list[float], want: list[float]) -> None:
    assert _apart(heights, 1.0) == pytest.approx(want)
