"""The last scraped series of model servers' pods, with the time of the scrape.

A range of raw samples is queried instead of a value, so that two passes that read the same scrape can tell.
Source: prometheus.io, "Querying basics" (range vector selectors) and "HTTP API".
"""

import math
from collections import defaultdict
from typing import Final

import msgspec

from tessera.api.prometheus.answers import read_series
from tessera.api.prometheus.matchers import selected
from tessera.api.prometheus.samples import Sample
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.core.serving.metrics.queuetime import LONGEST_S

__all__ = ["Scrape", "pod_query", "read_scrapes"]

_MOST_SERIES: Final = 100_000
"""1,000 pods of Triton with a dozen models have as many."""
_OTHER_WAY_S: Final = 60.0
"""Where one of several jobs did not scrape a pod for this long, another one counts."""
_SCRAPED_BY: Final = ("job", "instance", "prometheus", "prometheus_replica")
"""Labels that differ when several jobs, or several Prometheis, scrape one pod."""


class Scrape(msgspec.Struct, frozen=True):
    """A pod's metrics at a moment."""

    at_s: float
    samples: tuple[Sample, ...]


def pod_query(namespace: str = "", matchers: str = "") -> str:
    """Return the query for the engines' series of all pods, as far back as they matter for the present load.

    Args:
        namespace: of the pods; empty for all.
        matchers: labels of the cluster's series; empty where Prometheus has those of one cluster.

    """
    where = f'namespace="{namespace}"' if namespace else 'namespace!=""'
    names = "|".join(sorted(frozenset[str]().union(*(each.series for each in ENGINE_METRICS))))
    return selected("", matchers, f'__name__=~"{names}"', where, 'pod!=""') + f"[{LONGEST_S:.0f}s]"


def read_scrapes(answer: bytes, source: str) -> dict[tuple[str, str], Scrape]:
    """Return the last scrape of each pod, by namespace and name.

    Of a pod that is scraped twice one scrape counts, so that nothing is added up twice, and the same one in each pass:
    two engines in a pod have counters of their own. Another one counts where that was not scraped for a minute. Series
    missing from the last scrape, as of a model that was unloaded, do not count.

    Raises:
        InvalidInput: the answer is invalid, or has too many series.

    """
    ways: dict[tuple[str, str], dict[tuple[str, ...], list[tuple[float, Sample]]]] = defaultdict(dict)
    for each in read_series(answer, source, most=_MOST_SERIES):
        pod = each.metric.get("namespace", ""), each.metric.get("pod", "")
        at_s, text = each.values[-1] if each.values else (math.nan, "")
        if not all(pod) or not math.isfinite(at_s):
            continue
        way = tuple(each.metric.get(label, "") for label in _SCRAPED_BY)
        sample = Sample(each.metric.get("__name__", ""), _number(text))
        ways[pod].setdefault(way, []).append((at_s, sample))
    found = {}
    for pod, by_way in ways.items():
        scrapes = [(max(at_s for at_s, _ in series), series) for _, series in sorted(by_way.items())]
        newest_s = max(at_s for at_s, _ in scrapes)
        last_s, series = next(each for each in scrapes if each[0] > newest_s - _OTHER_WAY_S)
        found[pod] = Scrape(last_s, tuple(sample for at_s, sample in series if at_s == last_s))
    return found


def _number(text: str) -> float:
    """Return a number; anything else is no value of a counter, which the reader reports."""
    try:
        return float(text)
    except ValueError:
        return math.nan
