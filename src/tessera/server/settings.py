"""Settings of a server: addresses, TLS, limits and deadlines."""

import ipaddress

import msgspec

from tessera.certificates import Tls
from tessera.errors import InvalidInput

__all__ = ["AdmissionSettings", "Page", "PageLimits", "ServerLimits", "ServerSettings", "is_loopback"]


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on time and size."""

    request_s: float = 25.0
    """A request is answered with an error after this; binding continues, and a retry learns its result."""
    body_bytes: int = 128 << 20
    """5,000 nodes with all their fields have 100 MB; with `nodeCacheCapable` a request has only their names."""
    reviews_bytes: int = 64 << 20
    """All AdmissionReviews that are being read; above the limit the largest is refused. As many as there may be
    connections can have half a MiB each, which is more than a pod has."""
    connections: int = 128
    """Open connections at a port that other machines reach; above the limit another one is closed."""
    claim_lives_s: float = 120.0
    """A claim whose pod is neither bound nor gone after this is checked, and dropped: no request takes that long."""
    unknown_s: float = 5.0
    """A claim whose pod no watch has shown after this is checked as well: if the pod was gone before this server
    started, its place is free at once."""
    gather_s: float = 0.1
    """After a write for several pods the next to that node waits this long for more; the first never waits."""
    binding_within_s: float = 20.0
    """A Binding is not sent later than this after its claim; with the client's deadline and the API server's of 60 s
    that is less than `claim_lives_s`."""
    sweep_s: float = 20.0
    """Interval at which settled claims are removed that no other write removed."""
    renewal_s: float = 10.0
    """Interval at which the TLS files are checked for changes."""
    stop_s: float = 10.0
    """How long requests in flight may take at shutdown."""


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the admission webhook: the API server calls it without a client certificate."""

    host: str = "0.0.0.0"  # noqa: S104  # a Service leads here
    port: int
    """0 for any free port."""
    tls: Tls
    """Without a client CA."""
    self_signed: bool = False
    """Whether the servers create the certificate and write it to the files of `tls`."""


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the viewers of the page."""

    streams: int = 64
    """Live connections at once, of all viewers; and requests for the fleet at once."""
    streams_per_viewer: int = 8
    """Of them one who signed in may have so many; of both."""
    stream_s: float = 600.0
    """A stream ends after this; the page reconnects and misses nothing."""
    heartbeat_s: float = 15.0
    """Longest silence of a stream; and interval at which a viewer's permissions are checked."""
    replace_s: float = 30.0
    """A viewer with all the streams that one may have gets another in place of the oldest, if it is older than this:
    a connection that broke without a word counts until then. A page whose stream is silent asks for another after
    40 s."""
    send_s: float = 20.0
    """A viewer who reads nothing of what is sent for this long is disconnected."""
    refresh_s: float = 60.0
    """Longest wait for a refresh of the fleet."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Address and permissions of the dashboard page."""

    host: str = "127.0.0.1"
    port: int = 8085
    """0 for any free port."""
    tls: Tls | None = None
    """None for plain HTTP, which is allowed on the loopback address only."""
    sign_in: bool = True
    """Whether viewers sign in with a Kubernetes token and see what they may list; if not, everybody sees all."""
    limits: PageLimits = PageLimits()

    def check(self) -> None:
        """Refuse plain HTTP on a reachable address: viewers send their tokens.

        Raises:
            InvalidInput: the address is not a loopback address, and there is no certificate.

        """
        if self.tls is None and not is_loopback(self.host):
            raise InvalidInput(
                f"address {self.host} of the page",
                found="it is plain HTTP beyond this machine",
                hint="give --page-certificate and --page-key, or --page-host 127.0.0.1 and kubectl port-forward",
            )


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server."""

    host: str = "127.0.0.1"
    port: int = 39999
    """gpushare's default. 0 for any free port."""
    tls: Tls | None = None
    """None for plain HTTP, which is allowed on the loopback address only."""
    admission: AdmissionSettings | None = None
    page: Page | None = None
    """None for no page."""
    policy: str = "tessera"
    """Packing policy, a name of `tessera.core.packing.pack.POLICIES`."""
    replica: str = "server"
    """Name of this server in claims; unique among running servers."""
    limits: ServerLimits = ServerLimits()
    freeze: bool = False
    """Whether objects read at the start are excluded from Python's garbage collection, which would pause all answers
    for a quarter of a second on 5,000 nodes; only for a process that is nothing but a server."""

    def check(self) -> None:
        """Refuse plain HTTP, and clients without a certificate, on a reachable address.

        Raises:
            InvalidInput: the address is not a loopback address, and there is no certificate or no client CA.

        """
        if self.page is not None:
            self.page.check()
        if is_loopback(self.host):
            return
        if self.tls is None:
            found, missing = "it is plain HTTP beyond this machine", "TLS"
            hint = "give --tls-certificate, --tls-key and --tls-client-authority"
        elif self.tls.client_authority is None:
            found = "no authority for clients, so that any client that reaches it could have pods bound"
            missing, hint = "an authority beyond this machine", "give --tls-client-authority"
        else:
            return
        raise InvalidInput(
            f"address {self.host}",
            found=f"{found}, without {missing}",
            hint=f"{hint}, or --host 127.0.0.1 next to the scheduler",
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
