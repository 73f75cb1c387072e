"""Answers of `external.metrics.k8s.io`, for clients."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.serving.autoscaling.scaletozero import ReplicasMetric
from tessera.core.workload.units import quantity
from tessera.errors import InvalidInput

__all__ = ["read_desired_replicas"]


class _Item(msgspec.Struct, frozen=True):
    value: str
    timestamp: Annotated[dt.datetime, msgspec.Meta(tz=True)]


def read_desired_replicas(items: Iterable[Mapping[str, Any]], subject: str) -> ReplicasMetric | None:
    """Return the proposed replicas; None without a value.

    Args:
        items: of an ExternalMetricValueList, each a server.
        subject: the metric, as errors name it.

    Raises:
        InvalidInput: an invalid item.

    """
    listed = tuple(items)
    try:
        found = msgspec.convert(listed, tuple[_Item, ...])
    except msgspec.ValidationError as error:
        raise InvalidInput(
            subject, found=f"it is not an ExternalMetricValueList ({error_phrase(error, listed)})"
        ) from error
    if not found:
        return None
    replicas = float(sum(quantity(each.value, subject) for each in found))
    return ReplicasMetric(replicas=replicas, at_s=min(each.timestamp for each in found).timestamp())
