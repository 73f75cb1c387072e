"""The drawing of a plan: what is inside what, what is to scale, what is named, and what names cannot do to it."""

import itertools
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.scenes import SCENES, Scene
from tessera.api.kubernetes.nodes import CPU_MILLI, MEMORY_MIB
from tessera.cli.drawing.alike import EVERY_GPU
from tessera.cli.drawing.compact import MOST_TILES
from tessera.cli.drawing.elements import number
from tessera.cli.drawing.geometry import Cell, row
from tessera.cli.drawing.lettering import break_lines, clean, counted, elide, gib, listing, percent, width
from tessera.cli.drawing.palette import tone
from tessera.cli.drawing.sheet import MOST_REASONS, svg
from tessera.cli.drawing.views import DrawnDevice, DrawnGpu, DrawnPod, fleet, pod_name
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.plan import Plan
from tessera.core.workload.need import PodKey

SVG = "{http://www.w3.org/2000/svg}"
TOLERANCE = 0.02
"""Coordinates are written with two decimals."""


each_scene = pytest.mark.parametrize("scene", [pytest.param(build(), id=name) for name, build in SCENES.items()])


def drawn(scene: Scene, heading: str = "A plan") -> ET.Element:
    return ET.fromstring(svg(scene.plan, scene.snapshot, title=heading))


def placed(element: ET.Element, x: float = 0, y: float = 0) -> Iterator[tuple[ET.Element, float, float]]:
    """Give all elements with the origin of their coordinates on the sheet."""
    move = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
    if move:
        x, y = x + float(move[1]), y + float(move[2])
    yield element, x, y
    if element.tag == f"{SVG}svg" and element.get("x"):
        x, y = x + float(element.get("x", 0)), y + float(element.get("y", 0))
    for child in element:
        yield from placed(child, x, y)


