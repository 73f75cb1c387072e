"""The screen of `tessera inspect --watch`: the last frame, and why there is no newer one."""

import pytest
from rich.console import Console
from rich.text import Text

from builders.kubeobjects import gpu, gpunode, node, pod
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.cli.screen import Screen
from tessera.core.cluster.cluster import Cluster
from tessera.errors import Unavailable


def counted(cluster: Cluster) -> Text:
    return Text(f"{len(cluster.pods)} pods {'x' * 80}")


@pytest.mark.parametrize("kind", ["xterm", "dumb", ""])
def test_a_screen_shows_frames_and_why_there_is_no_newer_one(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, on one that cannot move its cursor, and piped."""
    monkeypatch.setenv("TERM", kind)
    terminal = kind == "xterm"
    console = Console(width=60, height=20, force_terminal=bool(kind), color_system=None)
    cluster = read_cluster(
        as_fields([node("gpu-a"), gpunode("gpu-a", gpu(0)), pod("p", {"nvidia.com/gpu": 1}, node="gpu-a")])
    )
    with console.capture() as capture, Screen(console, counted) as screen:
        screen.show_error(Unavailable("list pods", found="no answer", expected="one"))
        screen.show(cluster)
        screen.show_error(Unavailable("list nodes", found="no answer", expected="one"))
    got = capture.get()
    if not kind:
        assert got == f"{len(cluster.pods)} pods {'x' * 80}\n", "a line that is piped is not broken"
        said = capsys.readouterr().err
        assert said.index("out of date: list pods") < said.index("out of date: list nodes")
        return
    words = (
        *(("waiting for the cluster",) if terminal else ()),
        "out of date: list pods",
        f"{len(cluster.pods)} pods",
        "out of date: list nodes",
    )
    positions = [got.find(each) for each in words]
    assert positions == sorted(positions)
    assert positions[0] >= 0
    if not terminal:
        assert f"{len(cluster.pods)} pods {'x' * 80}\n" in got, "a line that is piped is not broken"


def test_an_error_before_the_first_frame_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(width=60, height=20, force_terminal=True, color_system=None)
    with Screen(console, Text) as screen, console.capture() as capture:
        screen.show_error(Unavailable("list pods", found="no answer"))
    assert ("list pods" in capture.get(), "waiting" in capture.get()) == (True, False)


@pytest.mark.parametrize("height", [1, 5, 20])
def test_the_last_frame_is_cut_to_the_terminal_as_all_are(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(width=40, height=height, force_terminal=True, color_system=None)
    with Screen(console, Text) as screen:
        screen.show("\n".join(f"line {number}" for number in range(100)))
        with console.capture() as capture:
            screen.__exit__()
    last = capture.get()
    assert last.count("line ") == height - 1
    assert ("line 0" in last) == (height > 1)
    assert "…" in last
