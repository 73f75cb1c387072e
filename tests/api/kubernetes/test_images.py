"""Images that objects name, and those that nodes hold."""

from typing import Any

from tessera.api.documents import Document
from tessera.api.fields import Field, objects
from tessera.api.kubernetes.images import ImagesOnNode, images_of, node_images, pod_images, reported_images


def fields(*several: dict[str, Any]) -> list[Field]:
    return [each for data in several for each in objects(Document(source="x", number=1, data=data, first_line=1))]


def test_images_are_found_wherever_a_pod_is_described() -> None:
    spec = {
        "containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}, {"name": "none"}, "?"],
        "initContainers": [{"image": "init:1"}, {"image": ""}, {"image": 3}],
        "ephemeralContainers": [{"image": "debug:1"}],
        "volumes": [{"image": {"reference": "data:1"}}, {"emptyDir": {}}, "?", {"image": {"reference": 1}}],
    }
    template = {"kind": "Deployment", "spec": {"template": {"spec": spec}}}
    custom = {"kind": "Anything", "spec": {"roles": [{"template": {"spec": {"containers": [{"image": "custom:1"}]}}}]}}
    odd = {"kind": "Odd", "spec": {"containers": "none"}}
    ended = {"kind": "Pod", "status": {"phase": "Succeeded"}, "spec": {"containers": [{"image": "ended:1"}]}}
    runs = {"kind": "Pod", "status": {"phase": "Running"}, "spec": {"containers": [{"image": "a:1"}]}}
    listed = {"kind": "List", "items": [template, custom, odd, ended, runs]}
    assert images_of(fields(listed)) == ("a:1", "b:1", "init:1", "debug:1", "data:1", "custom:1")


def test_nodes_say_what_they_hold() -> None:
    images = [{"names": ["r.example/a@sha256:x", "r.example/a:1"], "sizeBytes": 7}, {"sizeBytes": 1}]
    info = {"operatingSystem": "linux", "architecture": "arm64"}
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"images": images, "nodeInfo": info}}
    bare = {"kind": "Node", "metadata": {"name": "n2"}}
    assert node_images(fields(node, bare, {"kind": "Pod"})) == (
        ImagesOnNode("n1", "linux/arm64", frozenset({"r.example/a@sha256:x", "r.example/a:1"})),
        ImagesOnNode("n2", "", frozenset()),
    )


def test_a_pods_images_are_named_as_nodes_name_them() -> None:
    digest = f"sha256:{'a' * 64}"
    node = {"status": {"images": [
        {"names": [f"docker.io/library/busybox@{digest}", "docker.io/library/busybox:latest"], "sizeBytes": 7},
        {"names": ["r.example/a:1"], "sizeBytes": "many"},
        {"names": "?"}, "?", {"names": [3, "", "NO NAME"]},
    ]}}  # fmt: skip
    want = {f"docker.io/library/busybox@{digest}": 7, "docker.io/library/busybox:latest": 7, "r.example/a:1": 0}
    assert reported_images(node) == want
    containers = [{"image": "busybox"}, {"image": f"busybox:1@{digest}"}, {"image": "NO NAME"}, "?", {}]
    spec = {"initContainers": [{"image": "r.example/a:1"}], "containers": containers}
    assert set(pod_images({"spec": spec})) == want.keys()
    several: list[dict[str, Any]] = [{}, {"spec": None, "status": []}, {"status": {"images": {}}}]
    for broken in several:
        assert reported_images(broken) == {}
        assert pod_images(broken) == ()