def classed(root: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def test_capacity_that_never_binds_is_not_drawn() -> None:
    """A node in short form has cores and memory without end, which are nobody's."""
    for more, want in (({}, 2), ({"cpu_milli": CPU_MILLI, "memory_mib": MEMORY_MIB}, 0)):
        scene = Scene()
        scene.node("a", "T4", **more)
        words = [text for text in drawn(scene).itertext() if re.match(r"(cpu|memory) .* of ", text)]
        assert len(words) == want


def box(element: ET.Element, x: float, y: float) -> tuple[float, float, float, float]:
    left, top, wide, high = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
    return x + left, y + top, x + left + wide, y + top + high


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide > TOLERANCE and high > TOLERANCE


def within(inner: tuple[float, ...], outer: tuple[float, ...]) -> bool:
    return (
        inner[0] >= outer[0] - TOLERANCE
        and inner[1] >= outer[1] - TOLERANCE
        and inner[2] <= outer[2] + TOLERANCE
        and inner[3] <= outer[3] + TOLERANCE
    )


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


def test_an_empty_plan_is_a_picture_too() -> None:
    text = svg(Plan(policy="tessera"), Snapshot(nodes=()), title="Nothing")
    words = " ".join(ET.fromstring(text).itertext())
    assert "0 GPUs on 0 nodes" in words
    assert "0 of 0" in words


def test_instances_are_as_wide_as_their_units() -> None:
    root = drawn(SCENES["twelve memory slices"]())
    first = classed(root, "strip")[0]
    holders = [part.findall(f"{SVG}rect")[0] for part in first if part.get("class") in {"pod", "open"}]
    wide = [round(float(holder.get("width", 0))) for holder in holders]
    assert wide[0] == pytest.approx(wide[1], abs=2)
    assert wide[2] == pytest.approx(2 * wide[0], abs=4)


def test_a_workload_has_one_colour_and_another_has_another() -> None:
    scene = SCENES["memory shares of many sizes"]()
    fills: dict[str, set[str]] = {}
    for holder in classed(drawn(scene), "pod"):
        pod = (holder.findtext(f"{SVG}title") or "").partition(" ")[0]
        fill = holder.findall(f"{SVG}rect")[0].get("fill")
        fills.setdefault(pod_name(PodKey(pod)).rpartition("-")[0], set()).add(fill or "")
    assert {name: len(colours) for name, colours in fills.items()} == dict.fromkeys(fills, 1)
    assert len(set.union(*fills.values())) == len(fills) == 5


def test_marks_tell_running_new_and_unprotected() -> None:
    root = drawn(SCENES["twelve memory slices"]())
    outlined = [holder for holder in classed(root, "pod") if any(r.get("stroke") for r in holder.findall(f"{SVG}rect"))]
    assert [holder.findtext(f"{SVG}title", "").partition(" ")[0] for holder in outlined] == [
        "default/render-0",
        "default/render-1",
    ]
    new = [holder for holder in classed(root, "pod") if holder.find(f"{SVG}path") is not None]
    assert [holder.findtext(f"{SVG}title", "").partition(" ")[0] for holder in new] == [
        "default/asr-0",
        "default/asr-1",
    ]
    assert "to be created" in new[0].findtext(f"{SVG}title", "")
    assert "exists" in outlined[0].findtext(f"{SVG}title", "")


DASHED = {
    "time-slicing has a dashed edge and an open lock": ("a T4 with 14 clients", "4 3", "no memory isolation"),
    "MPS has a plain edge and a closed lock": ("bare pods and many workloads", None, "limits enforced by the driver"),
}


@pytest.mark.parametrize(("name", "dashes", "words"), DASHED.values(), ids=DASHED)
def test_isolation_shows_at_the_edge(name: str, dashes: str | None, words: str) -> None:
    frame = classed(drawn(SCENES[name]()), "frame")[0]
    edge = next(part for part in frame if part.get("class") == "edge")
    assert edge.get("stroke-dasharray") == dashes
    assert words in "".join(frame.itertext())


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


COLLAPSED = {
    "up to the threshold every GPU is drawn": (EVERY_GPU // 8, EVERY_GPU, 0),
    "past it one of each kind is drawn": (EVERY_GPU // 8 + 1, 3, 3),
}


@pytest.mark.parametrize(("nodes", "strips", "more"), COLLAPSED.values(), ids=COLLAPSED)
def test_large_fleets_are_drawn_once_for_each_kind(nodes: int, strips: int, more: int) -> None:
    root = drawn(SCENES["forty nodes, most alike"](nodes))
    assert (len(classed(root, "gpu")), len(classed(root, "more"))) == (strips, more)


def test_a_fleet_without_likeness_is_tiles_of_reasonable_height() -> None:
    root = drawn(SCENES["forty nodes, each different"]())
    assert len(classed(root, "tile")) > 30
    assert float(root.get("height", 0)) < 2000


def test_nodes_past_the_most_tiles_are_counted() -> None:
    scene = SCENES["an empty fleet"]()
    for n in range(MOST_TILES + 2):
        pod = scene.pod(f"a-{n}", f"Job/default/{n}")
        scene.whole((scene.node(f"n-{n}", "T4"), 0), Mode.WHOLE, 1, {pod: 15360})
    root = drawn(scene)
    assert len(classed(root, "tile")) == MOST_TILES
    assert "and 2 more nodes with 2 GPUs, not drawn" in " ".join(root.itertext())
    assert f"default/a-{MOST_TILES + 1}" in " ".join(root.itertext())


def test_pods_that_only_the_plan_names_are_drawn() -> None:
    scene = SCENES["a T4 with 14 clients"]()
    got = fleet(scene.plan, Snapshot(nodes=()))
    assert len(got.pods) == 14
    assert [node.name for node in got.nodes] == ["t4-node"]
    assert got.nodes[0].cpu_milli == 0


@st.composite
def gpus(draw: st.DrawFn) -> DrawnGpu:
    units = draw(st.sampled_from([0, 4, 8, 12]))
    memory = draw(st.integers(1, 200_000))
    devices = []
    start = 0
    while start < max(1, units):
        size = draw(st.integers(1, units - start)) if units else 0
        if draw(st.booleans()):
            clients = draw(st.integers(0, 20))
            amounts = draw(st.lists(st.integers(0, memory), max_size=24))
            holders = tuple(
                DrawnPod(pod=PodKey(f"p-{n}"), workload=n, memory_mib=mib, compute_percent=0, running=n % 2 == 0)
                for n, mib in enumerate(amounts)
            )
            mode = Mode.MIG if units else Mode.MPS
            devices.append(
                DrawnDevice(
                    label="1g",
                    start=start,
                    size=size,
                    mode=mode,
                    memory_mib=memory,
                    clients=clients,
                    exists=True,
                    pods=holders,
                )
            )
        start += max(1, size)
    return DrawnGpu(
        index=0,
        model="X",
        memory_mib=memory,
        memory_slices=units,
        allocated_mib=0,
        mig=bool(units),
        devices=tuple(devices),
    )


def cell_box(cell: Cell) -> tuple[float, float, float, float]:
    return cell.x, cell.y, cell.x + cell.width, cell.y + cell.height


@given(gpu=gpus(), flat=st.booleans())
def test_cells_never_overlap_and_show_everyone(gpu: DrawnGpu, *, flat: bool) -> None:
    wide = 68.0 if flat else 888.0
    got = row(gpu, wide, flat=flat)
    boxes = [cell_box(cell) for cell in got.cells]
    assert all(within(one, (0, 0, wide, got.height)) for one in boxes)
    assert all(cell.width > 0 and (cell.height > 0 or flat) for cell in got.cells)
    if not flat:
        assert not [pair for pair in itertools.combinations(boxes, 2) if overlap(*pair)]
    holders = [cell.holder for cell in got.cells if cell.holder]
    assert sorted(holder.pod for holder in holders) == sorted(
        holder.pod for device in gpu.devices for holder in device.pods
    )


WORDS = st.text(st.characters(codec="utf-8"), max_size=80)


@given(text=WORDS, room=st.floats(0, 400), size=st.sampled_from([8.0, 11.0, 24.0]))
def test_shortened_text_fits(text: str, room: float, size: float) -> None:
    got = elide(text, room, size)
    assert got == text or width(got, size) <= room


@given(text=WORDS, room=st.floats(20, 400))
def test_broken_lines_fit_and_lose_nothing(text: str, room: float) -> None:
    lines = break_lines(text, room, 12)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(width(line, 12) <= room for line in lines)


ELIDED = {
    "what fits is left alone": ("batch-12", 200.0, "batch-12"),
    "the end tells pods apart": ("a-very-long-batch-name-12", 90.0, "a-very-lon…-12"),
    "only the end fits": ("inference-12", 32.0, "…-12"),
    "only the number fits": ("inference-12", 15.0, "12"),
    "nothing fits": ("inference-12", 5.0, ""),
}


@pytest.mark.parametrize(("text", "room", "want"), ELIDED.values(), ids=ELIDED)
def test_elide(text: str, room: float, want: str) -> None:
    assert elide(text, room, 11) == want


AMOUNTS = {0: "0 GiB", 512: "512 MiB", 1024: "1 GiB", 9856: "9.6 GiB", 81559: "79.6 GiB", 2_097_152: "2,048 GiB"}


@pytest.mark.parametrize(("mib", "want"), AMOUNTS.items())
def test_gib(mib: int, want: str) -> None:
    assert gib(mib) == want


PERCENT = {
    "nothing of nothing": (0, 0, "0 %"),
    "a trace is not nothing": (1, 10_000, "1 %"),
    "nearly all is not all": (9_999, 10_000, "99 %"),
    "all": (7, 7, "100 %"),
    "more than all": (3, 2, "150 %"),
}


@pytest.mark.parametrize(("part", "whole", "want"), PERCENT.values(), ids=PERCENT)
def test_percent(part: int, whole: int, want: str) -> None:
    assert percent(part, whole) == want


def test_small_words() -> None:
    assert listing("abc", 2) == "a, b and 1 more"
    assert listing("ab", 2) == "a, b"
    assert (counted(1, "pod"), counted(2000, "pod")) == ("1 pod", "2,000 pods")
    assert [number(value) for value in (-0.001, 1.5, 10.0, 1 / 3)] == ["0", "1.5", "10", "0.33"]


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("workload", range(12))
def test_text_and_outline_stand_out_from_the_fill(workload: int) -> None:
    """Contrast by WCAG 2: 4.5 for text, 3 for graphics."""
    look = tone(workload)
    for colour, want in ((look.ink, 4.5), (look.edge, 3.0)):
        high, low = sorted((luminance(look.fill), luminance(colour)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= want


def test_twenty_four_workloads_look_different() -> None:
    looks = {(tone(n).fill, tone(n).striped) for n in range(24)}
    assert len(looks) == 24
    assert tone(24) == tone(0)


FREE = {
    "what the largest opening takes is named": (Sharing(), 4, "4 slices free", "fits 3g.40gb"),
    "a unit no instance can start at fits nothing": (Sharing(), 7, "1 slice free", "nothing fits"),
    "where the layout is fixed nothing is promised": (Sharing(allow_repartition=False), 7, "1 slice free", ""),
}


@pytest.mark.parametrize(("sharing", "taken", "first", "second"), FREE.values(), ids=FREE)
def test_free_units_say_what_fits(sharing: Sharing, taken: int, first: str, second: str) -> None:
    scene = Scene()
    node = scene.node("n", "H100-80GB")
    gpu = msgspec.structs.replace(scene.nodes[0].gpus[0], model=model("H100-80GB"), sharing=sharing)
    scene.nodes[0] = msgspec.structs.replace(scene.nodes[0], gpus=(gpu,))
    if taken == 4:
        scene.instance((node, 0), "3g.40gb", 0, [scene.pod("half")])
    else:
        for n in range(taken):
            scene.instance((node, 0), "1g.10gb", n, [scene.pod(f"p-{n}")])
    words = [line.text for line in classed(drawn(scene), "free")[0].iter(f"{SVG}text")]
    assert words == [part for part in (first, second) if part]


def test_many_warnings_are_counted() -> None:
    scene = Scene()
    scene.warnings = tuple(f"warning {n}" for n in range(MOST_REASONS + 2))
    words = " ".join(drawn(scene).itertext())
    assert "and 2 more warnings" in words
    assert f"warning {MOST_REASONS + 1}" in words


def test_an_instance_that_a_pod_runs_on_is_there() -> None:
    scene = Scene()
    node = scene.node("n", "H100-80GB")
    scene.instance((node, 0), "3g.40gb", 0, [scene.pod("runs", running=True)], exists=False)
    assert "to be created" not in " ".join(drawn(scene).itertext()).replace("none to be created", "")
