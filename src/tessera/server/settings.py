"""A server's settings: where it listens, to whom, and its deadlines."""

import ipaddress

import msgspec

from tessera.certificates import Tls
from tessera.errors import InvalidInput

__all__ = ["Admission", "Page", "PageLimits", "ServerLimits", "Settings", "is_loopback"]


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how large things may be."""

    request_s: float = 25.0
    """After this a request is answered with an error; binding goes on, and a second request learns how it ended."""
    body_bytes: int = 128 << 20
    """5,000 nodes with all their fields have 100 MB; with `nodeCacheCapable` it is names alone."""
    connections: int = 128
    """Open connections at a port that others than this machine reach; for one too many another is ended. With
    AdmissionReviews of 4 MiB at most that is half a GiB, whatever strangers send."""
    claim_lives_s: float = 120.0
    """A claim whose pod is neither bound nor gone by then is looked into, and dropped: no request lives so long."""
    unknown_s: float = 5.0
    """A claim of a pod that no watch has shown by then is looked into as well: the pod was gone before this server
    began, and its place is free at once."""
    gather_s: float = 0.1
    """After a write for several pods the next to that node waits so long for more; the first of a burst never does."""
    binding_within_s: float = 20.0
    """A Binding is not sent later than this after its claim; with the client's deadline and the API server's of 60 s
    that is less than `claim_lives_s`."""
    sweep_s: float = 20.0
    """How often settled claims that nobody's next write took away are removed."""
    renewal_s: float = 10.0
    """How often it is looked whether the files of TLS were replaced."""
    stop_s: float = 10.0
    """How long requests under way may take when the server ends."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Where AdmissionReviews are answered besides: the API server comes from outside and shows no certificate."""

    host: str = "0.0.0.0"  # noqa: S104  # a Service leads here
    port: int
    """0 takes any free port."""
    tls: Tls
    """Without an authority for clients."""
    self_signed: bool = False
    """Whether the servers make the certificate themselves; the files of `tls` are written then."""


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many may look at the page, and for how long at a stretch."""

    streams: int = 64
    """Viewers with live updates at once."""
    stream_s: float = 600.0
    """A stream ends after so long; the page goes on with the next one and misses nothing."""
    heartbeat_s: float = 15.0
    """Longest silence of a stream; and how often it is looked whether the viewer may still see what they see."""
    send_s: float = 20.0
    """A viewer who takes no event for so long is cut off."""
    refresh_s: float = 30.0
    """Longest wait for a look at the fleet."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Where the dashboard page is served besides, and to whom."""

    host: str = "127.0.0.1"
    port: int = 8085
    """0 takes any free port."""
    tls: Tls | None = None
    """None for plain HTTP, which is for the loopback alone."""
    sign_in: bool = True
    """Whether viewers show their Kubernetes token, and see what they may list; otherwise everybody sees everything."""
    limits: PageLimits = PageLimits()

    def check(self) -> None:
        """Refuse plain HTTP where others could listen: viewers send their tokens.

        Raises:
            InvalidInput: the address is not the loopback's, and there is no certificate.

        """
        if self.tls is None and not is_loopback(self.host):
            raise InvalidInput(
                f"address {self.host} of the page",
                found="it is plain HTTP beyond this machine",
                hint="give --page-certificate and --page-key, or --page-host 127.0.0.1 and kubectl port-forward",
            )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server."""

    host: str = "127.0.0.1"
    port: int = 39999
    """gpushare's default. 0 takes any free port."""
    tls: Tls | None = None
    """None for plain HTTP, which is for the loopback alone."""
    admission: Admission | None = None
    page: Page | None = None
    """None for no page."""
    policy: str = "tessera"
    """Packing policy, a name of `tessera.core.packing.pack.POLICIES`."""
    replica: str = "server"
    """Name of this server in claims; no two running servers have the same."""
    limits: ServerLimits = ServerLimits()
    freeze: bool = False
    """Whether what was read at the start is left out of Python's collections of garbage, which stop all answers for a
    quarter of a second on 5,000 nodes; for a process that is a server and nothing else."""

    def check(self) -> None:
        """Refuse plain HTTP where others could listen, and clients without a certificate where others could ask.

        Raises:
            InvalidInput: the address is not the loopback's, and there is no certificate or no authority for clients.

        """
        if self.page is not None:
            self.page.check()
        if is_loopback(self.host):
            return
        if self.tls is None:
            found, desired = "it is plain HTTP beyond this machine", "TLS"
            hint = "give --tls-certificate, --tls-key and --tls-client-authority"
        elif self.tls.client_authority is None:
            found = "no authority for clients, so that any client that reaches it could have pods bound"
            desired, hint = "an authority beyond this machine", "give --tls-client-authority"
        else:
            return
        raise InvalidInput(
            f"address {self.host}",
            found=f"{found}, without {desired}",
            hint=f"{hint}, or --host 127.0.0.1 beside the scheduler",
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
