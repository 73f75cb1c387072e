"""Where models come from on a testbed, and the disk they go to."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.ceph import ObjectGateway
from testbed.node import Node

__all__ = ["BUCKET", "ceph_bucket", "put", "serve_bucket", "small_disk"]

BUCKET = "http://192.168.77.101:9000"
"""The endpoint of the bucket `models` on the first node."""
_MONITOR_PORT = 3300


def serve_bucket(node: Node, folder: Path) -> None:
    """Serve a folder as the bucket `models`, for who has access key `key` with `secret`."""
    arguments = (str(folder), node.address, "9000", "key", "secret")
    node.start_process("bucket", (sys.executable, str(Path(__file__).with_name("bucket.py")), *arguments))


@contextmanager
def ceph_bucket(node: Node, top: Path, files: Path) -> Iterator[None]:
    """Have the files of a folder in the same bucket of a real Ceph on the node; `top` is for what Ceph writes."""
    ceph = ObjectGateway(top, _MONITOR_PORT, node.command)
    try:
        ceph.start()
        ceph.open(BUCKET.removeprefix("http://"), "models")
        ceph.upload(files)
        yield
    finally:
        ceph.stop()


def put(bucket: Path, name: str, **files: str) -> None:
    """Make what the bucket has of a model; an object is replaced as a whole, as S3 does."""
    folder = bucket / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        upload = bucket.with_name("upload")
        upload.write_text(content)
        upload.replace(folder / file)


def small_disk(node: Node, folder: str) -> None:
    """Mount an empty disk of 64 MiB, in memory: that of the machine may be so full that models find no room on it."""
    node.path(folder).mkdir(parents=True, exist_ok=True)
    node.run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder)
