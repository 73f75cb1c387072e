"""The server's process: follows the cluster, removes old claims, serves HTTP; by uvicorn."""

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import uvicorn

from tessera.api.tessera.pods.signatures import KEYS, NAMESPACE, published_keys
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
from tessera.errors import InvalidInput, TesseraError, Unavailable, Unsupported, shown
from tessera.listeners import BoundedListener
from tessera.log import logger
from tessera.server.app import make_admission_app, make_app
from tessera.server.binder import Binder, Clocks
from tessera.server.certificates import Certificates
from tessera.server.claimer import Claimer
from tessera.server.nominations import Nominations
from tessera.server.selfsigned import SelfSigned
from tessera.server.settings import Settings, Tls, is_loopback
from tessera.server.signingkey import SigningKey
from tessera.server.verbs import Verbs
from tessera.server.view import View
from tessera.wakeup import WakeUp

__all__ = ["Server"]

_CLOCKS = Clocks(time.monotonic, time.time_ns)
_KEYS = Selection(namespace=NAMESPACE, fields=(("metadata.name", KEYS),))
_RETRY_S = 1.0
_KEEP_ALIVE_S = 600
"""Longer than kube-scheduler keeps an idle connection, so that it is never the server that closes one."""


class Server:
    """One replica.

    Args:
        settings: where it listens, and its limits.
        kube: the Kubernetes API.
        clocks: its times.

    Attributes:
        app: the HTTP application, of which tests ask without a socket.
        port: where it listens; 0 before it does.
        admission_port: where it answers the API server besides; 0 where it does not.
        listening: set when it does.

    """

    def __init__(self, settings: Settings, kube: Kube, clocks: Clocks = _CLOCKS) -> None:
        settings.check()
        self._settings = settings
        self._kube = kube
        self._log = logger(replica=settings.replica)
        self.view = View(Ledger(settings.policy), clocks.monotonic_s, self._log)
        nominations = Nominations(self.view.ledger, clocks.monotonic_s)
        clock_s = self._clock_s = clocks.monotonic_s
        self.claimer = Claimer(kube, self.view, nominations, settings=settings, clock_s=clock_s, log=self._log)
        self.key = SigningKey(kube, lambda: self.view.ring, self._log)
        self.binder = Binder(kube, self.view, self.claimer, key=self.key, clocks=clocks, log=self._log)
        verbs = Verbs(self.view, nominations, self.binder)
        self.app = make_app(verbs, self.waiting_for, limits=settings.limits, log=self._log)
        self.port = self.admission_port = 0
        self.listening = asyncio.Event()
        self._synced = {kind: asyncio.Event() for kind in (CONFIG_MAPS, GPU_NODES, NODES, PODS)}
        self._prepared = asyncio.Event()
        self._trouble: dict[Kind, str] = {}
        self._unpublished = WakeUp()
        """Rings when the ConfigMap of public keys was deleted, or the key that signs was taken out of it."""
        self._no_key = ""
        """Why there is no key to sign with yet."""
        self._http: tuple[uvicorn.Server, ...] = ()
        admission = settings.admission
        self._own = SelfSigned(kube, admission.tls, self._log) if admission and admission.self_signed else None
        """The certificate of the admission webhook, where the servers make it."""

    def waiting_for(self) -> str:
        """Return what must be read before anything can be answered; empty when all is."""
        kinds = [kind for kind, synced in self._synced.items() if not synced.is_set()]
        waiting = (f"{kind.plural} ({self._trouble[kind]})" if kind in self._trouble else kind.plural for kind in kinds)
        if kinds:
            return f"reading {', '.join(waiting)}"
        if not self.key.ready.is_set():
            return f"making the key that signs assignments{self._no_key and f' ({self._no_key})'}"
        if self._own is not None and not self._own.ready.is_set():
            return f"making the certificate of the admission webhook{self._own.trouble and f' ({self._own.trouble})'}"
        return "" if self._prepared.is_set() else "preparing"

    async def synced(self) -> None:
        """Wait until all objects have been read, and everything can be answered at once."""
        await self._prepared.wait()

    def stop(self) -> None:
        """End `run`: no new requests, those under way are answered."""
        for each in self._http:
            each.should_exit = True

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            InvalidInput: the address, or the certificate's files.
            Unavailable: the port is taken.

        """
        places = self._places()
        if self._own is not None:
            self._own.begin()
        self._http = tuple(_Http(self._config(each.app, each.tls)) for each in places)
        with contextlib.ExitStack() as stack:
            most = self._settings.limits.connections
            listeners = [stack.enter_context(_listening(each.host, each.port, most)) for each in places]
            self.port, *more = (listener.getsockname()[1] for listener in listeners)
            self.admission_port = next(iter(more), 0)
            self.listening.set()
            async with self.following(), asyncio.TaskGroup() as tasks:
                for each, listener, http in zip(places, listeners, self._http, strict=True):
                    port = listener.getsockname()[1]
                    self._log.info("listening", host=each.host, port=port, tls=bool(each.tls), serves=each.serves)
                    tasks.create_task(http.serve(sockets=[listener]))

    def _places(self) -> tuple["_Place", ...]:
        """Return where it listens; the first is the extender's."""
        one = self._settings
        main = _Place("extender", one.host, one.port, one.tls, self.app)
        if one.admission is None:
            return (main,)
        app = make_admission_app(one.limits, self._log)
        return main, _Place("admission", one.admission.host, one.admission.port, one.admission.tls, app)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the cluster and remove old claims; at the end wait for bindings under way.

        Raises:
            TesseraError: what ended one of the loops, which nothing should.

        """
        gpu_nodes = self._follow(GPU_NODES, self._take_gpu_node)
        keys = self._follow(CONFIG_MAPS, self._take_keys, _KEYS), self._keep_key(), self._ask_for_keys()
        loops = (*keys, gpu_nodes, self._follow_nodes(), self._follow_pods(), self._maintain(), *self._renewals())
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
            self.view.take_keys(change.object, begun=self.view.keys_version if change.rewound else None)
        if change.gone or self.key.void:
            self._unpublished.set()

    async def _keep_key(self) -> None:
        """Have a key that counts, and all keys published: now and then, and at once where they were taken away."""
        while True:
            try:
                begun = self.view.keys_version
                found = await self._kube.get(CONFIG_MAPS, KEYS, NAMESPACE)
                self.view.take_keys(found, begun=begun)  # what was revoked is not written again
                self.view.take_keys(await self.key.renew(published_keys(found)))
                self._no_key = ""
            except TesseraError as error:
                self._no_key = str(error)
                self._log.warning("no_key" if not self.key.ready.is_set() else "key_not_renewed", reason=str(error))
            if self._no_key:
                await asyncio.sleep(_RETRY_S)
            else:
                await self._unpublished.wait(self._settings.limits.sweep_s)

    async def _ask_for_keys(self) -> None:
        """Ask the API for keys that are unknown: whoever signs has published its key before."""
        while True:
            await self.view.doubted.wait(self._settings.limits.sweep_s)
            asked = list(self.view.doubts)
            try:
                if asked:
                    begun = self.view.keys_version
                    self.view.take_keys(await self._published(), begun=begun)
                    if self.key.void:
                        self._unpublished.set()
                for name in {node for node, _ in asked}:
                    found = await self._kube.get(GPU_NODES, name)
                    if found is not None:
                        self.view.take_gpu_node(found)
                self.view.settle_doubts(asked)
            except TesseraError as error:
                self._log.warning("keys_not_read", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                self.view.doubted.set()

    async def _published(self) -> Object:
        """Return the ConfigMap of public keys. Who asks while it is deleted waits: a server writes it again."""
        found = await self._kube.get(CONFIG_MAPS, KEYS, NAMESPACE)
        if found is None:
            raise Unavailable(f"ConfigMap {NAMESPACE}/{KEYS}", found="none", expected="the public keys of all servers")
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
        """Follow the nodes, listed after the GPUNodes, so that no node is read without what its agent reports."""
        await self._synced[GPU_NODES].wait()
        await self._follow(NODES, self._take_node)

    async def _follow_pods(self) -> None:
        """Follow the pods, listed after the GPUNodes: so all nodes are verified at the start; and after the keys."""
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
        def troubled(error: Exception) -> None:
            if self._trouble.get(kind) != str(error):
                self._trouble[kind] = str(error)
                self._log.warning("missing" if isinstance(error, Unsupported) else "trouble", reason=str(error))

        async for change in follow(self._kube, kind, selection, on_trouble=troubled):
            try:
                take(change)
            except Exception as error:  # noqa: BLE001 (an object that nobody thought of must not stop the server)
                self._log.error("defect", kind=kind.name, exc_info=error)
            if change.object is None:
                self._trouble.pop(kind, None)
                self._synced[kind].set()

    async def _maintain(self) -> None:
        """Prepare for the first request, once all was read, then remove old claims now and then."""
        for each in (*self._synced.values(), self.key.ready):
            await each.wait()
        self.view.prepare()
        if self._settings.freeze:
            gc.collect()
            gc.freeze()
        self._prepared.set()
        while True:
            await self.view.lacking.wait(self._settings.limits.sweep_s)
            await self.claimer.sweep()

    def _renewals(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what follows the files of TLS, where there are any."""
        for place, http in zip(self._places(), self._http, strict=False):
            if place.tls is None or http.config.ssl is None:
                continue
            certificates, every_s = Certificates(place.tls, http.config.ssl, self._log), self._settings.limits.renewal_s
            yield certificates.follow(every_s)
            if self._own is not None and place.tls == self._own.tls:
                yield self._own.follow(certificates, every_s)

    def _config(self, app: Callable[..., Any], tls: Tls | None) -> uvicorn.Config:
        authority = tls.client_authority if tls else None
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(self._settings.limits.stop_s)),
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
            ssl_ca_certs=str(authority) if authority else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            found, desired = shown(error), "a certificate, its key and an authority in PEM"
            raise InvalidInput("TLS files", found=found, expected=desired) from error
        return config


class _Place(msgspec.Struct, frozen=True):
    """Where it listens, and what it answers there."""

    serves: str
    host: str
    port: int
    tls: Tls | None
    app: Callable[..., Any]


class _Http(uvicorn.Server):
    """Leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextmanager
def _listening(host: str, port: int, most: int) -> Iterator[socket.socket]:
    """Listen, for so many connections at most where others than this machine reach the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Taken over by every connection: an answer is two writes, and the second would wait 40 ms for the first's
        # acknowledgement. asyncio sets it only for sockets whose protocol number is given.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        accepted = "another --port, or ending what listens there"
        raise Unavailable(
            f"address {host}, port {port}", found=shown(error), expected="a free port", hint=accepted
        ) from error
    with contextlib.closing(listener if is_loopback(host) else BoundedListener(listener, most)) as bounded:
        yield bounded
