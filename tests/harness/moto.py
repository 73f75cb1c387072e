"""Moto, a server that speaks S3 as AWS does, from PyPI; built once into the cache outside the tree."""

import os
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

from harness.serving import free_port, until_listening

__all__ = ["Moto"]

_VERSION = "5.2.5"
_START_S = 60.0
_SOMEBODY = "AWS4-HMAC-SHA256 Credential=a/20261101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""It looks at no signature, and lets nobody without a name overwrite what is there."""


class Moto:
    """A server, whose objects are in its memory.

    Args:
        address: of its S3.

    """

    def __init__(self, address: str) -> None:
        self.address = address

    def bucket(self, name: str) -> None:
        """Make a bucket."""
        self.send("PUT", f"/{name}")

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Put an object."""
        self.send("PUT", f"/{bucket}/{quote(name, safe='/-_.~')}", data)

    def remove(self, bucket: str, name: str) -> None:
        """Delete an object."""
        self.send("DELETE", f"/{bucket}/{quote(name, safe='/-_.~')}")

    def send(self, method: str, target: str, data: bytes = b"") -> tuple[bytes, str]:
        """Return the answer's body and ETag."""
        headers = {"Content-Type": "application/octet-stream", "Authorization": _SOMEBODY}
        with urlopen(Request(f"{self.address}{target}", data, headers, method=method)) as answer:
            return answer.read(), answer.headers.get("ETag", "").strip('"')

    @classmethod
    @contextmanager
    def served(cls) -> Iterator["Moto"]:
        """Give a server on loopback."""
        port = free_port()
        command = (_folder() / "bin/moto_server", "--host", "127.0.0.1", "--port", str(port))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                until_listening(port, "moto", _START_S)
                yield cls(f"http://127.0.0.1:{port}")
            finally:
                process.terminate()


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tessera/programs" / f"moto-{_VERSION}"
    if not (folder / "bin/moto_server").exists():
        venv.create(folder, with_pip=True, clear=True)
        python = folder / "bin/python"
        packages = (f"moto=={_VERSION}", "flask", "flask-cors", "PyYAML", "py-partiql-parser")
        subprocess.run((python, "-m", "pip", "install", "--quiet", *packages), check=True)
    return folder
