"""TLS files that are replaced while a server runs: real handshakes before and after."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tessera.certificates import Certificates, Tls
from tessera.clients.kube import MemoryKube
from tessera.log import logger
from tessera.server.run import Server
from tessera.server.settings import ServerLimits, ServerSettings

pytestmark = pytest.mark.anyio


class Mounted:
    """A mounted Secret: a link to the folder of the files in force, replaced at once with all of them."""

    def __init__(self, folder: Path, pki: Path) -> None:
        self._link = folder / "..data"
        self._folder = folder
        self._pki = pki
        self.tls = Tls(certificate=folder / "tls.crt", key=folder / "tls.key", client_authority=folder / "ca.crt")
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(Path("..data") / name)
        self._number = 0
        self.put("server")

    def put(self, certificate: str, key: str = "", authority: str = "ca") -> None:
        self._number += 1
        version = self._folder / f"..{self._number}"
        version.mkdir()
        names = {"tls.crt": f"{certificate}.crt", "tls.key": f"{key or certificate}.key", "ca.crt": f"{authority}.crt"}
        for name, file in names.items():
            (version / name).write_bytes((self._pki / file).read_bytes())
        new = self._folder / "..new"
        new.symlink_to(version)
        new.rename(self._link)

    def remove(self) -> None:
        self._link.unlink()


@pytest.fixture
def mounted(pki: Path, tmp_path: Path) -> Mounted:
    return Mounted(tmp_path, pki)


class Client:
    """Connects, and tells what it sees."""

    def __init__(self, port: int, pki: Path, name: str = "client") -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / f"{name}.crt", pki / f"{name}.key")

    async def name(self) -> str:
        """Return whose certificate the server shows on a new connection, on which it answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)
        try:
            return await ask(reader, writer)
        finally:
            writer.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(int(line.split()[1]) for line in head.lower().splitlines() if line.startswith(b"content-length"))
    await reader.readexactly(length)
    subject = writer.get_extra_info("peercert")["subject"]
    return str(dict(pair for (pair,) in subject)["commonName"])


@asynccontextmanager
async def serving(mounted: Mounted) -> AsyncIterator[int]:
    settings = ServerSettings(host="127.0.0.1", port=0, tls=mounted.tls, limits=ServerLimits(renewal_s=0.02))
    server = Server(settings, MemoryKube())
    task = asyncio.create_task(server.run())
    async with asyncio.timeout(10):
        await server.listening.wait()
        await server.synced()
    try:
        yield server.port
    finally:
        server.stop()
        await task


async def until_shown(client: Client, want: str) -> None:
    async with asyncio.timeout(10):
        while await client.name() != want:
            pass


async def test_new_connections_get_the_renewed_certificate_and_old_ones_go_on(pki: Path, mounted: Mounted) -> None:
    async with serving(mounted) as port:
        client = Client(port, pki)
        old = await client.open()
        assert [await ask(*old), await client.name()] == ["server", "server"]
        mounted.put("renewed")
        await until_shown(client, "renewed")
        assert await ask(*old) == "server"
        old[1].close()


async def test_each_check_is_reported(mounted: Mounted) -> None:
    checked = asyncio.Semaphore(0)
    certificates = Certificates(mounted.tls, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), logger())
    task = asyncio.create_task(certificates.follow(0.001, checked.release))
    async with asyncio.timeout(10):
        for _ in range(3):
            await checked.acquire()
    task.cancel()


async def test_clients_of_a_new_authority_are_heard_beside_those_of_the_former(pki: Path, mounted: Mounted) -> None:
    async with serving(mounted) as port:
        stranger, client = Client(port, pki, "stranger"), Client(port, pki)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await stranger.name()
        mounted.put("renewed", authority="other")
        await until_shown(client, "renewed")
        assert await stranger.name() == "renewed"


def watched(mounted: Mounted) -> Certificates:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(mounted.tls.certificate, mounted.tls.key)
    return Certificates(mounted.tls, context, logger())


async def test_files_that_cannot_be_used_are_reported_once_and_change_nothing(pki: Path, mounted: Mounted) -> None:
    async with serving(mounted) as port:
        client = Client(port, pki)
        mounted.put("renewed", key="server")
        with capture_logs() as logs:
            async with asyncio.timeout(10):
                while not any(each["event"] == "certificate_not_renewed" for each in logs):
                    assert await client.name() == "server"
        assert await client.name() == "server"
        mounted.put("renewed")
        await until_shown(client, "renewed")


async def test_a_check_reads_only_what_changed(mounted: Mounted) -> None:
    certificates = watched(mounted)
    with capture_logs() as logs:
        assert not certificates.renew()
        mounted.put("renewed", key="server")
        assert [certificates.renew(), certificates.renew()] == [False, False]
        mounted.remove()
        assert not certificates.renew()
        mounted.put("renewed")
        assert [certificates.renew(), certificates.renew()] == [True, False]
    assert [each["event"] for each in logs] == ["certificate_not_renewed", "certificate_renewed"]
    assert "MISMATCH" in logs[0]["reason"]
