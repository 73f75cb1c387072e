"""The PromQL query for a metric of a rule.

Names and labels come from the client: they are quoted, and impossible ones are rejected.
"""

import re
from collections.abc import Sequence
from typing import Final

from tessera.api.kubernetes.labelselectors import Selector
from tessera.api.kubernetes.metrics.adapter.discovery import Named
from tessera.api.kubernetes.metrics.adapter.templates import Given
from tessera.api.kubernetes.metrics.paths import Custom, External
from tessera.core.workload.need import Requirement
from tessera.errors import InvalidInput, shown

__all__ = ["custom_query", "external_query"]

_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OBJECT: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]{0,252})")
_LONGEST: Final = 500_000
"""Characters of a query: Prometheus reads a megabyte of address."""


def custom_query(named: Named, requested: Custom, names: Sequence[str]) -> str:
    """Return the query for a metric of these objects, one at least.

    Raises:
        InvalidInput: a selector that Prometheus does not have, or a rule that does not say the labels of the objects.

    """
    matchers, values = _selected(requested.metric_selector)
    if requested.namespace:
        _match(matchers, values, _label_of(named, "namespaces"), (requested.namespace,))
    label = _label_of(named, requested.resource)
    _match(matchers, values, label, names)
    return _filled(named, matchers, values, (label,))


def external_query(named: Named, requested: External) -> str:
    """Return the query for an external metric.

    Raises:
        InvalidInput: a selector that Prometheus does not have, or a rule that does not say the label of namespaces.

    """
    matchers, values = _selected(requested.selector)
    if named.rule.namespaced:
        _match(matchers, values, _label_of(named, "namespaces"), (requested.namespace,))
    return _filled(named, matchers, values, ())


def _filled(named: Named, matchers: Sequence[str], values: dict[str, str], group_by: tuple[str, ...]) -> str:
    fields: dict[str, Given] = {
        "Series": named.series,
        "LabelMatchers": ",".join(matchers),
        "LabelValuesByName": values,
        "GroupBy": ",".join(group_by),
        "GroupBySlice": group_by,
    }
    query = named.rule.query.filled(fields)
    if len(query) > _LONGEST:
        found = f"its query would have {len(query)} characters, more than {_LONGEST}"
        raise InvalidInput(named.rule.place, found=found, hint="request fewer objects with a label selector")
    return query


def _label_of(named: Named, resource: str) -> str:
    label = named.rule.label(resource)
    if label is None:
        hint = f"write resources.overrides for {resource}"
        hint += ", or resources.namespaced: false" if named.rule.external else ""
        raise InvalidInput(named.rule.place, found=f"the rule says no label that names {resource}", hint=hint)
    return label


def _match(matchers: list[str], values: dict[str, str], label: str, names: Sequence[str]) -> None:
    for name in names:
        if not _OBJECT.fullmatch(name):
            raise InvalidInput("name of an object", found=shown(name), expected="one that Kubernetes has")
    values[label] = "|".join(names)
    matchers.append(_matcher(label, names))


def _matcher(label: str, values: Sequence[str], *, other: bool = False) -> str:
    """Return `label="a"`, or `label=~"a|b"`; with `other` the opposite."""
    if len(values) == 1:
        return f"{label}{'!=' if other else '='}{_quoted(values[0])}"
    pattern = "|".join(each.replace(".", r"\.") for each in values)
    return f"{label}{'!~' if other else '=~'}{_quoted(pattern)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


def _selected(selector: Selector) -> tuple[list[str], dict[str, str]]:
    """Return matchers for what is selected, and the values by label."""
    matchers, by_name = list[str](), dict[str, str]()
    for each in sorted(selector, key=lambda requirement: requirement.key):
        matchers.append(_requirement(each))
        by_name[each.key] = "|".join(sorted(each.values))
    return matchers, by_name


def _requirement(requirement: Requirement) -> str:
    key, values = requirement.key, sorted(requirement.values)
    if not _LABEL.fullmatch(key):
        hint = f"Prometheus calls it {re.sub('[^a-zA-Z0-9_]', '_', key)}, where it has it"
        raise InvalidInput(f"label {shown(key)} of a selector", found=shown(key), expected="a label", hint=hint)
    match requirement.operator:
        case "In":
            return _matcher(key, values)
        case "NotIn":
            return _matcher(key, values, other=True)
        case "Exists":
            return f'{key}!=""'
        case "DoesNotExist":
            return f'{key}=""'
    raise InvalidInput(
        f"label {key} of a selector", found="Prometheus has neither < nor >", hint="use =, !=, in, notin"
    )
