"""Azurite, Microsoft's own emulator of Azure Blob Storage, from npm; built once into the cache outside the tree."""

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

from harness.serving import free_port, until_listening

__all__ = ["ACCOUNT", "KEY", "Azurite"]

_VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the account that every Azurite has; it is public."""
_START_S = 60.0


class Azurite:
    """A server.

    Args:
        address: the account's.

    """

    def __init__(self, address: str) -> None:
        self.address = address

    def container(self, name: str) -> None:
        """Make a container."""
        self._send("PUT", f"/{name}", "restype=container")

    def put(self, container: str, name: str, data: bytes) -> None:
        """Put a blob."""
        self._send("PUT", f"/{container}/{quote(name, safe='/-_.~')}", data=data)

    def remove(self, container: str, name: str) -> None:
        """Delete a blob."""
        self._send("DELETE", f"/{container}/{quote(name, safe='/-_.~')}")

    def _send(self, method: str, path: str, query: str = "", data: bytes = b"") -> None:
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": "2023-11-03"}
        headers |= {"x-ms-blob-type": "BlockBlob"} if method == "PUT" and not query else {}
        kind = "application/octet-stream"
        rows = [method, "", "", str(len(data) or ""), "", kind, *[""] * 6]
        rows += [f"{name}:{value}" for name, value in sorted(headers.items())]
        rows += [f"/{ACCOUNT}/{ACCOUNT}{path}", *(query.replace("=", ":"),) * bool(query)]
        signed = hmac.digest(base64.b64decode(KEY), "\n".join(rows).encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
        target = f"{self.address}{path}{f'?{query}' if query else ''}"
        urlopen(Request(target, data, {**headers, "Content-Type": kind}, method=method)).close()

    @classmethod
    @contextmanager
    def served(cls) -> Iterator["Azurite"]:
        """Give a server on loopback, whose blobs are in its memory."""
        port = free_port()
        options = ("--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent")
        with subprocess.Popen((_program(), *options), stdout=subprocess.DEVNULL) as process:
            try:
                until_listening(port, "Azurite", _START_S)
                yield cls(f"http://127.0.0.1:{port}/{ACCOUNT}")
            finally:
                process.terminate()


def _program() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tessera/programs" / f"azurite-{_VERSION}"
    program = folder / "node_modules/.bin/azurite-blob"
    if not program.exists():
        npm = shutil.which("npm")
        assert npm, "npm is needed for Azurite: apt-get install npm"
        folder.mkdir(parents=True, exist_ok=True)
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--silent")
        subprocess.run((npm, "install", *quiet, "--prefix", folder, f"azurite@{_VERSION}"), check=True)
    return str(program)
