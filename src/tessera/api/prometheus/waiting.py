"""Requests queued in front of model servers, by an administrator's query for Prometheus."""

import math
from collections import defaultdict
from typing import Final

from tessera.api.prometheus.answers import read_series
from tessera.errors import InvalidInput

__all__ = ["read_waiting"]

_MOST_SERIES: Final = 10_000


def read_waiting(answer: bytes, source: str) -> dict[tuple[str, str], float]:
    """Return the queued requests by namespace and name of the Service; several series of one are added up.

    Values that are not positive numbers count as none.

    Raises:
        InvalidInput: the answer is none, has too many series, or series without the two labels.

    """
    found: dict[tuple[str, str], float] = defaultdict(float)
    for each in read_series(answer, source, most=_MOST_SERIES):
        server = each.metric.get("namespace", ""), each.metric.get("service", "")
        if not all(server) or each.value is None:
            labels = f"a series has labels {sorted(each.metric)[:10]}, and not both of namespace and service"
            cause = labels if each.value is not None else "it is not a vector"
            raise InvalidInput(source, found=cause, hint="write it as `sum by (namespace, service) (...)`")
        number = _number(each.value[1])
        if math.isfinite(number) and number > 0:
            found[server] += number
    return dict(found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
