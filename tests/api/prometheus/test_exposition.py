"""Prometheus' text format."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tessera.api.prometheus.exposition import exposition
from tessera.core.usage.families import Family, Labels, Metric, MetricSample

GAUGE = Metric("m", "gauge", "Help.")


def lines(*samples: MetricSample, metric: Metric = GAUGE) -> list[str]:
    return exposition((Family(metric, samples),)).decode().splitlines()


def test_a_family_has_help_type_and_samples() -> None:
    labels: Labels = (("a", "1"), ("b", 'x"\\\ny'))
    histogram = Metric("h", "histogram", "Two\nlines \\.")
    assert lines(
        MetricSample((("le", "+Inf"),), 3, "_bucket"),
        MetricSample((), 1.5, "_sum"),
        MetricSample(labels, 3, "_count"),
        metric=histogram,
    ) == [
        "# HELP h Two\\nlines \\\\.",
        "# TYPE h histogram",
        'h_bucket{le="+Inf"} 3',
        "h_sum 1.5",
        'h_count{a="1",b="x\\"\\\\\\ny"} 3',
    ]


def test_whole_numbers_have_no_fraction_and_large_ones_all_digits() -> None:
    found = [line.split()[1] for line in lines(*(MetricSample((), value) for value in (1.0, 1 << 60, 0.1, 1e300)))[2:]]
    assert found == ["1", str(1 << 60), "0.1", "1e+300"]


READ = re.compile(r'([a-z]+)="((?:\\.|[^"\\])*)"')


@given(st.text(st.characters(codec="utf-8")), st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_and_value_can_be_read_back(text: str, value: float) -> None:
    line = exposition((Family(GAUGE, (MetricSample((("a", text), ("b", "z")), value),)),)).decode().split("\n")[2]
    labels, _, number = line.removeprefix("m{").rpartition("} ")
    found = {name: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], raw) for name, raw in READ.findall(labels)}
    assert found == {"a": text, "b": "z"}
    assert float(number) == value
