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
        "out of date: list pods",
        "waiting for the cluster",
        f"{len(cluster.pods)} pods",
        "out of date: list nodes",
    )
    positions = [got.find(each) for each in words]
    assert positions == sorted(positions)
    assert positions[0] >= 0
    if not terminal:
        assert f"{len(cluster.pods)} pods {'x' * 80}\n" in got, "a line that is piped is not broken"
