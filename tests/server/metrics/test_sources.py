"""Several sources of metrics as one: of two that serve the same metric the first answers."""

from collections.abc import Sequence

import pytest

from tessera.api.kubernetes.metrics.answers import ExternalSeries, MetricValue
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.server.metrics.sources import JoinedSources, MetricAbsent

pytestmark = pytest.mark.anyio


class Numbers:
    """Serves metrics of pods, and external ones of the same names, with one number for all."""

    def __init__(self, number: int, *metrics: str) -> None:
        self.number = number
        self.metrics = metrics

    def custom(self) -> frozenset[tuple[str, str]]:
        return frozenset(("pods", metric) for metric in self.metrics)

    def external(self) -> frozenset[str]:
        return frozenset(self.metrics)

    async def values(self, requested: Custom) -> Sequence[MetricValue]:
        return [MetricValue(name=requested.metric, namespace="ns", value=self.number, at_s=0.0)]

    async def series(self, requested: External) -> Sequence[ExternalSeries]:
        return [ExternalSeries(labels={"metric": requested.metric}, value=self.number, at_s=0.0)]


BOTH = JoinedSources((Numbers(1, "a", "b"), Numbers(2, "b", "c")))


@pytest.mark.parametrize(("metric", "want"), [("a", 1), ("b", 1), ("c", 2)])
async def test_the_first_that_serves_a_metric_answers(metric: str, want: int) -> None:
    custom = await BOTH.values(Custom(version="v1beta1", resource="pods", namespace="ns", metric=metric))
    external = await BOTH.series(External(namespace="ns", metric=metric))
    assert ([each.value for each in custom], [each.value for each in external]) == ([want], [want])


async def test_all_are_listed_once() -> None:
    assert BOTH.external() == {"a", "b", "c"}
    assert BOTH.custom() == {("pods", metric) for metric in "abc"}


async def test_an_unknown_metric_is_refused_with_the_metrics_of_its_resource() -> None:
    with pytest.raises(MetricAbsent, match="metric a of nodes: there is no such metric: add a rule that serves it"):
        await BOTH.values(Custom(version="v1beta1", resource="nodes", metric="a"))
    with pytest.raises(MetricAbsent, match="external metric d: there is no such metric: request one of a, b, c"):
        await BOTH.series(External(namespace="ns", metric="d"))


async def test_of_many_metrics_twenty_are_named() -> None:
    many = JoinedSources((Numbers(1, *(f"m{number:02}" for number in range(21))),))
    with pytest.raises(MetricAbsent, match=r"m18, m19, \.\.\.$"):
        await many.series(External(namespace="ns", metric="x"))
