"""The store in memory: what every store does."""

import pytest

from conformance.storesuite import Fill, StoreSuite
from tessera.clients.store import MemoryStore


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore({})

    @pytest.fixture
    def fill(self, store: MemoryStore) -> Fill:
        def replace(contents: dict[str, bytes]) -> None:
            store.contents = dict(contents)

        return replace
