"""`tessera manifests`; that its objects are Helm's is tested in tests/kube/test_chart.py."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tessera.api import documents
from tessera.cli import main
from tessera.cli import manifests as module
from tessera.cli.manifests import chart_folder
from tessera.errors import Unsupported

IMAGE = ("--set", "image.repository=registry.example/tessera")
VERSION = ("--kube-version", "1.36.3")


def printed(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["manifests", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return [each.data for each in documents.read("out", result.stdout) if isinstance(each.data, dict)]


def test_it_prints_what_is_applied_first_first() -> None:
    kinds = [str(each["kind"]) for each in printed(*VERSION, *IMAGE)]
    assert kinds[:3] == ["Namespace", "CustomResourceDefinition", "CustomResourceDefinition"]
    assert max(place for place, kind in enumerate(kinds) if kind == "ServiceAccount") < kinds.index("DaemonSet")


def test_values_come_from_a_file_and_settings_win(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("image: {repository: a, tag: '7'}\ncreateNamespace: false\nserver: {replicas: 3}\n")
    found = printed(*VERSION, "--values", str(file), "--set", "server.replicas=4")
    assert "Namespace" not in {each["kind"] for each in found}
    (replicas,) = (
        each["spec"]["replicas"]
        for each in found
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "tessera-server")
    )
    assert replicas == 4


REFUSED = {
    "no image": (VERSION, "error: the chart: image.repository is not set, and no image is published yet: build one"),
    "no version": (IMAGE, "--kube-version"),
    "no version that is one": (("--kube-version", "1.36", *IMAGE), "is not a version such as 1.36.3"),
    "a version that the chart is not for": (("--kube-version", "1.33.9", *IMAGE), "1.34.0 or later"),
    "no such file": ((*VERSION, "--values", "/no/such/file"), "No such file"),
    "no mapping": ((*VERSION, "--values", "list.yaml"), "a mapping"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rendered_is_reported(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, want = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("[a]")
    result = CliRunner().invoke(main, ["manifests", *arguments])
    assert result.exit_code == 2
    assert want in result.stderr


def test_an_installation_without_the_chart_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    with pytest.raises(Unsupported, match="chart: the distribution has no deploy/chart"):
        chart_folder()
