"""The certificate that servers make themselves: one for all of them, known to the webhook before it is shown."""

import asyncio
import base64
import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.certificates import Tls
from tessera.clients.kube import MUTATING_WEBHOOKS, SECRETS, Kind, MemoryKube, Object
from tessera.errors import Conflict, Unavailable
from tessera.log import logger
from tessera.server.run import Server
from tessera.server.selfsigned import SECRET, WEBHOOK, SelfSigned
from tessera.server.settings import AdmissionSettings, ServerLimits, ServerSettings
from tessera.signing import valid_until

pytestmark = pytest.mark.anyio

NAME = "tessera-server.tessera-system.svc"
HOOK: Object = {
    "metadata": {"name": WEBHOOK},
    "webhooks": [{"name": "scheduler-name.tessera.dev", "clientConfig": {"service": {"name": "tessera-server"}}}],
}
BEGIN = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


class Clock:
    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> dt.datetime:
        return self.now


@pytest.fixture
async def kube() -> MemoryKube:
    made = MemoryKube()
    await made.create(MUTATING_WEBHOOKS, HOOK)
    return made


def replica(kube: MemoryKube, folder: Path, clock: Clock) -> SelfSigned:
    tls = Tls(certificate=folder / "tls.crt", key=folder / "tls.key")
    one = SelfSigned(kube, tls, logger(), now=clock)
    one.begin()
    return one


def shown(one: SelfSigned) -> bytes:
    return one.tls.certificate.read_bytes()


async def bundle(kube: MemoryKube) -> bytes:
    hook = await kube.get(MUTATING_WEBHOOKS, WEBHOOK)
    assert hook is not None
    assert hook["webhooks"][0]["clientConfig"]["service"] == {"name": "tessera-server"}
    return base64.b64decode(hook["webhooks"][0]["clientConfig"].get("caBundle", ""))


async def test_all_servers_show_one_certificate_after_the_webhook_knows_it(kube: MemoryKube, tmp_path: Path) -> None:
    clock = Clock()
    one, other = replica(kube, tmp_path / "one", clock), replica(kube, tmp_path / "other", clock)
    before = shown(one)
    assert not await one.renew(), "the API server learns of it now"
    assert shown(one) == before
    assert await one.renew()
    assert await other.renew()
    assert shown(one) == shown(other) == await bundle(kube)
    assert one.tls.key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("ahead", [dt.timedelta(hours=2), dt.timedelta(days=3650)])
async def test_one_made_by_a_clock_that_was_ahead_is_replaced_since_it_is_not_valid_yet(
    kube: MemoryKube, tmp_path: Path, ahead: dt.timedelta
) -> None:
    """The API server would refuse it until then, and send pods to no scheduler of ours meanwhile."""
    wrong, right = Clock(), Clock()
    wrong.now += ahead
    one, other = replica(kube, tmp_path / "one", wrong), replica(kube, tmp_path / "other", right)
    for _ in range(2):
        await one.renew()
    for _ in range(2):
        await other.renew()
    until = valid_until(shown(other))
    assert until is not None
    assert until - dt.timedelta(days=365) <= right.now


async def test_of_two_that_make_it_at_once_one_wins(kube: MemoryKube, tmp_path: Path) -> None:
    replicas = [replica(kube, tmp_path / str(number), Clock()) for number in range(3)]
    await asyncio.gather(*(each.renew() for each in replicas), return_exceptions=True)
    assert all([await each.renew() for each in replicas])
    assert len({shown(each) for each in replicas} | {await bundle(kube)}) == 1


async def test_it_is_renewed_long_before_its_end_and_the_former_one_is_known_until_then(
    kube: MemoryKube, tmp_path: Path
) -> None:
    clock = Clock()
    one, other = replica(kube, tmp_path / "one", clock), replica(kube, tmp_path / "other", clock)
    while not (await one.renew() and await other.renew()):
        pass
    former = shown(one)
    until = valid_until(former)
    assert until is not None
    clock.now = until - dt.timedelta(days=121)
    assert await one.renew()
    assert shown(one) == former
    clock.now = until - dt.timedelta(days=119)
    assert not await one.renew()
    assert shown(one) == shown(other) == former, "no server shows what the webhook does not know"
    assert former in await bundle(kube)
    assert await one.renew()
    assert await other.renew()
    assert shown(one) == shown(other) != former
    assert shown(one) + former == await bundle(kube)


SPOILED = {
    "no certificate": {"tls.crt": base64.b64encode(b"nothing").decode()},
    "no data": {},
    "no base64": {"tls.crt": "="},
}


@pytest.mark.parametrize("case", SPOILED)
async def test_a_secret_that_somebody_spoiled_is_replaced(kube: MemoryKube, tmp_path: Path, case: str) -> None:
    await kube.create(SECRETS, {"metadata": {"name": SECRET, "namespace": NAMESPACE}, "data": SPOILED[case]})
    one = replica(kube, tmp_path, Clock())
    assert not await one.renew()
    assert await one.renew()
    assert await bundle(kube) == shown(one)


async def test_without_a_webhook_it_is_shown_at_once(tmp_path: Path) -> None:
    assert await replica(MemoryKube(), tmp_path, Clock()).renew()


async def test_a_secret_that_goes_while_it_is_made_is_reported(tmp_path: Path) -> None:
    class Going(MemoryKube):
        """Another server makes the Secret at the same moment, and somebody deletes it at once."""

        async def apply(self, *args: Any, **words: Any) -> Object:
            del args, words
            raise Conflict("Secret", found="another's", expected="ours")

    with pytest.raises(Unavailable, match="created and deleted at once"):
        await replica(Going(), tmp_path, Clock()).renew()


async def test_a_server_is_ready_and_trusted_by_the_bundle_when_the_certificate_is_in_force(
    kube: MemoryKube, tmp_path: Path
) -> None:
    tls = Tls(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    admission = AdmissionSettings(host="127.0.0.1", port=0, tls=tls, self_signed=True)
    server = Server(ServerSettings(port=0, admission=admission, limits=ServerLimits(renewal_s=0.05)), kube)
    with capture_logs() as lines:
        running = asyncio.create_task(server.run())
        try:
            async with asyncio.timeout(30):
                await server.listening.wait()
                while server.waiting_for():  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0.05)
            context = ssl.create_default_context(cadata=(await bundle(kube)).decode())
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.admission_port, ssl=context, server_hostname=NAME
            )
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        finally:
            server.stop()
            await running
    assert "certificate_shown" in {line["event"] for line in lines}


async def test_a_server_that_may_not_share_it_says_so(tmp_path: Path) -> None:
    class Forbidding(MemoryKube):
        async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
            if (kind, name) == (SECRETS, SECRET):
                raise Unavailable("Secret", found="forbidden", expected="the right to get it")
            return await super().get(kind, name, namespace)

    tls = Tls(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    admission = AdmissionSettings(host="127.0.0.1", port=0, tls=tls, self_signed=True)
    server = Server(ServerSettings(port=0, admission=admission), Forbidding())
    with capture_logs() as lines:
        running = asyncio.create_task(server.run())
        async with asyncio.timeout(30):
            while "forbidden" not in server.waiting_for():  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.05)
        server.stop()
        await running
    assert "certificate_not_shared" in {line["event"] for line in lines}
