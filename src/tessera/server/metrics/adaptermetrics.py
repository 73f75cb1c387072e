"""Metrics by the rules of a prometheus-adapter, beside Tessera's own: discovered and read in a Prometheus.

The rules are reloaded when their file changes. If the new rules are invalid or Prometheus does not answer,
the former metrics stay in service; both are logged and counted.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from tessera.api.kubernetes.labelselectors import Selector, selects
from tessera.api.kubernetes.metrics.adapter.discovery import Discovered, discover
from tessera.api.kubernetes.metrics.adapter.queries import custom_query, external_query
from tessera.api.kubernetes.metrics.adapter.rules import AdapterRules, read_adapter_rules
from tessera.api.kubernetes.metrics.adapter.values import series_of, values_of
from tessera.api.kubernetes.metrics.answers import ExternalSeries, MetricValue
from tessera.api.kubernetes.metrics.paths import RESOURCES, Custom, External
from tessera.api.prometheus.answers import Labeled, Sampled, read_labeled, read_sampled
from tessera.clients.kube import Kind, Kube, Selection, labels_of, name_of
from tessera.clients.prometheus import MetricsClient
from tessera.core.usage.ownmetrics import METRICS_RULE_QUERIES, METRICS_RULES_INVALID
from tessera.errors import InvalidInput, TesseraError, Unavailable, shown
from tessera.log import Logger, defect
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.server.metrics.sources import MetricAbsent, MetricsSource

__all__ = ["AdapterMetrics", "RulesFile", "RulesSource"]

Found = TypeVar("Found", MetricValue, ExternalSeries)

_FILE_S: Final = 10.0
"""How often the file is checked for changes."""
_DISCOVERY_S: Final = 60.0
"""How often new series are discovered; also the deadline of all discovery queries together."""
_WINDOW_S: Final = 600.0
"""Series with a sample in this window are discovered; the adapter's default."""
_AT_ONCE: Final = 4
"""Discovery responses that are read at once, each up to the client's limit."""
_MOST_BYTES: Final = 16 << 20
"""Largest file of rules; 10,000 rules of 500 bytes have 5 MB."""
_MOST_SAMPLES: Final = 20_000
_SHOWN: Final = 300
"""Characters of a query in an error message."""


