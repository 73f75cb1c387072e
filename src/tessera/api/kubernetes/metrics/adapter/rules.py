"""A configuration file of prometheus-adapter: rules for custom and external metrics, unchanged.

Mistakes are errors with their line, and unsupported parts are remarks.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from tessera.api import documents
from tessera.api.fields import Field, in_place
from tessera.api.kubernetes.metrics.adapter.templates import Form, Template, read_template
from tessera.api.kubernetes.metrics.paths import RESOURCES, find_resource
from tessera.api.patterns import Pattern
from tessera.errors import InvalidInput

__all__ = ["AdapterRule", "AdapterRules", "read_adapter_rules"]

_MOST_RULES: Final = 10_000
_MOST_REMARKS: Final = 20
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_QUERY_FIELDS: Final[Mapping[str, Form]] = {
    "Series": "text",
    "LabelMatchers": "text",
    "LabelValuesByName": "map",
    "GroupBy": "text",
    "GroupBySlice": "list",
}
_LABEL_FIELDS: Final[Mapping[str, Form]] = {"Group": "text", "Resource": "text"}


class _LabelForm(msgspec.Struct, frozen=True):
    """`resources.template`: how labels are called that have names of objects."""

    template: Template
    pattern: Pattern


class AdapterRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: its series, their objects, the metric's name, and its query."""

    place: str
    """Source, document and line."""
    external: bool
    series_query: str
    filters: tuple[tuple[Pattern, bool], ...]
    """Expressions for names of series, and whether they must match."""
    matches: Pattern
    name: str
    """The metric's name, with `$1` for what `matches` captures."""
    overrides: Mapping[str, str]
    """Resources, keys of `RESOURCES`, by the labels that have their names."""
    form: _LabelForm | None
    namespaced: bool
    """Whether a query for an external metric is limited to its namespace."""
    query: Template

    def metric(self, series: str) -> str:
        """Return a series' metric name; empty if the rule does not match."""
        if any(pattern.matches(series) != must_match for pattern, must_match in self.filters):
            return ""
        return self.matches.expanded(series, self.name) or ""

    def resource(self, label: str) -> str | None:
        """Return the resource whose names are in a label; None for none."""
        if label in self.overrides:
            return self.overrides[label]
        if self.form is None:
            return None
        resource = self.form.pattern.group(label, "resource")
        return find_resource(resource, self.form.pattern.group(label, "group") or "") if resource else None

    def label(self, resource: str) -> str | None:
        """Return the label with the names of a resource; None if the rule has none."""
        for label, each in self.overrides.items():
            if each == resource:
                return label
        if self.form is None:
            return None
        _, _, group = resource.partition(".")
        fields = {"Group": re.sub(r"[.-]", "_", group), "Resource": RESOURCES[resource].kind.lower()}
        return self.form.template.filled(fields)


