"""Nodes that fetch one model together."""

import hashlib
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from harness.flakys3 import FlakyS3
from harness.peernodes import PeerNode, peer_tls
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.certificates import asking_context_of
from tessera.clients.store import ObjectStore
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.core.storage.models.peers.owners import content_key
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.core.storage.retries import Patience

LARGE = os.urandom(5 * CHUNK_BYTES + 12_345)


CHUNKS = 6


KEY = content_key(f"md5:{hashlib.md5(LARGE).hexdigest()}", len(LARGE))


QUICK = SyncOptions(
    limits=TransferLimits(Patience(stall_s=30.0, give_up_s=60.0, first_wait_s=0.01, longest_wait_s=0.1)),
    reserve_bytes=0,
)


def s3(server: FlakyS3) -> Callable[[], ObjectStore]:
    settings = S3Settings(f"http://127.0.0.1:{server.server_port}", access_key="a", secret_key="b", timeout_s=30.0)
    return lambda: S3Store("models", "m", settings, utc_now)


def showing(pki: Path, certificate: str) -> ssl.SSLContext:
    if certificate:
        return asking_context_of(peer_tls(pki, certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki / "ca.crt")
    return context


CONTENTS = {"config.json": b"{}", "empty": b"", "one.bin": os.urandom(300_000), "weights.bin": LARGE}


def content(node: PeerNode) -> dict[str, bytes]:
    top = node.folder.top / "current"
    return {str(each.relative_to(top)): each.read_bytes() for each in top.rglob("*") if each.is_file()}


SIZE = sum(map(len, CONTENTS.values()))


SMALL = 2
"""Bytes of what is too small for peers."""


def from_store(nodes: list[PeerNode]) -> int:
    """Return the bytes that all nodes together read from the store, without small objects."""
    return sum(max(0, node.peers.bytes_from_stores - SMALL) for node in nodes)
