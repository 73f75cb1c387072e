"""The chart's values: read as Helm reads them."""

from typing import Any

import pytest

from tessera.api.documents import Plain
from tessera.api.tessera.chart.installation import read_values

SETTINGS: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "text": ("image.repository=a/b", ("image", "repository"), "a/b"),
    "text with an equals sign": ("server.prometheus=http://a/?b=c", ("server", "prometheus"), "http://a/?b=c"),
    "a truth value": ("agent.gpuLabels=false", ("agent", "gpuLabels"), False),
    "a number": ("server.replicas=3", ("server", "replicas"), 3),
    "one key of a default mapping": (
        "agent.resources.limits.memory=1Gi",
        ("agent", "resources"),
        {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    ),
    "a number in a free mapping": ("gpuPolicy.priority=-5", ("gpuPolicy",), {"priority": -5}),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_is_read(case: str) -> None:
    setting, path, want = SETTINGS[case]
    value: Any = read_values({}, [setting])
    for step in path:
        value = value[step]
    assert value == want


def test_a_setting_wins_over_the_file_and_the_last_over_the_others() -> None:
    given: dict[str, Plain] = {"image": {"repository": "a", "tag": "1"}}
    assert read_values(given, ["image.tag=b", "image.tag=c"])["image"] == {
        "repository": "a",
        "tag": "c",
        "digest": "",
        "pullPolicy": "IfNotPresent",
        "pullSecrets": [],
    }


@pytest.mark.parametrize(
    "name",
    ["tessera", "r.example/a/b", "r.example:5000/tessera", "[::1]:5000/a", "R.example/a_b", "localhost:5000/a--b"],
)
def test_images_have_the_names_that_registries_give_them(name: str) -> None:
    assert read_values({"image": {"repository": name}})["image"]["repository"] == name
