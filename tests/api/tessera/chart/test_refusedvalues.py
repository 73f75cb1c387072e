"""Values of the chart that are refused, in words that an administrator understands."""

import pytest

from tessera.api.documents import Plain
from tessera.api.tessera.chart.installation import read_values
from tessera.errors import InvalidInput

NONE = "the chart has no such value"


NAME = "a registry and a name, as registry.example/tessera; tag and digest are values of their own"


REFUSED: dict[str, tuple[dict[str, Plain], tuple[str, ...], str]] = {
    "an unknown value": (
        {"agent": {"gpuLabel": True}},
        (),
        f"values: agent.gpuLabel: {NONE}: did you mean agent.gpuLabels?",
    ),
    "an unknown value that is like no other": (
        {"zzz": 1},
        (),
        f"values: zzz: {NONE}: see deploy/chart/values.yaml",
    ),
    "another type": ({"server": {"replicas": "2"}}, (), "values: server.replicas: '2' is not a whole number"),
    "a number out of bounds": (
        {},
        ("server.replicas=-1",),
        "values: server.replicas: '-1' is not a whole number >= 0",
    ),
    "a number where text is": (
        {"agent": {"nodeSelector": {"pool": 1}}},
        (),
        "values: agent.nodeSelector[...]: a whole number is not text: write the value in quotes",
    ),
    "a word that is none": (
        {"nvidia": {"operator": "with"}},
        (),
        "values: nvidia.operator: 'with' is not one of beside, instead, none",
    ),
    "a folder that is relative": (
        {},
        ("agent.modelFolder=models",),
        "values: agent.modelFolder: 'models' is not an absolute path",
    ),
    "an image with its tag": (
        {},
        ("image.repository=registry.example/tessera:1",),
        f"values: image.repository: 'registry.example/tessera:1' is not {NAME}",
    ),
    "a tag that is none": ({}, ("image.tag=a b",), "values: image.tag: 'a b' is not a tag, as 0.1.0"),
    "nothing in place of a part": ({"agent": None}, (), "values: agent: 'None' is not a mapping"),
    "a setting without a value": (
        {},
        ("image.tag",),
        "--set: 'image.tag' is not KEY=VALUE: give --set agent.gpuLabels=false",
    ),
    "Helm's lists": (
        {},
        ("agent.args[0]=a",),
        "--set: 'agent.args[0]=a' is not KEY=VALUE: give --set agent.gpuLabels=false",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_values_are_refused(case: str) -> None:
    given, settings, want = REFUSED[case]
    with pytest.raises(InvalidInput) as refused:
        read_values(given, settings)
    assert str(refused.value) == want
