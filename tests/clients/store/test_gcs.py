"""Google Cloud Storage: the emulator behind the suite that all stores pass, and tokens by Google's own library."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from conformance.storesuite import Fill, StoreSuite, read
from harness.serving import free_port, served, until_listening
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import sync
from tessera.clients.store import Changed, ObjectStore, Temporary, open_store
from tessera.clients.store.gcs import GcsStore, GoogleToken
from tessera.errors import InvalidInput, Unavailable

_START_S = 30.0


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """Give the address of a server of the API with bucket `models`, whose objects are in its memory."""
    port = free_port()
    program = Path(sys.executable).with_name("gcp-storage-emulator")
    options = ("--host", "127.0.0.1", "--port", str(port), "--in-memory", "--default-bucket", "models")
    with subprocess.Popen(
        (program, "start", *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        until_listening(port, "the emulator", _START_S)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def upload(emulator: str, name: str, data: bytes) -> None:
    """Put an object, as a document and its content: of those that have none the simpler way makes an error there."""
    parts = ((b"application/json", json.dumps({"name": name}).encode()), (b"application/octet-stream", data))
    body = b"".join(b"--part\r\nContent-Type: %b\r\n\r\n%b\r\n" % part for part in parts) + b"--part--\r\n"
    address = f"{emulator}/upload/storage/v1/b/models/o?uploadType=multipart"
    urlopen(Request(address, body, {"Content-Type": "multipart/related; boundary=part"})).close()


class TestGcsStore(StoreSuite):
    many = 60
    """The emulator has no pages, and takes 20 ms for an object; pages are tested below."""

    @pytest.fixture
    def store(self, emulator: str) -> Iterator[ObjectStore]:
        made = open_store("gs://models/m", {"STORAGE_EMULATOR_HOST": emulator})
        yield made
        made.close()

    @pytest.fixture
    def fill(self, emulator: str) -> Fill:
        def replace(contents: dict[str, bytes]) -> None:
            urlopen(f"{emulator}/wipe?keep-buckets=true").close()
            for name, data in {**{f"m/{name}": data for name, data in contents.items()}, "other": b"no"}.items():
                upload(emulator, name, data)

        return replace

    def test_the_stores_checksum_is_the_contents(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"content"})
        assert [each.checksum for each in store.objects()] == ["md5:9a0364b9e99bb480dd25e1f0284c8555"]


class Google(ThreadingHTTPServer):
    """The API of one object by pages, a metadata server and a token endpoint; it notes what authorizes requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.tokens = list[str | None]()
        self.pages: dict[str, dict[str, object]] = {"": {"items": [], "nextPageToken": ""}}
        self.media = b""

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are expected."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Google

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, {"access_token": "of the account", "expires_in": 3600, "token_type": "Bearer"})

    def do_GET(self) -> None:
        if self.path.startswith("/computeMetadata/"):
            token: dict[str, object] = {"access_token": "of the node", "expires_in": 3600, "token_type": "Bearer"}
            account: dict[str, object] = {"email": "default", "scopes": ["a"], "aliases": []}
            self.answer(200, token if "/token" in self.path else account)
        elif self.path == "/":
            self.answer(200, {})
        elif "alt=media" in self.path and self.server.media:
            self.send(200, self.server.media)
        elif "alt=media" in self.path:
            self.answer(404, {})
        else:
            self.server.tokens.append(self.headers["Authorization"])
            self.answer(200, self.server.pages[self.path.partition("pageToken=")[2]])

    def answer(self, status: int, document: dict[str, object]) -> None:
        self.send(status, json.dumps(document).encode())

    def send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def google() -> Iterator[Google]:
    with served(Google()) as server:
        yield server


def item(name: str, generation: str = "17") -> dict[str, str]:
    return {"name": name, "size": "3", "generation": generation, "md5Hash": "rL0Y20zC+Fzt72VPzMSk2A=="}


