"""A client of a Prometheus, with its token and CA."""

import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput, shown

__all__ = ["prometheus_client"]

_MOST_TOKEN_BYTES: Final = 1 << 16


def prometheus_client(
    url: str, token_file: Path | None, ca_file: Path | None, *, deadline_s: float, most_bytes: int
) -> HttpMetrics:
    """Return a client of a Prometheus.

    Args:
        url: its address.
        token_file: with the bearer token; None for none.
        ca_file: CA of its certificate; None for the machine's.
        deadline_s: for an answer.
        most_bytes: of an answer.

    Raises:
        InvalidInput: an invalid file, or a token that would be sent in clear text.

    """
    headers = {"Accept": "application/json"}
    if token_file is not None:
        if not _private(url):
            found = f"a token for {shown(url)}"
            raise InvalidInput("the token's file", found=found, hint="give https://, or a loopback address")
        headers["Authorization"] = f"Bearer {_token(token_file)}"
    return HttpMetrics(most_bytes=most_bytes, deadline_s=deadline_s, headers=headers, tls=_trusted(ca_file))


def _private(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.hostname == "localhost":
            return True
        return parts.scheme == "https" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _token(path: Path) -> str:
    with path.open("rb") as file:
        token = file.read(_MOST_TOKEN_BYTES).strip()
    if not token or not token.isascii() or any(each <= ord(" ") for each in token):
        raise InvalidInput(f"token in {path}", found="the file has no token", hint="write one line of ASCII")
    return token.decode()


def _trusted(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InvalidInput(f"certificates in {ca_file}", found=f"it is not PEM ({shown(error)})") from error
