"""ImageWarmup and NodeImages: what is read, what is refused, what is written."""

import datetime as dt
from typing import Any

import msgspec
import pytest

from tessera.api.tessera.v1alpha1.environments import Environment
from tessera.api.tessera.v1alpha1.imagewarmups import (
    ImageWarmupStatus,
    NodeImagesSpec,
    NodeImagesStatus,
    new_node_images,
    node_spec,
    node_status,
    read_image_warmup,
    read_node_images,
    readable_status,
    unanswered_status,
    warmup_status,
)
from tessera.api.tessera.v1alpha1.objects import refused_status
from tessera.core.storage.images.warmup import (
    DesiredImage,
    ImageProblem,
    ImageSummary,
    NodeImages,
    ObservedImage,
    Warmup,
    WarmupSummary,
)
from tessera.errors import InvalidInput

NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)
DIGEST = "sha256:" + "a" * 64


def warmup(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"name": "servers", "generation": 3}
    return {"kind": "ImageWarmup", "metadata": metadata, "spec": spec, "status": status or {}}


def test_a_warmup_is_read_with_full_names() -> None:
    spec = {
        "images": ["busybox", "r.example/a:1"],
        "parallelism": {"perNode": 2, "perRegistry": 5},
        "pinned": False,
        "pullSecrets": ["registry"],
        "nodeSelector": {"matchLabels": {"pool": "gpu"}},
    }
    status = {"images": [{"image": "r.example/a:1", "digest": DIGEST}, {"image": "busybox", "digest": "?"}]}
    found, core = read_image_warmup(warmup(spec, status), frozenset({"n1"}))
    assert core == Warmup(
        name="servers",
        images=("docker.io/library/busybox:latest", "r.example/a:1"),
        nodes=frozenset({"n1"}),
        per_node=2,
        per_registry=5,
        pinned=False,
        secrets=("registry",),
        digests=(("r.example/a:1", DIGEST),),
    )
    assert found.spec.node_selector.match_labels == {"pool": "gpu"}
    assert read_image_warmup(warmup({"images": ["a"]}))[1].pinned


def environment(name: str, image: str, **labels: str) -> Environment:
    return Environment(name=name, image=image, description="", tools=(), notebook=False, labels=labels)


ENVIRONMENTS = (environment("jupyter", "r.example/j:1", team="a"), environment("plain", "busybox", team="b"))
# Keyed by a sentence: the selector, and the images that it adds.
SELECTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "all": ({}, ("r.example/j:1", "docker.io/library/busybox:latest")),
    "one": ({"matchLabels": {"team": "a"}}, ("r.example/j:1",)),
    "none": ({"matchLabels": {"team": "c"}}, ()),
}


@pytest.mark.parametrize("case", SELECTED)
def test_images_of_selected_environments_come_after_its_own(case: str) -> None:
    selector, want = SELECTED[case]
    assert read_image_warmup(warmup({"environments": selector}), frozenset(), ENVIRONMENTS)[1].images == want
    both = warmup({"images": ["r.example/j:1"], "environments": selector})
    later = tuple(each for each in want if each != "r.example/j:1")
    assert read_image_warmup(both, frozenset(), ENVIRONMENTS)[1].images == ("r.example/j:1", *later)