def test_all_pages_are_read_and_a_generation_that_is_gone_is_noticed(google: Google) -> None:
    google.pages = {
        "": {"items": [item("m/a"), item("m/")], "nextPageToken": "next%2F"},
        "next%252F": {"items": [item("m/b", "18")]},
    }
    with closing(GcsStore("models", "m", google.address, None)) as store:
        assert [(each.path, each.etag) for each in store.objects()] == [("a", "17"), ("b", "18")]
        with pytest.raises(Changed, match="generation was deleted"):
            read(store, store.objects()[0], 0, 3)


@pytest.mark.parametrize("is_right", [True, False])
def test_an_object_that_was_composed_of_others_is_verified_by_its_crc32c(
    google: Google, tmp_path: Path, is_right: bool
) -> None:
    composed = {"name": "m/a", "size": "9", "generation": "17", "crc32c": "4waSgw=="}
    google.pages = {"": {"items": [composed]}}
    google.media = b"123456789" if is_right else b"123456788"
    with closing(GcsStore("models", "m", google.address, None)) as store:
        assert [each.checksum for each in store.objects()] == ["crc32c:e3069283"]
        if is_right:
            sync(store, ModelFolder(tmp_path), SyncOptions())
            assert (tmp_path / "current" / "a").read_bytes() == b"123456789"
        else:
            with pytest.raises(Unavailable, match=r"object a: content whose checksum is [0-9a-f]{8}"):
                sync(store, ModelFolder(tmp_path), SyncOptions())


@pytest.mark.parametrize(
    "page",
    [
        {"items": [item("elsewhere")]},
        {"items": [{**item("m/a"), "size": "-1"}]},
        {"items": [item("m/a", "1&alt=json")]},
        {"items": [{**item("m/a"), "md5Hash": "!"}]},
        {"items": [{**item("m/a"), "crc32c": "!"}]},
        {"items": 7},
    ],
)
def test_a_listing_that_makes_no_sense_is_none(google: Google, page: dict[str, object]) -> None:
    google.pages = {"": page}
    with closing(GcsStore("models", "m", google.address, None)) as store, pytest.raises(Temporary, match="listing"):
        store.objects()


def test_a_listing_that_does_not_go_on_ends(google: Google) -> None:
    google.pages = {"": {"nextPageToken": "x"}, "x": {"nextPageToken": "x"}}
    with closing(GcsStore("models", "m", google.address, None)) as store, pytest.raises(Temporary, match="not end"):
        store.objects()


def listed_with(google: Google, environ: dict[str, str]) -> str | None:
    with closing(GcsStore("models", "m", google.address, GoogleToken(environ))) as store:
        store.objects()
    return google.tokens[-1]


def test_a_token_of_the_environment_is_used(google: Google) -> None:
    assert listed_with(google, {"CLOUDSDK_AUTH_ACCESS_TOKEN": "given"}) == "Bearer given"


def test_a_service_account_is_used(google: Google) -> None:
    key = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = {
        "type": "service_account",
        "client_email": "reader@example.com",
        "private_key": key.decode(),
        "private_key_id": "1",
        "token_uri": f"{google.address}/token",
    }
    assert listed_with(google, {"GOOGLE_CREDENTIALS": json.dumps(account)}) == "Bearer of the account"
    with pytest.raises(InvalidInput, match="the JSON of a service account"):
        listed_with(google, {"GOOGLE_CREDENTIALS": "{"})
    with pytest.raises(InvalidInput, match="the JSON of a service account"):
        listed_with(google, {"GOOGLE_CREDENTIALS": json.dumps({**account, "private_key": "no key"})})


def test_the_nodes_identity_is_used_where_nothing_else_is(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, google.address.removeprefix("http://"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert listed_with(google, {}) == "Bearer of the node"


def test_without_an_identity_nothing_is_sent(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    assert listed_with(google, {}) is None
