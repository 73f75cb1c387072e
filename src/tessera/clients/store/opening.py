"""Opens the store of an address."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tessera.clients.store.azure import AzureCredential, AzureSettings, AzureStore
from tessera.clients.store.folders import FolderStore
from tessera.clients.store.hub import HubStore, Repository
from tessera.clients.store.protocol import ObjectStore, Refused
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.clients.store.web import WebStore
from tessera.errors import InvalidInput, shown

__all__ = ["open_store"]

_GCS, _HUB = "https://storage.googleapis.com", "https://huggingface.co"


def open_store(address: str, environ: Mapping[str, str]) -> ObjectStore:
    """Return the store at an address.

    Args:
        address: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, `hf://OWNER/NAME@REVISION`,
            `https://HOST/FOLDER/`, `file:///FOLDER` or a folder.
        environ: credentials and endpoints, under the names of the stores' own programs.

    Raises:
        InvalidInput: it is none of these, or a library is not installed.

    """
    try:
        return _opened(address, environ)
    except (ValueError, Refused) as error:  # a port that is none, a broken address of IPv6, a host that is not ASCII
        hint = "check it, and the endpoint in the environment"
        raise InvalidInput(f"source {shown(address)}", found=f"no address of a server: {error}", hint=hint) from error


def _opened(address: str, environ: Mapping[str, str]) -> ObjectStore:
    scheme, found, rest = address.partition("://")
    if not found:
        return FolderStore(Path(address).resolve())
    if scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(rest))
    if scheme in {"http", "https"} and rest:
        return WebStore(address)
    if scheme in _BUCKETS:
        return _BUCKETS[scheme](rest, environ)
    raise InvalidInput(
        f"source {shown(address)}",
        found=f"its scheme {shown(scheme)} is unknown",
        hint="write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, hf://OWNER/NAME, "
        "https://HOST/FOLDER/, https://HOST/FILE, file:///FOLDER or a folder's path",
    )


def _s3(rest: str, environ: Mapping[str, str]) -> ObjectStore:
    bucket, _, prefix = rest.partition("/")
    return S3Store(bucket, prefix.strip("/"), S3Settings.of_environment(environ), utc_now)


def _hub(rest: str, environ: Mapping[str, str]) -> ObjectStore:
    endpoint = environ.get("HF_ENDPOINT") or _HUB
    return HubStore(Repository.of_address(rest), endpoint, environ.get("HF_TOKEN", ""))


def _azure(rest: str, environ: Mapping[str, str]) -> ObjectStore:
    container, _, prefix = rest.partition("/")
    settings = AzureSettings.of_environment(environ)
    credential: AzureCredential | None = None
    if not settings.key and not settings.sas and environ.get("AZURE_STORAGE_AUTH_MODE") != "anonymous":
        try:
            from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - the library is an extra
        except ImportError as error:
            raise _missing(f"az://{rest}", error, "az") from error
        credential = DefaultAzureCredential()
    return AzureStore(container, prefix.strip("/"), settings, credential, utc_now)


def _missing(source: str, error: ImportError, extra: str) -> InvalidInput:
    return InvalidInput(
        f"source {shown(source)}",
        found=f"the library that finds its credentials is missing: no module {error.name}",
        hint=f"run pip install '.[{extra}]' in a checkout of Tessera",
    )


def _gcs(rest: str, environ: Mapping[str, str]) -> ObjectStore:
    try:
        from tessera.clients.store.gcs import GcsStore, GoogleToken  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        raise _missing(f"gs://{rest}", error, "gs") from error
    bucket, _, prefix = rest.partition("/")
    emulator = environ.get("STORAGE_EMULATOR_HOST", "")
    token = None if emulator else GoogleToken(environ)
    return GcsStore(bucket, prefix.strip("/"), emulator or _GCS, token)


_BUCKETS: dict[str, Callable[[str, Mapping[str, str]], ObjectStore]] = {"s3": _s3, "gs": _gcs, "az": _azure, "hf": _hub}
"""Opens a store, from the part after `://` and the environment."""
