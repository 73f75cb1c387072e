"""The description of the chart's values: every value is in it, with words."""

from pathlib import Path
from typing import Any

from generate.valuesreference import schema_of_values, table_of_values, values_file
from tessera.api import documents
from tessera.api.tessera.chart import installation
from tessera.api.tessera.chart.installation import MODULE, read_values

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
