"""What the external metrics API answers, read again: the sum of the items, as of the oldest of them."""

from typing import Any

import pytest

from tessera.api.kubernetes.metrics.answers import ExternalSeries, external_values
from tessera.api.kubernetes.metrics.paths import External
from tessera.api.kubernetes.metrics.values import read_desired_replicas
from tessera.core.serving.autoscaling.scaletozero import ReplicasMetric
from tessera.errors import InvalidInput


def items(*found: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the items of an answer with these values and times."""
    series = [ExternalSeries(labels={"a": "b"}, value=value, at_s=at_s) for value, at_s in found]
    answer: list[dict[str, Any]] = external_values(External(metric="tessera_replicas", namespace="ns"), series)["items"]
    return answer


def test_what_is_answered_is_read() -> None:
    assert read_desired_replicas(items((2, 1000.0)), "m") == ReplicasMetric(replicas=2.0, at_s=1000.0)
    assert read_desired_replicas(items((0, 1030.0), (0.5, 1015.0)), "m") == ReplicasMetric(replicas=0.5, at_s=1015.0)
    assert read_desired_replicas([], "m") is None


BAD: dict[str, dict[str, Any]] = {
    "no value": {"timestamp": "2026-11-26T08:00:00Z"},
    "no quantity": {"value": "many", "timestamp": "2026-11-26T08:00:00Z"},
    "a number": {"value": 2, "timestamp": "2026-11-26T08:00:00Z"},
    "no time": {"value": "2", "timestamp": "now"},
    "a time of nowhere": {"value": "2", "timestamp": "2026-11-26T08:00:00"},
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_answer_is_refused(case: str) -> None:
    with pytest.raises(InvalidInput, match="tessera_replicas of ns/llm"):
        read_desired_replicas([BAD[case]], "tessera_replicas of ns/llm")
