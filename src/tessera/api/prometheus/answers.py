"""What Prometheus answers to a query: series and their samples. Nothing in it is trusted.

Source: prometheus.io, "HTTP API".
"""

import msgspec

from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = ["Series", "read_series"]


class Series(msgspec.Struct, frozen=True):
    """A series of an answer: with one sample of an instant vector, or with those of a time."""

    metric: dict[str, str]
    value: tuple[float, str] | None = None
    """When, and the number as text."""
    values: tuple[tuple[float, str], ...] = ()
    """In order of time."""


class _Data(msgspec.Struct, frozen=True):
    result: tuple[Series, ...]


class _Answer(msgspec.Struct, frozen=True):
    data: _Data


def read_series(answer: bytes, source: str, *, most: int) -> tuple[Series, ...]:
    """Return the series of an answer, `most` at most.

    Raises:
        InvalidInput: it is none, or has more.

    """
    try:
        found = msgspec.json.decode(answer, type=_Answer).data.result
    except UNDECODABLE as error:
        raise InvalidInput(source, found=f"it is not an answer of Prometheus' HTTP API ({shown(error)})") from error
    if len(found) > most:
        raise InvalidInput(source, found=f"{len(found)} series are more than {most}")
    return found
