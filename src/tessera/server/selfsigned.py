"""Self-signed certificates of Tessera's webhooks and API services, shared by a Secret and renewed in time.

A new certificate joins the former one in the `caBundle`s one check before any server uses it.
"""

import asyncio
import base64
import datetime as dt
import hashlib
from collections.abc import Callable

import msgspec

from tessera.api.kubernetes.metrics.paths import VERSIONS
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.certificates import Certificates, Tls
from tessera.clients.kube import API_SERVICES, MUTATING_WEBHOOKS, SECRETS, Kind, Kube, Object, version_of
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger
from tessera.signing import self_signed, valid_until

__all__ = ["ADMISSION", "METRICS", "SECRET", "WEBHOOK", "SelfSigned", "TrustingObjects"]

SECRET = "tessera-server-certificate"  # noqa: S105 (the name of an object)
WEBHOOK = "tessera-scheduler-name"
_LIVES = dt.timedelta(days=365)
_RENEWED = dt.timedelta(days=120)
"""How long before its end a certificate is renewed."""
_SKEW = dt.timedelta(hours=1)
"""How far the clock of an API server may lag."""
_RETRY_S = 1.0


class TrustingObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that must trust a certificate."""

    secret: str
    service: str
    """Service in `tessera-system` that leads to the servers with the certificate."""
    kind: Kind
    names: tuple[str, ...]
    """Objects with a `caBundle`."""


ADMISSION = TrustingObjects(secret=SECRET, service="tessera-server", kind=MUTATING_WEBHOOKS, names=(WEBHOOK,))
METRICS = TrustingObjects(
    secret="tessera-metrics-certificate",  # noqa: S106 (the name of an object)
    service="tessera-metrics",
    kind=API_SERVICES,
    names=tuple(f"{version}.{group}" for group, versions in VERSIONS.items() for version in versions),
)


class SelfSigned:
    """The certificate, its Secret and the objects that trust it.

    Args:
        kube: the Kubernetes API.
        tls: the files to write.
        log: records renewals.
        authority: the objects that must trust it.
        now: the time of day.

    """

    def __init__(
        self,
        kube: Kube,
        tls: Tls,
        log: Logger,
        *,
        authority: TrustingObjects = ADMISSION,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self.tls = tls
        self._authority = authority
        self.ready = asyncio.Event()
        """Set when the Secret's certificate is in use."""
        self.problem = ""
        """Why it is not."""
        self._kube = kube
        self._log = log
        self._now = now
        self._written = b""

    def begin(self) -> None:
        """Write a temporary certificate, so that the server can listen before the API server answers."""
        self._write(*self._new_certificate())

    async def follow(
        self, certificates: Certificates, every_s: float, on_valid: Callable[[], None] = lambda: None
    ) -> None:
        """Keep the Secret's certificate in use, until canceled; call `on_valid` after each check where it is."""
        while True:
            try:
                valid = await self.renew()
                self.problem = ""
            except TesseraError as error:
                valid, self.problem = False, str(error)
                self._log.warning("certificate_not_shared", reason=self.problem)
            if valid:
                certificates.renew()
                self.ready.set()
                on_valid()
            await asyncio.sleep(every_s if valid else _RETRY_S)

    async def renew(self) -> bool:
        """Create or renew the Secret, and add its certificate to every `caBundle`.

        Returns whether the certificate is in the files; in the pass that changed a `caBundle` it is not yet.

        Raises:
            TesseraError: the API server does not answer, or forbids it.

        """
        found = await self._kube.get(SECRETS, self._authority.secret, NAMESPACE)
        if found is None or self._ends(found):
            found = await self._replaced(found)
        if not await self._known(_data(found, "ca.crt")):
            return False
        if _data(found, "tls.crt") != self._written:
            self._write(_data(found, "tls.crt"), _data(found, "tls.key"))
            self._log.info("certificate_shown", valid_until=str(valid_until(self._written)))
        return True

    def _ends(self, secret: Object) -> bool:
        until = valid_until(_data(secret, "tls.crt"))
        # A start far in the future means that a server's clock was wrong.
        return until is None or not _RENEWED <= until - self._now() <= _LIVES

    async def _replaced(self, former: Object | None) -> Object:
        """Return the Secret with a new certificate; if another server was faster, its Secret."""
        certificate, key = self._new_certificate()
        before = _data(former or {}, "tls.crt")
        data = {
            "tls.crt": certificate,
            "tls.key": key,
            "ca.crt": certificate + (before if valid_until(before) else b""),
        }
        body: Object = {
            "metadata": {"name": self._authority.secret, "namespace": NAMESPACE},
            "type": "kubernetes.io/tls",
            "data": {name: base64.b64encode(each).decode() for name, each in data.items()},
        }
        if former is not None:
            body["metadata"]["resourceVersion"] = version_of(former)
        manager = f"tessera-certificate-{hashlib.sha256(certificate).hexdigest()[:8]}"
        try:
            return await self._kube.apply(SECRETS, body, manager=manager, force=former is not None)
        except Conflict:
            found = await self._kube.get(SECRETS, self._authority.secret, NAMESPACE)
        if found is None:
            raise Unavailable(
                f"Secret {NAMESPACE}/{self._authority.secret}",
                found="it was created and deleted at once",
                hint="see who deletes it",
            )
        return found

    async def _known(self, bundle: bytes) -> bool:
        """Return whether every `caBundle` already has these certificates; after this call they do."""
        text, known = base64.b64encode(bundle).decode(), True
        for name in self._authority.names:
            found = await self._kube.get(self._authority.kind, name)
            change = _knowing(found or {}, text, self._authority.service)
            if found is not None and change:
                body = {"metadata": {"resourceVersion": version_of(found)}, **change}
                await self._kube.patch(self._authority.kind, name, body)
                known = False
        return known

    def _new_certificate(self) -> tuple[bytes, bytes]:
        begin = self._now() - _SKEW
        return self_signed(f"{self._authority.service}.{NAMESPACE}.svc", begin, begin + _LIVES)

    def _write(self, certificate: bytes, key: bytes) -> None:
        self.tls.certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in ((self.tls.key, key), (self.tls.certificate, certificate)):
            scratch = path.with_name(f".{path.name}")
            scratch.touch(mode=0o600)
            scratch.write_bytes(content)
            scratch.rename(path)
        self._written = certificate


def _knowing(configuration: Object, bundle: str, service: str) -> Object:
    """Return the patch of a webhook or an APIService that adds these certificates; empty for none.

    An APIService of another Service belongs to another program, such as a Prometheus adapter: it is left alone.
    """
    hooks = configuration.get("webhooks", [])
    if any(each["clientConfig"].get("caBundle") != bundle for each in hooks):
        return {"webhooks": [{**each, "clientConfig": {**each["clientConfig"], "caBundle": bundle}} for each in hooks]}
    spec = configuration.get("spec") or {}
    leads_to = spec.get("service") or {}
    own = (leads_to.get("namespace"), leads_to.get("name")) == (NAMESPACE, service)
    return {"spec": {"caBundle": bundle}} if own and spec.get("caBundle") != bundle else {}


def _data(secret: Object, name: str) -> bytes:
    try:
        return base64.b64decode(secret.get("data", {}).get(name, ""))
    except ValueError:
        return b""
