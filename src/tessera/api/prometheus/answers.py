"""Prometheus' answers to queries: series and their samples. They are untrusted.

Source: prometheus.io, "HTTP API".
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.usage.plausible import possible
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["Labeled", "Sampled", "Series", "numbers", "read_labeled", "read_sampled", "read_series"]

Labeled: TypeAlias = tuple[str, frozenset[str]]
"""The name of series, and the names of their labels."""
_NAME: Final = "__name__"
_MOST: Final = 1e9
"""Upper bound of plausible percentages, replicas and requests."""


class Series(msgspec.Struct, frozen=True):
    """A series of an answer: with one sample of an instant vector, or the samples of a range."""

    metric: dict[str, str]
    value: tuple[float, str] | None = None
    """When, and the number as text."""
    values: tuple[tuple[float, str], ...] = ()
    """In order of time."""


class _Data(msgspec.Struct, frozen=True):
    result: tuple[Series, ...]


class _Answer(msgspec.Struct, frozen=True):
    data: _Data


class Sampled(msgspec.Struct, frozen=True):
    """A value at a moment, of a series or a scalar."""

    labels: dict[str, str]
    value: float
    """May be NaN or infinite: what counts is the reader's decision."""
    at_s: float


class _Scalar(msgspec.Struct, frozen=True, tag_field="resultType", tag="scalar"):
    result: tuple[float, str]


class _Vector(msgspec.Struct, frozen=True, tag_field="resultType", tag="vector"):
    result: tuple[Series, ...]


class _Instant(msgspec.Struct, frozen=True):
    data: _Scalar | _Vector


class _Names(msgspec.Struct, frozen=True):
    status: Literal["success"]
    data: tuple[msgspec.Raw, ...]


def read_series(answer: bytes, source: str, *, most: int) -> tuple[Series, ...]:
    """Return the series of an answer, `most` at most.

    Raises:
        InvalidInput: it is not an answer, or has more.

    """
    try:
        found = msgspec.json.decode(answer, type=_Answer).data.result
    except UNDECODABLE as error:
        raise InvalidInput(
            source, found=f"it is not an answer of Prometheus' HTTP API ({error_phrase(error, answer)})"
        ) from error
    if len(found) > most:
        raise InvalidInput(source, found=f"{len(found)} series are more than {most}")
    return found


def read_sampled(answer: bytes, source: str, *, most: int) -> tuple[Sampled, ...]:
    """Return the values of an answer to an instant query: a vector, or a scalar, which has no labels.

    Raises:
        InvalidInput: it is not an answer, or has more than `most` values, or one that is not a number.

    """
    try:
        data = msgspec.json.decode(answer, type=_Instant).data
        if isinstance(data, _Scalar):
            return (Sampled({}, float(data.result[1]), data.result[0]),)
        samples = [(each.metric, each.value) for each in data.result]
        found = tuple(Sampled(labels, float(value[1]), value[0]) for labels, value in samples if value is not None)
    except UNDECODABLE as error:
        cause = f"it is not Prometheus' answer to an instant query ({error_phrase(error, answer)})"
        raise InvalidInput(source, found=cause, hint="query a vector or a scalar") from error
    if len(found) > most:
        raise InvalidInput(source, found=f"{len(found)} series are more than {most}")
    return found


def read_labeled(answer: bytes, source: str) -> frozenset[Labeled]:
    """Return the names of series and of their labels in an answer of `/api/v1/series`, each once; values are ignored.

    Raises:
        InvalidInput: it is not an answer.

    """
    try:
        each = msgspec.json.Decoder(dict[str, str])
        found = map(each.decode, msgspec.json.decode(answer, type=_Names).data)
        return frozenset((one[_NAME], frozenset(one.keys() - {_NAME})) for one in found if _NAME in one)
    except UNDECODABLE as error:
        raise InvalidInput(
            source, found=f"it is not Prometheus' answer about series ({error_phrase(error, answer)})"
        ) from error


def numbers(samples: Iterable[tuple[float, str]]) -> Iterator[tuple[float, float]]:
    """Yield when each sample is, and its value, where that is a number from 0 to a billion."""
    for at_s, text in samples:
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(at_s) and possible(value, _MOST):
            yield at_s, value
