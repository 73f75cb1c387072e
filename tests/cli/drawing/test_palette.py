"""Colors of workloads: readable, and different."""

import pytest

from tessera.cli.drawing.palette import tone


def luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("workload", range(12))
def test_text_and_outline_stand_out_from_the_fill(workload: int) -> None:
    """Contrast by WCAG 2: 4.5 for text, 3 for graphics."""
    look = tone(workload)
    for color, want in ((look.ink, 4.5), (look.edge, 3.0)):
        high, low = sorted((luminance(look.fill), luminance(color)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= want


def test_twenty_four_workloads_look_different() -> None:
    looks = {(tone(n).fill, tone(n).striped) for n in range(24)}
    assert len(looks) == 24
    assert tone(24) == tone(0)
