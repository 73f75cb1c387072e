"""Samples of Prometheus' text format (0.0.4), from an untrusted server; the one importer of prometheus_client.

Only requested series are read: a server exposes hundreds, and an unneeded one may be malformed.

Source: prometheus.io, Exposition formats.
"""

from collections.abc import Collection

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tessera.errors import InvalidInput, shown

__all__ = ["Sample", "read_samples"]

_MOST_LINES = 10_000
"""Limit of the lines of requested series; a server with a hundred models has a few thousand."""
_AFTER_NAME = ("{", " ", "\t")


class Sample(msgspec.Struct, frozen=True):
    """One line."""

    name: str
    labels: dict[str, str]
    value: float
    """May be NaN or infinite: what counts as a value is the reader's decision."""


def read_samples(source: str, content: bytes, names: Collection[str]) -> tuple[Sample, ...]:
    """Return the samples of these series, in the order of the text.

    Args:
        source: what the text came from, for errors.
        content: the text.
        names: of the series, with their suffixes: `vllm:request_queue_time_seconds_sum`.

    Raises:
        InvalidInput: not UTF-8, a line that is none, a series twice, or too many.

    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(source, found=f"it is not metrics in UTF-8 ({shown(error)})") from error
    requested = frozenset(names)
    lines = [line for line in text.split("\n") if _name(line) in requested]
    if len(lines) > _MOST_LINES:
        raise InvalidInput(source, found=f"{len(lines)} lines of its series are more than {_MOST_LINES}")
    found, seen = [], set()
    for line in lines:
        sample = _sample(source, line)
        series = (sample.name, *sorted(sample.labels.items()))
        if series in seen:
            raise InvalidInput(source, found=f"it has {shown(line)}, a repeated series", hint="expose each series once")
        seen.add(series)
        found.append(sample)
    return tuple(found)


def _name(line: str) -> str:
    ends = [place for mark in _AFTER_NAME if (place := line.find(mark)) >= 0]
    return line[: min(ends)] if ends else ""


def _sample(source: str, line: str) -> Sample:
    try:
        samples = [each for family in text_string_to_metric_families(line + "\n") for each in family.samples]
        (one,) = samples
        return Sample(one.name, dict(one.labels), float(one.value))
    except (ValueError, IndexError, KeyError) as error:
        raise InvalidInput(source, found=shown(line), expected='a line NAME{LABEL="VALUE",...} NUMBER') from error
