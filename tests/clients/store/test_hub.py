"""The hub as a store: what every store does."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from conformance.storesuite import Fill, StoreSuite, read
from harness.hubserver import Hub
from tessera.clients.store import ObjectStore, Refused, Temporary, open_store
from tessera.core.storage.models.revisions import StoredObject


class TestHubStore(StoreSuite):
    """Files are those of a commit: what was listed is read as it was, whatever the repository has become."""

    @pytest.fixture
    def hub(self) -> Hub:
        return Hub(token="secret")

    @pytest.fixture
    def fill(self, hub: Hub) -> Fill:
        return hub.put

    @pytest.fixture
    def store(self, hub: Hub) -> Iterator[ObjectStore]:
        with hub.served() as address:
            made = open_store("hf://owner/name", {"HF_ENDPOINT": address, "HF_TOKEN": "secret"})
            yield made
            made.close()

    def test_an_object_that_was_replaced_is_noticed(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"before"})
        (listed,) = store.objects()
        fill({"file": b"another"})
        assert read(store, listed, 0, listed.size) == b"before"
        (again,) = store.objects()
        assert read(store, again, 0, again.size) == b"another"

    def test_an_object_that_is_gone_is_refused(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"before"})
        gone = StoredObject("other", 6)
        store.objects()
        with pytest.raises(Refused, match="404"):
            read(store, gone, 0, gone.size)

    def test_what_was_requested_ahead_and_is_gone_is_refused(self, store: ObjectStore, fill: Fill) -> None:
        self.test_an_object_that_is_gone_is_refused(store, fill)

    def test_large_files_are_read_where_the_hub_leads_and_the_token_stays_with_it(
        self, store: ObjectStore, hub: Hub
    ) -> None:
        hub.put({"weights/1 %.bin": b"0123456789", "config.json": b"{}"})
        config, weights = store.objects()
        assert (config.checksum[:4], weights.checksum[:7]) == ("git:", "sha256:")
        before = store.requests
        assert read(store, weights, 2, 5) == b"234"
        assert read(store, weights, 0, 10) == b"0123456789"
        assert store.requests == before + 3  # the link is asked for once
        hub.signature = "second"
        with pytest.raises(Temporary, match="has expired"):
            read(store, weights, 0, 10)
        assert read(store, weights, 0, 10) == b"0123456789"
        assert set(hub.told_elsewhere) == {None}

    def test_no_token_and_no_repository_are_reported(self, hub: Hub) -> None:
        hub.put({"file": b""})
        with hub.served() as address:
            anonymous = open_store("hf://owner/name", {"HF_ENDPOINT": address})
            with closing(anonymous), pytest.raises(Refused, match="it needs a token, HF_TOKEN"):
                anonymous.objects()
            other = open_store("hf://owner/name@no", {"HF_ENDPOINT": address, "HF_TOKEN": "secret"})
            with closing(other), pytest.raises(Refused, match="404"):
                other.objects()

    def test_a_folder_of_a_commit_is_listed_below_itself(self, hub: Hub) -> None:
        hub.put({"a/b/file": b"1", "a/other": b"2", "file": b"3"})
        commit = hub.main
        hub.put({"none": b""})
        with hub.served() as address:
            store = open_store(f"hf://owner/name@{commit}/a/", {"HF_ENDPOINT": address, "HF_TOKEN": "secret"})
            assert [each.path for each in store.objects()] == ["b/file", "other"]
            assert store.source == f"hf://owner/name@{commit}/a"
            assert [read(store, each, 0, 1) for each in store.objects()] == [b"1", b"2"]
            store.close()
