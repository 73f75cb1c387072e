"""Answers of Prometheus: what is none, and how much is too much."""

import math

import msgspec
import pytest

from tessera.api.prometheus.answers import Sampled, Series, read_labeled, read_sampled, read_series
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


def test_more_series_than_requested() -> None:
    with pytest.raises(InvalidInput, match="1 series are more than 0"):
        read_series(VECTOR, "p", most=0)


SCALAR = b'{"status": "success", "data": {"resultType": "scalar", "result": [1.5, "NaN"]}}'


def test_values_of_a_moment() -> None:
    assert read_sampled(VECTOR, "p", most=1) == (Sampled({}, 2.0, 1.0),)
    (scalar,) = read_sampled(SCALAR, "p", most=1)
    assert (scalar.labels, scalar.at_s, math.isnan(scalar.value)) == ({}, 1.5, True)


NO_VALUES = {
    "nothing": b"",
    "a range": b'{"data": {"resultType": "matrix", "result": []}}',
    "text": b'{"data": {"resultType": "scalar", "result": [1, "x"]}}',
    "nesting without end": b'{"data": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("case", NO_VALUES)
def test_what_is_no_answer_with_values(case: str) -> None:
    with pytest.raises(InvalidInput, match="p: it is not Prometheus' answer to an instant query"):
        read_sampled(NO_VALUES[case], "p", most=1)


def test_more_values_than_requested() -> None:
    with pytest.raises(InvalidInput, match="1 series are more than 0"):
        read_sampled(VECTOR, "p", most=0)


def test_a_series_without_a_value_is_none() -> None:
    answer = b'{"data": {"resultType": "vector", "result": [{"metric": {"a": "b"}}]}}'
    assert read_sampled(answer, "p", most=1) == ()


def test_names_of_series_and_labels() -> None:
    names = [{"__name__": "up", "pod": "a"}, {"__name__": "up", "pod": "b"}, {"__name__": "up"}, {"pod": "c"}]
    answer = msgspec.json.encode({"status": "success", "data": names})
    assert read_labeled(answer, "p") == {("up", frozenset({"pod"})), ("up", frozenset())}


@pytest.mark.parametrize("answer", [b"", b'{"status": "error"}', b'{"status": "success", "data": [{"a": 1}]}'])
def test_what_is_no_answer_about_series(answer: bytes) -> None:
    with pytest.raises(InvalidInput, match="p: it is not Prometheus' answer about series"):
        read_labeled(answer, "p")
