"""Azure Blob Storage: Azurite behind the suite that all stores pass (long), and what it cannot show."""

import base64
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from conformance.storesuite import Fill, StoreSuite
from harness.azurite import ACCOUNT, KEY, Azurite
from harness.serving import served
from tessera.clients.store import ObjectStore, Refused, Temporary, open_store
from tessera.clients.store.azure import AzureCredential, AzureSettings, AzureStore
from tessera.errors import InvalidInput


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    with Azurite.served() as server:
        yield server


def environment(address: str, key: str = KEY) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT": ACCOUNT,
        "AZURE_STORAGE_KEY": key,
        "AZURE_STORAGE_SERVICE_ENDPOINT": address,
    }


@pytest.mark.long
class TestAzureStore(StoreSuite):
    many = 5_100
    containers = 0

    @pytest.fixture
    def container(self) -> str:
        """Give a container of its own: one that was deleted cannot be made again at once."""
        TestAzureStore.containers += 1
        return f"models{TestAzureStore.containers}"

    @pytest.fixture
    def store(self, azurite: Azurite, container: str) -> Iterator[ObjectStore]:
        with closing(open_store(f"az://{container}/m", environment(azurite.address))) as made:
            yield made

    @pytest.fixture
    def fill(self, azurite: Azurite, container: str) -> Fill:
        azurite.container(container)
        there = set[str]()

        def replace(contents: dict[str, bytes]) -> None:
            for name in there - contents.keys():
                azurite.remove(container, f"m/{name}")
            for name, data in {**{f"m/{name}": data for name, data in contents.items()}, "other": b"no"}.items():
                azurite.put(container, name, data)
            there.clear()
            there.update(contents)

        return replace

    def test_another_key_is_refused(self, azurite: Azurite, fill: Fill, container: str) -> None:
        fill({"file": b"content"})
        other = environment(azurite.address, base64.b64encode(b"x" * 64).decode())
        with closing(open_store(f"az://{container}/m", other)) as store, pytest.raises(Refused, match="403"):
            store.objects()


class Blobs(ThreadingHTTPServer):
    """Answers with pages, and notes what was asked and what authorized it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.pages = {"": "<EnumerationResults><Blobs/></EnumerationResults>"}
        self.coding = "utf-8"
        self.requested = list[tuple[str, str | None]]()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are expected."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Blobs

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass

    def do_GET(self) -> None:
        self.server.requested.append((self.path, self.headers["Authorization"]))
        marker = self.path.partition("marker=")[2].partition("&")[0]
        content = self.server.pages[marker].encode(self.server.coding)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    with served(Blobs()) as server:
        yield server


def store_of(blobs: Blobs, credential: AzureCredential | None = None, *, key: str = "", sas: str = "") -> AzureStore:
    settings = AzureSettings(ACCOUNT, key=key, sas=sas, endpoint=f"http://127.0.0.1:{blobs.server_port}/{ACCOUNT}")
    return AzureStore("models", "m", settings, credential, lambda: datetime(2026, 11, 24, tzinfo=UTC))


def page(*blobs: str, marker: str = "") -> str:
    return f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"


def blob(name: str, size: str = "3", more: str = "", attributes: str = "") -> str:
    inner = f"<Content-Length>{size}</Content-Length><Etag>0x1</Etag>{more}"
    return f"<Blob><Name{attributes}>{name}</Name><Properties>{inner}</Properties></Blob>"


def test_all_pages_are_read_and_folders_are_no_files(blobs: Blobs) -> None:
    folder = "<ResourceType>directory</ResourceType>"
    blobs.pages = {
        "": page(blob("m/a"), blob("m/"), blob("m/folder", "0", folder), marker="2!a"),
        "2%21a": page(blob("m/b%01%EF%BF%BF", attributes=' Encoded="true"')),
    }
    with closing(store_of(blobs)) as store:
        assert [(each.path, each.etag) for each in store.objects()] == [("a", "0x1"), ("b\x01\uffff", "0x1")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (page(blob("elsewhere")), Temporary),
        (page(blob("m/a", "-1")), Temporary),
        (page(blob("m/a", more="<Content-MD5>!</Content-MD5>")), Temporary),
        (page(marker="again"), Temporary),
        ("<EnumerationResults>", Temporary),
        ("<ListBucketResult/>", Refused),
    ],
)
def test_a_listing_that_makes_no_sense_is_none(blobs: Blobs, text: str, kind: type[Exception]) -> None:
    blobs.pages = {"": text, "again": text}
    with closing(store_of(blobs)) as store, pytest.raises(kind, match="listing"):
        store.objects()


@pytest.mark.parametrize("coding", ["utf-8", "utf-16"])
def test_a_listing_with_a_document_type_is_refused(blobs: Blobs, coding: str) -> None:
    """A word of it can stand for many: a body of 7 MiB had a name of 464 Mi characters."""
    blobs.coding = coding
    kind = '<!DOCTYPE x [<!ENTITY a "m/a">]>'
    blobs.pages = {"": f'<?xml version="1.0" encoding="{coding}"?>{kind}{page(blob("&a;"))}'}
    with closing(store_of(blobs)) as store, pytest.raises(Refused, match="document type"):
        store.objects()


class Token(NamedTuple):
    token: str


class Identity:
    """An identity that has a token, or none."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = list(tokens)

    def get_token(self, *scopes: str) -> Token:
        assert scopes == ("https://storage.azure.com/.default",)
        return Token(self._tokens.pop(0))


def test_an_identity_gives_the_token(blobs: Blobs) -> None:
    with closing(store_of(blobs, Identity("first"))) as store:
        store.objects()
        assert blobs.requested[-1][1] == "Bearer first"
        with pytest.raises(Temporary, match="no token of Azure: IndexError"):
            store.objects()


def test_a_signature_goes_into_the_address_and_a_key_before_it(blobs: Blobs) -> None:
    with closing(store_of(blobs, Identity(), sas="sv=1&sig=a%2Bb")) as store:
        store.objects()
    path, authorization = blobs.requested[-1]
    assert (path.endswith("&sv=1&sig=a%2Bb"), authorization) == (True, None)
    with closing(store_of(blobs, key=KEY, sas="sv=1&sig=a")) as store:
        store.objects()
    path, authorization = blobs.requested[-1]
    assert "sig=" not in path
    assert authorization
    assert authorization.startswith(f"SharedKey {ACCOUNT}:")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AZURE_STORAGE_ACCOUNT", ""),
        ("AZURE_STORAGE_ACCOUNT", "A/B"),
        ("AZURE_STORAGE_KEY", "no base64"),
        ("AZURE_STORAGE_SERVICE_ENDPOINT", "ftp://x"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        open_store("az://models/m", {**environment("http://127.0.0.1:1/x"), name: value})


def test_without_a_key_the_librarys_identities_are_tried(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("CLIENT_ID", "TENANT_ID", "CLIENT_SECRET", "FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(f"AZURE_{each}", raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    given = environment(f"http://127.0.0.1:{blobs.server_port}/{ACCOUNT}", "")
    with closing(open_store("az://models/m", given)) as store, pytest.raises(Temporary, match="no token of Azure"):
        store.objects()
    with closing(open_store("az://models/m", {**given, "AZURE_STORAGE_AUTH_MODE": "anonymous"})) as public:
        assert public.objects() == ()
    assert [authorization for _, authorization in blobs.requested] == [None]
