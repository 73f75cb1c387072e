"""Takes renewed TLS files into a server that goes on: new connections get the new certificate, old ones keep theirs."""

import asyncio
import ssl
from pathlib import Path
from typing import TypeAlias

from tessera.errors import shown
from tessera.log import Logger
from tessera.server.settings import Tls

__all__ = ["Certificates"]

_Seen: TypeAlias = tuple[tuple[int, int, int], ...] | None
"""Of each file what changes when it is replaced or written; None where one is not there."""


class Certificates:
    """Looks whether the files were replaced, as cert-manager and mounted Secrets do it, and reads them again.

    Files that cannot be used, as a key that is not the certificate's, are logged once and change nothing; they are read
    again when they change. An authority that is replaced is added: clients of the former one are heard until the server
    starts anew.

    Args:
        tls: the files.
        context: what was made of them, which connections are accepted with.
        log: records renewals.

    """

    def __init__(self, tls: Tls, context: ssl.SSLContext, log: Logger) -> None:
        self._tls = tls
        self._context = context
        self._log = log
        self._seen = self._look()

    async def follow(self, every_s: float) -> None:
        """Look at the files again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.renew()

    def renew(self) -> bool:
        """Read the files where they changed; return whether they are in force now. Takes a few milliseconds then."""
        seen = self._look()
        if seen == self._seen or seen is None:
            return False
        self._seen = seen
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # what fails halfway must not be what is in use
            self._load(self._context)
        except OSError as error:  # ssl.SSLError is one
            self._log.error("certificate_not_renewed", file=str(self._tls.certificate), reason=shown(error))
            return False
        if seen != self._look():
            self._seen = None  # they were being replaced: once more
        self._log.info("certificate_renewed", file=str(self._tls.certificate))
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._tls.certificate, self._tls.key)
        if self._tls.client_authority is not None:
            context.load_verify_locations(self._tls.client_authority)

    def _look(self) -> _Seen:
        tls = self._tls
        try:
            return tuple(map(_stamp, (tls.certificate, tls.key, *filter(None, (tls.client_authority,)))))
        except OSError:
            return None


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
