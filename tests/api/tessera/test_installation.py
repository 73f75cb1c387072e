"""The chart's values: read as Helm reads them, and described."""

from pathlib import Path
from typing import Any

import pytest

from tessera.api import documents
from tessera.api.documents import Plain
from tessera.api.tessera import installation
from tessera.api.tessera.installation import MODULE, read_values, schema_of_values, table_of_values, values_file

SAID = {MODULE: Path(installation.__file__).read_text()}


def test_the_values_file_has_every_default_and_a_comment_for_each() -> None:
    text = values_file(SAID)
    assert read_values(documents.one("values.yaml", text).data) == read_values({})  # type: ignore[arg-type]
    lines = text.splitlines()
    keys = [place for place, line in enumerate(lines) if ":" in line and not line.strip().startswith("#")]
    undescribed = [lines[place] for place in keys if not lines[place - 1].strip().startswith("#")]
    assert undescribed == []
    assert max(map(len, lines)) <= 200


def test_the_schema_describes_every_value_and_refuses_others() -> None:
    schema = schema_of_values(SAID)
    for record in (schema, *schema["definitions"].values()):
        assert record["additionalProperties"] is False
        assert record["required"] == list(record["properties"]), "null, which Helm takes for nothing, is refused"
        assert all("$ref" in each or each["description"] for each in record["properties"].values())


def test_the_table_has_every_value() -> None:
    def leaves(value: Any, known: dict[str, Any]) -> int:
        return sum(leaves(each, known) if isinstance(each, dict) and each else 1 for each in value.values())

    rows = table_of_values(SAID).splitlines()[2:]
    assert len(rows) == len({row.split("|")[1] for row in rows})
    assert all(row.split("|")[3].strip() for row in rows)
    assert any(row.startswith("| `agent.resources` |") for row in rows)


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
