"""The metrics APIs over a real socket and real TLS, with a proxy's certificate and tokens, as kube-apiserver asks."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.certificates import Tls
from tessera.clients.connections import Connections, HttpResponse, ServerAddress
from tessera.clients.kube import CONFIG_MAPS, MemoryKube
from tessera.log import logger
from tessera.server.listening import HttpServer, listening
from tessera.server.metrics.access import MetricsAccess
from tessera.server.metrics.app import MetricsApp
from tessera.server.metrics.sources import MetricsSource

READER = "system:masters"
"""A group that may read all metrics."""
AS_HPA = {"X-Remote-User": "hpa", "X-Remote-Group": READER}


def make_certificates(folder: Path) -> None:
    """Make an authority `front` with the client `front-proxy-client`, another client of it, and a stranger's."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("front", "serving", "strange"):
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.crt", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={authority}", "-days", "2")
    names = (("server", "serving"), ("front-proxy-client", "front"), ("somebody", "front"), ("stranger", "strange"))
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name, authority in names:
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *sign, "-extfile", "san")


class MetricsServer:
    """A server as its callers see it."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._url = f"https://127.0.0.1:{port}"

    async def ask(
        self, path: str, headers: Mapping[str, str] = AS_HPA, *, client: str = "front-proxy-client", method: str = "GET"
    ) -> HttpResponse:
        """Return an answer to a client with a certificate, or without one where its name is empty."""
        async with self._connected(client) as connections:
            return await connections.ask(method, path, headers)

    async def headers(self, path: str) -> dict[str, str]:
        """Return the headers of an answer to kube-apiserver."""
        async with self._connected("front-proxy-client") as connections:
            return (await connections.read(path, AS_HPA, most=1 << 20)).headers

    @asynccontextmanager
    async def _connected(self, client: str) -> AsyncIterator[Connections]:
        tls = ssl.create_default_context(cafile=str(self._folder / "serving.crt"))
        if client:
            tls.load_cert_chain(self._folder / f"{client}.crt", self._folder / f"{client}.key")
        connections = Connections(ServerAddress(url=self._url), tls)
        try:
            yield connections
        finally:
            await connections.close()

    async def get(self, path: str) -> tuple[int, Any]:
        """Return what kube-apiserver gets for a user who may read."""
        answer = await self.ask(path)
        return answer.status, msgspec.json.decode(answer.content)


def front_proxy_config(folder: Path) -> dict[str, Any]:
    """Return the ConfigMap that kube-apiserver publishes."""
    data = {
        "requestheader-client-ca-file": (folder / "front.crt").read_text(),
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    return {"metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"}, "data": data}


@asynccontextmanager
async def serving_metrics(source: MetricsSource, folder: Path) -> AsyncIterator[MetricsServer]:
    """Serve metrics on the loopback while the body runs; of the tokens, `good` is a reader's and `weak` not."""
    kube = MemoryKube()
    kube.accounts.add("good", ReviewedUser(username="hpa", groups=(READER,)))
    kube.accounts.add("weak", ReviewedUser(username="jane"))
    await kube.create(CONFIG_MAPS, front_proxy_config(folder))
    access = MetricsAccess(kube)
    tls = Tls(certificate=folder / "server.crt", key=folder / "server.key")
    http = HttpServer(MetricsApp(source, access, logger()), tls, stop_s=1)
    await access.read_proxy(http.trust)
    with listening("127.0.0.1", 0, 16) as listener:
        port = listener.getsockname()[1]
        task = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            yield MetricsServer(folder, port)
        finally:
            http.should_exit = True
            await task
