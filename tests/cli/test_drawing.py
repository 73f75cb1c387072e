"""The drawing of a plan: what is inside what, what is to scale, what is named, and what names cannot do to it."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from builders.pictures import SVG, box, classed, drawn, overlap, placed, within
from builders.scenes import SCENES, Scene
from tessera.api.kubernetes.nodes import CPU_MILLI, MEMORY_MIB
from tessera.cli.drawing.lettering import clean, width
from tessera.cli.drawing.sheet import svg
from tessera.cli.drawing.views import pod_name
from tessera.core.workload.need import PodKey

each_scene = pytest.mark.parametrize("scene", [pytest.param(build(), id=name) for name, build in SCENES.items()])


def test_capacity_that_never_binds_is_not_drawn() -> None:
    """A node in short form has cores and memory without end, which are nobody's."""
    for more, want in (({}, 2), ({"cpu_milli": CPU_MILLI, "memory_mib": MEMORY_MIB}, 0)):
        scene = Scene()
        scene.node("a", "T4", **more)
        words = [text for text in drawn(scene).itertext() if re.match(r"(cpu|memory) .* of ", text)]
        assert len(words) == want


@each_scene
def test_the_picture_is_one_svg_with_a_name_and_a_description(scene: Scene) -> None:
    root = drawn(scene, "Tomorrow's <plan>")
    assert root.tag == f"{SVG}svg"
    assert (root.get("role"), root.get("width"), root.get("aria-labelledby")) == ("img", "1200", "title desc")
    assert (root[0].tag, root[0].get("id"), root[0].text) == (f"{SVG}title", "title", "Tomorrow's <plan>")
    assert (root[1].tag, root[1].get("id")) == (f"{SVG}desc", "desc")
    assert f"{len(scene.plan.pending)} pending" in (root[1].text or "")


@each_scene
def test_the_picture_fetches_and_runs_nothing(scene: Scene) -> None:
    root = drawn(scene)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    shapes = {"svg", "g", "rect", "path", "circle", "line", "text", "tspan"}
    assert tags <= shapes | {"title", "desc", "style", "defs", "pattern"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith(("on", "href", "{"))}
    urls = {value for element in root.iter() for value in element.attrib.values() if "url(" in value}
    assert urls <= {"url(#hatch)"}
    styles = "".join(element.text or "" for element in root.iter(f"{SVG}style"))
    assert "url(" not in styles
    assert "@import" not in styles


@each_scene
def test_the_same_plan_gives_the_same_bytes(scene: Scene) -> None:
    assert svg(scene.plan, scene.snapshot, title="x") == svg(scene.plan, scene.snapshot, title="x")


@each_scene
def test_the_picture_has_a_page_of_its_own_that_holds_everything(scene: Scene) -> None:
    root = drawn(scene)
    page = classed(root, "page")[0]
    bounds = (0.0, 0.0, 1200.0, float(page.get("height", 0)))
    assert float(root.get("height", 0)) == pytest.approx(bounds[3], abs=1)
    for element, x, y in placed(root):
        if element.tag == f"{SVG}rect":
            assert within(box(element, x, y), bounds), ET.tostring(element)
        if element.tag == f"{SVG}text":
            size = float(element.get("font-size") or 12)
            assert 0 <= x + float(element.get("x", 0)) < 1200
            assert size / 2 < y + float(element.get("y", 0)) < bounds[3]


@each_scene
def test_slices_lie_on_their_strip_and_not_on_each_other(scene: Scene) -> None:
    for gpu, x, y in placed(drawn(scene)):
        if gpu.get("class") != "gpu":
            continue
        holders = [
            box(child, left, top)
            for part, left, top in placed(gpu, x, y)
            if part.get("class") in {"pod", "open", "rest", "free"}
            for child in part.findall(f"{SVG}rect")[:1]
        ]
        beds = [box(part, left, top) for part, left, top in placed(gpu, x, y) if part.get("class") in {"bed", "track"}]
        assert all(within(holder, beds[0]) for holder in holders)
        assert not [pair for pair in itertools.combinations(holders, 2) if overlap(*pair)]


@each_scene
def test_words_stay_inside_their_slice_and_are_cut_off_there(scene: Scene) -> None:
    root = drawn(scene)
    for window in root.iter(f"{SVG}svg"):
        if window is root:
            continue
        for line in window.iter(f"{SVG}text"):
            right = float(line.get("x", 0)) + width(line.text or "", float(line.get("font-size", 0)))
            assert right <= float(window.get("width", 0)), line.text


@each_scene
def test_every_pod_is_named_somewhere(scene: Scene) -> None:
    words = "\n".join(drawn(scene).itertext())
    for key in scene.pods:
        assert clean(key) in words


def test_hostile_names_stay_text() -> None:
    scene = SCENES["hostile names"]()
    text = svg(scene.plan, scene.snapshot, title="</title><script>alert(3)</script>\x00")
    assert "<script" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    words = "\n".join(ET.fromstring(text).itertext())
    assert "default/<script>alert(1)</script>" in words
    assert "default/a&b;]]>" in words
    assert "default/quote\"'" in words


def test_a_workload_has_one_color_and_another_has_another() -> None:
    scene = SCENES["memory shares of many sizes"]()
    fills: dict[str, set[str]] = {}
    for holder in classed(drawn(scene), "pod"):
        pod = (holder.findtext(f"{SVG}title") or "").partition(" ")[0]
        fill = holder.findall(f"{SVG}rect")[0].get("fill")
        fills.setdefault(pod_name(PodKey(pod)).rpartition("-")[0], set()).add(fill or "")
    assert {name: len(colors) for name, colors in fills.items()} == dict.fromkeys(fills, 1)
    assert len(set.union(*fills.values())) == len(fills) == 5