class RulesFile:
    """A file of rules, which may be replaced at any time.

    Args:
        path: the file.

    Attributes:
        rules: the last valid version.

    Raises:
        InvalidInput: the file or its rules cannot be read.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: bytes | None = None
        self.rules = AdapterRules(rules=(), remarks=())
        self.read_again()

    def read_again(self) -> bool:
        """Reload the rules; return whether they changed.

        Raises:
            InvalidInput: the file cannot be read, or it changed and is invalid.

        """
        try:
            content = self._path.read_bytes() if self._path.stat().st_size <= _MOST_BYTES else None
        except OSError as error:
            self._content = None
            raise InvalidInput(f"{self._path}", found=shown(error), hint="name a file of rules") from error
        if content is None:
            raise InvalidInput(f"{self._path}", found=f"it has more than {_MOST_BYTES} bytes", hint="write fewer rules")
        if content == self._content:
            return False
        self._content = content
        self.rules = read_adapter_rules(str(self._path), content)
        return True


class RulesSource(msgspec.Struct, frozen=True, kw_only=True):
    """The rules, and the Prometheus with their series."""

    file: RulesFile
    connect: Callable[[], AbstractAsyncContextManager[MetricsClient]]
    """Returns a client of Prometheus with the current token and CA."""
    url: str
    """URL of Prometheus, `https://HOST[:PORT][/PREFIX]`."""


class AdapterMetrics:
    """A source of metrics by rules.

    Args:
        source: the rules and their Prometheus.
        kube: the Kubernetes API.
        log: records rules that are not served.
        measures: counts failures.
        served: the metrics that take precedence where names are equal.

    Attributes:
        tried: set after the first discovery.

    """

    def __init__(
        self, source: RulesSource, kube: Kube, log: Logger, measures: Measures, *, served: MetricsSource
    ) -> None:
        self._file = source.file
        self._connect = source.connect
        self._url = source.url.rstrip("/")
        self._kube = kube
        self._log = log
        self._measures = measures
        self._served = served
        self._series: Mapping[str, frozenset[Labeled]] = {}
        self._found = Discovered()
        self._custom = frozenset[tuple[str, str]]()
        self._external = frozenset[str]()
        self._reported: dict[str, str] = {}
        self._discovered_s = 0.0
        self._bad: dict[str, bool] = {}
        self.tried = asyncio.Event()

    async def run(self) -> None:
        """Follow the file and discover series, until canceled."""
        self._set_bad(broken=False, wide=False)
        self._say_remarks()
        await one_turn(self.discover, self._log_error)
        self._discovered_s = time.monotonic()
        while True:
            self._measures.turned("rules")
            await asyncio.sleep(_FILE_S)
            await one_turn(self._follow, self._log_error)

    async def _follow(self) -> None:
        """Discover series if the rules changed or the interval has passed."""
        if await self.read_again() or time.monotonic() - self._discovered_s >= _DISCOVERY_S:
            self._discovered_s = time.monotonic()
            await self.discover()

    def _log_error(self, error: BaseException) -> None:
        self.tried.set()
        self._log.error("adapter_rules_not_followed", reason=str(error) or type(error).__name__, exc_info=defect(error))

    async def read_again(self) -> bool:
        """Reload the rules and return whether they changed; invalid ones leave the former in force."""
        try:
            other = await asyncio.to_thread(self._file.read_again)
        except InvalidInput as error:
            self._set_bad(broken=True)
            self._say("adapter_rules_broken", f"{error}; the rules before it are kept")
            return False
        if other:
            self._set_bad(broken=False)
            self._say("adapter_rules_broken", "")
            self._log.info("adapter_rules_read", rules=len(self._file.rules.rules))
            self._say_remarks()
        return other

    def _set_bad(self, **states: bool) -> None:
        """Record whether rules are not in force, because their file is invalid or they match too many series."""
        self._bad |= states
        self._measures.set(METRICS_RULES_INVALID, {(): int(any(self._bad.values()))})

    def _say_remarks(self) -> None:
        for each in self._file.rules.remarks:
            self._log.warning("adapter_rule_not_served", reason=each)

    def _say(self, event: str, reason: str) -> None:
        """Log a reason if it differs from the last one; an empty reason is none."""
        if reason and self._reported.get(event) != reason:
            self._log.warning(event, reason=reason)
        self._reported[event] = reason

    async def discover(self) -> None:
        """Discover the series of all rules once, and serve the metrics that result."""
        # 1. Which series does Prometheus have? A failed query keeps its former series.
        rules = self._file.rules.rules
        queries = dict.fromkeys(each.series_query for each in rules)
        found, failed = await self._ask_series(queries)
        for result, number in (("done", len(found)), ("failed", len(failed))):
            self._measures.count(METRICS_RULE_QUERIES, number, result=result)
        reasons = [f"{shown(query)}: {reason}" for query, reason in sorted(failed.items())]
        more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        self._say("series_not_known", f"{reasons[0]}{more}" if reasons else "")
        self._series = {query: found.get(query, self._series.get(query, frozenset())) for query in queries}
        # 2. Which metrics do the rules make of them?
        try:
            self._found = await asyncio.to_thread(discover, rules, self._series)
            self._set_bad(wide=False)
            self._say("adapter_rules_too_wide", "")
        except InvalidInput as error:
            self._set_bad(wide=True)
            self._say("adapter_rules_too_wide", f"{error}; what was served before is kept")
        self._custom, self._external = frozenset(self._found.custom), frozenset(self._found.external)
        # 3. Which of them does Tessera serve by the same name?
        hidden = [f"{resource}/{metric}" for resource, metric in sorted(self._custom & self._served.custom())]
        hidden += sorted(self._external & self._served.external())
        hint = "are served as Tessera measures them, not by the rules; name those otherwise to have both"
        self._say("adapter_rules_hidden", f"{', '.join(hidden)} {hint}" if hidden else "")
        self.tried.set()

    async def _ask_series(self, queries: Collection[str]) -> tuple[dict[str, frozenset[Labeled]], dict[str, str]]:
        """Return the series of each query, and the error of each failed one."""
        found, failed = (
            dict[str, frozenset[Labeled]](),
            dict.fromkeys(queries, f"not queried within {_DISCOVERY_S:g} s"),
        )
        turns, start = asyncio.Semaphore(_AT_ONCE), f"{time.time() - _WINDOW_S:.0f}"

        async def ask(metrics: MetricsClient, query: str) -> None:
            async with turns:
                target = f"{self._url}/api/v1/series?{urlencode({'match[]': query, 'start': start})}"
                try:
                    answer = await metrics.get(target)
                    found[query] = await asyncio.to_thread(read_labeled, answer, f"Prometheus {self._url}")
                    del failed[query]
                except TesseraError as error:
                    failed[query] = error.cause

        try:
            async with asyncio.timeout(_DISCOVERY_S), self._connect() as metrics, asyncio.TaskGroup() as tasks:
                for query in queries:
                    tasks.create_task(ask(metrics, query))
        except TimeoutError:
            pass  # queries that were not sent report that themselves
        except (OSError, TesseraError) as error:  # files with the token and the CA
            failed = dict.fromkeys(queries, shown(error))
        return found, failed

    # The `MetricsSource` interface

    def custom(self) -> frozenset[tuple[str, str]]:
        """Return resources and the custom metrics of the rules."""
        return self._custom

    def external(self) -> frozenset[str]:
        """Return the external metrics of the rules."""
        return self._external

    async def values(self, requested: Custom) -> Sequence[MetricValue]:
        """Return a metric of objects."""
        named = self._found.custom[requested.resource, requested.metric]
        where = f" in namespace {requested.namespace}" if requested.namespace else ""
        subject = f"metric {requested.metric} of {requested.resource}{where}"
        names = [requested.name] if requested.name else await self._names(requested)
        if not names:
            raise MetricAbsent(subject, found="no such object is selected", hint="check the labels")
        query = custom_query(named, requested, names)
        label = named.rule.label(requested.resource) or ""
        make = partial(values_of, label=label, names=names, namespace=requested.namespace)
        return await self._answer(query, subject, make)

    async def series(self, requested: External) -> Sequence[ExternalSeries]:
        """Return an external metric."""
        named = self._found.external[requested.metric]
        subject = f"external metric {requested.metric} in namespace {requested.namespace}"
        return await self._answer(external_query(named, requested), subject, series_of)

    async def _names(self, requested: Custom) -> list[str]:
        resource = RESOURCES[requested.resource]
        plural, _, group = requested.resource.partition(".")
        version = resource.api_version.rpartition("/")[2]
        kind = Kind(group=group, version=version, name=resource.kind, plural=plural, namespaced=resource.namespaced)
        listing = await self._kube.list(kind, _selection(requested.namespace, requested.selector))
        return sorted(name_of(each)[1] for each in listing.objects if selects(requested.selector, labels_of(each)))

    async def _answer(self, query: str, subject: str, make: Callable[[Sequence[Sampled]], list[Found]]) -> list[Found]:
        source = f"Prometheus {self._url}"
        try:
            async with self._connect() as metrics:
                answer = await metrics.get(f"{self._url}/api/v1/query?{urlencode({'query': query})}")
            sampled = read_sampled(answer, source, most=_MOST_SAMPLES)
        except InvalidInput as error:
            raise Unavailable(subject, found=f"{source}: {error.cause}", hint=f"query it: {query[:_SHOWN]}") from error
        except (OSError, Unavailable) as error:
            cause = error.cause if isinstance(error, Unavailable) else shown(error)
            raise Unavailable(subject, found=f"{source}: {cause}", hint=f"query it: {query[:_SHOWN]}") from error
        try:
            found = make(sampled)
        except InvalidInput as error:
            raise MetricAbsent(subject, found=f"{error.subject}: {error.cause}", hint=error.hint) from error
        if not found:
            raise MetricAbsent(subject, found=f"{source} has no value of it", hint=f"query it: {query[:_SHOWN]}")
        return found


def _selection(namespace: str, selector: Selector) -> Selection:
    """Return the part of a selector that the API server can evaluate."""
    exact = tuple((each.key, each.values[0]) for each in selector if each.operator == "In" and len(each.values) == 1)
    having = tuple(each.key for each in selector if each.operator == "Exists")
    return Selection(namespace=namespace, labels=exact, having=having)
