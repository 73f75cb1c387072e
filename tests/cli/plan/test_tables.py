"""A plan in a terminal: nothing is lost, strips are to scale, names cannot write on the terminal."""

import io

import pytest
from rich.console import Console

from builders.scenes import SCENES, Scene
from tessera.cli.drawing.lettering import clean
from tessera.cli.drawing.sheet import MOST_REASONS
from tessera.cli.plan.tables import letter, plan_tables
from tessera.core.cluster.snapshot import LeftOut, Snapshot
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.plan import Plan

each_scene = pytest.mark.parametrize("scene", [pytest.param(build(), id=name) for name, build in SCENES.items()])


def printed(scene: Scene, width: int = 160, *, color: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=color, color_system="truecolor" if color else None)
    console.print(plan_tables(scene.plan, scene.snapshot))
    return file.getvalue()


def squeezed(text: str) -> str:
    return " ".join(text.split())


@each_scene
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_lines_fit_the_terminal(scene: Scene, width: int) -> None:
    assert max(map(len, printed(scene, width).splitlines())) <= width


@each_scene
def test_the_same_plan_prints_the_same(scene: Scene) -> None:
    assert printed(scene) == printed(scene)


@each_scene
def test_every_workload_is_named(scene: Scene) -> None:
    words = "".join(printed(scene, 400).split())
    for pod in scene.snapshot.pending:
        name = pod.owner.partition("/")[2]
        assert "".join(clean(name).split()) in words


@each_scene
def test_the_sum_comes_last(scene: Scene) -> None:
    plan = scene.plan
    want = f"{len(plan.assignments)} of {len(plan.assignments) + len(plan.pending)} pod"
    assert want in printed(scene, 300).splitlines()[-1]


def test_a_plan_of_nothing_is_one_line() -> None:
    scene = SCENES["an empty fleet"]()
    assert scene.plan == Plan(policy="tessera")
    assert scene.snapshot == Snapshot(nodes=())
    want = "0 of 0 pods placed; 0 of 0 GPUs in use; 0 % of GPU memory allocated; policy tessera"
    assert squeezed(printed(scene)) == want


def test_one_line_for_each_workload_and_share() -> None:
    words = squeezed(printed(SCENES["a Job of 60 on eight GPUs in sevenths"]()))
    assert "A Job default/mig-batch 56 1g.10gb, 9.6 GiB, 14 % hardware gpu-node-1 GPU 0-7" in words
    assert "56 of 60 pods placed, 4 pending; 8 of 8 GPUs in use; 56 MIG instances, 56 to be created" in words


def test_what_waits_has_its_reason_and_names() -> None:
    scene = SCENES["a Job of 60 on eight GPUs in sevenths"]()
    words = squeezed(printed(scene, 300))
    assert f"A Job default/mig-batch 4 {scene.plan.pending[0].reason}" in words
    assert "mig-batch-56, mig-batch-57, mig-batch-58, mig-batch-59" in words


def test_warnings_and_proofs_are_printed() -> None:
    scene = SCENES["a T4 with 14 clients"]()
    assert f"Warning: {scene.warnings[0]}" in squeezed(printed(scene))
    words = squeezed(printed(SCENES["replicas on halves, proved optimal"]()))
    assert "proved optimal: no plan places more than 16" in words


LEFT_OUT = {
    "nothing": ((), "policy tessera"),
    "what runs no pods is counted": (
        (LeftOut(object="Service a", reason="x"),),
        "tessera; 1 object without pods left out",
    ),
    "what names GPUs is named": (
        (LeftOut(object="Service a", reason="x"), LeftOut(object="New b", reason="y", resources=("nvidia.com/gpu",))),
        "tessera; not counted: New b, and 1 object without pods",
    ),
    "many are cut": (
        tuple(LeftOut(object=f"New {index}", reason="y", resources=("nvidia.com/gpu",)) for index in range(8)),
        "tessera; not counted: New 0, New 1, New 2, New 3, New 4, New 5 and 2 more",
    ),
}


