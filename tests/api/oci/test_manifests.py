"""Manifests and configurations: what is read, and what a registry may not send."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.oci.manifests import (
    INDEX,
    MANIFEST,
    BuildStep,
    Config,
    Descriptor,
    ImageManifest,
    Index,
    Platform,
    RunConfig,
    checked,
    choose,
    digest_of,
    image,
    read_config,
    read_manifest,
    read_platform,
)
from tessera.core.storage.images.layers import Reference
from tessera.errors import InvalidInput, TesseraError, Unavailable, Unsupported

NAME = Reference(registry="r.example", repository="a", tag="1")
AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64", "v8")


def descriptor(name: str, platform: Platform | None = None) -> Descriptor:
    return Descriptor(f"sha256:{name}", 7, platform=platform)


def test_both_families_of_media_types_are_read() -> None:
    digests = {name: digest_of(name.encode()) for name in "clm"}
    one = {
        "config": {"digest": digests["c"], "size": 2},
        "layers": [{"digest": digests["l"], "size": 7}],
        "annotations": {},
    }
    several = {
        "schemaVersion": 2,
        "manifests": [{"digest": digests["m"], "size": 3, "platform": {"os": "linux", "architecture": "arm64"}}],
    }
    for kind in (MANIFEST, "application/vnd.docker.distribution.manifest.v2+json; charset=utf-8"):
        found = read_manifest(json.dumps(one).encode(), kind, "x")
        assert isinstance(found, ImageManifest)
        assert (found.config.digest, found.layers[0].size) == (digests["c"], 7)
    for kind in (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"):
        index = read_manifest(json.dumps(several).encode(), kind, "x")
        assert isinstance(index, Index)
        assert index.manifests[0].platform == Platform("linux", "arm64")


ONE = {"digest": digest_of(b"x"), "size": 1}
BAD: dict[str, tuple[Any, str, type[TesseraError], str]] = {
    "no type": ({}, "", Unsupported, "media type ''"),
    "Docker's first version": (
        {},
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
        Unsupported,
        "media type",
    ),
    "a page of a proxy": ("<html>", MANIFEST, Unavailable, "a JSON manifest"),
    "no layers": ({"config": ONE}, MANIFEST, Unavailable, "layers"),
    "a size below zero": (
        {"config": {**ONE, "size": -1}, "layers": []},
        MANIFEST,
        Unavailable,
        "size: -1 is not at least 0",
    ),
    "a layer that is no digest": (
        {"config": ONE, "layers": [ONE, {"digest": "../x", "size": 1}]},
        MANIFEST,
        Unavailable,
        "'../x'",
    ),
    "a manifest that is none": (
        {"manifests": [{"digest": "?a=b", "size": 1}]},
        INDEX,
        Unavailable,
        "which is not a digest",
    ),
    "too many layers": (
        {"config": ONE, "layers": [ONE] * 1025},
        MANIFEST,
        Unavailable,
        "it has 1025 elements, and at most 1024 are accepted",
    ),
    "deep": ("[" * 100_000, INDEX, Unavailable, "a JSON index"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_a_registry_may_not_send(case: str) -> None:
    content, kind, error, want = BAD[case]
    raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    with pytest.raises(error, match=want):
        read_manifest(raw, kind, "image x")


WORDS = st.sampled_from(["config", "layers", "manifests", "digest", "size", "platform", "os", "history"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(WORDS, each, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=64) | VALUES.map(lambda each: json.dumps(each).encode()))
def test_any_content_is_read_or_refused(content: bytes) -> None:
    for kind in (INDEX, MANIFEST):
        with contextlib.suppress(Unavailable):
            assert isinstance(read_manifest(content, kind, "x"), Index | ImageManifest)
    with contextlib.suppress(Unavailable):
        assert isinstance(read_config(content, "x"), Config)


def test_content_must_have_its_digest() -> None:
    for algorithm in ("sha256", "sha512"):
        assert checked(b"a", digest_of(b"a", algorithm), "x") == b"a"
    for digest in (digest_of(b"b"), "md5:0cc175b9c0f1b6a831c399e269772661", "sha256:a"):
        with pytest.raises(Unavailable, match="the content has digest"):
            checked(b"a", digest, "image x")


def test_the_platform_is_chosen() -> None:
    index = Index((descriptor("none"), descriptor("arm", ARM64), descriptor("amd", AMD64), descriptor("second", AMD64)))
    assert choose(index, AMD64, "x").digest == "sha256:amd"
    assert choose(index, Platform("linux", "arm64"), "x").digest == "sha256:arm"
    assert choose(index, ARM64, "x").digest == "sha256:arm"
    with pytest.raises(Unsupported, match=r"no image for linux/s390x.*linux/amd64, linux/arm64/v8"):
        choose(index, Platform("linux", "s390x"), "x")


@pytest.mark.parametrize("text", ["", "linux", "linux/", "/amd64", "a/b/c/d"])
def test_what_is_no_platform(text: str) -> None:
    assert read_platform("linux/arm64/v8") == ARM64
    with pytest.raises(InvalidInput, match="OS/ARCHITECTURE"):
        read_platform(text)


def test_build_steps_say_what_they_do_unless_they_copy() -> None:
    steps = (
        "# debian.sh --arch 'amd64' out/ 'bookworm' '@1725846400'",
        "RUN /bin/sh -c apt-get install -y python3 # buildkit",
        "COPY . /app # buildkit",
        '/bin/sh -c #(nop)  CMD ["bash"]',
        "/bin/sh -c #(nop) ADD file:0123 in / ",
    )
    history = tuple(BuildStep(each, each.startswith("/bin/sh -c #(nop)  CMD")) for each in steps)
    manifest = ImageManifest(descriptor("c"), tuple(map(descriptor, "abcd")))
    found = image(NAME, "sha256:top", manifest, Config("amd64", "linux", history=history))
    assert [each.step for each in found.layers] == [
        "# debian.sh --arch 'amd64' out/ 'bookworm' ",
        "/bin/sh -c apt-get install -y python3 # buildkit",
        "",
        "",
    ]
    assert (found.name, found.repository, found.platform, found.bytes) == (
        "r.example/a:1",
        "r.example/a",
        "linux/amd64",
        28,
    )


LABELS = {"org.opencontainers.image.ref.name": "ubuntu", "org.opencontainers.image.version": "22.04"}


def test_the_lowest_layer_is_known_by_labels_of_the_system() -> None:
    added = (BuildStep("/bin/sh -c #(nop) ADD file:0123 in / "),)
    manifest = ImageManifest(descriptor("c"), (descriptor("a"),))
    for labels, want in ((LABELS, "ubuntu 22.04"), ({}, ""), (None, "")):
        config = Config("amd64", "linux", history=added, config=RunConfig(labels))
        assert [each.step for each in image(NAME, "d", manifest, config).layers] == [want]
    assert image(NAME, "d", manifest, Config("amd64", "linux", history=added)).layers[0].step == ""


def test_a_history_that_does_not_fit_the_layers_says_nothing() -> None:
    manifest = ImageManifest(descriptor("c"), (descriptor("a"), descriptor("b")))
    for history in (None, (BuildStep("RUN one"),)):
        assert [each.step for each in image(NAME, "d", manifest, Config(history=history)).layers] == ["", ""]
    assert image(NAME, "d", ImageManifest(descriptor("c"), ()), Config()).layers == ()
