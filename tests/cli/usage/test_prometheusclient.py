"""A client of a Prometheus: a token goes over TLS or the loopback alone, and files are what they should be."""

from pathlib import Path

import pytest

from tessera.cli.usage.prometheusclient import prometheus_client
from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput


def client(url: str, token: Path | None = None, ca: Path | None = None) -> HttpMetrics:
    return prometheus_client(url, token, ca, deadline_s=1, most_bytes=1)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


@pytest.mark.parametrize(
    "url", ["https://prometheus:9090", "http://localhost:9090", "http://127.0.0.2:9090", "http://[::1]:9090/prefix"]
)
def test_a_token_is_sent_over_tls_or_the_loopback(url: str, token: Path) -> None:
    assert isinstance(client(url, token), HttpMetrics)


@pytest.mark.parametrize(
    "url", ["http://prometheus:9090", "http://10.0.0.1:9090", "http://[::1", "ftp://prometheus", ""]
)
def test_a_token_is_not_sent_in_clear_text(url: str, token: Path) -> None:
    assert isinstance(client(url), HttpMetrics)
    with pytest.raises(InvalidInput, match="give https://, or a loopback address"):
        client(url, token)


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"t\xc3\xb6ken", b"a\nb"])
def test_a_token_is_one_line_of_ascii(content: bytes, token: Path) -> None:
    token.write_bytes(content)
    with pytest.raises(InvalidInput, match="write one line of ASCII"):
        client("https://prometheus", token)


def test_a_ca_is_pem(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("no certificate")
    with pytest.raises(InvalidInput, match="it is not PEM"):
        client("https://prometheus", ca=ca)
