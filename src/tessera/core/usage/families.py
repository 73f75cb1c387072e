"""Families of metrics: a name with its kind and help, and the samples of it."""

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Family", "Labels", "Metric", "MetricSample"]

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are written."""


class Metric(msgspec.Struct, frozen=True):
    """A metric that Tessera exposes."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    """Those besides the labels of its device, for the list in the documentation."""


class MetricSample(msgspec.Struct, frozen=True):
    """One value; a histogram's have a suffix."""

    labels: Labels
    value: float
    suffix: Literal["", "_bucket", "_sum", "_count"] = ""


class Family(msgspec.Struct, frozen=True):
    """A metric with its samples."""

    metric: Metric
    samples: tuple[MetricSample, ...]
