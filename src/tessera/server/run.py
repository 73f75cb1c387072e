"""The server process: watches the cluster, removes old claims, serves HTTP."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from tessera.api.tessera.pods.signatures import KEYS, published_keys
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.certificates import Certificates, Tls
from tessera.clients.kube import (
    CONFIG_MAPS,
    EVERYTHING,
    GPU_NODES,
    NODES,
    PODS,
    Change,
    Kind,
    Kube,
    Object,
    Selection,
    follow,
)
from tessera.core.packing.ledger import Ledger
from tessera.core.usage.ownmetrics import BINDINGS, SERVER_READY
from tessera.errors import TesseraError, Unavailable, Unsupported
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.app import make_admission_app, make_app
from tessera.server.binder import Binder, ServerClocks
from tessera.server.claims.claimer import Claimer
from tessera.server.claims.nominations import Nominations
from tessera.server.listening import HttpServer, listening
from tessera.server.page import NO_METRICS, FleetPage, PageMetrics, PageSources
from tessera.server.quotas import Quotas
from tessera.server.selfsigned import SelfSigned
from tessera.server.settings import ServerSettings
from tessera.server.signingkey import SigningKey
from tessera.server.verbs import Verbs
from tessera.server.view import View
from tessera.wakeup import WakeUp

__all__ = ["Server"]

_CLOCKS = ServerClocks(time.monotonic, time.time_ns)
_KEYS = Selection(namespace=NAMESPACE, fields=(("metadata.name", KEYS),))
_RETRY_S = 1.0


class Server:
    """One replica.

    Args:
        settings: its addresses and limits.
        kube: the Kubernetes API.
        clocks: of this server.
        metrics: the page's metrics, if there are any.

    Attributes:
        app: the HTTP application, for tests without a socket.
        port: the extender's port; 0 before it listens.
        admission_port: the admission webhook's port; 0 without one.
        page_port: the dashboard page's port; 0 without one.
        listening: set when it listens.

    """

    def __init__(
        self, settings: ServerSettings, kube: Kube, clocks: ServerClocks = _CLOCKS, *, metrics: PageMetrics = NO_METRICS
    ) -> None:
        settings.check()
        self._settings = settings
        self._kube = kube
        self._log = logger(replica=settings.replica)
        self.view = View(Ledger(settings.policy), clocks.monotonic_s, self._log)
        nominations = Nominations(self.view.ledger, clocks.monotonic_s)
        clock_s = self._clock_s = clocks.monotonic_s
        self.claimer = Claimer(kube, self.view, nominations, settings=settings, clock_s=clock_s, log=self._log)
        self.key = SigningKey(kube, lambda: self.view.keys.ring, self._log)
        self.binder = Binder(kube, self.view, self.claimer, key=self.key, clocks=clocks, log=self._log)
        self.verbs = Verbs(self.view, nominations, self.binder)
        self._measures = Measures(clock_s)
        self._quotas = Quotas(kube, self._measures, self._log)
        self.app = make_app(
            self.verbs, self.waiting_for, limits=settings.limits, log=self._log, measures=self._measures
        )
        self.port = self.admission_port = self.page_port = 0
        self.listening = asyncio.Event()
        self._synced = {kind: asyncio.Event() for kind in (CONFIG_MAPS, GPU_NODES, NODES, PODS)}
        self._prepared = asyncio.Event()
        self._problems: dict[Kind, str] = {}
        self._unpublished = WakeUp()
        """Set when the ConfigMap of public keys was deleted, or the signing key was removed from it."""
        self._no_key = ""
        """Why there is no signing key yet."""
        self._http: tuple[HttpServer, ...] = ()
        admission = settings.admission
        self._self_signed = SelfSigned(kube, admission.tls, self._log) if admission and admission.self_signed else None
        """The certificate of the admission webhook, if the servers create it."""
        sources = PageSources(view=self.view, kube=kube, metrics=metrics, waiting_for=self.waiting_for)
        self.page = FleetPage(sources, settings.page, self._measures, self._log) if settings.page else None

    def waiting_for(self) -> str:
        """What must be read before requests can be answered; empty when ready."""
        kinds = [kind for kind, synced in self._synced.items() if not synced.is_set()]
        waiting = (
            f"{kind.plural} ({self._problems[kind]})" if kind in self._problems else kind.plural for kind in kinds
        )
        if kinds:
            return f"reading {', '.join(waiting)}"
        if not self.key.ready.is_set():
            return f"making the key that signs assignments{self._no_key and f' ({self._no_key})'}"
        if self._self_signed is not None and not self._self_signed.ready.is_set():
            problem = self._self_signed.problem
            return f"making the certificate of the admission webhook{problem and f' ({problem})'}"
        return "" if self._prepared.is_set() else "preparing"

    def metrics(self) -> bytes:
        """Return its metrics, in Prometheus' text format."""
        self._measures.set(SERVER_READY, {(): int(not self.waiting_for())})
        self._measures.set(BINDINGS, {(("result", result),): count for result, count in self.binder.counts.items()})
        for metric, values in self._quotas.metrics().items():
            self._measures.set(metric, values)
        return self._measures.render()

    async def synced(self) -> None:
        """Wait until all objects have been read and requests can be answered without delay."""
        await self._prepared.wait()

    def stop(self) -> None:
        """End `run`: accept no new requests, answer those in flight."""
        if self.page is not None:
            self.page.close()
        for each in self._http:
            each.should_exit = True

    async def run(self) -> None:
        """Serve until `stop`, or until canceled, which ends it as `stop` does.

        Raises:
            InvalidInput: the address or the certificate files are invalid.
            Unavailable: the port is in use.

        """
        places = self._places()
        if self._self_signed is not None:
            self._self_signed.begin()
        self._http = tuple(HttpServer(each.app, each.tls, stop_s=self._settings.limits.stop_s) for each in places)
        with contextlib.ExitStack() as stack:
            most = self._settings.limits.connections
            listeners = [stack.enter_context(listening(each.host, each.port, most)) for each in places]
            ports = {each.serves: listener.getsockname()[1] for each, listener in zip(places, listeners, strict=True)}
            self.port, self.admission_port = ports["extender"], ports.get("admission", 0)
            self.page_port = ports.get("page", 0)
            self.listening.set()
            async with self.following(), asyncio.TaskGroup() as tasks:
                serving = []
                for each, listener, http in zip(places, listeners, self._http, strict=True):
                    port = listener.getsockname()[1]
                    self._log.info("listening", host=each.host, port=port, tls=bool(each.tls), serves=each.serves)
                    serving.append(tasks.create_task(http.serve(sockets=[listener])))
                try:
                    await asyncio.wait(serving)
                finally:
                    self.stop()

    def _places(self) -> tuple["_Place", ...]:
        """Return the addresses it listens on; the first is the extender's."""
        one = self._settings
        places = [_Place("extender", one.host, one.port, one.tls, self.app)]
        if one.admission is not None:
            app = make_admission_app(one.limits, self._log, self._measures)
            places.append(_Place("admission", one.admission.host, one.admission.port, one.admission.tls, app))
        if one.page is not None and self.page is not None:
            places.append(_Place("page", one.page.host, one.page.port, one.page.tls, self.page.app))
        return tuple(places)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Watch the cluster and remove old claims; at the end wait for bindings in flight.

        Raises:
            TesseraError: a loop ended, which should never happen.

        """
        gpu_nodes = self._follow(GPU_NODES, self._take_gpu_node)
        keys = self._follow(CONFIG_MAPS, self._take_keys, _KEYS), self._keep_key(), self._ask_for_keys()
        loops = (*keys, gpu_nodes, self._follow_nodes(), self._follow_pods(), self._maintain(), *self._renewals())
        loops += (self._quotas.run(),)
        loops += (self.page.run(self._prepared),) if self.page else ()
        tasks = [asyncio.create_task(each) for each in loops]
        for task in tasks:
            task.add_done_callback(lambda _: self.stop())
        try:
            yield
        finally:
            await self.binder.close()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def _take_keys(self, change: Change) -> None:
        if not change.gone:
            self.view.take_keys(change.object)
        if change.gone or self.key.void:
            self._unpublished.set()

    async def _keep_key(self) -> None:
        """Keep a valid signing key, and all keys published: at intervals, and at once when they were removed."""
        self._measures.started("signing-key")
        while True:
            try:
                begun = self.view.keys.version
                found = await self._kube.get(CONFIG_MAPS, KEYS, NAMESPACE)
                self.view.take_keys(found, begun=begun)  # so that a revoked key is not published again
                self.view.take_keys(await self.key.renew(published_keys(found)))
                self._no_key = ""
                self._measures.turned("signing-key")
            except TesseraError as error:
                self._no_key = str(error)
                self._log.warning("no_key" if not self.key.ready.is_set() else "key_not_renewed", reason=str(error))
            if self._no_key:
                await asyncio.sleep(_RETRY_S)
            else:
                await self._unpublished.wait(self._settings.limits.sweep_s)

    async def _ask_for_keys(self) -> None:
        """Read unknown keys from the API server: a key is published before it signs."""
        while True:
            await self.view.keys.doubted.wait(self._settings.limits.sweep_s)
            asked = list(self.view.keys.doubts)
            try:
                if asked:
                    begun = self.view.keys.version
                    self.view.take_keys(await self._published(), begun=begun)
                    if self.key.void:
                        self._unpublished.set()
                for name in {node for node, _ in asked}:
                    found = await self._kube.get(GPU_NODES, name)
                    if found is not None:
                        self.view.take_gpu_node(found)
                self.view.reject_unknown_keys(asked)
                self._measures.turned("unknown-keys")
            except TesseraError as error:
                self._log.warning("keys_not_read", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                self.view.keys.doubted.set()

    async def _published(self) -> Object:
        """Return the ConfigMap of public keys. While it is deleted callers wait: a server writes it again."""
        found = await self._kube.get(CONFIG_MAPS, KEYS, NAMESPACE)
        if found is None:
            raise Unavailable(
                f"ConfigMap {NAMESPACE}/{KEYS}",
                found="there is none, and it has the public keys of all servers",
                hint="the server writes it and tries again",
            )
        return found

    def _take_node(self, change: Change) -> None:
        if change.object is not None:
            self.view.take_node(change.object, gone=change.gone)

    def _take_gpu_node(self, change: Change) -> None:
        if change.object is not None:
            self.view.take_gpu_node(change.object, gone=change.gone, skipped=change.skipped)

    def _take_pod(self, change: Change) -> None:
        if change.object is not None:
            self.view.take_pod(change.object, gone=change.gone)
        elif change.listing is not None:
            self.view.forget_unlisted(change.listing)

    async def _follow_nodes(self) -> None:
        """Watch the nodes, listed after the GPUNodes, so that no node is read without its agent's report."""
        await self._synced[GPU_NODES].wait()
        await self._follow(NODES, self._take_node)

    async def _follow_pods(self) -> None:
        """Watch the pods, listed after the GPUNodes, so that all nodes are verified first; and after the keys."""
        await self._synced[CONFIG_MAPS].wait()
        await self._synced[GPU_NODES].wait()
        end = self.view.claims.begin_verification(self._clock_s)
        waiting = True

        def take(change: Change) -> None:
            nonlocal waiting
            self._take_pod(change)
            if change.object is None and waiting:
                waiting = False
                end()

        await self._follow(PODS, take)

    async def _follow(self, kind: Kind, take: Callable[[Change], None], selection: Selection = EVERYTHING) -> None:
        def log_error(error: Exception) -> None:
            if self._problems.get(kind) != str(error):
                self._problems[kind] = str(error)
                self._log.warning(
                    "kind_not_installed" if isinstance(error, Unsupported) else "watch_failed", reason=str(error)
                )

        answered = partial(self._measures.turned, f"watch-{kind.plural}")
        async for change in follow(self._kube, kind, selection, on_error=log_error, on_answer=answered):
            try:
                take(change)
            except Exception as error:  # noqa: BLE001 (an object that nobody thought of must not stop the server)
                self._log.error("defect", kind=kind.name, exc_info=error)
            if self.page is not None:
                self.page.changed()
            if change.object is None:
                self._problems.pop(kind, None)
                self._synced[kind].set()

    async def _maintain(self) -> None:
        """Warm up for the first request once all is read, then remove old claims at intervals."""
        for each in (*self._synced.values(), self.key.ready):
            await each.wait()
        self.view.prepare()
        if self._settings.freeze:
            gc.collect()
            gc.freeze()
        self._prepared.set()
        while True:
            await self.view.claims_missing.wait(self._settings.limits.sweep_s)
            await self.claimer.sweep()
            self._measures.turned("sweep")

    def _renewals(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the loops that reload the TLS files, if there are any."""
        for place, http in zip(self._places(), self._http, strict=False):
            if place.tls is None or http.tls is None:
                continue
            certificates, every_s = Certificates(place.tls, http.tls, self._log), self._settings.limits.renewal_s
            yield certificates.follow(every_s, partial(self._measures.turned, f"certificate-{place.serves}"))
            if self._self_signed is not None and place.tls == self._self_signed.tls:
                yield self._self_signed.follow(
                    certificates, every_s, partial(self._measures.turned, "certificate-shared")
                )


class _Place(msgspec.Struct, frozen=True):
    """An address, and the application that it serves."""

    serves: str
    host: str
    port: int
    tls: Tls | None
    app: Callable[..., Any]
