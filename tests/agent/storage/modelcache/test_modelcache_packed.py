"""A node's packed models after its kernel was replaced by one that mounts no images."""

import re

import pytest

from harness.modelnode import Node, desired, has, mounted
from tessera.agent.storage.modelcache import ModelDisk
from tessera.clients.disks import MemoryErofsMounts

pytestmark = pytest.mark.anyio

WITHOUT = "the kernel 6.9 has no EROFS"


@pytest.mark.parametrize("interval_s", [0, 60])
async def test_a_packed_model_on_a_kernel_without_erofs_becomes_plain_files_unless_it_is_always_packed(
    node: Node, interval_s: int
) -> None:
    source = node.put("llama", a=b"1" * 5000, b=b"2")
    await node.tell(desired(source, pack="Always", interval_s=interval_s))
    async with node.running(ModelDisk(node.folder, most_percent=99, images=MemoryErofsMounts())):
        first = (await node.model(has())).revision
    image = node.folder / f"llama/.tessera/images/{first}.erofs"
    async with node.running(ModelDisk(node.folder, most_percent=99, images=MemoryErofsMounts(WITHOUT))):
        failed = await node.model(lambda each: each.state == "Failed")
        assert failed.revision == ""
        assert re.fullmatch(rf"{image}: {WITHOUT}: do not pack: .*", failed.reason)
        await node.tell(desired(source, pack="Never", interval_s=interval_s))
        await node.passes(2)  # the next attempt knows of it
        node.now_s += 1000
        found = await node.model(has())
        assert (found.revision, found.reason) == (first, "")
        assert mounted(await node.start("p")) == b"1" * 5000
    assert not image.exists()
