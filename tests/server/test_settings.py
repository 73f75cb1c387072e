"""Settings that a server refuses."""

import pytest

from tessera.errors import InvalidInput
from tessera.server.settings import Settings


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.com"])
def test_plain_http_is_refused_beyond_the_loopback(host: str) -> None:
    with pytest.raises(InvalidInput, match="plain HTTP beyond this machine"):
        Settings(host=host).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_plain_http_is_for_the_loopback(host: str) -> None:
    Settings(host=host).check()
