"""The counters of model servers' pods: scraped from each pod, or read from a Prometheus that scrapes them."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol, TypeAlias
from urllib.parse import urlencode

from tessera.api.prometheus.engines import counters_of, read_counters
from tessera.api.prometheus.podsamples import Scrape, pod_query, read_scrapes
from tessera.clients.prometheus import AnswerTooLarge, MetricsClient
from tessera.core.serving.autoscaling.serverfacts import ModelPod
from tessera.core.serving.metrics.counters import Counters, Unmeasured
from tessera.errors import InvalidInput, TesseraError, Unavailable, shown

__all__ = ["PodName", "PodSamples", "PrometheusSamples", "ScrapedSamples"]

PodName: TypeAlias = tuple[str, str]
"""Namespace and name."""
_SCRAPING_S: Final = 12.0
"""Pods not scraped by then have no sample."""
_AT_ONCE: Final = 64
"""Pods that are asked or whose answers are read at once."""
_QUERIES_AT_ONCE: Final = 8
_SPLIT_PASSES: Final = 20
"""Passes until all namespaces are queried at once again: five minutes."""
_FAILED_AT_ONCE: Final = 8
_FAILED_PASSES: Final = 20
"""Pods that are asked at once of those whose scrape failed in the last passes: an answer that is made to be long to
read, as one without end, holds the event loop, and requests to the metrics APIs with it."""
_LATE: Final = Unmeasured(f"not scraped within {_SCRAPING_S:.0f} s, because other pods did not answer")


class PodSamples(Protocol):
    """A source of the pods' counters."""

    async def read(self, pods: Mapping[PodName, ModelPod]) -> dict[PodName, Counters | Unmeasured]:
        """Return the last counters of each of these pods, or why there are none."""
        ...


