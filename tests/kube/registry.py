"""The reference registry on the loopback, with images pushed to it over its API."""

import gzip
import json
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tessera.api.oci.manifests import digest_of
from tessera.clients.registry import MemoryRegistry
from testbed.node import Node
from testbed.processes import until

__all__ = ["HASHED", "RealRegistry", "serve_on"]

HASHED = "$2b$05$51cQL8zHbCdHe3OgI3hY5O6os4ql2MiRVkCvoMLWBs0JMD0/j2QNu"
"""The password of the suite, by bcrypt."""


class RealRegistry:
    """The reference registry on a port of the loopback."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.data = program, folder / "data"
        config = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(self.data)}},
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

    def push_archive(self, archive: Path, repository: str, tag: str) -> None:
        """Give it the image of an archive as `docker save` writes it, its layers compressed as engines push them."""
        with tarfile.open(archive) as found:
            parts = {each.name: found.extractfile(each).read() for each in found if each.isfile()}  # type: ignore[union-attr]
        (described,) = json.loads(parts["manifest.json"])
        kind = "application/vnd.oci.image"
        blobs = [(f"{kind}.config.v1+json", parts[described["Config"]])]
        blobs += [(f"{kind}.layer.v1.tar+gzip", gzip.compress(parts[name], 1)) for name in described["Layers"]]
        config, *layers = (
            {"mediaType": each, "digest": digest_of(content), "size": len(content)} for each, content in blobs
        )
        manifest = {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json", "config": config, "layers": layers}
        for _, content in blobs:
            begun = self._send("POST", f"/v2/{repository}/blobs/uploads/", b"", "application/octet-stream")
            self._send("PUT", f"{begun}&digest={digest_of(content)}", content, "application/octet-stream")
        self._send(
            "PUT", f"/v2/{repository}/manifests/{tag}", json.dumps(manifest).encode(), f"{kind}.manifest.v1+json"
        )

    def configuration(self, path: Path, address: str, *, users: str = "") -> tuple[str, ...]:
        """Return the command line of another registry with the same images.

        Args:
            path: of its configuration, which is written.
            address: where it listens.
            users: lines of an htpasswd file; empty where everybody may pull.

        """
        config: dict[str, object] = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(self.data)}},
            "http": {"addr": address},
        }
        if users:
            path.with_suffix(".users").write_text(users)
            config["auth"] = {"htpasswd": {"realm": "suite", "path": str(path.with_suffix(".users"))}}
        path.write_text(json.dumps(config))
        return (str(self.program), "serve", str(path))

    def _send(self, method: str, target: str, body: bytes, kind: str) -> str:
        url = target if "://" in target else f"http://{self.host}{target}"
        request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return str(answer.headers.get("Location", ""))


@contextmanager
def serve_on(node: Node, registry: RealRegistry, port: int, *, users: str = "") -> Iterator[str]:
    """Give the host of a registry on a node's loopback that has the same images.

    Args:
        node: the node.
        registry: whose images it has.
        port: of the node's loopback.
        users: lines of an htpasswd file; empty where everybody may pull.

    """
    name, host = f"registry-{port}", f"127.0.0.1:{port}"
    node.start_process(name, registry.configuration(node.folder / f"{name}.json", host, users=users))
    try:
        until(name, partial(_listens, node, port), timeout_s=60)
        yield host
    finally:
        node.stop_process(name)


def _listens(node: Node, port: int) -> bool:
    """Return whether something listens on a port of the node's loopback."""
    lines = node.run("cat", "/proc/net/tcp").splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") for line in lines)
