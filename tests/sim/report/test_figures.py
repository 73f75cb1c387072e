"""Figures of a comparison: whole files, the same each time, with the numbers of the table."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable

import msgspec
import pytest

from builders.placementlogs import log_of, named
from tessera.errors import Unsupported
from tessera.sim.metrics import measure
from tessera.sim.report import check_figures, figures, table_lines
from tessera.sim.workloads import Trace, Workload, departing, filling


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
    with pytest.raises(Unsupported, match=r"pip install '\.\[report\]' in a checkout of Tessera"):
        check_figures()
