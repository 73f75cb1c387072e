"""What images have in common: sums against brute force, and the base that saves most."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.images.layers import Image, Layer, Reference, analyze

MIB = 1 << 20


def layer(name: str, mib: int, step: str = "") -> Layer:
    return Layer(digest=f"sha256:{name}", bytes=mib * MIB, step=step)


def image(name: str, *layers: Layer) -> Image:
    return Image(
        name=f"r.example/{name}:1", digest=f"sha256:{name}", repository=f"r.example/{name}", platform="", layers=layers
    )


OS_1, OS_2 = layer("os1", 30, "debian 12"), layer("os2", 31, "debian 12")
TORCH_1, TORCH_2 = layer("torch1", 900, "pip install torch"), layer("torch2", 901, "pip install torch")
APP_A, APP_B = layer("a", 5), layer("b", 6)


def test_a_layer_of_several_images_is_pulled_once() -> None:
    found = analyze([image("a", OS_1, TORCH_1, APP_A), image("b", OS_1, TORCH_1, APP_B)], {})
    assert found.bytes == (30 + 900 + 5 + 6) * MIB
    assert found.bytes_without_sharing == (30 + 900 + 5 + 30 + 900 + 6) * MIB
    assert [(each.bytes, each.images) for each in found.shared] == [
        (900 * MIB, ("r.example/a:1", "r.example/b:1")),
        (30 * MIB, ("r.example/a:1", "r.example/b:1")),
    ]
    assert [each.shared_bytes for each in found.images] == [930 * MIB, 930 * MIB]


def test_a_node_pulls_what_its_images_do_not_bring() -> None:
    images = [image("a", OS_1, TORCH_1, APP_A), image("b", OS_1, TORCH_1, APP_B), image("c", OS_2)]
    held = {"n2": {"r.example/a@sha256:a", "r.example/a:1"}, "n1": {"r.example/c:1", "r.example/c@sha256:older"}}
    first, second = analyze(images, held).nodes
    assert (first.node, first.missing, first.bytes) == (
        "n1",
        ("r.example/a:1", "r.example/b:1", "r.example/c:1"),
        (30 + 900 + 5 + 6 + 31) * MIB,
    )
    assert (second.node, second.missing, second.bytes) == ("n2", ("r.example/b:1", "r.example/c:1"), (6 + 31) * MIB)


BASES = {
    "the same steps built twice": (
        [image("a", OS_1, TORCH_1, APP_A), image("b", OS_2, TORCH_2, APP_B)],
        ("r.example/a:1", 2, ("r.example/b:1",), (31 + 901) * MIB),
    ),
    "the lower part alone is the same": (
        [image("a", OS_1, TORCH_1), image("b", OS_2, APP_B)],
        ("r.example/a:1", 1, ("r.example/b:1",), 31 * MIB),
    ),
    "of three, two are built again": (
        [image("a", OS_2, TORCH_2), image("b", OS_1, TORCH_1, APP_A), image("c", OS_1, TORCH_1, APP_B)],
        ("r.example/b:1", 2, ("r.example/a:1",), (31 + 901) * MIB),
    ),
    "one base already": ([image("a", OS_1, TORCH_1), image("b", OS_1, TORCH_1, APP_B)], None),
    "steps of which nothing is known": ([image("a", layer("x", 5)), image("b", layer("y", 5))], None),
    "no images": ([], None),
}


@pytest.mark.parametrize("case", BASES)
def test_the_base_that_saves_most(case: str) -> None:
    images, want = BASES[case]
    got = analyze(images, {}).base
    assert (got and (got.image, got.layers, got.rebuilt, got.saved_bytes)) == want


LAYERS = st.builds(layer, st.sampled_from("abcdefgh"), st.just(0), st.sampled_from(["", "one", "two"])).map(
    lambda each: Layer(digest=each.digest, bytes=sum(each.digest.encode()) % 97, step=each.step)
)
IMAGES = st.lists(st.lists(LAYERS, max_size=5), max_size=5).map(
    lambda several: [image(str(number), *layers) for number, layers in enumerate(several)]
)


@given(IMAGES)
def test_sums_agree_with_counting_digests(images: list[Image]) -> None:
    found = analyze(images, {"empty": (), "full": [f"{each.repository}@{each.digest}" for each in images]})
    sizes = {each.digest: each.bytes for each in chain.from_iterable(image.layers for image in images)}
    assert found.bytes == sum(sizes.values()) <= found.bytes_without_sharing
    assert [each.bytes for each in found.nodes] == [found.bytes, 0]
    for use, one in zip(found.images, images, strict=True):
        others = {each.digest for other in images if other is not one for each in other.layers}
        own = {each.digest for each in one.layers}
        assert use.shared_bytes == sum(sizes[digest] for digest in own & others)


@given(IMAGES)
def test_a_base_saves_what_building_on_it_saves(images: list[Image]) -> None:
    """By brute force: no beginning of any image, with all that have the same steps built on it, leaves less to pull."""

    def pulled(several: list[tuple[Layer, ...]]) -> int:
        return sum({each.digest: each.bytes for layers in several for each in layers}.values())

    now, best = pulled([each.layers for each in images]), 0
    for owner in images:
        for count in range(1, len(owner.layers) + 1):
            base = owner.layers[:count]
            several = [
                (*base, *each.layers[count:])
                if len(each.layers) >= count and all(map(Layer.same_step, each.layers, base))
                else each.layers
                for each in images
            ]
            best = max(best, now - pulled(several))
    found = analyze(images, {}).base
    assert (found.saved_bytes if found else 0) == best


def test_names() -> None:
    named = Reference(registry="r.example:5000", repository="a/b", tag="1")
    assert named.name == "r.example:5000/a/b:1"
    assert named.at("sha256:x") == "r.example:5000/a/b@sha256:x"
    assert Reference(registry="r", repository="a", digest="sha256:x").name == "r/a@sha256:x"
