"""Names of images as Docker reads them, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.oci.references import read_reference
from tessera.errors import InvalidInput

DIGEST = "sha256:" + "a" * 64
NAMES = {
    "busybox": "docker.io/library/busybox:latest",
    "busybox:1": "docker.io/library/busybox:1",
    "index.docker.io/busybox": "docker.io/library/busybox:latest",
    "vllm/vllm-openai:v0.23.0": "docker.io/vllm/vllm-openai:v0.23.0",
    "nvcr.io/nvidia/pytorch:26.01-py3": "nvcr.io/nvidia/pytorch:26.01-py3",
    "localhost/a": "localhost/a:latest",
    "registry:5000/a": "registry:5000/a:latest",
    "registry.example:5000/team/a_b/c--d:1": "registry.example:5000/team/a_b/c--d:1",
    f"registry.example/a@{DIGEST}": f"registry.example/a@{DIGEST}",
    f"registry.example/a:1@{DIGEST}": f"registry.example/a:1@{DIGEST}",
    "[::1]:5000/a:1": "[::1]:5000/a:1",
}


@pytest.mark.parametrize("text", NAMES)
def test_a_name_is_read_as_docker_reads_it(text: str) -> None:
    found = read_reference(text)
    assert found.name == NAMES[text]
    assert read_reference(found.name) == found


NO_NAMES = (
    *(
        "",
        ":",
        "@",
        "a:",
        ":1",
        "a@",
        "a/",
        "/a",
        "a//b",
        "A",
        "registry.example/A",
        "a b",
        "a:1:2",
        "a:-1",
        "a:" + "x" * 129,
    ),
    *("a@sha256:abc", f"a@{DIGEST}0", "a@md5:" + "a" * 32, "a@sha512:" + "a" * 64),
    *("registry.example/../etc", "registry.example/a?x=1", "registry.example/a#b", "user@registry.example/a"),
    *("regis try/a", "registry.example:port/a", "a" * 256, "registry.example/a\n", "https://registry.example/a:1"),
)


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^image '.*': it is not the name of an image: write \[REGISTRY/\]"):
        read_reference(text)


@given(st.text(alphabet="aA0.:/@-_[]%?# \n\x00é", max_size=30))
def test_whatever_is_read_is_safe_in_an_address(text: str) -> None:
    try:
        found = read_reference(text)
    except InvalidInput:
        return
    assert not set(found.name) & set(" \n\x00?#%é")
    assert ".." not in f"/{found.repository}/".split("/")