def test_more_environments_than_images_that_a_warmup_can_have_are_refused() -> None:
    many = [environment(str(number), f"r.example/a:{number}") for number in range(65)]
    with pytest.raises(InvalidInput, match=r"spec\.environments: 65 images are more than 64: select fewer"):
        read_image_warmup(warmup({"environments": {}}), frozenset(), many)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no images": ({}, "it has no images: name images or select environments"),
    "none of them": ({"images": []}, "it has no images"),
    "too many": ({"images": ["a"] * 65}, "it has 65 elements, and at most 64 are accepted"),
    "no name": ({"images": ["a", "A b"]}, r"servers: spec\.images\[1\]: image 'A b'"),
    "one twice": (
        {"images": ["busybox", "docker.io/library/busybox:latest"]},
        "busybox:latest is there twice: name each image once",
    ),
    "an unknown field": ({"images": ["a"], "nodes": 1}, "spec.nodes: it is an unknown field"),
    "no pulls at all": ({"images": ["a"], "parallelism": {"perNode": 0}}, "perNode: 0 is not at least 1"),
    "a secret elsewhere": (
        {"images": ["a"], "pullSecrets": ["kube-system/x"]},
        "'kube-system/x' is not a text that matches",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_spec_is_refused(case: str) -> None:
    spec, want = BAD[case]
    with pytest.raises(InvalidInput, match=want):
        read_image_warmup(warmup(spec))


def test_a_node_reads_what_was_written() -> None:
    desired = (
        DesiredImage(image="r/a:1", digest=DIGEST, pinned=True, secrets=("s",), attempt=2),
        DesiredImage(image="b"),
    )
    observed = (
        ObservedImage(image="r/a:1", state="Present", digest=DIGEST, bytes=7, pinned=True, attempt=2),
        ObservedImage(image="b", state="Failed", attempt=1, failed_s=NOW.timestamp(), reason="no such image"),
    )
    made = new_node_images("n1", "uid-1")
    status = node_status(observed, disk_percent=41, runtime="containerd 2.4.2")
    each = {**made, "spec": node_spec(desired), "status": status}
    assert read_node_images(each) == NodeImages(name="n1", desired=desired, observed=observed, disk_percent=41)
    assert not read_node_images(made, ready=False).ready
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert msgspec.convert(each["spec"], NodeImagesSpec).images[0].attempt == 2
    assert msgspec.convert(status, NodeImagesStatus).runtime == "containerd 2.4.2"


@pytest.mark.parametrize(
    "status",
    [
        {"images": 1},
        {"images": [{"state": "Present"}]},
        {"diskPercent": "most"},
    ],
)
def test_a_node_that_reports_nonsense_is_named(status: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="NodeImages n1"):
        read_node_images({"metadata": {"name": "n1"}, "status": status})


def test_a_row_of_another_version_is_unread_with_the_reason_and_the_number_of_its_pull() -> None:
    """Each field of it has a value that this version does not know; the others are read."""
    fix = ": upgrade Tessera, or take the value out of the ImageWarmup"
    rows = {"digest": 1, "pinned": "Always", "secrets": [{}], "attempt": "x", "state": "Odd", "failedAt": "yesterday"}
    for key, value in {**rows, "bytes": -1}.items():
        row = {"image": "r/a:1", "state": "Present", "attempt": 2, key: value}
        each = {"metadata": {"name": "n1"}, "spec": {"images": [row, {"image": "b"}]}}
        found = read_node_images({**each, "status": {"images": [{"image": "b", "state": "Missing"}, row]}})
        attempt = 0 if key == "attempt" else 2
        assert found.desired[1] == DesiredImage(image="b")
        assert found.observed[0] == ObservedImage(image="b", state="Missing")
        if key in ("digest", "pinned", "secrets", "attempt"):
            first = found.desired[0]
            assert (first.image, first.pinned, first.attempt) == ("r/a:1", True, attempt)
            assert first.unread.startswith(f"image r/a:1: {key}"), first.unread
            assert first.unread.endswith(fix)
        if key != "secrets":
            last = found.observed[1]
            assert (last.image, last.state, last.attempt, last.unread) == ("r/a:1", "Failed", attempt, True)
            assert last.reason.startswith("report of image r/a:1: "), last.reason


def test_reasons_are_cut() -> None:
    failed = ObservedImage(image="a", state="Failed", reason="\x1b[2J" + "x" * 1000)
    assert node_status([failed], disk_percent=0, runtime="")["images"][0]["reason"].startswith(" [2Jx")
    assert len(node_status([failed], disk_percent=0, runtime="")["images"][0]["reason"]) == 512


FACTS = {
    "no node": (WarmupSummary(), "NoNodes", "False"),
    "some lack one": (WarmupSummary(nodes=3, ready=1), "Pulling", "False"),
    "all have all": (WarmupSummary(nodes=3, ready=3, pinned=3), "Present", "True"),
}


@pytest.mark.parametrize("case", FACTS)
def test_a_status_reports_how_far_it_is(case: str) -> None:
    summary, reason, ready = FACTS[case]
    found, _ = read_image_warmup(warmup({"images": ["a"]}))
    status = warmup_status(found, summary, NOW)
    assert (status.nodes, status.ready, status.pinned) == (summary.nodes, summary.ready, summary.pinned)
    assert {each.type: (each.status, each.reason) for each in status.conditions} == {
        "Accepted": ("True", "Valid"),
        "Ready": (ready, reason),
    }
    after, _ = read_image_warmup(warmup({"images": ["a"]}, msgspec.to_builtins(status)))
    assert warmup_status(after, summary, NOW + dt.timedelta(hours=1)) == status


def test_a_status_names_images_and_problems() -> None:
    found, _ = read_image_warmup(warmup({"images": ["a"]}))
    summary = WarmupSummary(
        images=(ImageSummary(image="a", digest=DIGEST, nodes=1, pending_pods=2),),
        problems=(ImageProblem(node="n1", image="a", reason="x" * 1000),),
    )
    status = warmup_status(found, summary, NOW)
    assert msgspec.to_builtins(status.images) == ({"image": "a", "digest": DIGEST, "nodes": 1, "pendingPods": 2},)
    assert (status.problems[0].node, len(status.problems[0].reason)) == ("n1", 512)


def test_a_status_that_cannot_be_read_counts_as_none() -> None:
    for status in ({"images": [{"name": "a"}]}, {"nodes": "all"}, "odd"):
        each = warmup({"images": ["a"]}) | {"status": status}
        assert readable_status(each) is None
        assert read_image_warmup(each) == read_image_warmup(warmup({"images": ["a"]}))
    invalid = warmup({"images": ["A b"]}) | {"status": {"nodes": 3, "images": [{"image": "r/a:1"}]}}
    found = readable_status(invalid)
    assert found is not None
    assert (found.nodes, [each.image for each in found.images]) == (3, ["r/a:1"])
    assert readable_status(warmup({})) == ImageWarmupStatus()


def test_what_was_found_stays_when_a_warmup_can_no_longer_be_read() -> None:
    status = refused_status(ImageWarmupStatus(nodes=3), 4, "no name of an image", NOW)
    assert (status.nodes, status.observed_generation, status.conditions[0].reason) == (3, 4, "Invalid")


def test_the_last_status_stays_where_a_container_runtime_does_not_answer() -> None:
    last = node_status([ObservedImage(image="a", state="Present")], disk_percent=70, runtime="containerd")
    got = unanswered_status(last, "no answer" * 1000)
    assert {**got, "reason": ""} == {**last, "reason": ""}
    assert got["reason"].startswith("no answer")
    assert len(got["reason"]) < 4096