class AdapterRules(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rules."""

    rules: tuple[AdapterRule, ...]
    remarks: tuple[str, ...]
    """What of it is not served, and why."""


def read_adapter_rules(source: str, text: bytes) -> AdapterRules:
    """Return the rules of a file.

    Args:
        source: the file's name.
        text: YAML or JSON.

    Raises:
        InvalidInput: not a configuration, a rule that cannot work, or too many rules.

    """
    document = documents.one(source, text)
    whole = Field(document, document.data).only("rules", "externalRules", "resourceRules")
    remarks = list[str]()
    if whole.get("resourceRules").present:
        subject = whole.get("resourceRules").subject
        remarks.append(f"{subject}: ignored, because metrics-server serves metrics.k8s.io: install it, or keep it")
    fields = [(each, external) for key, external in _KEYS for each in whole.get(key).elements()]
    if len(fields) > _MOST_RULES:
        raise InvalidInput(source, found=f"{len(fields)} rules are more than {_MOST_RULES}", hint="match more by each")
    rules = tuple(_rule(each, remarks, external=external) for each, external in fields)
    if len(remarks) > _MOST_REMARKS:
        remarks[_MOST_REMARKS:] = [f"{source}: {len(remarks) - _MOST_REMARKS} more remarks like these"]
    return AdapterRules(rules=rules, remarks=tuple(remarks))


_KEYS: Final = (("rules", False), ("externalRules", True))


def _rule(field: Field, remarks: list[str], *, external: bool) -> AdapterRule:
    if not field.present:
        raise field.refuse("a rule")
    field.only("seriesQuery", "seriesFilters", "resources", "name", "metricsQuery")
    # 1. Which series.
    name = field.get("name").only("matches", "as")
    matches = _pattern(name.get("matches")) if name.get("matches").text("") else Pattern(".*")
    filters = [_filter(each) for each in field.get("seriesFilters").elements()]
    if name.get("matches").text(""):
        filters.append((matches, True))
    # 2. What they are called.
    metric = name.get("as").text("")
    if not metric and matches.groups > 1:
        found = f"it is missing, and `matches` has {matches.groups} groups"
        raise name.get("as").refuse(found=found, hint='write the name of the metric, as "${1}_per_second"')
    # 3. Of which objects they are.
    resources = field.get("resources").only("template", "overrides", "namespaced")
    overrides = _overrides(resources.get("overrides"), remarks)
    form = _form(resources.get("template")) if resources.get("template").text("") else None
    if not external and not resources.get("overrides").mapping() and form is None:
        remarks.append(f"{field.subject}: it serves nothing, because its resources name no label: write overrides")
    return AdapterRule(
        place=field.place,
        external=external,
        series_query=_words(field.get("seriesQuery")),
        filters=tuple(filters),
        matches=matches,
        name=metric or f"${matches.groups}",
        overrides=overrides,
        form=form,
        namespaced=resources.get("namespaced").boolean(default=True),
        query=_template(field.get("metricsQuery"), _QUERY_FIELDS),
    )


def _words(field: Field) -> str:
    if not field.text().strip():
        raise field.refuse(found="it is empty", hint="write a query of Prometheus")
    return field.text()


def _pattern(field: Field) -> Pattern:
    return in_place(field, partial(Pattern, field.text()))


def _template(field: Field, fields: Mapping[str, Form]) -> Template:
    return in_place(field, partial(read_template, _words(field), fields))


def _filter(field: Field) -> tuple[Pattern, bool]:
    given = [each for each in field.only("is", "isNot").mapping() if field.get(each).text("")]
    if len(given) != 1:
        raise field.refuse(found="it has both of is and isNot" if given else "it has neither is nor isNot")
    return _pattern(field.get(given[0])), given[0] == "is"


def _overrides(field: Field, remarks: list[str]) -> dict[str, str]:
    found = {}
    for label, each in field.members():
        if not _LABEL.fullmatch(label):
            raise each.refuse(found="its key is no label of Prometheus", hint="write letters, digits and _")
        resource, group = each.only("group", "resource").get("resource").text(), each.get("group").text("")
        known = find_resource(resource, group)
        if known is not None:
            found[label] = known
        elif "." in group and not group.endswith(".k8s.io"):
            remarks.append(f"{each.subject}: not served, because {resource}.{group} is no kind of Kubernetes itself")
        else:
            hint = f"name one of {', '.join(RESOURCES)}; for a kind of others write its group"
            raise each.get("resource").refuse("a resource that is known", hint)
    return found


def _form(field: Field) -> _LabelForm:
    template = _template(field, _LABEL_FIELDS)
    if "Resource" not in template.fields():
        raise field.refuse(found="it does not have <<.Resource>>", hint='write it as "kube_<<.Resource>>"')
    text = template.filled({"Group": "(?P<group>.+?)", "Resource": "(?P<resource>.+?)"})
    return _LabelForm(template, in_place(field, partial(Pattern, f"^{text}$")))
