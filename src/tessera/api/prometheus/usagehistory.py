"""GPU usage from Prometheus: its queries, and its answers in the form of the agents' reports.

Aggregated by Prometheus over the window, so that an answer has one number for each container and device, however long
the window is. Answers are untrusted: an implausible sample is left out.
Source: prometheus.io, "HTTP API", instant queries.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from tessera.api.prometheus.answers import Series, read_series
from tessera.api.prometheus.matchers import selected
from tessera.core.gpu.gpumodels import model
from tessera.core.usage.activity import IDLE_PERCENT
from tessera.core.usage.nodemetrics import ALLOCATED, ENDED_LOAD, EXCLUSIVE, FB_USED, GPU_UTIL, PART, SM_ACTIVE
from tessera.core.usage.plausible import MOST_MIB, percentage, possible
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.errors import InvalidInput

__all__ = ["history_queries", "read_history"]

_STEP_S: Final = 300
_MOST_SAMPLES: Final = 100_000
_INDEX: Final = re.compile("[0-9]{1,3}")
_OWNER: Final = "hostname, gpu, UUID, modelName, GPU_I_ID, GPU_I_PROFILE, pod_uid, namespace, pod, container"
"""By UID, so that a pod has no history of another that had its name."""
_OF_CONTAINERS: Final = 'pod_uid!=""'


_Key: TypeAlias = tuple[str, ...]
"""The labels of `_OWNER`, in their order."""
_Values: TypeAlias = Mapping[_Key, float]
_KINDS: Final = {("true", ""): "exclusive", ("false", "replica"): "replica", ("false", "memory"): "memory"}
"""How a device is allocated, by the labels `exclusive` and `part`."""


def history_queries(window: str, matchers: str = "") -> dict[str, str]:
    """Return the queries by purpose: for existing containers.

    An agent that is replaced has another `instance`, and its series are others: a mean is of the samples of all of
    them, and a time counts once, however many agents there were.

    Args:
        window: how far back, such as `14d`.
        matchers: labels of the cluster's series; empty where Prometheus has those of one cluster.

    """
    used, percent, active = (selected(each.name, matchers, _OF_CONTAINERS) for each in (FB_USED, GPU_UTIL, SM_ACTIVE))
    allocated = selected(ALLOCATED.name, matchers)
    # Where processes that have exited used a device, it is unknown how much of it each container used.
    unexplained = (
        f"unless on (hostname, UUID, GPU_I_ID) ({selected(ENDED_LOAD.name, matchers)} >= {IDLE_PERCENT / 100})"
    )
    load, activity = (_mean(f"{each}[{window}]") for each in (percent, active))
    present = f"and on ({_OWNER}) {allocated}"
    return {
        "allocated_mib": f"max by ({_OWNER}, {EXCLUSIVE}, {PART}) ({allocated}) / 2^20",
        "peak_mib": f"max by ({_OWNER}) (max_over_time({used}[{window}])) {present}",
        "mean_percent": f"({activity} * 100 or {load}) {present}",
        "observed_s": f"{_known(f'{used} {unexplained}', window)} {present}",
        "load_observed_s": f"({_known(f'{active} {unexplained}', window)} "
        f"or {_known(f'{percent} {unexplained}', window)}) {present}",
    }


def _known(series: str, window: str) -> str:
    """Return the query for how long the containers' values were known: unknown ones have no samples."""
    return f"count_over_time((max by ({_OWNER}) ({series}))[{window}:{_STEP_S}s]) * {_STEP_S}"


def _mean(samples: str) -> str:
    return f"sum by ({_OWNER}) (sum_over_time({samples})) / sum by ({_OWNER}) (count_over_time({samples}))"


def read_history(answers: Mapping[str, bytes], source: str) -> tuple[UsageReport, ...]:
    """Return a report of each node, sorted by name, from the answers to `history_queries`.

    Left out are allocations of agents that do not say how the device is shared: nothing is advised for them.

    Args:
        answers: Prometheus' JSON, by what the query is for.
        source: what they came from, for errors.

    Raises:
        InvalidInput: an answer is not Prometheus' JSON, or has too many series.

    """
    found = {name: read_series(answer, source, most=_MOST_SAMPLES) for name, answer in answers.items()}
    values = {name: dict(_values(series, name)) for name, series in found.items()}
    kinds = defaultdict[_Key, set[str]](set)
    for each in found["allocated_mib"]:
        kinds[_key(each)].add(_KINDS.get((each.metric.get(EXCLUSIVE, ""), each.metric.get(PART, "")), ""))
    nodes: dict[str, dict[tuple[str, ...], dict[tuple[str, str], list[ContainerReport]]]] = defaultdict(dict)
    for key in sorted(key for key in values["allocated_mib"] if len(kinds[key]) == 1 and "" not in kinds[key]):
        (kind,) = kinds[key]
        host, gpu, uuid, product, instance, profile, *_ = key
        devices = nodes[host].setdefault((gpu, uuid, product), defaultdict(list))
        devices[instance, profile].append(_container(key, values, kind))
    return tuple(
        UsageReport(
            node=node,
            gpus=tuple(
                GpuReport(
                    index=int(gpu) if _INDEX.fullmatch(gpu) else 0,
                    uuid=uuid,
                    model=_model(product),
                    devices=tuple(
                        DeviceReport(profile=profile, containers=tuple(containers))
                        for (_, profile), containers in devices.items()
                    ),
                )
                for (gpu, uuid, product), devices in gpus.items()
            ),
        )
        for node, gpus in sorted(nodes.items())
    )


def _values(series: Iterable[Series], name: str) -> Iterator[tuple[_Key, float]]:
    """Yield possible samples."""
    for each in series:
        try:
            value = float(each.value[1] if each.value else "")
        except ValueError:
            continue
        known = percentage(value) if name == "mean_percent" else value
        if possible(known, MOST_MIB if name.endswith("_mib") else math.inf):
            yield _key(each), known


def _key(series: Series) -> _Key:
    return tuple(series.metric.get(label, "") for label in _OWNER.split(", "))


def _container(key: _Key, values: Mapping[str, _Values], kind: str) -> ContainerReport:
    peak = values["peak_mib"].get(key)
    facts: dict[str, Any] = dict(zip(("namespace", "pod", "container"), key[-3:], strict=True))
    return ContainerReport(
        **facts,
        exclusive=kind == "exclusive",
        replica=kind == "replica",
        allocated_mib=round(values["allocated_mib"][key]),
        peak_mib=None if peak is None else round(peak),
        mean_percent=values["mean_percent"].get(key),
        observed_s=values["observed_s"].get(key, 0.0),
        load_observed_s=values["load_observed_s"].get(key, 0.0),
    )


def _model(product: str) -> str:
    """Return Tessera's name of a product; an unknown one stays."""
    try:
        return model(product).name
    except InvalidInput:
        return product
