"""TLS files of a server, renewed while it runs: new connections get the new certificate, old ones keep theirs."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from tessera.errors import InvalidInput, shown
from tessera.log import Logger

__all__ = ["Certificates", "Tls", "asking_context_of", "context_of"]

_FileStamps: TypeAlias = tuple[tuple[int, int, int], ...] | None
"""Identity of each file's content; None for a missing file."""


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Files, in PEM."""

    certificate: Path
    """With the chain up to the CA."""
    key: Path
    client_authority: Path | None = None
    """Clients must present a certificate of this CA; without it any client may connect."""


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return the context of a server; with a client CA each client must present a certificate of it.

    Raises:
        InvalidInput: the files cannot be loaded.

    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _load(tls, context)
    except OSError as error:  # ssl.SSLError is one
        hint = "give a certificate, its key and an authority in PEM"
        raise InvalidInput("TLS files", found=shown(error), hint=hint) from error
    if tls.client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def asking_context_of(tls: Tls) -> ssl.SSLContext:
    """Return the context of a client: our certificate is presented, theirs must be of the same CA.

    Raises:
        InvalidInput: the files cannot be loaded.

    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        _load(tls, context)
    except OSError as error:  # ssl.SSLError is one
        hint = "give a certificate, its key and an authority in PEM"
        raise InvalidInput("TLS files", found=shown(error), hint=hint) from error
    return context


class Certificates:
    """Reloads the files when they are replaced, as cert-manager and mounted Secrets do it.

    Unusable files, such as a key of another certificate, are logged once and change nothing; they are read
    again when they change. A replaced CA is added: clients of the former one are accepted until the server
    restarts.

    Args:
        tls: the files.
        context: of the server, made from the files.
        log: records renewals.

    """

    def __init__(self, tls: Tls, context: ssl.SSLContext, log: Logger) -> None:
        self._tls = tls
        self._context = context
        self._log = log
        self._loaded = self._files()

    async def follow(self, every_s: float, checked: Callable[[], None] = lambda: None) -> None:
        """Check the files at intervals, until canceled; call `checked` after each check."""
        while True:
            await asyncio.sleep(every_s)
            self.renew()
            checked()

    def renew(self) -> bool:
        """Reload changed files; return whether they are in use now. Takes a few milliseconds then."""
        stamps = self._files()
        if stamps == self._loaded or stamps is None:
            return False
        self._loaded = stamps
        try:
            _load(
                self._tls, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            )  # a partial failure must not affect the one in use
            _load(self._tls, self._context)
        except OSError as error:  # ssl.SSLError is one
            self._log.error("certificate_not_renewed", file=str(self._tls.certificate), reason=shown(error))
            return False
        if stamps != self._files():
            self._loaded = None  # they were being replaced: try again
        self._log.info("certificate_renewed", file=str(self._tls.certificate))
        return True

    def _files(self) -> _FileStamps:
        tls = self._tls
        try:
            return tuple(map(_stamp, (tls.certificate, tls.key, *filter(None, (tls.client_authority,)))))
        except OSError:
            return None


def _load(tls: Tls, context: ssl.SSLContext) -> None:
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_authority is not None:
        context.load_verify_locations(tls.client_authority)


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
