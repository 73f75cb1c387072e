"""The metrics that rules make of a Prometheus' series: by name, with the series behind each."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tessera.api.kubernetes.metrics.adapter.rules import AdapterRule
from tessera.api.prometheus.answers import Labeled
from tessera.errors import InvalidInput

__all__ = ["Discovered", "Named", "discover"]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:.-]{0,252}")
"""What is a part of a path, and of a rule of RBAC."""
_MOST_MATCHES: Final = 1_000_000
"""Names that are matched against rules: some seconds."""


class Named(msgspec.Struct, frozen=True):
    """The series of a metric, and its rule."""

    rule: AdapterRule
    series: str


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """The served metrics."""

    custom: Mapping[tuple[str, str], Named] = {}
    """By resource, a key of `RESOURCES`, and name."""
    external: Mapping[str, Named] = {}


def discover(rules: Sequence[AdapterRule], series: Mapping[str, frozenset[Labeled]]) -> Discovered:
    """Return the served metrics. Of two rules for a metric the later one counts, as in the adapter.

    Args:
        rules: in their order.
        series: names of series with the names of their labels, by `seriesQuery`.

    Raises:
        InvalidInput: too many rules for as many series.

    """
    names = {query: _labels_by_name(each) for query, each in series.items()}
    matches = sum(len(names.get(rule.series_query, {})) for rule in rules)
    if matches > _MOST_MATCHES:
        found = f"{len(rules)} rules are for {matches} names of series together, more than {_MOST_MATCHES}"
        raise InvalidInput("rules", found=found, hint="write seriesQueries that find fewer")
    custom, external = dict[tuple[str, str], Named](), dict[str, Named]()
    for rule in rules:
        for name, labels in names.get(rule.series_query, {}).items():
            metric = rule.metric(name)
            if not _NAME.fullmatch(metric):
                continue
            if rule.external:
                external[metric] = Named(rule, name)
                continue
            for resource in filter(None, map(rule.resource, sorted(labels))):
                custom[resource, metric] = Named(rule, name)
    return Discovered(custom=custom, external=external)


def _labels_by_name(series: frozenset[Labeled]) -> dict[str, frozenset[str]]:
    found = dict[str, frozenset[str]]()
    for name, labels in sorted(series, key=lambda each: each[0]):
        found[name] = found.get(name, frozenset()) | labels
    return found
