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