class ScrapedSamples:
    """Scrapes the pods themselves, without Prometheus.

    Args:
        metrics: the client that scrapes.
        now_s: the seconds since 1970.

    """

    def __init__(self, metrics: MetricsClient, *, now_s: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._now_s = now_s
        self._silent = frozenset[PodName]()
        """Pods whose last scrape failed."""
        self._failed: dict[PodName, int] = {}
        """The pass in which a scrape last failed of pods of which one did in the last passes."""
        self._late = frozenset[PodName]()
        """Pods for which there was no time in the last pass."""
        self._passes = 0
        self._turns, self._reading = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()
        self._turns_of_failed = asyncio.Semaphore(_FAILED_AT_ONCE)

    async def read(self, pods: Mapping[PodName, ModelPod]) -> dict[PodName, Counters | Unmeasured]:
        """Scrape each pod."""
        await self._metrics.keep(frozenset(pod.url.removesuffix("/metrics") for pod in pods.values() if pod.url))
        names = _order(pods, self._silent, self._late, self._passes)
        deadline_s = asyncio.get_running_loop().time() + _SCRAPING_S
        answers = await asyncio.gather(*(self._ask(each, pods[each], deadline_s) for each in names))
        found = dict(zip(names, answers, strict=True))
        self._late = frozenset(name for name, answer in found.items() if answer == _LATE)
        self._silent = frozenset(name for name, each in found.items() if isinstance(each, Unmeasured)) - self._late
        self._passes += 1
        self._failed |= dict.fromkeys(self._silent, self._passes)
        oldest = self._passes - _FAILED_PASSES
        self._failed = {name: number for name, number in self._failed.items() if number > oldest and name in pods}
        return found

    async def _ask(self, name: PodName, pod: ModelPod, deadline_s: float) -> Counters | Unmeasured:
        if not pod.url:
            return Unmeasured(pod.problem)
        turns = self._turns_of_failed if name in self._failed else nullcontext()
        try:
            async with asyncio.timeout_at(deadline_s), turns, self._turns:
                content, at_s = await self._metrics.get(pod.url), self._now_s()
                async with self._reading:
                    await asyncio.sleep(0)  # requests are answered between two answers of pods
                    return read_counters(f"pod {name[1]}", content, at_s=at_s, started_s=pod.started_s)
        except TimeoutError:
            return _LATE
        except TesseraError as error:
            return Unmeasured(error.cause)
        except Exception as error:  # noqa: BLE001 a defect about one pod must not stop the others
            return _defect(error)


def _defect(error: Exception) -> Unmeasured:
    return Unmeasured(f"its metrics cannot be read, by an error of `tessera metrics` ({type(error).__name__}: {error})")


def _order(
    pods: Collection[PodName], silent: frozenset[PodName], late: frozenset[PodName], passes: int
) -> list[PodName]:
    """Return pods in the order in which they are scraped: one of each namespace in turn, so that none starves others.

    Those whose last scrape failed come last. Of a namespace those for which there was no time come first. Each pass
    begins with another namespace.
    """
    namespaces = sorted({namespace for namespace, _ in pods})
    turns = {namespace: (number - passes) % len(namespaces) for number, namespace in enumerate(namespaces)}
    before = Counter[tuple[str, bool]]()
    places = dict[PodName, tuple[bool, int, int]]()
    for name in sorted(pods, key=lambda each: each not in late):
        group = name[0], name in silent
        places[name] = group[1], before[group], turns[name[0]]
        before[group] += 1
    return sorted(places, key=places.__getitem__)


class PrometheusSamples:
    """A Prometheus that scrapes the pods: one query for all.

    Where the answer is too large, as by a pod with very many series, one for each namespace: only that one fails then.

    Args:
        connect: returns a client for the queries of a pass, with the current token.
        url: `https://HOST[:PORT][/PREFIX]`.
        matchers: labels of the cluster's series; empty where Prometheus has those of one cluster.

    """

    def __init__(
        self, connect: Callable[[], AbstractAsyncContextManager[MetricsClient]], url: str, matchers: str = ""
    ) -> None:
        self._connect = connect
        self._url = url.rstrip("/")
        self._matchers = matchers
        self._subject = f"Prometheus {url}"
        self._split_passes = 0
        """Passes for which namespaces are queried one by one, since the answer for all was too large."""

    def target(self, namespace: str = "") -> str:
        """Return the URL of the query, for all namespaces or for one."""
        return f"{self._url}/api/v1/query?{urlencode({'query': pod_query(namespace, self._matchers)})}"

    async def read(self, pods: Mapping[PodName, ModelPod]) -> dict[PodName, Counters | Unmeasured]:
        """Return the last counters of each pod in Prometheus."""
        if not pods:
            return {}
        namespaces = sorted({namespace for namespace, _ in pods})
        try:
            async with self._connect() as metrics:
                scrapes = await self._query(metrics, namespaces)
        except TesseraError as error:
            return dict.fromkeys(pods, Unmeasured(f"{self._subject}: {error.cause}"))
        except OSError as error:  # files with the token and the CA
            return dict.fromkeys(pods, Unmeasured(f"{self._subject} is not queried: {shown(error)}"))
        return {name: self._counters_of(name, pod, scrapes[name[0]]) for name, pod in pods.items()}

    async def _query(
        self, metrics: MetricsClient, namespaces: Sequence[str]
    ) -> Mapping[str, Mapping[PodName, Scrape] | TesseraError]:
        """Return the scrapes of each namespace, or why there are none.

        Raises:
            TesseraError: of all.

        """
        if not self._split_passes:
            try:
                return dict.fromkeys(namespaces, read_scrapes(await metrics.get(self.target()), self._subject))
            except (AnswerTooLarge, InvalidInput):
                if len(namespaces) == 1:
                    raise
                self._split_passes = _SPLIT_PASSES
        self._split_passes -= 1
        turns = asyncio.Semaphore(_QUERIES_AT_ONCE)

        async def query(namespace: str) -> Mapping[PodName, Scrape] | TesseraError:
            try:
                async with turns, asyncio.timeout(_SCRAPING_S):
                    return read_scrapes(await metrics.get(self.target(namespace)), self._subject)
            except TimeoutError:
                found = f"no answer in {_SCRAPING_S:.0f} s"
                return Unavailable(self._subject, found=found, hint="check that it runs")
            except TesseraError as error:
                return error

        return dict(zip(namespaces, await asyncio.gather(*map(query, namespaces)), strict=True))

    def _counters_of(
        self, name: PodName, pod: ModelPod, scrapes: Mapping[PodName, Scrape] | TesseraError
    ) -> Counters | Unmeasured:
        """Return the counters of a pod by its last scrape."""
        if isinstance(scrapes, TesseraError):
            return Unmeasured(f"{self._subject}: {scrapes.cause}")
        scrape = scrapes.get(name)
        if scrape is None:
            return Unmeasured(f"{self._subject} has no series of it; is its port of metrics scraped?")
        if scrape.at_s < pod.started_s:  # its counters are those of the process before
            return Unmeasured("scraped before its container restarted; the next scrape compares", too_early=True)
        try:
            return counters_of(f"pod {name[1]}", scrape.samples, at_s=scrape.at_s, started_s=pod.started_s)
        except TesseraError as error:
            return Unmeasured(error.cause)
        except Exception as error:  # noqa: BLE001 as above
            return _defect(error)
