"""The table of a comparison: a line for each measure, a cell for each policy."""

import msgspec

from builders.placementlogs import log_of, named
from tessera.sim.metrics import measure
from tessera.sim.report import table_lines
from tessera.sim.workloads import departing


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
