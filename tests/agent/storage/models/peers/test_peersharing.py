"""Which objects a sync fetches together with peers, and what it serves to them until its end and afterwards."""

import os
from pathlib import Path

import msgspec
import pytest

from harness.peernodes import PeerNode, closing_all
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.peers.peersharing import PeerSharing
from tessera.agent.storage.models.reading import Progress, TransferLimits, TransferSource
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import sync
from tessera.clients.store import MemoryStore
from tessera.clients.store.peers import ChunkAbsent
from tessera.core.storage.models.peers.owners import LEAST_BYTES, content_key
from tessera.core.storage.models.retention import TooLittleRoom
from tessera.core.storage.models.revisions import StoredObject

CONTENTS = {"small.bin": os.urandom(LEAST_BYTES), "large.bin": os.urandom(LEAST_BYTES + 1)}


def served(node: PeerNode, key: str) -> bool:
    try:
        os.close(node.peers.served.open(key, 0, None).number)
    except ChunkAbsent:
        return False
    return True


def test_objects_that_are_not_small_are_served_while_they_are_fetched_and_as_a_revision(
    tmp_path: Path, pki: Path
) -> None:
    store = MemoryStore(CONTENTS)
    objects = store.objects()
    keys = {each.path: content_key(each.checksum, each.size) for each in objects}
    with closing_all([PeerNode(tmp_path / "node", pki)]) as (node,):
        sharing = PeerSharing(node.peers)
        source = TransferSource(store, TransferLimits(), Progress(lambda _done, _total: None, 0), Cancellation())
        with sharing.fetching():
            sharing.begin(objects)
            fetched = sharing.fetch(source, tmp_path / "staged", objects)
            assert {each.path: each.checksum for each in fetched} == {each.path: each.checksum for each in objects}
            assert {path: served(node, key) for path, key in keys.items()} == {"small.bin": False, "large.bin": True}
        assert not served(node, keys["large.bin"])
        assert node.peers.bytes_from_stores == sum(map(len, CONTENTS.values()))
        sync(store, node.folder, SyncOptions(reserve_bytes=0), sharing=sharing)
        assert served(node, keys["large.bin"])
        node.folder.evict(node.folder.current())
        sharing.serve(node.folder)
        assert not served(node, keys["large.bin"])


def test_the_owners_of_what_does_not_fit_on_the_disk_are_not_computed(tmp_path: Path, pki: Path) -> None:
    """A listing may claim any size, and owners take memory for each chunk."""

    class Claiming(MemoryStore):
        def objects(self, *_: object) -> tuple[StoredObject, ...]:
            return tuple(msgspec.structs.replace(each, size=2**43) for each in super().objects())

    store = Claiming(CONTENTS)
    with closing_all([PeerNode(tmp_path / "node", pki)]) as (node,):
        with pytest.raises(TooLittleRoom):
            node.sync(store, SyncOptions(reserve_bytes=0))
        for each in store.objects():
            with pytest.raises(KeyError):
                node.peers.owner(content_key(each.checksum, each.size), 0)
