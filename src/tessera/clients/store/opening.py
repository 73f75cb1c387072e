"""The store that an address names."""

from collections.abc import Mapping
from pathlib import Path

from tessera.clients.store.folders import FolderStore
from tessera.clients.store.protocol import Store
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.clients.store.web import WebStore
from tessera.errors import InvalidInput, shown

__all__ = ["open_store"]


def open_store(address: str, environ: Mapping[str, str]) -> Store:
    """Return the store at an address: `s3://BUCKET/PREFIX`, `https://HOST/FOLDER/`, `file:///FOLDER` or a folder.

    Raises:
        InvalidInput: it is none of these.

    """
    scheme, found, rest = address.partition("://")
    if not found:
        return FolderStore(Path(address).resolve())
    if scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(rest))
    if scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        return S3Store(bucket, prefix.strip("/"), S3Settings.of_environment(environ), utc_now)
    if scheme in {"http", "https"} and rest:
        return WebStore(address)
    raise InvalidInput(
        f"source {shown(address)}",
        found=f"scheme {shown(scheme)}",
        expected="s3://BUCKET/PREFIX, https://HOST/FOLDER/, https://HOST/FILE, file:///FOLDER or a folder's path",
    )
