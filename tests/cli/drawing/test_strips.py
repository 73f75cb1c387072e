"""A strip: to scale, with marks of isolation, of what runs and of what is new, and what fits in what is free."""

import msgspec
import pytest

from builders.pictures import SVG, classed, drawn
from builders.scenes import SCENES, Scene
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import Sharing


def test_instances_are_as_wide_as_their_units() -> None:
    root = drawn(SCENES["twelve memory slices"]())
    first = classed(root, "strip")[0]
    holders = [part.findall(f"{SVG}rect")[0] for part in first if part.get("class") in {"pod", "open"}]
    wide = [round(float(holder.get("width", 0))) for holder in holders]
    assert wide[0] == pytest.approx(wide[1], abs=2)
    assert wide[2] == pytest.approx(2 * wide[0], abs=4)


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
