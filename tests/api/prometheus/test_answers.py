"""Answers of Prometheus: what is none, and how much is too much."""

import pytest

from tessera.api.prometheus.answers import Series, read_series
from tessera.errors import InvalidInput

RANGE = b'{"data": {"result": [{"metric": {"pod": "a"}, "values": [[1, "2"], [3.5, "NaN"]]}]}}'
VECTOR = b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]}}'


def test_a_range_and_a_vector() -> None:
    assert read_series(RANGE, "p", most=1) == (Series({"pod": "a"}, values=((1.0, "2"), (3.5, "NaN"))),)
    assert read_series(VECTOR, "p", most=1) == (Series({}, value=(1.0, "2")),)


@pytest.mark.parametrize("answer", [b"", b"\xff", b"<html>", b'{"data": {}}', b'{"x": ' + b"[" * 100_000])
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"p: it is not an answer of Prometheus' HTTP API"):
        read_series(answer, "p", most=1)


def test_more_than_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="1 series are more than 0"):
        read_series(VECTOR, "p", most=0)
