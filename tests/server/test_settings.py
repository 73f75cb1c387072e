"""Settings that a server refuses."""

from pathlib import Path

import pytest

from tessera.certificates import Tls
from tessera.errors import InvalidInput
from tessera.server.settings import ServerSettings


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.com"])
def test_plain_http_is_refused_beyond_the_loopback(host: str) -> None:
    with pytest.raises(InvalidInput, match="plain HTTP beyond this machine"):
        ServerSettings(host=host).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.com"])
def test_beyond_the_loopback_the_extender_hears_nobody_without_a_certificate(host: str) -> None:
    """Whoever is heard can have any pod bound, and whoever reaches the port would be."""
    tls = Tls(certificate=Path("tls.crt"), key=Path("tls.key"))
    with pytest.raises(InvalidInput, match=r"any client that reaches it could have pods bound.*--tls-client-authority"):
        ServerSettings(host=host, tls=tls).check()
    ServerSettings(host="127.0.0.1", tls=tls).check()
    ServerSettings(
        host=host, tls=Tls(certificate=tls.certificate, key=tls.key, client_authority=Path("ca.crt"))
    ).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_plain_http_is_for_the_loopback(host: str) -> None:
    ServerSettings(host=host).check()
