"""What the page shows of nodes beside the server's own view: images and models."""

import pytest

from harness.pageserver import cluster, served
from tessera.clients.kube import NODE_IMAGES, NODE_MODELS

pytestmark = pytest.mark.anyio


async def test_images_of_nodes_are_shown_and_what_is_none_is_left_out() -> None:
    kube = await cluster()
    for name, images in (("a", [{"image": "vllm:1", "state": "Present"}]), ("b", "none")):
        await kube.create(NODE_IMAGES, {"metadata": {"name": name}, "spec": {}})
        await kube.patch(NODE_IMAGES, name, {"status": {"images": images}}, subresource="status")
    async with served(kube) as page:
        assert (await page.fleet())["nodes"][0]["images"] == [{"image": "vllm:1", "state": "Present"}]


async def test_models_of_nodes_are_shown_and_not_to_who_sees_one_namespace() -> None:
    kube = await cluster()
    first = {"name": "llama", "state": "Fetching", "revision": "0" * 64, "bytes": 7, "containers": 2}
    second = {"name": "bert", "state": "Fetching", "fetchedBytes": 1, "totalBytes": 3}
    for name, models in (("a", [first, second]), ("b", "none")):
        await kube.create(NODE_MODELS, {"metadata": {"name": name}, "spec": {}})
        await kube.patch(NODE_MODELS, name, {"status": {"models": models}}, subresource="status")
    async with served(kube) as page:
        assert (await page.fleet())["nodes"][0]["models"] == [
            {"model": "llama", "state": "Ready", "revision": "0" * 64, "bytes": 7, "containers": 2},
            {"model": "bert", "state": "Fetching", "fetchedPercent": 33},
        ]
    async with served(kube, sign_in=True) as page:
        assert "models" not in (await page.fleet("token-of-viewer"))["nodes"][0]
