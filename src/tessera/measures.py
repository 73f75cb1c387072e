"""The metrics of a process: counters, histograms of times, the age of its loops."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from tessera.api.prometheus.exposition import exposition
from tessera.core.usage.families import Family, Labels, Metric, MetricSample
from tessera.core.usage.ownmetrics import LOOP_AGE

__all__ = ["Measures"]

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BUCKETS = (*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf")


class Measures:
    """The measures of one process. Labels have values from closed sets, so that series stay bounded.

    Args:
        clock_s: a monotonic clock.

    """

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self.clock_s = clock_s
        self._values: dict[Metric, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._times: dict[Metric, dict[Labels, list[int]]] = defaultdict(dict)
        self._sums_s: dict[Metric, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._turned_s: dict[str, float] = {}

    def count(self, metric: Metric, by: int = 1, **labels: str) -> None:
        """Increment a counter."""
        self._values[metric][tuple(labels.items())] += by

    def set(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Set all series of a gauge, or of a counter that is counted elsewhere; its other series are removed."""
        self._values[metric] = dict(values)

    def observe(self, metric: Metric, seconds: float, **labels: str) -> None:
        """Add a time to a histogram."""
        own = tuple(labels.items())
        buckets = self._times[metric].setdefault(own, [0] * len(_BUCKETS))
        buckets[bisect_left(_BOUNDS_S, seconds)] += 1
        self._sums_s[metric][own] += seconds

    def started(self, loop: str) -> None:
        """Note that a loop begins: its age counts from here until its first successful pass."""
        self._turned_s.setdefault(loop, self.clock_s())

    def turned(self, loop: str) -> None:
        """Note a successful pass of a loop; one that neither began nor had a pass has no age."""
        self._turned_s[loop] = self.clock_s()

    def stopped(self, loop: str) -> None:
        """Note that a loop has ended, such as that of a controller that no longer leads: it has no age."""
        self._turned_s.pop(loop, None)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return exposition(self._families())

    def _families(self) -> Iterator[Family]:
        now_s = self.clock_s()
        ages = tuple(MetricSample((("loop", loop),), now_s - at_s) for loop, at_s in sorted(self._turned_s.items()))
        if ages:
            yield Family(LOOP_AGE, ages)
        for metric, values in self._values.items():
            yield Family(metric, tuple(MetricSample(labels, value) for labels, value in values.items()))
        for metric, times in self._times.items():
            yield Family(metric, tuple(self._histogram(metric, times)))

    def _histogram(self, metric: Metric, times: Mapping[Labels, list[int]]) -> Iterator[MetricSample]:
        for labels, buckets in times.items():
            total = 0
            for bound, count in zip(_BUCKETS, buckets, strict=True):
                total += count
                yield MetricSample((*labels, ("le", bound)), total, "_bucket")
            yield MetricSample(labels, self._sums_s[metric][labels], "_sum")
            yield MetricSample(labels, total, "_count")
