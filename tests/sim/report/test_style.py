"""Labels in figures do not overlap."""

import pytest

from tessera.sim.report.style import _apart

SPREAD = {
    "labels far apart stay": ([1.0, 5.0], [1.0, 5.0]),
    "two at one height part around it": ([3.0, 3.0], [2.5, 3.5]),
    "groups that grow into each other become one": ([3.0, 3.0, 3.9, 3.9], [1.95, 2.95, 3.95, 4.95]),
}


@pytest.mark.parametrize(("heights", "want"), SPREAD.values(), ids=SPREAD.keys())
def test_labels_move_apart_as_little_as_needed(heights: list[float], want: list[float]) -> None:
    assert _apart(heights, 1.0) == pytest.approx(want)