@pytest.mark.parametrize(("left_out", "want"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_was_left_out_stands_in_the_last_line(left_out: tuple[LeftOut, ...], want: str) -> None:
    file = io.StringIO()
    Console(file=file, width=300).print(plan_tables(Plan(policy="tessera", left_out=left_out), Snapshot(nodes=())))
    assert file.getvalue().strip().endswith(want)


def test_strips_are_to_scale() -> None:
    text = printed(SCENES["twelve memory slices"](), 160)
    first = next(line for line in text.splitlines() if "rtx-node" in line and "│" in line)
    ends = [n for n, character in enumerate(first) if character == "│"]
    assert ends[2] - ends[1] == pytest.approx(2 * (ends[1] - ends[0]), abs=2)
    assert "A 1g.24gb" in first
    assert "- 1g.24gb unused" in first
    assert "A 2g.48gb render-1" in first


def test_clients_without_room_of_their_own_are_counted_together() -> None:
    """Four clients on a slice of three characters are no row of letters, which would say nothing of how many."""
    narrow = printed(SCENES["a T4 with 14 clients"](), 60)
    assert "A\u00d714 of 14" in narrow
    assert "AA" not in narrow
    assert "\u00d7" not in printed(SCENES["a T4 with 14 clients"](), 160)


@pytest.mark.parametrize("width", [80, 100])
def test_names_of_usual_length_are_not_broken(width: int) -> None:
    text = printed(SCENES["a Job of 60 on eight GPUs in sevenths"](), width)
    assert text.count("default/mig-batch") == 2
    assert "gpu-node-1" in text


def test_running_pods_sit_on_strips_and_are_not_placed_again() -> None:
    words = squeezed(printed(SCENES["memory shares of many sizes"](), 200))
    assert "B 30 GiB chat-llm-0" in words
    assert "StatefulSet default/chat-llm" not in words
    assert "4 already running" in words


PLACES = {
    "a pod on two GPUs": ("memory shares of many sizes", "2 \u00d7 whole GPU, 40 GiB, 14 % hardware a100-node GPU 0-1"),
    "a pod without a GPU": ("memory shares of many sizes", "Deployment default/web 1 no GPU l4-node"),
    "many nodes": ("forty nodes, most alike", "8 more nodes"),
    "nodes alike are one line": ("forty nodes, most alike", "pool-a-000 and 13 like it 0-7 H100-80GB A 1g"),
    "time-sliced instances": ("time-sliced MIG instances", "3g.20gb time-sliced, 4.7 GiB, 14 % none a100 GPU 0"),
}


@pytest.mark.parametrize(("name", "want"), PLACES.values(), ids=PLACES)
def test_what_and_where(name: str, want: str) -> None:
    assert want in squeezed(printed(SCENES[name](), 400))


def test_names_cannot_write_on_the_terminal() -> None:
    text = printed(SCENES["hostile names"](), 300)
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "<script>alert(1)</script>" in text


def test_names_are_no_markup() -> None:
    scene = Scene()
    pod = scene.pod("[red]x", "Job/default/[bold]loud[/bold]")
    scene.wait(pod, "[link=https://example.org]why[/link]")
    scene.warnings = ("[blink]w[/blink]",)
    text = printed(scene, 300)
    assert "[bold]loud[/bold]" in text
    assert "[link=https://example.org]why[/link]" in text
    assert "[blink]w[/blink]" in text


def test_colors_are_those_of_the_drawing() -> None:
    assert "\x1b[38;2;16;32;46;48;2;119;170;221m" in printed(SCENES["a T4 with 14 clients"](), color=True)


def test_letters_run_out_honestly() -> None:
    assert [letter(n) for n in (0, 25, 26, 51, 52, 400)] == ["A", "Z", "a", "z", "#", "#"]


def test_many_reasons_and_warnings_are_counted() -> None:
    scene = Scene()
    for n in range(MOST_REASONS + 3):
        scene.wait(scene.pod(f"pod-{n}", f"Job/default/{n}"), f"reason {n}")
    scene.warnings = tuple(f"warning {n}" for n in range(MOST_REASONS + 1))
    words = squeezed(printed(scene))
    assert "others 3 other reasons; -o json has all" in words
    assert "and 1 more warning" in words


def test_many_nodes_are_counted() -> None:
    scene = Scene()
    for n in range(53):
        pod = scene.pod(f"p-{n}", f"Job/default/{n}")
        scene.whole((scene.node(f"n-{n}", "T4"), 0), Mode.WHOLE, 1, {pod: 15360})
    words = squeezed(printed(scene))
    assert "and 3 more nodes -o json has all" in words
