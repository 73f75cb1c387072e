"""The reference registry on the loopback, with images pushed to it over its API."""

import json
import subprocess
import urllib.request
from pathlib import Path

from tessera.api.oci.manifests import digest_of
from tessera.clients.registry import MemoryRegistry

__all__ = ["RealRegistry"]


class RealRegistry:
    """The reference registry on a port of the loopback."""

    def __init__(self, program: Path, folder: Path) -> None:
        config = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": "127.0.0.1:0"},
        }
        (folder / "config.yml").write_text(json.dumps(config))
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([program, "serve", folder / "config.yml"], stderr=log, stdout=log)
        self.host = ""

    def listening(self) -> bool:
        """Return whether it has said where it listens, which is kept."""
        found = [word for word in self.log.read_text().split() if word.startswith("127.0.0.1:")]
        self.host = found[0].rstrip('"') if found else ""
        return bool(found)

    def push(self, memory: MemoryRegistry, layers: tuple[bytes, ...], repository: str) -> None:
        """Give it all that a registry in memory has, which is one repository, and the contents of its layers."""
        for content in (*layers, *memory.blobs.values()):
            begun = self._send("POST", f"/v2/{repository}/blobs/uploads/", b"", "application/octet-stream")
            digest = digest_of(content)
            self._send("PUT", f"{begun}&digest={digest}", content, "application/octet-stream")
        for (_, name), kept in memory.contents.items():
            self._send("PUT", f"/v2/{repository}/manifests/{name}", kept.content, kept.media_type)

    def _send(self, method: str, target: str, body: bytes, kind: str) -> str:
        url = target if "://" in target else f"http://{self.host}{target}"
        request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return str(answer.headers.get("Location", ""))
