"""Requests queued in front of model servers, by an administrator's query for Prometheus."""

import math
from collections import defaultdict
from typing import Final

import msgspec

from tessera.api.prometheus.answers import Series, read_series
from tessera.errors import InvalidInput

__all__ = ["BY_SERVICE", "PendingRequests", "read_pending_requests"]

BY_SERVICE: Final = "write it as `sum by (namespace, service) (...)`"
"""What to do about a query whose series lack labels."""
_MOST_SERIES: Final = 10_000
_MOST: Final = 1e9
"""More requests of a server count as so many."""


class PendingRequests(msgspec.Struct, frozen=True):
    """Requests that wait in front of model servers."""

    servers: dict[tuple[str, str], float]
    """By namespace and name of the Service; those without any are left out."""
    problem: str = ""
    """What is wrong with series that do not count; empty for none."""


def read_pending_requests(answer: bytes, source: str) -> PendingRequests:
    """Return the queued requests; several series of a server are added up.

    Values that are not positive numbers count as none. Series without the two labels do not count.

    Raises:
        InvalidInput: the answer is invalid, has too many series, or only series that do not count.

    """
    found: dict[tuple[str, str], float] = defaultdict(float)
    series = read_series(answer, source, most=_MOST_SERIES)
    bad = [each for each in series if each.value is None or not all(_server(each))]
    problem = ""
    if bad:
        labels = f"{len(bad)} of {len(series)} series lack namespace or service; one has {sorted(bad[0].metric)[:10]}"
        problem = "it is not a vector" if bad[0].value is None else labels
    if bad and len(bad) == len(series):
        raise InvalidInput(source, found=problem, hint=BY_SERVICE)
    for each in series:
        number = math.nan if each.value is None else _number(each.value[1])
        if all(_server(each)) and math.isfinite(number) and number > 0:
            found[_server(each)] = min(found[_server(each)] + number, _MOST)
    return PendingRequests(dict(found), problem)


def _server(series: Series) -> tuple[str, str]:
    return series.metric.get("namespace", ""), series.metric.get("service", "")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
