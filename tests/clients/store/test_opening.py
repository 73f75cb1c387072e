"""Which store an address names."""

import pytest

from tessera.clients.store import open_store
from tessera.errors import InvalidInput


@pytest.mark.parametrize(
    "address",
    ["hf://name", "hf://owner/na me", "hf://", "hf://owner/name@", "hf://owner/name@a b", "gs://", "gs://UP/x"],
)
def test_addresses_that_name_nothing_are_refused(address: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(address, {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("https://host:99999999/x", ""),
        ("https://host:abc/x", ""),
        ("http://[::1", ""),
        ("http://[zz]/x", ""),
        ("http://日本.example/x", ""),
        ("http:///x", ""),
        ("s3://bucket/m", "http://[::1"),
        ("s3://bucket/m", "http://h:99999999"),
        ("s3://bucket/m", "http://€"),
        ("hf://owner/name", "http://[::1"),
        ("hf://owner/name", "https://hub.example:99999999"),
    ],
)
def test_addresses_of_no_server_are_refused(address: str, endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="no address of a server"):
        open_store(address, {"AWS_ENDPOINT_URL": endpoint, "HF_ENDPOINT": endpoint})


def test_a_query_of_any_letters_can_be_sent() -> None:
    store = open_store("http://127.0.0.1:1/x?q=%41€&b=1", {})
    assert vars(store)["_query"] == "?q=%41%E2%82%AC&b=1"
