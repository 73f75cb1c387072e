"""The sheet: what is pending and why, warnings, and a plan of nothing."""

from xml.etree import ElementTree as ET

from builders.pictures import drawn
from builders.scenes import SCENES, Scene
from tessera.cli.drawing.sheet import MOST_REASONS, svg
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.plan import Plan


def test_an_empty_plan_is_a_picture_too() -> None:
    text = svg(Plan(policy="tessera"), Snapshot(nodes=()), title="Nothing")
    words = " ".join(ET.fromstring(text).itertext())
    assert "0 GPUs on 0 nodes" in words
    assert "0 of 0" in words


def test_what_waits_is_reported_with_the_reason() -> None:
    scene = SCENES["a Job of 60 on eight GPUs in sevenths"]()
    words = " ".join(" ".join(drawn(scene).itertext()).split())
    assert "Pending: 4 pods" in words
    assert "mig-batch-56, mig-batch-57, mig-batch-58, mig-batch-59" in words
    assert scene.plan.pending[0].reason in words


def test_many_reasons_are_counted() -> None:
    scene = SCENES["an empty fleet"]()
    for n in range(MOST_REASONS + 3):
        scene.wait(scene.pod(f"pod-{n}"), f"reason {n}")
    words = " ".join(drawn(scene).itertext())
    assert "and 3 pods with other reasons" in words
    assert "default/pod-42" in words


def test_many_warnings_are_counted() -> None:
    scene = Scene()
    scene.warnings = tuple(f"warning {n}" for n in range(MOST_REASONS + 2))
    words = " ".join(drawn(scene).itertext())
    assert "and 2 more warnings" in words
    assert f"warning {MOST_REASONS + 1}" in words
