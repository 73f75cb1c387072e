"""The store that an address names."""

from collections.abc import Mapping
from pathlib import Path

from tessera.clients.store.folders import FolderStore
from tessera.clients.store.hub import HubStore, Repository
from tessera.clients.store.protocol import Store
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.clients.store.web import WebStore
from tessera.errors import InvalidInput, shown

__all__ = ["open_store"]

_GCS, _HUB = "https://storage.googleapis.com", "https://huggingface.co"


def open_store(address: str, environ: Mapping[str, str]) -> Store:
    """Return the store at an address.

    Args:
        address: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `hf://OWNER/NAME@REVISION`, `https://HOST/FOLDER/`,
            `file:///FOLDER` or a folder.
        environ: credentials and endpoints under the names that the stores' own programs use.

    Raises:
        InvalidInput: it is none of these, or what it needs is not installed.

    """
    scheme, found, rest = address.partition("://")
    if not found:
        return FolderStore(Path(address).resolve())
    if scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(rest))
    if scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        return S3Store(bucket, prefix.strip("/"), S3Settings.of_environment(environ), utc_now)
    if scheme == "gs":
        return _gcs(rest, environ)
    if scheme == "hf":
        endpoint = environ.get("HF_ENDPOINT") or _HUB
        return HubStore(Repository.of_address(rest), endpoint, environ.get("HF_TOKEN", ""))
    if scheme in {"http", "https"} and rest:
        return WebStore(address)
    raise InvalidInput(
        f"source {shown(address)}",
        found=f"scheme {shown(scheme)}",
        expected="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://OWNER/NAME, https://HOST/FOLDER/, https://HOST/FILE, "
        "file:///FOLDER or a folder's path",
    )


def _gcs(rest: str, environ: Mapping[str, str]) -> Store:
    try:
        from tessera.clients.store.gcs import GcsStore, GoogleToken  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        raise InvalidInput(
            f"source gs://{rest}",
            found=f"no module {error.name}",
            expected="Google's library for credentials",
            hint="pip install 'tessera-gpu[gs]'",
        ) from error
    bucket, _, prefix = rest.partition("/")
    emulator = environ.get("STORAGE_EMULATOR_HOST", "")
    token = None if emulator else GoogleToken(environ)
    return GcsStore(bucket, prefix.strip("/"), emulator or _GCS, token)
