"""Syncs of a small model from a store that fails on demand."""

import os
from pathlib import Path

import msgspec

from harness.flakys3 import FlakyS3
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import Synced, sync
from tessera.clients.store import ObjectStore
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.core.storage.models.paths import NOTES
from tessera.core.storage.models.revisions import CHUNK_BYTES
from tessera.core.storage.retries import Patience

LARGE = os.urandom(2 * CHUNK_BYTES + 12_345)


CONTENTS = {"config.json": b"{}", "empty": b"", "weights/a b+%.bin": LARGE}


MANY = {f"small/{number:03}": os.urandom(999) for number in range(150)}


QUICK = SyncOptions(
    limits=TransferLimits(Patience(stall_s=2.0, give_up_s=5.0, first_wait_s=0.01, longest_wait_s=0.1)), reserve_bytes=0
)


def s3(server: FlakyS3) -> ObjectStore:
    address = f"http://127.0.0.1:{server.server_port}"
    return S3Store("models", "m", S3Settings(address, access_key="a", secret_key="b", timeout_s=2.0), utc_now)


def run(store: ObjectStore, top: Path, **options: object) -> Synced:
    try:
        return sync(store, ModelFolder(top), msgspec.structs.replace(QUICK, **options))
    finally:
        store.close()


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


FIRST = {"config.json": b"{}", "empty": b"", "weights/0.bin": os.urandom(CHUNK_BYTES + 99), "weights/1.bin": b"one"}


SECOND = {"config.json": b"{ }", "empty": b"", "weights/1.bin": b"one", "weights/2.bin": b"two"}


def contents(top: Path) -> dict[str, bytes]:
    """Return all files but Tessera's notes."""
    paths = (path for path in top.rglob("*") if path.is_file() and path.relative_to(top).parts[0] != NOTES)
    return {str(path.relative_to(top)): path.read_bytes() for path in paths}
