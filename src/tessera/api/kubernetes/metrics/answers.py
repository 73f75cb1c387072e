"""Responses of the metrics APIs: discovery, lists of values, and errors as Kubernetes' Status.

Source: k8s.io/metrics `pkg/apis/{custom,external}_metrics/{v1beta1,v1beta2}/types.go`; k8s.io/apimachinery
`pkg/apis/meta/v1/types.go` (APIGroup, APIResourceList, Status).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tessera.api.kubernetes.metrics.paths import CUSTOM, EXTERNAL, RESOURCES, VERSIONS, Custom, Discovery, External
from tessera.api.kubernetes.times import time_text
from tessera.errors import InvalidInput

__all__ = ["ExternalSeries", "MetricValue", "custom_values", "discovery", "external_values", "quantity_text", "status"]

_MILLI: Final = 1000
_LARGEST: Final = (1 << 63) - 1
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of an object."""

    name: str
    namespace: str = ""
    value: float
    at_s: float
    """When it was measured, since 1970."""
    window_s: float | None = None
    """The window; None for a moment."""


class ExternalSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that describes no object."""

    labels: Mapping[str, str]
    value: float
    at_s: float
    window_s: float | None = None


def quantity_text(value: float, subject: str) -> str:
    """Return a number as a Kubernetes quantity, to the thousandth, as autoscalers count.

    Raises:
        InvalidInput: it is not a number, or is too large for an autoscaler.

    """
    if not math.isfinite(value) or abs(value) * _MILLI > _LARGEST:
        raise InvalidInput(subject, found=f"{value:g}", expected=f"a number of at most {_LARGEST // _MILLI}")
    milli = round(value * _MILLI)
    return f"{milli}m" if milli % _MILLI else str(milli // _MILLI)


def custom_values(requested: Custom, values: Iterable[MetricValue]) -> dict[str, Any]:
    """Return a MetricValueList of the version that was requested.

    Raises:
        InvalidInput: a value that is not a number.

    """
    resource, items = RESOURCES[requested.resource], []
    for each in values:
        described = {"kind": resource.kind, "apiVersion": resource.api_version, "name": each.name}
        described |= {"namespace": each.namespace} if each.namespace else {}
        name = (
            {"metricName": requested.metric}
            if requested.version == "v1beta1"
            else {"metric": {"name": requested.metric}}
        )
        measured = _measured(requested.metric, each)
        items.append({"describedObject": described, **name, **measured})
    return {"kind": "MetricValueList", "apiVersion": f"{CUSTOM}/{requested.version}", "metadata": {}, "items": items}


def external_values(requested: External, series: Iterable[ExternalSeries]) -> dict[str, Any]:
    """Return an ExternalMetricValueList.

    Raises:
        InvalidInput: a value that is not a number.

    """
    items = [
        {"metricName": requested.metric, "metricLabels": dict(each.labels), **_measured(requested.metric, each)}
        for each in series
    ]
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL}/v1beta1", "metadata": {}, "items": items}


def _measured(metric: str, measured: MetricValue | ExternalSeries) -> dict[str, Any]:
    window = {} if measured.window_s is None else {"windowSeconds": round(measured.window_s)}
    return {"timestamp": time_text(measured.at_s), **window, "value": quantity_text(measured.value, f"metric {metric}")}


def discovery(requested: Discovery, custom: Iterable[tuple[str, str]], external: Iterable[str]) -> dict[str, Any]:
    """Return what is served.

    Args:
        requested: the groups, one of them, or one of its versions.
        custom: resources and the names of their metrics.
        external: names of metrics.

    """
    if not requested.group:
        groups = [_group(each) for each in VERSIONS]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if not requested.version:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(requested.group)}
    if requested.group == EXTERNAL:
        kind = "ExternalMetricValueList"
        names = [(each, True) for each in sorted(external)]
    else:
        kind = "MetricValueList"
        names = [(f"{resource}/{metric}", RESOURCES[resource].namespaced) for resource, metric in sorted(custom)]
    resources = [
        {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get"]}
        for name, namespaced in names
    ]
    version = f"{requested.group}/{requested.version}"
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _group(name: str) -> dict[str, Any]:
    versions = [{"groupVersion": f"{name}/{each}", "version": each} for each in VERSIONS[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def status(code: int, message: str, *, name: str = "") -> dict[str, Any]:
    """Return a Status with an error; HorizontalPodAutoscalers show its message in their conditions.

    Args:
        code: of HTTP.
        message: what went wrong.
        name: of the metric that has no value; by it clients know that the API is served.

    """
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        **({"details": {"name": name}} if name else {}),
        "code": code,
    }
